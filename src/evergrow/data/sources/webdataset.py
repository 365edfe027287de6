"""WebDataset tar shards as sources: a tar is indexed by its headers, and a shard is a range of its bytes.

A sample is the files of one name up to its first dot, side by side: ``0001.jpg`` and ``0001.cls``. Names are only
names: nothing is ever unpacked to disk.
"""

from __future__ import annotations

import io
import os
import posixpath
import tarfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from evergrow.core.documents import parse_json
from evergrow.core.errors import EvergrowError, FileFormatError, InputError
from evergrow.core.escaping import one_line, printable
from evergrow.core.image_formats import is_image
from evergrow.data.archives import name_inside
from evergrow.data.fetched import HeldImages
from evergrow.data.folders import is_hidden
from evergrow.data.labelled import listed
from evergrow.data.places import DiskPlace
from evergrow.data.shard import Shard, ShardData
from evergrow.data.sources.base import LARGEST_IMAGE, SOURCES, FileSource, SampleKind, class_names, where_of
from evergrow.data.sources.spans import spans

LABEL_SUFFIXES = ("cls", "json", "txt")
"""Endings of files that hold labels, in the order in which they are looked for."""

LARGEST_LABEL = 2**20
MOST_MEMBERS = 10_000_000
"""Files that one tar may hold."""

_WINDOW = 16384
_AT_ONCE = 8
_PACKED = {b"\x1f\x8b": "gzip", b"BZ": "bzip2", b"\xfd7": "xz", b"(\xb5": "zstandard"}


@dataclass(frozen=True)
class TarMember:
    """A file in a tar.

    Parameters
    ----------
    name : str
        Its name.
    start, stop : int
        Where its header begins, and where the next one does.
    data, size : int
        Where its bytes begin, and how many they are.
    """

    name: str
    start: int
    stop: int
    data: int
    size: int


@dataclass
class TarSample:
    """Files of one name up to the first dot.

    Parameters
    ----------
    key : str
        That name.
    files : dict of str to TarMember
        The files, by what comes after the dot, in lower case.
    """

    key: str
    files: dict[str, TarMember] = field(default_factory=dict)

    @property
    def start(self) -> int:
        """Where its first header begins."""
        return min(member.start for member in self.files.values())

    @property
    def stop(self) -> int:
        """Where the next sample begins, at the earliest."""
        return max(member.stop for member in self.files.values())

    def image(self, title: str) -> TarMember:
        """Return the image: the only one, or the one whose ending has no further dot."""
        images = [suffix for suffix in self.files if is_image(f"x.{suffix}")]
        plain = [suffix for suffix in images if "." not in suffix] or images
        if not plain:
            raise FileFormatError(
                f"{title}: sample {printable(self.key)} must have an image, got {listed(self.files)}; files of one "
                "sample must lie side by side"
            )
        return self.files[plain[0]]


def tar_members(file: IO[bytes], title: str, size: int, *, whole: bool) -> Iterator[TarMember]:
    """Yield the files of a tar by its headers.

    Parameters
    ----------
    file : file object
        The tar, or a range of it that begins with a header.
    title : str
        The tar, for messages.
    size : int
        Bytes of it.
    whole : bool
        Whether it must end as a tar does.

    Raises
    ------
    FileFormatError
        If it is cut off or packed, holds links, names that lead out of it, or files too large for images.
    """
    try:
        magic = file.read(2)
        file.seek(0)
        if magic in _PACKED:
            raise FileFormatError(
                f"{title} must be a plain tar to be read by ranges, got one packed by {_PACKED[magic]}"
            )
        with tarfile.open(fileobj=file, mode="r:") as archive:
            count = 0
            # The offset is 0 where there is no member, and then Python 3.10 fails to look for the next one.
            while archive.offset and (info := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined]  # tarfile keeps them all: a gigabyte for a million
                count += 1
                _check_member(title, info, count, size)
                if info.isreg() and not is_hidden(posixpath.basename(info.name)):
                    name = name_inside(title, info.name)
                    yield TarMember(name, info.offset, archive.offset, info.offset_data, info.size)
            _check_end(file, title, archive.offset, whole=whole)
    except EvergrowError:
        raise
    except (tarfile.TarError, OSError, EOFError, ValueError, OverflowError, IndexError) as error:
        raise FileFormatError(f"{title} must be a whole tar: {one_line(str(error))}") from error


