"""Signed receipts of unlearning, which others can check without the samples.

The statistics of a model are sums over samples, so unlearning is a subtraction:
``after = before - removed``. A receipt holds a hash of each of the three, the number
of removed samples per class, and an Ed25519 signature. It holds no statistics. To check
the subtraction, a verifier needs the model before and after, and, for the removed
statistics, the file that :func:`write_statistics` wrote. These files contain the
removed samples' statistics, so delete them after the check.

The signature proves that the receipt was made with the private key and not altered
since. Whose key it is, the verifier must know from elsewhere.
"""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
from torch import Tensor

from evergrow.core.archive import archive_digest, parse_json
from evergrow.core.errors import (
    FileFormatError,
    InputError,
    ParameterError,
    PathError,
    UnsupportedError,
)
from evergrow.core.files import StrPath, atomic_path
from evergrow.core.imports import import_extra
from evergrow.core.record import (
    Between,
    from_document,
    read_record,
    record,
    require,
    to_archive,
    to_document,
    write_record,
)
from evergrow.core.seeding import generator
from evergrow.head.linalg.statistics import RidgeStatistics
from evergrow.head.ridge_model import RidgeModel

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from evergrow.learner.learner import Learner

ROUNDING = 1e-9
"""Largest gap of the subtraction, relative to the sums before.

What the compact form of the statistics dropped is allowed in addition.
"""

_HASH_BYTES = 32
_N_PROBES = 16
_MAX_BYTES = 2**20  # of a receipt or a key
_CONTEXT = b"evergrow receipt\n"  # so that the signature is valid for nothing else
_PURPOSE = "signed receipts"


@record("model-statistics")
@dataclass(frozen=True, eq=False)
class ModelStatistics:
    """The layer of a model and its sums over samples.

    Parameters
    ----------
    classes : tuple of str
        Names of the classes, in the order of the sums.
    model : RidgeModel
        Layer and sums of the labelled samples.
    """

    classes: tuple[str, ...]
    model: RidgeModel

    @property
    def counts(self) -> dict[str, int]:
        """Number of samples per class."""
        return dict(zip(self.classes, self.model.counts.tolist(), strict=True))

    def digest(self) -> str:
        """Return a BLAKE2b-256 hash of layer and sums, in hexadecimal."""
        return archive_digest(to_archive(self), size=_HASH_BYTES)

    def check(self) -> None:
        """Raise :class:`FileFormatError` unless classes and sums agree."""
        require(
            len(self.classes) == len(self.model.counts),
            "its classes and its sums differ in number",
        )


@record("receipt")
@dataclass(frozen=True)
class Receipt:
    """A signed statement that samples were removed from a model.

    Parameters
    ----------
    when : str
        Time of the receipt, as an ISO date in UTC.
    classes : dict of str to int
        Number of removed samples per class.
    for_good : bool
        Whether earlier revisions and cached features were removed too. Only the signer
        knows this; no file can prove it.
    before, after, removed : str
        Hashes of the statistics of the model before and after, and of the removed
        samples. ``after`` is empty if no sample remains.
    public_key : str
        Public key of the signer in hexadecimal.
    signature : str
        Ed25519 signature of all other fields in hexadecimal.
    """

    when: str
    classes: dict[str, Annotated[int, Between(1, 2**53)]] = field(hash=False)
    for_good: bool
    before: str
    after: str
    removed: str
    public_key: str
    signature: str

    @property
    def n_samples(self) -> int:
        """Number of removed samples."""
        return sum(self.classes.values())

    def signed_bytes(self) -> bytes:
        """Return the bytes that the signature signs: canonical JSON of the fields."""
        values = to_document(self)
        del values["signature"]
        del values["evergrow"]  # a reader of another version checks the same bytes
        text = json.dumps(values, sort_keys=True, separators=(",", ":"))
        return _CONTEXT + text.encode("ascii")

    def check(self) -> None:
        """Raise :class:`FileFormatError` unless hashes and key have their lengths."""
        for name in ("before", "removed", "public_key"):
            _require_hex(name, getattr(self, name), _HASH_BYTES)
        if self.after:
            _require_hex("after", self.after, _HASH_BYTES)
        _require_hex("signature", self.signature, 64)
        require(bool(self.classes), "it names no removed sample")


