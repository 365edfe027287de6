"""Results of shards as Parquet files, each written in one step: features, and answers about samples.

The same input gives the same bytes (with the same version of pyarrow), so that a shard
that is done twice leaves what was there. A folder of such files is one data set for
pandas, DuckDB, Spark or :func:`evergrow.data.read`.
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
from evergrow.learner.answers import Answers

_REPORT = b"evergrow.report"
_GROUP = 64 * 2**20
"""Bytes of features in a row group, so that a part of a file can be read without the rest."""


def write_features(
    path: Path,
    *,
    names: Sequence[str],
    features: NDArray[Any],
    labels: NDArray[np.str_] | None = None,
    widths: Sequence[int] = (),
    report: ShardReport | None = None,
) -> None:
    """Write feature vectors with their names and labels, in one step.

    Parameters
    ----------
    path : Path
        The file.
    names : sequence of str
        Name of every sample.
    features : ndarray of shape (n, d)
        Their vectors, written as float32.
    labels : ndarray of str of shape (n,), optional
        Their classes.
    widths : sequence of int
        Columns of each block that the vectors were joined of, which the file then
        states.
    report : ShardReport, optional
        What to say of the file, for :func:`read_report`.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from evergrow.engine.parquet_out import write_features
    >>> from evergrow.data import read
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     X = np.eye(3, dtype=np.float32)
    ...     write_features(Path(folder, "0.parquet"), names=["a", "b", "c"], features=X)
    ...     source = read(folder)
    ...     [(source.kind, source.read(shard).names()) for shard in source.shards(rows=2, size=1 << 20)]
    [('features', ['a', 'b']), ('features', ['c'])]
    """
    import pyarrow as arrow

    values = np.ascontiguousarray(features, dtype=np.float32)
    columns = {"name": _texts(names)} | (
        {} if labels is None else {"label": _texts(labels.tolist())}
    )
    columns["feature"] = arrow.FixedSizeListArray.from_arrays(
        arrow.array(values.reshape(-1)), values.shape[1]
    )
    # Features hardly compress; stored plainly a range of them costs no more than its
    # bytes.
    packing = {"name": "zstd", "label": "zstd", "feature.list.element": "none"}
    stated: dict[Any, str]
    if len(widths) > 1:
        stated = {WIDTHS: json.dumps(list(widths))}
    else:
        stated = {}
    _write(
        path, columns, max(_GROUP // (4 * values.shape[1]), 1), packing, report, stated
    )


def write_answers(
    path: Path,
    *,
    names: Sequence[str],
    answers: Answers,
    labels: NDArray[np.str_] | None = None,
    top: int = 1,
    report: ShardReport | None = None,
) -> None:
    """Write answers about samples, in one step.

    Columns: ``name``; ``label`` (null if the sample is unknown); ``probability`` or
    ``score``; if novelty was asked for ``nearest`` (the likeliest class of every
    sample), ``unknown``, ``novelty`` and ``threshold``; if more than one class was
    asked for ``top`` (the likeliest classes with their numbers); and ``true_label``
    if it is known.

    Parameters
    ----------
    path : Path
        The file.
    names : sequence of str
        Name of every sample that was asked about; ``answers.rows`` says which of them
        were answered.
    answers : Answers
        What a learner said.
    labels : ndarray of str, optional
        The classes that samples have, by the same rows as names.
    top : int
        How many classes to write of each.
    report : ShardReport, optional
        What to say of the file, for :func:`read_report`.
    """
    import pyarrow as arrow

    def classes(places: NDArray[np.int64]) -> list[str]:
        return escaped(answers.classes[places].tolist())

    ranked = answers.ranked(max(top, 1))
    values = np.take_along_axis(answers.values, ranked, axis=1)
    if answers.unknown is None:
        unknown = np.zeros(len(ranked), dtype=bool)
    else:
        unknown = answers.unknown
    columns = {
        "name": _texts([names[row] for row in answers.rows]),
        "label": arrow.array(classes(ranked[:, 0]), arrow.string(), mask=unknown),
        answers.measure: arrow.array(values[:, 0], arrow.float64(), mask=unknown),
    }
    if answers.unknown is not None:
        columns["nearest"] = arrow.array(classes(ranked[:, 0]), arrow.string())
    for column in ("unknown", "novelty", "threshold"):
        if getattr(answers, column) is not None:
            columns[column] = arrow.array(getattr(answers, column))
    if top > 1:  # the likeliest classes of every row, as a list of label and number
        pairs = [
            arrow.array(classes(ranked.reshape(-1)), arrow.string()),
            arrow.array(values.reshape(-1)),
        ]
        ends = np.arange(len(ranked) + 1, dtype=np.int32) * ranked.shape[1]
        columns["top"] = arrow.ListArray.from_arrays(
            ends, arrow.StructArray.from_arrays(pairs, ["label", answers.measure])
        )
    if labels is not None:
        columns["true_label"] = _texts(labels[answers.rows].tolist())
    _write(path, columns, 1 << 16, "zstd", report, {})


def _texts(texts: Sequence[str]) -> Any:
    import pyarrow as arrow

    return arrow.array(escaped(texts), arrow.string())


def escaped(texts: Sequence[str]) -> list[str]:
    """Return texts that Parquet can hold: bytes of file names that are no UTF-8 become escapes."""
    return [text.encode("utf-8", "backslashreplace").decode() for text in texts]


def _write(
    path: Path,
    columns: dict[str, Any],
    rows: int,
    packing: Any,
    report: ShardReport | None,
    stated: dict[Any, str],
) -> None:
    import pyarrow as arrow
    from pyarrow import parquet

    metadata = stated | (
        {} if report is None else {_REPORT: json.dumps(to_values(report))}
    )
    with atomic_path(path) as temporary:
        parquet.write_table(
            arrow.table(columns, metadata=metadata or None),
            temporary,
            row_group_size=rows,
            compression=packing,
            use_dictionary=[
                name for name in ("label", "nearest", "true_label") if name in columns
            ],
            write_page_checksum=True,
        )


def read_table(path: Path) -> Any:
    """Return the table in a file.

    Raises
    ------
    FileFormatError
        If it is not whole.
    """
    from pyarrow import ArrowException, parquet

    try:
        return parquet.read_table(path, page_checksum_verification=True)
    except FileNotFoundError:
        raise
    except (ArrowException, OSError) as error:
        raise FileFormatError(f"{path} is damaged: {error}") from error


def read_report(path: Path) -> ShardReport:
    """Return what was reported of a file when it was written, checked.

    Raises
    ------
    FileFormatError
        If it is not whole, or has no report.
    """
    report = (read_table(path).schema.metadata or {}).get(_REPORT)
    if report is None:
        raise FileFormatError(f"{path} has no report of what was left out")
    return from_values(
        ShardReport, parse_json(report, str(path)), f"the report in {path}"
    )