def _check_member(title: str, info: tarfile.TarInfo, count: int, size: int) -> None:
    name = printable(info.name)
    if not info.isreg() and not info.isdir():
        kind = "a link" if info.issym() or info.islnk() else "a special file"
        raise FileFormatError(f"{title} must hold plain files only, got {kind}: {name}")
    if info.issparse() or info.size < 0 or info.offset_data + info.size > size:
        raise FileFormatError(f"{title} must be a whole tar, but {name} goes beyond the end of it")
    if info.size > LARGEST_IMAGE:
        raise FileFormatError(
            f"{title} must hold files of at most {LARGEST_IMAGE // 2**20} MiB, got {name} of {info.size // 2**20} MiB"
        )
    if count > MOST_MEMBERS:
        raise FileFormatError(f"{title} must hold at most {MOST_MEMBERS:,} files, got more")


def _check_end(file: IO[bytes], title: str, offset: int, *, whole: bool) -> None:
    """Refuse a tar that is damaged in its middle, which tarfile takes for its end, or that is cut off there."""
    file.seek(offset)
    block = file.read(512)
    if block.strip(b"\0") or (whole and len(block) < 512):
        what = "what comes is no header" if block else "it is cut off"
        raise FileFormatError(f"{title} must be a whole tar, but at byte {offset} {what}")


def grouped(members: Iterable[TarMember], title: str) -> Iterator[TarSample]:
    """Yield samples from the files of a tar, in their order.

    Raises
    ------
    FileFormatError
        If a sample has two files of one ending.

    Examples
    --------
    >>> from evergrow.data.sources.webdataset import TarMember, grouped
    >>> members = [TarMember(name, 0, 512, 512, 0) for name in ("a/1.jpg", "a/1.cls", "a/2.seg.png")]
    >>> [(sample.key, list(sample.files)) for sample in grouped(members, "toy.tar")]
    [('a/1', ['jpg', 'cls']), ('a/2', ['seg.png'])]
    """
    sample = TarSample("")
    for member in members:
        folder, name = posixpath.split(member.name)
        stem, _, suffix = name.partition(".")
        if not suffix:  # of no kind that could be told, as WebDataset has it
            continue
        key = posixpath.join(folder, stem)
        if key != sample.key and sample.files:
            yield sample
        if key != sample.key or not sample.files:
            sample = TarSample(key)
        if suffix.lower() in sample.files:
            raise FileFormatError(
                f"{title}: sample {printable(key)} must have one file of an ending, got two .{printable(suffix)}"
            )
        sample.files[suffix.lower()] = member
    if sample.files:
        yield sample


@dataclass(frozen=True)
class _TarIndex:
    """Bytes of every sample of a tar, and the ending of its labels; empty where there are none."""

    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    label: str