@dataclass(frozen=True)
class ReceiptCheck:
    """Result of :func:`verify_receipt`.

    Parameters
    ----------
    holds : tuple of str
        What was checked and holds.
    fails : tuple of str
        What was checked and does not hold.
    gap : float or None
        Norm of ``before - removed - after`` relative to that of ``removed``. None if
        the removed statistics were not given.
    """

    holds: tuple[str, ...]
    fails: tuple[str, ...]
    gap: float | None = None


# -- statistics ------------------------------------------------------------------------


def model_statistics(learner: Learner) -> ModelStatistics | None:
    """Return the statistics of a learner; None if it has no samples.

    Raises
    ------
    UnsupportedError
        If the method of the learner has no such statistics.
    """
    if learner.state_.is_empty:
        return None
    return _statistics_of(learner.head_)


def removed_statistics(learner: Learner, data: Any, y: Any = None) -> ModelStatistics:
    """Return the statistics of some samples alone, in the layer of a learner.

    Call it before the samples are unlearned.

    Parameters
    ----------
    learner : Learner
        The learner that knows the samples; not changed.
    data, y : object
        As for :meth:`evergrow.Learner.unlearn`.
    """
    from evergrow.data.inputs import read_labelled

    samples = read_labelled(
        data if y is None else (data, y), "train", learner.state_.kind
    )
    X = learner.encode(samples, on_error="raise").X
    head = learner.head_
    _require_ridge_model(head)
    part = head.spawn().partial_fit(X, samples.required_labels())
    return _statistics_of(part)


def write_statistics(path: StrPath, statistics: ModelStatistics) -> None:
    """Write statistics to a file, which only the user may read.

    The file reveals as much about its samples as a model of them.
    """
    # A replaced file keeps its mode, so an empty private one is made first.
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    write_record(path, statistics)


def read_statistics(path: StrPath) -> ModelStatistics:
    """Read a file of :func:`write_statistics`."""
    return read_record(ModelStatistics, path)


def _statistics_of(head: Any) -> ModelStatistics:
    _require_ridge_model(head)
    names = tuple(str(name) for name in head.classes_)
    return ModelStatistics(names, head.model_)


def _require_ridge_model(head: Any) -> None:
    if not isinstance(getattr(head, "model_", None), RidgeModel):
        raise UnsupportedError(
            f"receipts need the sums of a Classifier, got {type(head).__name__}"
        )


# -- keys ------------------------------------------------------------------------------


