"""Which files of a place are meant: patterns with ``*`` and ``{000..012}``, and the parts that names tell."""

from __future__ import annotations

import fnmatch
import itertools
import re
from collections.abc import Iterable, Iterator

from evergrow.core.errors import DatasetNotFoundError, ParameterError
from evergrow.data.labelled import listed
from evergrow.data.places import Place

_MOST_FILES = 1_000_000
_RANGE = re.compile(r"\{(\d{1,20})\.\.(\d{1,20})\}")
_CHOICE = re.compile(r"\{([^{}\[\]]*,[^{}\[\]]*)\}")
_SPLIT = re.compile(r"(?<![a-z])(train|training|test|testing|val|valid|validation)(?![a-z])")
_TEST_WORDS = ("test", "testing", "val", "valid", "validation")


def has_magic(text: str) -> bool:
    """Return whether a name is a pattern.

    Examples
    --------
    >>> from evergrow.data.sources.patterns import has_magic
    >>> has_magic("train-{000..012}.tar"), has_magic("train-*.tar"), has_magic("train.tar")
    (True, True, False)
    """
    return any(mark in text for mark in "*?[") or bool(_RANGE.search(text) or _CHOICE.search(text))


def expanded(pattern: str) -> list[str]:
    """Return what the braces of a pattern stand for.

    Examples
    --------
    >>> from evergrow.data.sources.patterns import expanded
    >>> expanded("{train,test}-{08..10}.tar")[:4]
    ['train-08.tar', 'train-09.tar', 'train-10.tar', 'test-08.tar']
    """
    pieces: list[list[str]] = []
    rest, count = pattern, 1
    choices: Iterator[str]
    while match := min((m for m in (_RANGE.search(rest), _CHOICE.search(rest)) if m), key=_start, default=None):
        if match.re is _RANGE:
            first, last = int(match[1]), int(match[2])
            width = len(match[1]) if match[1].startswith("0") else 0
            count *= max(last - first + 1, 1)
            choices = (f"{number:0{width}d}" for number in range(first, last + 1))
        else:
            count *= match[1].count(",") + 1
            choices = iter(match[1].split(","))
        if count > _MOST_FILES:
            raise ParameterError(f"pattern must stand for at most {_MOST_FILES:,} files, got {pattern!r}")
        pieces += [[rest[: match.start()]], list(choices)]
        rest = rest[match.end() :]
    return ["".join(parts) for parts in itertools.product(*pieces, [rest])]


def _start(match: re.Match[str]) -> int:
    return match.start()


def matching_files(place: Place, pattern: str) -> dict[str, int]:
    """Return names and sizes of the files of a pattern, sorted by name.

    Raises
    ------
    DatasetNotFoundError
        If nothing matches, or a file that braces name is not there.
    """
    patterns = expanded(pattern)
    if len(patterns) == 1 and not any(mark in pattern for mark in "*?["):
        return {pattern: place.size(pattern)}
    every = place.listing(deep="/" in pattern)
    found: dict[str, int] = {}
    missing: list[str] = []
    for wanted in patterns:
        matches = [wanted] if wanted in every else _matches(wanted, every)
        found.update({name: every[name] for name in matches})
        if not matches:
            missing.append(wanted)
    if missing:
        raise DatasetNotFoundError(f"{place.title()} must hold every file of {pattern}, but lacks {listed(missing)}")
    return dict(sorted(found.items()))


def _matches(pattern: str, names: Iterable[str]) -> list[str]:
    """Return the names that a pattern matches, folder by folder."""
    steps = pattern.split("/")
    return [
        name
        for name in names
        if name.count("/") == len(steps) - 1
        and all(fnmatch.fnmatchcase(part, step) for part, step in zip(name.split("/"), steps, strict=True))
    ]


def part_of_files(files: dict[str, int], part: str) -> dict[str, int]:
    """Return the files of the training or the test set where their names say so, else all of them.

    Examples
    --------
    >>> from evergrow.data.sources.patterns import part_of_files
    >>> part_of_files({"test-0.parquet": 5, "train-0.parquet": 9}, "train")
    {'train-0.parquet': 9}
    >>> part_of_files({"a.npz": 5, "b.npz": 9}, "train")
    {'a.npz': 5, 'b.npz': 9}
    """
    words = {name: match[1] for name in files if (match := _SPLIT.search(name.lower()))}
    train = {name: size for name, size in files.items() if words.get(name, "").startswith("train")}
    tests = [word for word in _TEST_WORDS if word in words.values()]
    if part == "all" or not train or not tests:
        return files
    return train if part == "train" else {name: size for name, size in files.items() if words.get(name) == tests[0]}