@SOURCES.register("webdataset")
class WebDatasetSource(FileSource):
    """Images and labels in plain tar files, as the WebDataset library reads them.

    The label of a sample is the text of its ``.cls`` file, else the field ``label`` of its ``.json`` (another one by
    ``label_column``), else the text of its ``.txt``.
    """

    format = "webdataset"
    suffixes = (".tar",)

    def _look_for_kind(self) -> SampleKind:
        return "image"

    def _parts(self, rows: int, size: int) -> Iterator[Shard]:
        first: tuple[str, str] | None = None
        for name, index in self._indexed():
            first = first or (name, index.label)
            if index.label != first[1]:
                raise FileFormatError(
                    f"{self.place.title()}: tars must have labels alike, got .{first[1]} in {first[0]} and "
                    f".{index.label} in {name}"
                )
            for start, stop, weight in spans((index.stops - index.starts).tolist(), rows, size):
                where = {"file": name, "start": int(index.starts[start]), "stop": int(index.stops[stop - 1])}
                yield Shard(0, stop - start, weight, {**where, "label": index.label})

    def _indexed(self) -> Iterator[tuple[str, _TarIndex]]:
        """Yield the tars in order with their indices; of a storage, several are asked at once since each is slow."""
        if isinstance(self.place, DiskPlace):
            yield from ((name, self._index(name)) for name in self.files)
            return
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            yield from zip(self.files, pool.map(self._index, self.files), strict=True)

    def _index(self, name: str) -> _TarIndex:
        size, title = self.files[name], self.place.title(name)
        file = cast(IO[bytes], self.place.open(name, size, window=_WINDOW))
        samples = grouped(tar_members(file, title, size, whole=True), title)
        starts, stops, label = [], [], None
        for sample in samples:
            sample.image(title)
            label = self._label_suffix(sample) if label is None else label
            self._check_label(sample, label, title)
            starts.append(sample.start)
            stops.append(sample.stop)
        if not starts:
            raise InputError(f"{title} must hold at least one sample, got none")
        return _TarIndex(np.array(starts, np.int64), np.array(stops, np.int64), label or "")

    def _label_suffix(self, sample: TarSample) -> str:
        wanted = self.options.label_suffix.lower().lstrip(".")
        if wanted or not self.options.labelled:
            return wanted if self.options.labelled else ""
        return next((suffix for suffix in LABEL_SUFFIXES if suffix in sample.files), "")

    def _check_label(self, sample: TarSample, label: str, title: str) -> None:
        if label and label not in sample.files:
            raise InputError(
                f"{title}: sample {printable(sample.key)} must have a label in .{label}, got {listed(sample.files)}"
            )
        if not label and self.options.labelled and self._label_suffix(sample):
            raise InputError(
                f"{title}: samples must all have labels or none, but those before {printable(sample.key)} lack it"
            )

    def read(self, shard: Shard) -> ShardData:
        """Return the samples of a range of bytes, read at once."""
        where = where_of(shard)
        name, label = where.text("file"), where.text("label")
        start, stop = where.integer("start"), where.integer("stop")
        title = self.place.title(name)
        body = self.place.read(name, start, stop)
        if len(body) != stop - start:
            raise FileFormatError(f"{title} must be as long as when the shards were made, but it ends early")
        samples = list(grouped(tar_members(io.BytesIO(body), title, len(body), whole=False), title))
        if len(samples) != shard.rows:
            raise FileFormatError(f"{title} must hold {shard.rows} samples in these bytes, got {len(samples)}")
        images = [sample.image(title) for sample in samples]
        names = tuple(f"{name}/{image.name}" for image in images)
        items = HeldImages(names, tuple(body[image.data : image.data + image.size] for image in images))
        labels = None
        if label:
            values = []
            for sample in samples:
                self._check_label(sample, label, title)
                values.append(self._label(body, sample, label, title))
            labels = class_names(values, {}, title)
        return ShardData(names, items=items, labels=labels)

    def _label(self, body: bytes, sample: TarSample, suffix: str, title: str) -> Any:
        member = sample.files[suffix]
        if member.size > LARGEST_LABEL:
            raise FileFormatError(f"{title}: {printable(member.name)} must be a label, got {member.size} bytes")
        content = body[member.data : member.data + member.size]
        if os.path.splitext(f"x.{suffix}")[1] == ".json":
            values = parse_json(content, f"{title}: {printable(member.name)}")
            key = self.options.label_column or "label"
            if not isinstance(values, dict) or key not in values:
                got = listed(values, most=8) if isinstance(values, dict) else type(values).__name__
                raise InputError(f"{title}: {printable(member.name)} must have a field {key!r}, got {got}")
            return values[key]
        try:
            return content.decode("utf-8").strip()
        except UnicodeDecodeError as error:
            raise FileFormatError(f"{title}: {printable(member.name)} must be text in UTF-8") from error
