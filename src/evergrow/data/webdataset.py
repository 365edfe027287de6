"""WebDataset tar shards: a tar is indexed by its headers, and a shard is a range of its bytes.

A sample is the files of one name up to its first dot, side by side: ``0001.jpg`` and
``0001.cls``. Names are only names: nothing is ever unpacked to disk.
"""

from __future__ import annotations

import io
import itertools
import posixpath
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from evergrow.core.archive import parse_json
from evergrow.core.errors import EvergrowError, FileFormatError, InputError
from evergrow.core.escaping import printable
from evergrow.data.archives import Member, tar_members
from evergrow.data.folders import is_hidden
from evergrow.data.items import Images, Samples, is_image, listed
from evergrow.data.readers import register_reader
from evergrow.data.shards import Shard, Source, class_labels, spans, where_of
from evergrow.data.storage import LARGEST_IMAGE, Tree, decoded_text

LABEL_SUFFIXES = ("cls", "json", "txt")
"""Endings of files that hold labels, in the order in which they are looked for."""

LARGEST_LABEL = 2**20
_BLOCK = 65536
_PACKED = {b"\x1f\x8b": "gzip", b"BZ": "bzip2", b"\xfd7": "xz", b"(\xb5": "zstandard"}


class TarSample(NamedTuple):
    """Files of one name up to the first dot, by what comes after it, in lower case."""

    key: str
    files: dict[str, Member]

    def image(self, title: str) -> Member:
        """Return the image: the only one, or the one whose ending has no further dot."""
        images = [suffix for suffix in self.files if is_image(f"x.{suffix}")]
        if not images:
            raise FileFormatError(
                f"{title}: sample {printable(self.key)} must have an image, got {listed(self.files)}; files of one "
                "sample must lie side by side"
            )
        return self.files[min(images, key=lambda suffix: "." in suffix)]


def grouped(members: Iterable[Member], title: str) -> Iterator[TarSample]:
    """Yield samples from the files of a tar, in their order.

    Raises
    ------
    FileFormatError
        If a sample has two files of one ending.

    Examples
    --------
    >>> from evergrow.data.archives import Member
    >>> from evergrow.data.webdataset import grouped
    >>> members = [Member(name, 0, 512, 512, 0, "") for name in ("a/1.jpg", "a/1.cls", "a/2.seg.png")]
    >>> [(sample.key, list(sample.files)) for sample in grouped(members, "toy.tar")]
    [('a/1', ['jpg', 'cls']), ('a/2', ['seg.png'])]
    """

    def key_of(member: Member) -> str:
        folder, name = posixpath.split(member.name)
        return posixpath.join(folder, name.partition(".")[0])

    # What has no ending, or is hidden, is of no kind that could be told.
    names = ((posixpath.basename(member.name), member) for member in members)
    seen = (
        member
        for name, member in names
        if name.partition(".")[2] and not is_hidden(name)
    )
    for key, group in itertools.groupby(seen, key_of):
        files: dict[str, Member] = {}
        for member in group:
            suffix = posixpath.basename(member.name).partition(".")[2].lower()
            if member.size > LARGEST_IMAGE or suffix in files:
                raise FileFormatError(
                    f"{title} must hold samples of one file per ending, each of at most {LARGEST_IMAGE // 2**20} MiB, "
                    f"got another: {printable(member.name)} of {member.size // 2**20} MiB"
                )
            files[suffix] = member
        yield TarSample(key, files)


def is_webdataset(tree: Tree, name: str) -> bool:
    """Return whether a tar holds samples with label files beside the images, and not a folder of images."""
    try:
        with tree.open(name, _BLOCK) as file:
            title = tree.place(name)
            members = itertools.islice(tar_members(file, title, tree.size(name)), 16)
            images = [
                sample
                for sample in grouped(members, title)
                if any(is_image(f"x.{end}") for end in sample.files)
            ]
    except EvergrowError:
        return False
    return any(set(LABEL_SUFFIXES) & sample.files.keys() for sample in images)


