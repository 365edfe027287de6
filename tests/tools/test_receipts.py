"""Receipts prove the subtraction, and forged or hostile ones are refused."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.learners import small_learner

from evergrow.core.errors import (
    EvergrowError,
    FileFormatError,
    InputError,
    PathError,
    UnsupportedError,
)
from evergrow.learner.learner import Learner

pytest.importorskip("cryptography", reason="needs evergrow[receipts]")

from evergrow.tools import receipts

posix = pytest.mark.skipif(os.name != "posix", reason="needs a POSIX system: modes")


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("key") / "key.pem"
    receipts.create_key(path)
    return receipts.read_key(path)


def unlearned(n_units: int = 40, n: int = 6, **options: Any) -> tuple[Any, Any, Any]:
    """Return statistics of a model before and after, and of the removed samples."""
    X = np.random.default_rng(0).normal(size=(90, 12))
    y = np.array(["a", "b", "c"])[np.arange(90) % 3]
    learner = small_learner(n_units, **options).fit(X, y)
    before = receipts.model_statistics(learner)
    removed = receipts.removed_statistics(learner, X[:n], y[:n])
    learner.unlearn(X[:n], y[:n])
    return before, receipts.model_statistics(learner), removed


@pytest.fixture(scope="module")
def parts() -> tuple[Any, Any, Any]:
    return unlearned()


@pytest.fixture
def receipt(parts: Any, key: Any) -> receipts.Receipt:
    return receipts.sign_receipt(*parts, key)


@pytest.mark.parametrize("n_units", [40, 1500])
@pytest.mark.parametrize("n", [1, 6, 90])
def test_after_equals_before_minus_removed(key: Any, n_units: int, n: int) -> None:
    before, after, removed = unlearned(n_units, n)
    assert (after is None) == (n == 90)
    receipt = receipts.sign_receipt(before, after, removed, key)
    found = receipts.verify_receipt(receipt, before, after, removed=removed)
    assert found.fails == ()
    assert found.gap < 1e-6
    assert receipt.n_samples == n
    assert receipts.verify_receipt(receipt, before, after).fails == ()


def test_a_removed_class_leaves_a_valid_receipt(key: Any) -> None:
    X = np.random.default_rng(0).normal(size=(30, 5))
    y = np.array(["a", "b", "c"])[np.arange(30) % 3]
    learner = small_learner().fit(X, y)
    before = receipts.model_statistics(learner)
    gone = y == "b"
    removed = receipts.removed_statistics(learner, X[gone], y[gone])
    after = receipts.model_statistics(learner.unlearn(X[gone], y[gone]))
    receipt = receipts.sign_receipt(before, after, removed, key)
    assert receipt.classes == {"b": 10}
    assert receipts.verify_receipt(receipt, before, after, removed=removed).fails == ()


def test_statistics_survive_saving(parts: Any, tmp_path: Path) -> None:
    X = np.random.default_rng(1).normal(size=(40, 6))
    learner = small_learner(1200).fit(X, np.arange(40) % 3)
    learner.save(tmp_path / "m.evg")
    loaded = Learner.load(tmp_path / "m.evg")
    first = receipts.model_statistics(learner)
    assert receipts.model_statistics(loaded).digest() == first.digest()
    receipts.write_statistics(tmp_path / "removed.stats", parts[2])
    read = receipts.read_statistics(tmp_path / "removed.stats")
    assert read.digest() == parts[2].digest()


def test_no_receipt_for_samples_that_are_still_in_the_model(
    parts: Any, key: Any
) -> None:
    before, _, removed = parts
    with pytest.raises(InputError, match="no receipt was written"):
        receipts.sign_receipt(before, before, removed, key)


def test_another_model_or_other_removed_samples_do_not_hold(
    parts: Any, receipt: Any
) -> None:
    before, after, _ = parts
    _, other, fewer = unlearned(n=3)
    found = receipts.verify_receipt(receipt, before, other)
    assert any("after have the hash" in text for text in found.fails)
    assert any("samples per class" in text for text in found.fails)
    found = receipts.verify_receipt(receipt, before, after, removed=fewer)
    assert any("after = before - removed" in text for text in found.fails)
    assert receipts.verify_receipt(receipt, after, before).fails


def test_a_changed_sum_of_another_class_does_not_hold(parts: Any, receipt: Any) -> None:
    before, after, _ = parts
    sums = after.model.state
    forged = replace(
        after, model=replace(after.model, state=replace(sums, cross=1.01 * sums.cross))
    )
    assert receipts.verify_receipt(receipt, before, forged).fails


def test_the_expected_key_is_compared(parts: Any, receipt: Any) -> None:
    found = receipts.verify_receipt(receipt, public_key=receipt.public_key)
    assert found.fails == ()
    assert receipts.verify_receipt(receipt, public_key="0" * 64).fails


def test_a_receipt_is_read_back(receipt: Any, tmp_path: Path) -> None:
    receipts.write_receipt(tmp_path / "r.json", receipt)
    assert receipts.read_receipt(tmp_path / "r.json") == receipt


@pytest.mark.parametrize(
    "change",
    [
        {"classes": {"a": 200}},
        {"before": "0" * 64},
        {"for_good": True},
        {"signature": "0" * 128},
        {"signature": "zz"},
        {"public_key": "1" * 64},
        {"public_key": 5},
        {"removed": "short"},
        {"classes": {}},
        {"classes": {"a": -1}},
        {"classes": [[[]]]},
        {"schema": "learner"},
        {"version": 99},
        {"when": None},
    ],
    ids=str,
)
def test_forged_and_hostile_receipts_are_refused_in_one_line(
    receipt: Any, tmp_path: Path, change: dict[str, Any]
) -> None:
    path = tmp_path / "r.json"
    receipts.write_receipt(path, receipt)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(FileFormatError) as caught:
        receipts.read_receipt(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[" * 5000, b"\xff\xfe", b"0" * 2_000_000, b"null", b"{}"]
)
def test_files_that_are_no_receipts_are_refused(tmp_path: Path, body: bytes) -> None:
    (tmp_path / "r.json").write_bytes(body)
    with pytest.raises(FileFormatError):
        receipts.read_receipt(tmp_path / "r.json")
    with pytest.raises(EvergrowError):
        receipts.read_receipt(tmp_path)


def test_damaged_statistics_are_refused(parts: Any, tmp_path: Path) -> None:
    path = tmp_path / "removed.stats"
    receipts.write_statistics(path, parts[2])
    body = path.read_bytes()
    for position in range(0, len(body), len(body) // 40):
        damaged = bytearray(body)
        damaged[position] ^= 0x55
        path.write_bytes(damaged)
        with pytest.raises(FileFormatError):
            receipts.read_statistics(path)
    path.write_bytes(body[: len(body) // 2])
    with pytest.raises(FileFormatError):
        receipts.read_statistics(path)


@posix
def test_keys_are_private_and_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    receipts.create_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(PathError, match="exists"):
        receipts.create_key(path)
    path.chmod(0o644)
    with pytest.raises(PathError, match="chmod 600"):
        receipts.read_key(path)


@posix
def test_written_statistics_are_private(parts: Any, tmp_path: Path) -> None:
    path = tmp_path / "removed.stats"
    receipts.write_statistics(path, parts[2])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_files_that_are_no_keys_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    path.write_text("no key")
    path.chmod(0o600)
    with pytest.raises(FileFormatError, match="not a private key"):
        receipts.read_key(path)
    with pytest.raises(PathError, match="no file"):
        receipts.read_key(tmp_path / "nothing.pem")


def test_heads_without_sums_give_no_receipt() -> None:
    X = np.random.default_rng(0).normal(size=(20, 4))
    learner = Learner(None, method="simplecil").fit(X, np.arange(20) % 2)
    with pytest.raises(UnsupportedError, match="receipts need"):
        receipts.model_statistics(learner)
