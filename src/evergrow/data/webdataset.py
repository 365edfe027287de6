"""WebDataset tars. A tar is indexed by its headers; a shard is a range of its bytes.

A sample consists of consecutive files with the same name up to the first dot, such as
``0001.jpg`` and ``0001.cls``. Nothing is unpacked to disk.
"""

from __future__ import annotations

import io
import itertools
import posixpath
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from evergrow.core.archive import parse_json
from evergrow.core.errors import EvergrowError, FileFormatError, InputError
from evergrow.core.escaping import printable, quote_names
from evergrow.data.archives import Member, tar_members
from evergrow.data.class_labels import class_labels
from evergrow.data.folders import is_hidden
from evergrow.data.items import Images, Samples, is_image
from evergrow.data.readers import register_reader
from evergrow.data.shards import Shard, Source, spans, where_of
from evergrow.data.storage import LARGEST_IMAGE, Tree, decoded_text

LABEL_SUFFIXES = ("cls", "json", "txt")
"""Suffixes of files with labels, in the order of the search."""

LARGEST_LABEL = 2**20
"""Largest size of a label file in bytes."""

_BLOCK = 65536
"""Bytes of a remote tar that are fetched at a time while it is indexed."""

_PACKED = {b"\x1f\x8b": "gzip", b"BZ": "bzip2", b"\xfd7": "xz", b"(\xb5": "zstandard"}


class TarSample(NamedTuple):
    """Files with the same name up to the first dot, by lower-case suffix."""

    key: str
    files: dict[str, Member]

    def image(self, title: str) -> Member:
        """Return the image file; of several, one whose suffix has no further dot."""
        images = [suffix for suffix in self.files if is_image(f"x.{suffix}")]
        if not images:
            raise FileFormatError(
                f"{title}: sample {printable(self.key)} must have an image, got "
                f"{quote_names(self.files)}; files of one sample must be consecutive"
            )
        return self.files[min(images, key=lambda suffix: "." in suffix)]


def tar_samples(members: Iterable[Member], title: str) -> Iterator[TarSample]:
    """Group consecutive files of a tar into samples; hidden ones are left out.

    Raises
    ------
    FileFormatError
        If a sample has two files with the same suffix, or a file is too large.

    Examples
    --------
    >>> from evergrow.data.archives import Member
    >>> from evergrow.data.webdataset import tar_samples
    >>> names = ("a/1.jpg", "a/1.cls", "a/2.seg.png")
    >>> members = [Member(name, 0, 512, 512, 0, "") for name in names]
    >>> [(sample.key, list(sample.files)) for sample in tar_samples(members, "toy.tar")]
    [('a/1', ['jpg', 'cls']), ('a/2', ['seg.png'])]
    """

    def key_of(member: Member) -> str:
        folder, name = posixpath.split(member.name)
        return posixpath.join(folder, name.partition(".")[0])

    def has_suffix(member: Member) -> bool:
        name = posixpath.basename(member.name)
        return bool(name.partition(".")[2]) and not is_hidden(name)

    for key, group in itertools.groupby(filter(has_suffix, members), key_of):
        files: dict[str, Member] = {}
        for member in group:
            suffix = posixpath.basename(member.name).partition(".")[2].lower()
            if member.size > LARGEST_IMAGE or suffix in files:
                raise FileFormatError(
                    f"{title} must hold samples of one file per suffix, each of at "
                    f"most {LARGEST_IMAGE // 2**20} MiB, got another: "
                    f"{printable(member.name)} of {member.size // 2**20} MiB"
                )
            files[suffix] = member
        yield TarSample(key, files)


def is_webdataset(tree: Tree, name: str) -> bool:
    """Return whether a tar holds samples with label files, not a folder of images."""
    try:
        with tree.open(name, _BLOCK) as file:
            title = tree.display_name(name)
            members = itertools.islice(tar_members(file, title, tree.size(name)), 16)
            images = [
                sample
                for sample in tar_samples(members, title)
                if any(is_image(f"x.{end}") for end in sample.files)
            ]
    except EvergrowError:
        return False
    return any(set(LABEL_SUFFIXES) & sample.files.keys() for sample in images)


