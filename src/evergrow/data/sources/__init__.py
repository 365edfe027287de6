"""Data sets that are read by parts, on disk or in a bucket: folders, tables, tar shards, Parquet, Arrow, features."""

from evergrow.data.sources.arrow import ArrowSource
from evergrow.data.sources.base import SOURCES, FileSource, SourceOptions, source_from
from evergrow.data.sources.features import ArraySource
from evergrow.data.sources.folders import FolderSource, TableSource
from evergrow.data.sources.opening import open_source
from evergrow.data.sources.parquet import ParquetSource
from evergrow.data.sources.webdataset import WebDatasetSource

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
