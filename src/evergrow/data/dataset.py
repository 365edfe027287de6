"""Data sets: a training part and perhaps a test part of samples, and how a test part is drawn."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import LabelError
from evergrow.core.seeding import derive_seed
from evergrow.data.items import Items, Samples, concat_samples

Label = str | int


@dataclass(frozen=True, eq=False)
class Dataset:
    """A training part and perhaps a test part, and what is worth knowing about them; nothing is decoded.

    Parameters
    ----------
    train : Samples
        Training samples, or all samples where there is no test part.
    test : Samples, optional
        Test samples. They may have classes of their own, unless :func:`evergrow.data.load_data` read them.
    class_names : tuple of str
        Classes of the training part, in the order that published class orders permute: names by the alphabet, integers
        by size.
    keys : tuple of str
        The classes as they were written, where integers have got names.
    name : str
        Name for people and records; never a path.
    source, layout : str
        Where the data came from, and how they were laid out there.
    notes, cautions : tuple of str
        What is worth knowing, and what is probably not meant.

    Examples
    --------
    >>> from evergrow.data.items import Texts
    >>> from evergrow.data import Dataset
    >>> mail = Dataset.of(Texts(("buy now", "see you", "free")), ["spam", "ham", "spam"])
    >>> mail.class_names, mail.y_train.tolist(), mail.whole
    (('ham', 'spam'), [1, 0, 1], True)
    """

    train: Samples
    test: Samples | None = None
    class_names: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    name: str = ""
    source: str = ""
    layout: str = ""
    notes: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        train: Items,
        train_labels: Sequence[Label] | NDArray[Any],
        test: Items | None = None,
        test_labels: Sequence[Label] | NDArray[Any] = (),
        *,
        names: Mapping[int, str] | Sequence[str] = (),
        **about: Any,
    ) -> Dataset:
        """Return a data set from items and labels.

        Parameters
        ----------
        train, test : Items
            The samples.
        train_labels, test_labels : sequence of str or int
            Their labels; if one is a string, all are names.
        names : mapping or sequence of str
            Names of integer labels, where they are known.
        **about
            The other fields.
        """
        known = names if isinstance(names, Mapping) else dict(enumerate(names))
        parts = [_plain(train_labels, len(train)), _plain(test_labels, 0 if test is None else len(test))]
        if any(isinstance(label, str) for part in parts for label in part):
            parts = [[str(label) for label in part] for part in parts]
        classes: list[Label] = sorted(set(parts[0]))  # all strings or all integers by now
        samples = [
            Samples(items.kind, items, labels=_as_text(part, known), lasting=True)
            for items, part in zip((train, test), parts, strict=True)
            if items is not None
        ]
        ordered = tuple(_name_of(label, known) for label in classes)
        keys = tuple(str(label) for label in classes)
        return cls(samples[0], samples[1] if test is not None else None, ordered, keys, **about)

    @property
    def kind(self) -> str:
        """What the samples are: ``"image"`` or ``"text"``."""
        return self.train.kind

    @property
    def whole(self) -> bool:
        """Whether there is no test part."""
        return self.test is None

    @property
    def n_classes(self) -> int:
        """Classes in the training part."""
        return len(self.class_names)

    @cached_property
    def y_train(self) -> NDArray[np.int64]:
        """Training labels as positions in the class names."""
        return self._codes(self.train)

    @cached_property
    def y_test(self) -> NDArray[np.int64]:
        """Test labels as positions in the class names."""
        return self._codes(self.test)

    def _codes(self, samples: Samples | None) -> NDArray[np.int64]:
        place = {name: code for code, name in enumerate(self.class_names)}
        labels = [] if samples is None else samples.required_labels().tolist()
        return np.fromiter((place.get(label, -1) for label in labels), np.int64, len(labels))

    @property
    def train_counts(self) -> NDArray[np.int64]:
        """Training samples of every class."""
        return np.bincount(self.y_train, minlength=self.n_classes)

    @property
    def test_counts(self) -> NDArray[np.int64]:
        """Test samples of every class."""
        return np.bincount(self.y_test[self.y_test >= 0], minlength=self.n_classes)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the samples' names and sizes and of the labels, the same on every machine; no image is read."""
        items = self.train.raw_items()
        test = items.take([]) if self.test is None else self.test.raw_items()
        digest = hashlib.blake2b(digest_size=8)
        for part in (items.identity(), test.identity(), *self.class_names):
            digest.update(part.encode("utf-8", "surrogateescape") + b"\0")
        for labels in (self.y_train, self.y_test):
            digest.update(f"{labels.shape}".encode())
            digest.update(labels.astype("<i8", copy=False).tobytes())
        return digest.hexdigest()

    def describe(self) -> dict[str, Any]:
        """Return what a record says about the data."""
        return {
            "name": self.name,
            "fingerprint": self.fingerprint,
            "kind": self.kind,
            "layout": self.layout,
            "n_train": len(self.y_train),
            "n_test": len(self.y_test),
            "n_classes": self.n_classes,
        }

    def part(self, part: str) -> Samples:
        """Return ``"train"``, ``"test"`` or ``"all"``; data without a test part are always whole."""
        if self.test is None:
            return self.train
        return {"train": self.train, "test": self.test}.get(part) or concat_samples([self.train, self.test])


