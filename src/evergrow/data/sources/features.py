"""Feature vectors, or images as pixels, in NPZ and safetensors files: rows are read by ranges."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import FileFormatError
from evergrow.core.feature_blocks import join_blocks
from evergrow.core.items import ImageArrays
from evergrow.data.array_files import STAMP, stated_widths
from evergrow.data.labelled import listed
from evergrow.data.places import Place
from evergrow.data.shard import Shard, ShardData
from evergrow.data.sources.arrays import ArrayIndex, StoredArray, index_arrays, read_rows
from evergrow.data.sources.base import (
    SOURCES,
    FileSource,
    SampleKind,
    SourceOptions,
    as_features,
    class_names,
    where_of,
)

_KEYS = {
    "train": (("X_train", "y_train"), ("X", "y"), ("features", "labels")),
    "test": (("X_test", "y_test"), ("X", "y"), ("features", "labels"), ("X_train", "y_train")),
}


@SOURCES.register("arrays")
class ArraySource(FileSource):
    """Rows of the arrays ``X_train`` and ``y_train`` (or ``X`` and ``y``) of one file or many.

    Labels are integers or strings; ``classes`` names integers. Rows of bytes with two or three dimensions are images.
    """

    format = "arrays"
    suffixes = (".npz", ".safetensors")

    def __init__(self, place: Place, pattern: str, options: SourceOptions, kind: str = "") -> None:
        super().__init__(place, pattern, options, kind)
        self._index = lru_cache(maxsize=256)(self._read_index)

    def _read_index(self, name: str) -> ArrayIndex:
        # A worker reads one file of perhaps thousands: it asks for the size of that one instead of a listing.
        size = self.files[name] if "files" in self.__dict__ else self.place.size(name)
        return index_arrays(self.place, name, size)

    def _look_for_kind(self) -> SampleKind:
        name = next(iter(self.files))
        return "image" if _is_pixels(self._index(name).arrays[self._keys(name)[0][0]]) else "features"

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns of each block of features, as the first file states them; none where rows are one block."""
        name = next(iter(self.files))
        index = self._index(name)
        if self.kind != "features" or STAMP not in index.texts:
            return ()
        return stated_widths(index.texts[STAMP], np.empty((0, index.arrays[self._keys(name)[0][0]].shape[1])))

    def _keys(self, name: str) -> list[tuple[str, str]]:
        """Return the arrays of samples and of labels that the part is in; a label array may be empty or missing."""
        arrays = self._index(name).arrays
        wanted = ("train", "test") if self.options.part == "all" else (self.options.part,)
        chosen: list[tuple[str, str]] = []
        for part in wanted:
            there = [pair for pair in _KEYS[part] if pair[0] in arrays and 0 not in arrays[pair[0]].shape[:1]]
            chosen += [pair for pair in there[:1] if pair not in chosen]
        if not chosen:
            raise FileFormatError(
                f"{self.place.title(name)} must hold an array X_train, X or features, got {listed(arrays, most=8)}"
            )
        for x, y in chosen:
            _check_arrays(self.place.title(name), x, arrays[x], y, arrays.get(y))
        return chosen

    def _parts(self, rows: int, size: int) -> Iterator[Shard]:
        first: tuple[str, StoredArray, bool] | None = None
        for name in self.files:
            for x, y in self._keys(name):
                array, labelled = self._index(name).arrays[x], y in self._index(name).arrays
                first = first or (name, array, labelled)
                self._check_alike(first, name, array, labelled)
                step = max(min(rows, size // max(array.row_bytes, 1)), 1)
                for start in range(0, array.shape[0], step):
                    stop = min(start + step, array.shape[0])
                    where = {"file": name, "array": x, "labels": y, "start": start, "stop": stop}
                    yield Shard(0, stop - start, (stop - start) * array.row_bytes, where)

    def _check_alike(self, first: tuple[str, StoredArray, bool], name: str, array: StoredArray, labelled: bool) -> None:
        other, known, had_labels = first
        if array.shape[1:] != known.shape[1:] or _is_pixels(array) != _is_pixels(known):
            wide, was = ("x".join(map(str, part.shape[1:])) for part in (array, known))
            raise FileFormatError(
                f"{self.place.title()}: feature files must have one width, got {was} in {other} and {wide} in {name}"
            )
        if labelled != had_labels and self.options.labelled:
            lacking = name if had_labels else other
            raise FileFormatError(f"{self.place.title(lacking)} must have labels like the files beside it, got none")

    def read(self, shard: Shard) -> ShardData:
        """Return the rows of a shard."""
        where = where_of(shard)
        name, key, start, stop = where.text("file"), where.text("array"), where.integer("start"), where.integer("stop")
        index = self._index(name)
        title = self.place.title(name)
        if key not in index.arrays or stop > index.arrays[key].shape[0] or stop - start != shard.rows:
            raise FileFormatError(f"{title} must hold {stop} rows of {key}, as when the shards were made")
        array = index.arrays[key]
        values = read_rows(self.place, name, key, array, start, stop)
        names = tuple(f"{name}[{row}]" for row in range(start, stop))
        labels = self._labels(name, where.text("labels"), start, stop)
        if _is_pixels(array):
            return ShardData(names, items=ImageArrays(np.ascontiguousarray(values)), labels=labels)
        features = as_features(values, title, start)
        widths = stated_widths(index.texts[STAMP], features) if STAMP in index.texts else ()
        return ShardData(names, features=join_blocks(features, widths), labels=labels)

    def _labels(self, name: str, key: str, start: int, stop: int) -> NDArray[np.str_] | None:
        index = self._index(name)
        if not self.options.labelled or key not in index.arrays:
            return None
        values = read_rows(self.place, name, key, index.arrays[key], start, stop).tolist()
        title = self.place.title(name)
        return class_names(values, index.class_names(title), title)


def _is_pixels(array: StoredArray) -> bool:
    return array.dtype == np.uint8 and not array.halved and len(array.shape) in (3, 4)


def _check_arrays(title: str, x: str, samples: StoredArray, y: str, labels: StoredArray | None) -> None:
    vectors = len(samples.shape) == 2 and samples.shape[1] > 0 and (samples.is_float or samples.dtype.kind in "iu")
    if not vectors and not _is_pixels(samples):
        raise FileFormatError(
            f"{title}: {x} must be feature vectors of shape (n, d) or images in bytes, got {samples.dtype} of shape "
            f"{samples.shape}"
        )
    if labels is not None and (labels.shape != samples.shape[:1] or labels.dtype.kind not in "biuU"):
        raise FileFormatError(
            f"{title}: {y} must hold {samples.shape[0]} integers or strings, got {labels.dtype} of shape {labels.shape}"
        )
