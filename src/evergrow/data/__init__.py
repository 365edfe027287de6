"""Readers of data as it lies on disk: folders, lists, tables, archives.

Every reader registers itself (see :mod:`evergrow.data.readers`); importing it here makes it known.
"""

from evergrow.core.errors import DatasetNotFoundError
from evergrow.data import (  # noqa: F401
    annotations,
    archives,
    arrays,
    folders,
    hub,
    imagefolder,
    lists,
    parquet,
    tables,
)
from evergrow.data.features import (
    FeatureSet,
    available_features,
    find_features,
    load_features,
    save_features,
    search_path,
)
from evergrow.data.inspection import DataReport, inspect_data
from evergrow.data.load import load_data
from evergrow.data.options import DataOptions
from evergrow.data.rawset import RawSet
from evergrow.data.readers import list_layouts, register_file_format, register_layout, register_scheme

__all__ = [
    "DataOptions",
    "DataReport",
    "DatasetNotFoundError",
    "FeatureSet",
    "RawSet",
    "available_features",
    "find_features",
    "inspect_data",
    "list_layouts",
    "load_data",
    "load_features",
    "register_file_format",
    "register_layout",
    "register_scheme",
    "save_features",
    "search_path",
]