def _plain(labels: Sequence[Label] | NDArray[Any], n: int) -> list[Label]:
    values: list[Label] = labels.tolist() if isinstance(labels, np.ndarray) else list(labels)
    if len(values) != n:
        raise LabelError(f"labels must be one per sample ({n}), got {len(values)}")
    return values


def _name_of(label: Label, names: Mapping[int, str]) -> str:
    return names.get(label, str(label)) if isinstance(label, int) else label


def _as_text(labels: Iterable[Label], names: Mapping[int, str]) -> NDArray[np.str_]:
    return np.array([_name_of(label, names) for label in labels], dtype=np.str_)


def with_test_part(data: Dataset, test_size: float, seed: int) -> Dataset:
    """Return data with a test part that is drawn from every class."""
    keep, hold, single = stratified_split(data.y_train, data.keys, test_size, seed)
    cautions = (*data.cautions, f"classes with one sample are in the training set only: {listed(single)}")
    return replace(
        data,
        train=data.train.take(keep),
        test=data.train.take(hold),
        notes=(*data.notes, f"test set drawn here: {test_size:g} of each class, seed {seed}"),
        cautions=cautions if single else data.cautions,
    )


def stratified_split(
    codes: NDArray[np.int64], names: Sequence[str], test_size: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], list[str]]:
    """Split rows class by class: at least one to each side where there are two.

    Each class is drawn by its name, so that a new class leaves the split of the others as it was.

    Returns
    -------
    train_rows, test_rows : ndarray of int
        Sorted.
    single : list of str
        Classes with one sample, which went to training.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.data.dataset import stratified_split
    >>> train, test, single = stratified_split(np.array([0, 0, 0, 0, 0, 1]), ["a", "b"], 0.2, seed=1993)
    >>> len(train), len(test), single
    (5, 1, ['b'])
    """
    in_test = np.zeros(len(codes), dtype=bool)
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=len(names)))
    single = []
    for name, rows in zip(names, np.split(order, ends[:-1]), strict=True):
        if len(rows) == 1:
            single.append(name)
        if len(rows) >= 2:
            share = min(max(round(test_size * len(rows)), 1), len(rows) - 1)
            rng = np.random.default_rng(derive_seed(seed, "data", "split", ascii(name)))
            in_test[rng.permutation(rows)[:share]] = True
    if not in_test.any():
        raise LabelError("No test set can be drawn: every class has one sample only. Add samples or bring a test set.")
    return np.flatnonzero(~in_test), np.flatnonzero(in_test), single


def check_test_classes(train: Iterable[str], test: Iterable[str]) -> None:
    """Raise :class:`LabelError` unless every class of the test set is in the training set."""
    unknown = sorted(set(test) - set(train))
    if not unknown:
        return
    spellings = {_folded(label): label for label in train}
    for label in unknown:
        other = spellings.get(_folded(label))
        if other is not None:
            raise LabelError(
                f"classes must be spelled alike in training and test set, got {other!r} in training and "
                f"{label!r} in test: they differ only in upper and lower case or in how accents are stored; "
                "rename one"
            )
    raise LabelError(
        f"every class of the test set must be in the training set, got {listed(unknown)} in the test set only"
    )


def spelled_alike(names: Sequence[str]) -> list[str]:
    """Return a caution where classes differ only in case, blanks or the form of accents."""
    seen: dict[str, str] = {}
    pairs = []
    for name in names:
        other = seen.setdefault(_folded(name), name)
        if other != name:
            pairs.append(f"{other} / {name}")
    return [f"classes that differ only in spelling: {listed(pairs)}"] if pairs else []


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold().strip()


def integers(labels: Sequence[str]) -> Sequence[Label]:
    """Return labels as integers if all are written as such, so that 10 comes after 9.

    Examples
    --------
    >>> from evergrow.data.dataset import integers
    >>> integers(["10", "9"]), integers(["10", "nine"]), integers(["007"])
    ([10, 9], ['10', 'nine'], ['007'])
    """
    plain = {}
    for label in set(labels):
        try:
            plain[label] = int(label)
        except ValueError:
            return labels
        if str(plain[label]) != label:
            return labels
    return [plain[label] for label in labels]


def listed(names: Iterable[str], most: int = 5) -> str:
    """Return the first few names and how many more there are.

    Examples
    --------
    >>> from evergrow.data.dataset import listed
    >>> listed(["a", "b", "c"], most=2)
    "'a', 'b' and 1 more"
    """
    every = [repr(name) for name in names]
    return ", ".join(every[:most]) + (f" and {len(every) - most} more" if len(every) > most else "")


def shown(text: str) -> str:
    """Return a name that any terminal and file can take: bytes that are no UTF-8 become escapes."""
    return text.encode("utf-8", "backslashreplace").decode()