def create_key(path: StrPath) -> str:
    """Write a new private key to a file that only the user may read.

    Parameters
    ----------
    path : path-like
        A new file. It gets an Ed25519 key as PEM, without a password.

    Returns
    -------
    str
        The public key in hexadecimal. Publish it, so that others recognise it.

    Raises
    ------
    PathError
        If the file exists or cannot be written.
    """
    from cryptography.hazmat.primitives import serialization

    key = _ed25519().Ed25519PrivateKey.generate()
    body = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise PathError(f"{path} exists; name a new file for the key.") from error
    except OSError as error:
        raise PathError(f"{path} cannot be written: {error.strerror}") from error
    with os.fdopen(handle, "wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
    return _public_hex(key)


def read_key(path: StrPath) -> Ed25519PrivateKey:
    """Return a private key from a PEM file.

    Raises
    ------
    PathError
        If the file cannot be read, or other users may read it.
    FileFormatError
        If it holds no Ed25519 key without a password.
    """
    body = _read_small(path)
    if os.name == "posix" and os.stat(path).st_mode & 0o077:
        raise PathError(
            f"{path} may be read by other users; run chmod 600 {path}, or make a new "
            "key if somebody may have read it."
        )
    _ed25519()  # raises an error without the extra
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(body, password=None)
    except (ValueError, TypeError) as error:
        raise FileFormatError(
            f"{path} is not a private key in PEM without a password."
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise FileFormatError(f"{path} is not an Ed25519 key.")
    return key


def _ed25519() -> Any:
    """Return the module of Ed25519 keys, or raise :class:`MissingExtraError`."""
    return import_extra(
        "cryptography.hazmat.primitives.asymmetric.ed25519",
        extra="receipts",
        purpose=_PURPOSE,
    )


def _public_hex(key: Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes_raw().hex()


# -- receipts --------------------------------------------------------------------------


def sign_receipt(
    before: ModelStatistics,
    after: ModelStatistics | None,
    removed: ModelStatistics,
    key: Ed25519PrivateKey,
    *,
    for_good: bool = False,
) -> Receipt:
    """Return a signed receipt, after a check that ``after = before - removed``.

    Parameters
    ----------
    before, after : ModelStatistics
        From :func:`model_statistics`, before and after; `after` may be None.
    removed : ModelStatistics
        From :func:`removed_statistics`.
    key : Ed25519PrivateKey
        From :func:`read_key`.
    for_good : bool, default=False
        Whether the samples were removed from history and cache too.

    Raises
    ------
    InputError
        If the three do not agree.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from evergrow import Learner
    >>> from evergrow.tools import receipts
    >>> X, y = np.random.default_rng(0).normal(size=(40, 5)), np.arange(40) % 4
    >>> learner = Learner(None, options={"n_units": 20}).fit(X, y)
    >>> before = receipts.model_statistics(learner)
    >>> removed = receipts.removed_statistics(learner, X[:6], y[:6])
    >>> after = receipts.model_statistics(learner.unlearn(X[:6], y[:6]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = receipts.create_key(f"{folder}/key.pem")
    ...     key = receipts.read_key(f"{folder}/key.pem")
    >>> receipt = receipts.sign_receipt(before, after, removed, key)
    >>> receipt.classes
    {'0': 2, '1': 2, '2': 1, '3': 1}
    >>> receipts.verify_receipt(receipt, before, after, removed=removed).fails
    ()
    """
    found = _check_difference(before, after, removed)
    if found.fails:
        raise InputError(f"no receipt was written: {'; '.join(found.fails)}")
    draft = Receipt(
        when=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        classes=removed.counts,
        for_good=for_good,
        before=before.digest(),
        after="" if after is None else after.digest(),
        removed=removed.digest(),
        public_key=_public_hex(key),
        signature="",
    )
    signature = key.sign(draft.signed_bytes()).hex()
    return Receipt(**{**vars(draft), "signature": signature})


def write_receipt(path: StrPath, receipt: Receipt) -> None:
    """Write a receipt as a JSON file, atomically."""
    text = json.dumps(to_document(receipt), indent=1, sort_keys=True)
    with atomic_path(path) as temporary:
        temporary.write_text(text + "\n", encoding="ascii")


def read_receipt(path: StrPath) -> Receipt:
    """Read a receipt and check its signature.

    Raises
    ------
    FileFormatError
        If the file is not a receipt, or was altered after it was signed.
    PathError
        If it cannot be read.
    """
    values = parse_json(_read_small(path), os.fspath(path))
    receipt = from_document(Receipt, values, os.fspath(path))
    receipt.check()
    _check_signature(receipt, os.fspath(path))
    return receipt


def verify_receipt(
    receipt: Receipt,
    before: ModelStatistics | None = None,
    after: ModelStatistics | None = None,
    *,
    removed: ModelStatistics | None = None,
    public_key: str = "",
) -> ReceiptCheck:
    """Check a receipt against the statistics that it names.

    Without `before`, only the signature is checked. With `before` and `after`, both
    must have the hashes in the receipt, and their difference must be a sum over the
    stated numbers of samples. With `removed`, the difference must equal it.

    Parameters
    ----------
    receipt : Receipt
        The receipt.
    before, after : ModelStatistics or None
        Statistics of the model before and after. `after` is None if no sample remains.
    removed : ModelStatistics or None
        Statistics of the removed samples.
    public_key : str
        The key that the signer is known to use, in hexadecimal.

    Raises
    ------
    FileFormatError
        If the signature is not valid.
    """
    _check_signature(receipt, "the receipt")
    holds = ["the signature belongs to the receipt and its public key"]
    fails: list[str] = []
    if public_key:
        is_known = public_key.lower() == receipt.public_key
        _note(is_known, "the public key is the expected one", holds, fails)
    if before is None:
        return ReceiptCheck(tuple(holds), tuple(fails))
    given = {"before": before, "after": after, "removed": removed}
    for name, statistics in given.items():
        if statistics is None and name == "removed":
            continue
        digest = "" if statistics is None else statistics.digest()
        is_same = digest == getattr(receipt, name)
        _note(is_same, f"the statistics {name} have the hash in it", holds, fails)
    found = _check_difference(before, after, removed, receipt.classes)
    return ReceiptCheck((*holds, *found.holds), (*fails, *found.fails), found.gap)


def _check_signature(receipt: Receipt, name: str) -> None:
    """Raise :class:`FileFormatError` unless the signature of a receipt is valid."""
    ed25519 = _ed25519()
    from cryptography.exceptions import InvalidSignature

    try:
        key = ed25519.Ed25519PublicKey.from_public_bytes(
            bytes.fromhex(receipt.public_key)
        )
        key.verify(bytes.fromhex(receipt.signature), receipt.signed_bytes())
    except (InvalidSignature, ValueError) as error:
        raise FileFormatError(
            f"{name} has a signature that does not belong to it: it was altered or "
            "signed with another key."
        ) from error


def _require_hex(name: str, text: str, n_bytes: int) -> None:
    is_hex = len(text) == 2 * n_bytes and set(text) <= set("0123456789abcdef")
    require(is_hex, f"its {name} must be {2 * n_bytes} hexadecimal digits")


def _read_small(path: StrPath) -> bytes:
    """Return the content of a small file, or raise :class:`PathError`."""
    if not os.path.isfile(path):
        raise PathError(f"There is no file {os.fspath(path)!r} here.")
    if os.path.getsize(path) > _MAX_BYTES:
        raise FileFormatError(f"{path} is too large for a receipt or a key.")
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise PathError(f"{path} cannot be read: {error.strerror}") from error


# -- the subtraction -------------------------------------------------------------------


def _check_difference(
    before: ModelStatistics,
    after: ModelStatistics | None,
    removed: ModelStatistics | None,
    classes: Mapping[str, int] | None = None,
) -> ReceiptCheck:
    """Check ``after = before - removed``.

    Parameters
    ----------
    before, after, removed : ModelStatistics or None
        The statistics. Without `removed`, the difference must be a sum over samples.
    classes : mapping of str to int, optional
        Removed samples per class. By default those of `removed`.
    """
    if classes is None:
        classes = {} if removed is None else removed.counts
    holds: list[str] = []
    fails: list[str] = []
    parts = [part for part in (before, after, removed) if part is not None]
    same_layer = len({_layer_digest(part) for part in parts}) == 1
    _note(same_layer, "the layer is the same in all statistics", holds, fails)
    if not same_layer:
        return ReceiptCheck(tuple(holds), tuple(fails))
    left = {} if after is None else after.counts
    expected = {
        name: count - classes.get(name, 0) for name, count in before.counts.items()
    }
    remaining = {name: count for name, count in expected.items() if count}
    is_counted = remaining == left and set(classes) <= set(before.classes)
    if removed is not None:
        is_counted = is_counted and removed.counts == dict(classes)
    _note(is_counted, "the numbers of samples per class fit", holds, fails)
    difference = _Difference(before, after)
    unchanged = [name for name in remaining if name not in classes]
    _note(
        difference.class_gap(unchanged) <= difference.tolerance,
        "the sums of all other classes are unchanged",
        holds,
        fails,
    )
    if removed is None:
        _note(
            difference.is_sum_of_squares(),
            "before - after is a sum over samples",
            holds,
            fails,
        )
        return ReceiptCheck(tuple(holds), tuple(fails))
    gap, size = difference.gap(removed)
    allowed = max(difference.tolerance, _tolerance(before, [after, removed]))
    text = f"after = before - removed, up to {gap / size:.1g} of removed"
    _note(gap <= allowed * difference.size and gap <= 0.01 * size, text, holds, fails)
    return ReceiptCheck(tuple(holds), tuple(fails), gap / size)


class _Difference:
    """The statistics before minus those after, seen through random probes.

    Parameters
    ----------
    before, after : ModelStatistics
        Statistics with the same layer. `after` is None if no sample remains.
    """

    def __init__(self, before: ModelStatistics, after: ModelStatistics | None) -> None:
        self._before = before
        self._after = after
        sums = before.model.state
        # A fresh seed, so that nobody can prepare statistics for known probes.
        source = generator(secrets.randbits(62), "receipt probes")
        probes = torch.randn(
            sums.n_features, _N_PROBES, generator=source, dtype=torch.float64
        )
        self._probes = probes / math.sqrt(_N_PROBES)
        self._products = _gram_products(before, self._probes)
        self.size = _norm(self._products, _class_sums(before, before.classes))
        self.tolerance = _tolerance(before, [after])

    def class_gap(self, names: Iterable[str]) -> float:
        """Return the largest change of the sums of some classes, relative to all."""
        listed = list(names)
        if self._after is None or not listed:
            return 0.0
        change = _class_sums(self._before, listed) - _class_sums(self._after, listed)
        return float(change.norm()) / self.size

    def is_sum_of_squares(self) -> bool:
        """Return whether the difference of the Gram matrices has no negative part."""
        inner = self._probes.T @ (
            self._products - _gram_products(self._after, self._probes)
        )
        values = torch.linalg.eigvalsh(0.5 * (inner + inner.T))
        scale = float((self._probes.T @ self._products).norm())
        return float(values[0]) >= -self.tolerance * scale

    def gap(self, removed: ModelStatistics) -> tuple[float, float]:
        """Return the norms of ``before - after - removed`` and of ``removed``."""
        names = self._before.classes
        products = _gram_products(removed, self._probes)
        sums = _class_sums(removed, names)
        gap_products = self._products - products
        gap_sums = _class_sums(self._before, names) - sums
        if self._after is not None:
            gap_products = gap_products - _gram_products(self._after, self._probes)
            gap_sums = gap_sums - _class_sums(self._after, names)
        return _norm(gap_products, gap_sums), max(_norm(products, sums), 1e-300)


def _tolerance(
    before: ModelStatistics, others: Iterable[ModelStatistics | None]
) -> float:
    """Return the allowed gap relative to the sums before.

    Dropping a remainder of energy e changes a Gram matrix of energy g by at most
    ``2 sqrt(e g) + e``.
    """
    sums = before.model.state
    dropped = sums.dropped
    for other in others:
        dropped += 0.0 if other is None else other.model.state.dropped
    energy = max(float(sums.gram.diagonal().sum()), 1e-300)
    share = dropped / energy
    return ROUNDING + 2.0 * math.sqrt(share) + share


def _gram_products(statistics: ModelStatistics | None, probes: Tensor) -> Tensor | Any:
    """Return the Gram matrix (L, L) times probes (L, m); 0 without statistics."""
    if statistics is None:
        return 0.0
    sums: RidgeStatistics = statistics.model.state
    projected = sums.project(probes.T.to(sums.device)).T
    return sums.lift(sums.gram @ projected).cpu()


def _class_sums(statistics: ModelStatistics, names: Iterable[str]) -> Tensor:
    """Return the sums of the rows of classes (L, C); zeros for missing classes."""
    sums = statistics.model.state
    lifted = sums.lift(sums.cross).cpu()
    index = {name: column for column, name in enumerate(statistics.classes)}
    empty = lifted.new_zeros(len(lifted))
    columns = [lifted[:, index[name]] if name in index else empty for name in names]
    return torch.stack(columns, dim=1)


def _norm(products: Tensor, sums: Tensor) -> float:
    return math.hypot(float(products.norm()), float(sums.norm()))


def _layer_digest(statistics: ModelStatistics) -> str:
    """Return a hash of everything that turns features into rows."""
    model = statistics.model
    parts = [to_archive(model.layer)]
    if model.blocks is not None:
        parts.append(to_archive(model.blocks))
    hashes = [archive_digest(part, size=_HASH_BYTES) for part in parts]
    return "/".join([model.normalization, *hashes])


def _note(is_true: bool, text: str, holds: list[str], fails: list[str]) -> None:
    """Add a statement to the list that it belongs to."""
    if is_true:
        holds.append(text)
    else:
        fails.append(f"not so: {text}")


def check_public_key(text: str) -> str:
    """Return a public key in hexadecimal in lower case.

    Raises
    ------
    ParameterError
        If it is not 64 hexadecimal digits.
    """
    lowered = text.strip().lower()
    if len(lowered) != 2 * _HASH_BYTES or set(lowered) - set("0123456789abcdef"):
        raise ParameterError(
            "public_key must be 64 hexadecimal digits, as 'evergrow receipt key' "
            f"prints them, got {text[:20]!r}"
        )
    return lowered