class WebDatasetSource(Source):
    """Images and labels in plain tar files, as the WebDataset library reads them.

    The label of a sample is the text of its ``.cls`` file, or else the field ``label``
    of its ``.json`` file, or else the text of its ``.txt`` file. ``label_column`` names
    another field, or the suffix of the label files if it begins with a dot.
    """

    format = "webdataset"
    suffixes = (".tar",)
    kind = "image"

    def _file_parts(
        self, name: str, rows: int, size: int
    ) -> tuple[dict[str, Any], list[Shard]]:
        """Return the form and the shards of a tar: ranges of its bytes."""
        ranges, label = self._index(name)
        shards = []
        for span in spans([(1, stop - start) for start, stop in ranges], rows, size):
            start = ranges[span.first][0]
            stop = ranges[span.last - 1][1]
            where = {"file": name, "start": start, "stop": stop, "label": label}
            shards.append(Shard(0, span.rows, span.size, where))
        return {"labels": label}, shards

    def _index(self, name: str) -> tuple[list[tuple[int, int]], str]:
        """Return the byte range of every sample of a tar, and the suffix of its labels.

        The suffix is "" if no sample has a label. Samples must all have one or none.
        """
        title = self.tree.display_name(name)
        ranges: list[tuple[int, int]] = []
        label: str | None = None
        with self.tree.open(name, _BLOCK) as file:
            magic = file.read(2)
            if magic in _PACKED:
                raise FileFormatError(
                    f"{title} must be a plain tar to be read by ranges, "
                    f"got {_PACKED[magic]}"
                )
            file.seek(0)
            members = tar_members(file, title, self.files[name])
            for sample in tar_samples(members, title):
                sample.image(title)  # raises without an image
                suffix = self._label_suffix(sample)
                if label is None:
                    label = suffix  # of the first sample
                lacks_label = label and label not in sample.files
                adds_label = suffix and not label
                if lacks_label or adds_label:
                    raise InputError(
                        f"{title}: samples must all have a label in "
                        f".{label or suffix} or none, but {printable(sample.key)} has "
                        f"{quote_names(sample.files)}"
                    )
                start = min(member.start for member in sample.files.values())
                stop = max(member.stop for member in sample.files.values())
                ranges.append((start, stop))
        if not ranges:
            raise InputError(f"{title} must hold at least one sample, got none")
        return ranges, label or ""

    def _label_suffix(self, sample: TarSample) -> str:
        """Return the suffix of the label file that a sample has or needs, or ""."""
        if not self.options.labelled:
            return ""
        if self.options.label_column.startswith("."):
            return self.options.label_column.lower().lstrip(".")
        return next((suffix for suffix in LABEL_SUFFIXES if suffix in sample.files), "")

    def read(self, shard: Shard, *, bodies: bool = True) -> Samples:
        """Return the samples of a shard, whose range of bytes is read at once.

        Without ``bodies``, images have no bytes; the range is read all the same.
        """
        name, start, stop, label = where_of(
            shard, file=str, start=int, stop=int, label=str
        )
        title = self.tree.display_name(name)
        body = self.tree.read(name, start, stop)
        if len(body) != stop - start:
            raise FileFormatError(
                f"{title} must be as long as when the shards were made, "
                "but it ends early"
            )
        members = tar_members(io.BytesIO(body), title, len(body), complete=False)
        samples = list(tar_samples(members, title))
        if len(samples) != shard.rows:
            raise FileFormatError(
                f"{title} must hold {shard.rows} samples in these bytes, "
                f"got {len(samples)}"
            )
        images = [sample.image(title) for sample in samples]
        names = tuple(f"{name}/{image.name}" for image in images)
        values = tuple(
            body[image.data : image.data + image.size] if bodies else b""
            for image in images
        )
        labels = None
        if label:
            written = [self._label(body, sample, label, title) for sample in samples]
            labels = class_labels(written, {}, title)
        return Samples("image", Images(values, names), labels=labels)

    def _label(self, body: bytes, sample: TarSample, suffix: str, title: str) -> Any:
        """Return the label of a sample: a text, or a value of its JSON file."""
        member = sample.files.get(suffix)
        what = f"{title}: .{suffix} of {printable(sample.key)}"
        if member is None or member.size > LARGEST_LABEL:
            size = member.size if member else "no"
            raise FileFormatError(f"{what} must be a label, got {size} bytes")
        content = body[member.data : member.data + member.size]
        if suffix != "json":
            return decoded_text(content, what).strip()
        values = parse_json(content, what)
        key = self.options.label_column or "label"
        if not isinstance(values, dict) or key not in values:
            got = type(values).__name__
            if isinstance(values, dict):
                got = quote_names(values, most=8)
            raise InputError(f"{what} must have a field {key!r}, got {got}")
        return values[key]


def _has_samples(tree: Tree) -> bool:
    """Return whether the first tar in a folder holds samples."""
    tar = next((name for name in tree.files() if name.lower().endswith(".tar")), "")
    return bool(tar) and is_webdataset(tree, tar)


register_reader(
    "webdataset",
    fits=lambda tree: not tree.folders() and _has_samples(tree),
    rank=15,
)(WebDatasetSource)
