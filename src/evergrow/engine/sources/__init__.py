"""Data sets that are read by parts, on disk or in a bucket: folders, tables, tar shards, Parquet, Arrow, features."""

from evergrow.engine.sources.arrow import ArrowSource
from evergrow.engine.sources.base import SOURCES, FileSource, SourceOptions, source_from
from evergrow.engine.sources.features import ArraySource
from evergrow.engine.sources.folders import FolderSource, TableSource
from evergrow.engine.sources.opening import open_source
from evergrow.engine.sources.parquet import ParquetSource
from evergrow.engine.sources.webdataset import WebDatasetSource

__all__ = [
    "SOURCES",
    "ArraySource",
    "ArrowSource",
    "FileSource",
    "FolderSource",
    "ParquetSource",
    "SourceOptions",
    "TableSource",
    "WebDatasetSource",
    "open_source",
    "source_from",
]
