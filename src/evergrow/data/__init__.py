"""Samples out of folders, tables, archives, feature files, buckets and memory.

Every reader registers itself (see :mod:`evergrow.data.readers`); importing it here
makes it known.
"""

from evergrow.core.errors import DatasetNotFoundError
from evergrow.data import (  # noqa: F401
    folders,
    parquet,
    sorted_folders,
    tables,
    webdataset,
)
from evergrow.data.arrays import save_features
from evergrow.data.inputs import read, search_path
from evergrow.data.items import Dataset, Samples
from evergrow.data.load import DataReport, inspect_data, load_data, load_features
from evergrow.data.readers import DataOptions, list_readers, register_reader
from evergrow.data.shards import Shard, Source, source_from

__all__ = [
    "DataOptions",
    "DataReport",
    "Dataset",
    "DatasetNotFoundError",
    "Samples",
    "Shard",
    "Source",
    "inspect_data",
    "list_readers",
    "load_data",
    "load_features",
    "read",
    "register_reader",
    "save_features",
    "search_path",
    "source_from",
]