class WebDatasetSource(Source):
    """Images and labels in plain tar files, as the WebDataset library reads them.

    The label of a sample is the text of its ``.cls`` file, else the field ``label`` of
    its ``.json`` (another one by ``label_column``), else the text of its ``.txt``; a
    ``label_column`` that begins with a dot is the ending itself.
    """

    format = "webdataset"
    suffixes = (".tar",)
    kind = "image"

    def _file_parts(
        self, name: str, rows: int, size: int
    ) -> tuple[dict[str, Any], list[Shard]]:
        places, label = self._index(name)
        shards = []
        for span in spans([(1, stop - start) for start, stop in places], rows, size):
            start = places[span.first][0]
            stop = places[span.last - 1][1]
            where = {"file": name, "start": start, "stop": stop, "label": label}
            shards.append(Shard(0, span.rows, span.size, where))
        return {"labels": label}, shards

    def _index(self, name: str) -> tuple[list[tuple[int, int]], str]:
        """Return the bytes of every sample of a tar, and the ending of its labels; empty where there are none."""
        title = self.tree.place(name)
        places: list[tuple[int, int]] = []
        label: str | None = None
        with self.tree.open(name, _BLOCK) as file:
            magic = file.read(2)
            if magic in _PACKED:
                raise FileFormatError(
                    f"{title} must be a plain tar to be read by ranges, got {_PACKED[magic]}"
                )
            file.seek(0)
            for sample in grouped(tar_members(file, title, self.files[name]), title):
                sample.image(title)
                found = self._label_suffix(sample)
                label = found if label is None else label
                if label not in ("", *sample.files) or (found and not label):
                    raise InputError(
                        f"{title}: samples must all have a label in .{label or found} or none, but "
                        f"{printable(sample.key)} has {listed(sample.files)}"
                    )
                members = sample.files.values()
                places.append(
                    (
                        min(member.start for member in members),
                        max(member.stop for member in members),
                    )
                )
        if not places:
            raise InputError(f"{title} must hold at least one sample, got none")
        return places, label or ""

    def _label_suffix(self, sample: TarSample) -> str:
        if not self.options.labelled:
            return ""
        if self.options.label_column.startswith("."):
            return self.options.label_column.lower().lstrip(".")
        return next((suffix for suffix in LABEL_SUFFIXES if suffix in sample.files), "")

    def read(self, shard: Shard, *, bodies: bool = True) -> Samples:
        """Return the samples of a range of bytes, read at once."""
        name, start, stop, label = where_of(
            shard, file=str, start=int, stop=int, label=str
        )
        title = self.tree.place(name)
        body = self.tree.read(name, start, stop)
        if len(body) != stop - start:
            raise FileFormatError(
                f"{title} must be as long as when the shards were made, but it ends early"
            )
        samples = list(
            grouped(tar_members(io.BytesIO(body), title, len(body), whole=False), title)
        )
        if len(samples) != shard.rows:
            raise FileFormatError(
                f"{title} must hold {shard.rows} samples in these bytes, got {len(samples)}"
            )
        images = [sample.image(title) for sample in samples]
        names = tuple(f"{name}/{image.name}" for image in images)
        values = tuple(
            body[image.data : image.data + image.size] if bodies else b""
            for image in images
        )
        labels = None
        if label:
            labels = class_labels(
                [self._label(body, sample, label, title) for sample in samples],
                {},
                title,
            )
        return Samples("image", Images(values, names), labels=labels)

    def _label(self, body: bytes, sample: TarSample, suffix: str, title: str) -> Any:
        member = sample.files.get(suffix)
        what = f"{title}: .{suffix} of {printable(sample.key)}"
        if member is None or member.size > LARGEST_LABEL:
            raise FileFormatError(
                f"{what} must be a label, got {member.size if member else 'no'} bytes"
            )
        content = body[member.data : member.data + member.size]
        if suffix != "json":
            return decoded_text(content, what).strip()
        values = parse_json(content, what)
        key = self.options.label_column or "label"
        if not isinstance(values, dict) or key not in values:
            if isinstance(values, dict):
                got = listed(values, most=8)
            else:
                got = type(values).__name__
            raise InputError(f"{what} must have a field {key!r}, got {got}")
        return values[key]


def _has_samples(tree: Tree) -> bool:
    tar = next((name for name in tree.files() if name.lower().endswith(".tar")), "")
    return bool(tar) and not tree.folders() and is_webdataset(tree, tar)


register_reader("webdataset", fits=_has_samples, rank=15)(WebDatasetSource)
