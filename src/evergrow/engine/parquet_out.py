"""Write results of shards as Parquet files: features and predictions.

The same input gives the same bytes with the same version of pyarrow. A folder of such
files is one data set for pandas, DuckDB, Spark or :func:`evergrow.data.read`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.archive import parse_json
from evergrow.core.errors import FileFormatError
from evergrow.core.files import atomic_path
from evergrow.core.record import from_values, to_values
from evergrow.data.parquet import WIDTHS
from evergrow.engine.job import ShardReport
from evergrow.learner.predictions import Predictions

_REPORT = b"evergrow.report"
"""Key of the shard's report in the metadata of a file."""

_GROUP_BYTES = 64 * 2**20
"""Bytes of features per row group. Readers can load one group without the others."""

_PREDICTION_GROUP_ROWS = 2**16
"""Rows per row group of predictions."""


def write_features(
    path: Path,
    *,
    names: Sequence[str],
    features: NDArray[Any],
    labels: NDArray[np.str_] | None = None,
    widths: Sequence[int] = (),
    report: ShardReport | None = None,
) -> None:
    """Write feature vectors with names and labels, atomically.

    Parameters
    ----------
    path : Path
        The file.
    names : sequence of str
        Names of the samples.
    features : ndarray of shape (n, d)
        Feature vectors, written as float32.
    labels : ndarray of str of shape (n,), optional
        Classes.
    widths : sequence of int
        Number of columns of each feature block, stored in the file.
    report : ShardReport, optional
        Report to store in the file, for :func:`read_report`.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from evergrow.engine.parquet_out import write_features
    >>> from evergrow.data import read
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     X = np.eye(3, dtype=np.float32)
    ...     file = Path(folder, "0.parquet")
    ...     write_features(file, names=["a", "b", "c"], features=X)
    ...     source = read(folder)
    ...     shards = source.shards(rows=2, size=1 << 20)
    ...     [(source.kind, source.read(shard).names()) for shard in shards]
    [('features', ['a', 'b']), ('features', ['c'])]
    """
    import pyarrow as arrow

    values = np.ascontiguousarray(features, dtype=np.float32)
    columns = {"name": _texts(names)}
    if labels is not None:
        columns["label"] = _texts(labels.tolist())
    columns["feature"] = arrow.FixedSizeListArray.from_arrays(
        arrow.array(values.reshape(-1)), values.shape[1]
    )
    # Features hardly compress. Uncompressed, a range can be read without the rest.
    compression = {"name": "zstd", "label": "zstd", "feature.list.element": "none"}
    metadata: dict[Any, str] = {}
    if len(widths) > 1:
        metadata[WIDTHS] = json.dumps(list(widths))
    group_rows = max(_GROUP_BYTES // (4 * values.shape[1]), 1)
    _write(path, columns, group_rows, compression, report, metadata)


def write_predictions(
    path: Path,
    *,
    names: Sequence[str],
    predictions: Predictions,
    labels: NDArray[np.str_] | None = None,
    top: int = 1,
    unsure: NDArray[np.bool_] | None = None,
    report: ShardReport | None = None,
) -> None:
    """Write predictions, atomically.

    Columns: ``name``, ``label`` (the prediction; null if unknown), ``probability`` or
    ``score``, and ``true_label`` if known. If novelty was requested: ``nearest`` (the
    most likely class, also of unknown samples), ``unknown``, ``novelty`` and
    ``threshold``. If given: ``unsure``. If several classes were requested: ``top``, the
    most likely classes with their values.

    Parameters
    ----------
    path : Path
        The file.
    names : sequence of str
        Names of all samples; ``predictions.rows`` lists the predicted ones.
    predictions : Predictions
        The predictions.
    labels : ndarray of str, optional
        True classes of all samples.
    top : int, default=1
        Number of classes to write per sample.
    unsure : ndarray of bool of shape (n,), optional
        Which predictions are unsure, from
        :func:`~evergrow.tools.strictness.unsure_predictions`.
    report : ShardReport, optional
        Report to store in the file, for :func:`read_report`.
    """
    import pyarrow as arrow

    def classes(indices: NDArray[np.int64]) -> list[str]:
        """Return the class names at column numbers."""
        return escape_non_utf8(predictions.classes[indices].tolist())

    ranked = predictions.ranked(top)
    values = np.take_along_axis(predictions.values, ranked, axis=1)
    if predictions.unknown is None:
        unknown = np.zeros(len(ranked), dtype=bool)
    else:
        unknown = predictions.unknown
    columns = {
        "name": _texts([names[row] for row in predictions.rows]),
        "label": arrow.array(classes(ranked[:, 0]), arrow.string(), mask=unknown),
        predictions.measure: arrow.array(values[:, 0], arrow.float64(), mask=unknown),
    }
    if predictions.unknown is not None:
        columns["nearest"] = arrow.array(classes(ranked[:, 0]), arrow.string())
    for column in ("unknown", "novelty", "threshold"):
        if getattr(predictions, column) is not None:
            columns[column] = arrow.array(getattr(predictions, column))
    if unsure is not None:
        columns["unsure"] = arrow.array(unsure)
    if top > 1:
        pairs = [
            arrow.array(classes(ranked.reshape(-1)), arrow.string()),
            arrow.array(values.reshape(-1)),
        ]
        ends = np.arange(len(ranked) + 1, dtype=np.int32) * ranked.shape[1]
        columns["top"] = arrow.ListArray.from_arrays(
            ends, arrow.StructArray.from_arrays(pairs, ["label", predictions.measure])
        )
    if labels is not None:
        columns["true_label"] = _texts(labels[predictions.rows].tolist())
    _write(path, columns, _PREDICTION_GROUP_ROWS, "zstd", report, {})


def _texts(texts: Sequence[str]) -> Any:
    """Return an Arrow array of strings."""
    import pyarrow as arrow

    return arrow.array(escape_non_utf8(texts), arrow.string())


def escape_non_utf8(texts: Sequence[str]) -> list[str]:
    """Return texts that Parquet can store: bytes that are not UTF-8 are escaped."""
    return [text.encode("utf-8", "backslashreplace").decode() for text in texts]


def _write(
    path: Path,
    columns: dict[str, Any],
    group_rows: int,
    compression: Any,
    report: ShardReport | None,
    metadata: dict[Any, str],
) -> None:
    """Write a Parquet file atomically, with page checksums.

    Parameters
    ----------
    path : Path
        The file.
    columns : dict
        Arrow arrays by column name.
    group_rows : int
        Rows per row group.
    compression : str or dict of str to str
        Compression of all columns, or of each.
    report : ShardReport or None
        Report to store in the metadata.
    metadata : dict
        Further metadata.
    """
    import pyarrow as arrow
    from pyarrow import parquet

    if report is not None:
        metadata = {**metadata, _REPORT: json.dumps(to_values(report))}
    with atomic_path(path) as temporary:
        parquet.write_table(
            arrow.table(columns, metadata=metadata or None),
            temporary,
            row_group_size=group_rows,
            compression=compression,
            use_dictionary=[
                name for name in ("label", "nearest", "true_label") if name in columns
            ],
            write_page_checksum=True,
        )


def read_parquet(path: Path) -> Any:
    """Return the table in a Parquet file.

    Raises
    ------
    FileFormatError
        If the file is damaged.
    FileNotFoundError
        If there is no file.
    """
    from pyarrow import ArrowException, parquet

    try:
        return parquet.read_table(path, page_checksum_verification=True)
    except FileNotFoundError:
        raise
    except (ArrowException, OSError) as error:
        raise FileFormatError(f"{path} is damaged: {error}") from error


def read_report(path: Path) -> ShardReport:
    """Return the report stored in a result file.

    Raises
    ------
    FileFormatError
        If the file is damaged or has no valid report.
    """
    report = (read_parquet(path).schema.metadata or {}).get(_REPORT)
    if report is None:
        raise FileFormatError(f"{path} has no shard report")
    return from_values(
        ShardReport, parse_json(report, str(path)), f"the report in {path}"
    )
