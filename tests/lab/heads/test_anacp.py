from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from benchmarks import official

from evergrow.core.seeding import generator
from evergrow.lab.heads import AnaCPClassifier
from evergrow.lab.heads.prototypes import (
    SharedGaussian,
    cosine_gradient,
    null_direction,
    target_prototypes,
)


def transcription(
    head: AnaCPClassifier, arrays: Any, stream: Any, *, settled: bool
) -> Any:
    def normals(index: int) -> Any:
        return (
            torch.randn(100, 12, generator=generator(8, "anacp", "pseudo", index))
            .double()
            .numpy()
        )

    def null(rows: Any, centre: Any) -> Any:
        return null_direction(torch.from_numpy(rows), torch.from_numpy(centre)).numpy()

    heads = [arrays(model.layer)[0] for model in head._heads]
    return official.AnaCP(
        arrays(head._output)[0],
        heads,
        stream.n_classes,
        normals,
        head.alpha,
        null if settled else None,
    )


@pytest.mark.parametrize(("n_units", "alpha"), [(50, 100.0), (50, 1.0), (900, 10.0)])
def test_code_variant_equals_the_official_loop(
    stream: Any, arrays: Any, n_units: int, alpha: float
) -> None:
    head = stream.teach(
        AnaCPClassifier(
            n_units=n_units, alpha=alpha, random_state=8, dtype="float64", device="cpu"
        )
    )
    plain = stream.teach(transcription(head, arrays, stream, settled=True))
    np.testing.assert_allclose(
        head.decision_function(stream.X), plain.scores(stream.X), atol=1e-6
    )


def test_accuracy_does_not_depend_on_the_null_vector(stream: Any, arrays: Any) -> None:
    head = stream.teach(
        AnaCPClassifier(
            n_units=200, alpha=1.0, random_state=8, dtype="float64", device="cpu"
        )
    )
    plain = stream.teach(transcription(head, arrays, stream, settled=False))
    theirs = np.mean(plain.scores(stream.X).argmax(axis=1) == stream.y)
    assert head.score(stream.X, stream.y) == pytest.approx(theirs, abs=0.1)


def test_code_covariance_gives_task_t_the_weight_of_one_in_t_plus_one() -> None:
    rng = torch.Generator().manual_seed(0)
    gaussian = SharedGaussian.empty(3, "code", torch.zeros(1, dtype=torch.float64))
    expected = 1e-4 * torch.eye(3, dtype=torch.float64)
    for task in range(1, 4):
        X = torch.randn(20, 3, generator=rng, dtype=torch.float64)
        groups = [*([column] for column in range(task - 1)), []]
        gaussian = gaussian.add(X, torch.full((20,), task - 1), groups)
        own = torch.cov(X.T, correction=0)
        expected = (1 - 1 / (task + 1)) * expected + own / (task + 1)
        torch.testing.assert_close(gaussian.covariance(), expected)


def test_paper_covariance_is_the_pooled_one() -> None:
    rng = torch.Generator().manual_seed(0)
    X = torch.randn(60, 3, generator=rng, dtype=torch.float64)
    codes = torch.arange(60) % 2
    gaussian = (
        SharedGaussian.empty(3, "paper", X)
        .add(X[:25], codes[:25], [[], []])
        .add(X[25:], codes[25:], [[0], [1]])
    )
    centred = torch.cat([X[codes == c] - X[codes == c].mean(dim=0) for c in (0, 1)])
    pooled = centred.T @ centred / 60 + 1e-4 * torch.eye(3, dtype=torch.float64)
    torch.testing.assert_close(gaussian.covariance(), pooled)


def test_cosine_gradient_is_the_derivative() -> None:
    rng = torch.Generator().manual_seed(1)
    left = torch.linalg.qr(torch.randn(6, 4, generator=rng, dtype=torch.float64))[0]
    values = torch.tensor([3.0, 2.0, 1.0, 0.5], dtype=torch.float64, requires_grad=True)
    rows = torch.nn.functional.normalize(left * values)
    cosines = rows @ rows.T
    mean = (cosines.abs().sum() - cosines.diagonal().abs().sum()) / 30
    mean.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(cosine_gradient(left, values.detach()), values.grad)


@pytest.mark.parametrize("variant", ["code", "paper"])
def test_prototypes_have_unit_length_and_lie_further_apart(
    stream: Any, variant: str
) -> None:
    head = stream.teach(
        AnaCPClassifier(n_units=20, variant=variant, random_state=0, device="cpu")
    )
    P = target_prototypes(head._gaussian)
    torch.testing.assert_close(P.norm(dim=1), torch.ones(6, dtype=torch.float64))


def test_paper_variant_does_not_depend_on_how_batches_are_cut(stream: Any) -> None:
    make = {
        "n_units": 40,
        "alpha": 1.0,
        "variant": "paper",
        "random_state": 0,
        "device": "cpu",
    }
    head = stream.teach(AnaCPClassifier(**make))
    X, y = (np.concatenate(parts) for parts in zip(*stream.tasks))
    joint = AnaCPClassifier(**make).fit(X, y)
    np.testing.assert_allclose(
        head.decision_function(stream.X), joint.decision_function(stream.X), atol=1e-6
    )


def test_single_precision_is_close_to_double(stream: Any) -> None:
    make = {"n_units": 1100, "random_state": 0, "device": "cpu"}
    single, double = (
        stream.teach(AnaCPClassifier(dtype=kind, **make))
        for kind in ("auto", "float64")
    )
    assert single._work_dtype() == torch.float32
    np.testing.assert_allclose(
        single.decision_function(stream.X),
        double.decision_function(stream.X),
        atol=1e-4,
    )
