"""Mechanism analyses against independent computations, and their records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.commands import evergrow
from tests.lab.bench.conftest import ANALYSIS, WriteSpec, run

from evergrow.core.errors import ParameterError
from evergrow.core.seeding import generator
from evergrow.data import load_features
from evergrow.lab.bench import SpecError, load_spec, plan_grid
from evergrow.lab.bench.data import rows_of
from evergrow.lab.methods import create_method
from evergrow.lab.records import Record, load_record, load_records
from evergrow.lab.streams import Protocol, stream_of


def only(path: Path) -> Record:
    outcome = run(path)
    assert [step.status for step in outcome.steps] == ["ok"], outcome.records[0].error
    return outcome.records[0]


def given(path: Path, name: str, **options: Any):
    """The data, its tasks and the head after the first task, made without the bench."""
    data = load_features(path.parent / "blobs.npz")
    stream = stream_of(data, Protocol(increment=3), seed=1993)
    head = create_method(name, random_state=1993, device="cpu", **options)
    head.fit(*rows_of(data, "train", stream.tasks[0].train))
    return data, stream, head


def sigmoid_units(head: Any, X: np.ndarray) -> np.ndarray:
    W, b = (
        np.asarray(tensor, dtype=np.float64)
        for tensor in (head.layer_.units().weights, head.layer_.units().bias)
    )
    return 1.0 / (1.0 + np.exp(-(X.astype(np.float64) @ W + b)))


# -- figures ---------------------------------------------------------------------------


def test_conditioning_of_features_is_that_of_their_singular_values(
    write: WriteSpec,
) -> None:
    path = write()
    record = only(path)
    data, _, head = given(path, "ri", n_units=12)
    rows = torch.randperm(
        len(data.y_train), generator=generator(1993, "mechanism", "samples")
    )[:20].numpy()
    sigma = np.linalg.svd(sigmoid_units(head, data.X_train[rows]), compute_uv=False)
    features = record.results["features"]
    assert features["shape"] == [20, 12]
    np.testing.assert_allclose(
        [
            features["sigma_max"],
            features["sigma_2"],
            features["sigma_min"],
            features["condition_number"],
        ],
        [sigma[0], sigma[1], sigma[-1], sigma[0] / sigma[-1]],
        rtol=1e-5,
    )
    assert features["rank"] == np.linalg.matrix_rank(
        sigmoid_units(head, data.X_train[rows])
    )
    assert record.results["condition_number"] == features["condition_number"]


def test_conditioning_of_p_over_stages(write: WriteSpec) -> None:
    path = write()
    record = only(path)
    data, stream, head = given(path, "ri", n_units=12)
    stages = record.results["stages"]
    ridges = record.results["ridges"]
    assert [ridge["alpha"] for ridge in ridges] == [0.1, 10.0]
    assert stages["classes"] == [3, 6, 7]
    assert stages["samples"] == [18, 36, 42]
    gram = np.zeros((12, 12))
    for stage, task in enumerate(stream):
        H = sigmoid_units(head, data.X_train[task.train])
        gram += H.T @ H
        np.testing.assert_allclose(
            stages["gram_eig_max"][stage], np.linalg.norm(gram, 2), rtol=1e-5
        )
        for ridge in ridges:
            P = gram + ridge["alpha"] * np.eye(12)
            expected = {
                "condition_number": np.linalg.cond(P),
                "eig_max": np.linalg.norm(P, 2),
                "eig_min": 1.0 / np.linalg.norm(np.linalg.inv(P), 2),
                "norm": np.linalg.norm(P, "fro"),
                "inverse_norm": np.linalg.norm(np.linalg.inv(P), "fro"),
                "effective_rank": np.trace(gram @ np.linalg.inv(P)),
            }
            for name, value in expected.items():
                np.testing.assert_allclose(
                    ridge[name][stage], value, rtol=1e-5, err_msg=name
                )


def test_conditioning_takes_the_method_s_own_ridge_by_default(write: WriteSpec) -> None:
    record = only(
        write(
            (", alphas = [0.1, 10]", ""), ("n_units = 12", "n_units = 12, alpha = 0.7")
        )
    )
    assert [ridge["alpha"] for ridge in record.results["ridges"]] == [0.7]


def test_every_layer_sees_the_same_samples(write: WriteSpec) -> None:
    again = (
        '[[analyses.methods]]\nname = "ri"\nlabel = "again"\n'
        "options = { n_units = 12, alpha = 3 }"  # the ridge does not change the layer
    )
    first, second = run(write(add=again)).records
    assert first.results == second.results


@pytest.mark.parametrize("name", ["ri", "scsm", "scl-mgsm"])
def test_similarity_is_the_cosine_of_columns(write: WriteSpec, name: str) -> None:
    options = "n_units = 12, block_size = 4, scales = [0.5, 1.0]"
    if name != "scl-mgsm":
        options = "n_units = 12"
    path = write(
        ('"conditioning"', '"similarity"'),
        ("n_samples = 20, alphas = [0.1, 10]", "n_bases = 5"),
        ('"ri"', f'"{name}"'),
        ("n_units = 12", options),
    )
    found = only(path).results
    if name == "scl-mgsm":
        extra = {"block_size": 4, "scales": [0.5, 1.0]}
    else:
        extra = {}
    data, stream, head = given(path, name, n_units=12, **extra)
    H = sigmoid_units(head, data.X_train[stream.tasks[0].train])[:, found["units"]]
    norms = np.sqrt((H**2).sum(axis=0))
    cosine = H.T @ H / np.outer(norms, norms)
    np.testing.assert_allclose(found["matrix"], cosine, atol=6e-5)
    np.testing.assert_allclose(found["centred_matrix"], np.corrcoef(H.T), atol=6e-5)
    off = ~np.eye(5, dtype=bool)
    assert found["mean_abs"] == pytest.approx(np.abs(cosine[off]).mean(), rel=1e-5)
    assert found["centred_mean_abs"] == pytest.approx(
        np.abs(np.corrcoef(H.T)[off]).mean(), rel=1e-5
    )
    W = np.asarray(head.layer_.units().weights, dtype=np.float64)[:, found["units"]]
    unit = W / np.linalg.norm(W, axis=0)
    assert found["weights_mean_abs"] == pytest.approx(
        np.abs((unit.T @ unit)[off]).mean(), rel=1e-5
    )
    assert found["n_units"] == 12
    assert found["units"] == sorted(set(found["units"]))


def test_residual_is_that_of_ridge_regression_on_the_units(write: WriteSpec) -> None:
    path = write(
        ('"conditioning"', '"residual"'),
        ("n_samples = 20, alphas = [0.1, 10]", "max_points = 3"),
        ('"ri"', '"scl-mgsm"'),
        (
            "n_units = 12",
            "block_size = 2, max_units = 20, scales = [0.5, 1.0], alpha = 0.1, tol = 0",
        ),
    )
    found = only(path).results
    data, stream, head = given(
        path,
        "scl-mgsm",
        block_size=2,
        max_units=20,
        scales=[0.5, 1.0],
        alpha=0.1,
        tol=0.0,
    )
    log = found["log"]
    assert len(log["n_units"]) == 3
    assert log["n_units"][0] == 2
    assert (
        log["n_units"][-1]
        == found["n_guided"]
        == found["n_units"]
        == 2 * found["n_blocks"]
    )
    assert found["status"] == head.status_
    X, y = rows_of(data, "train", stream.tasks[0].train)
    Y = (y[:, None] == np.unique(y)).astype(np.float64)
    for width, rmse in zip(log["n_units"], log["rmse"]):
        H = sigmoid_units(head, X)[:, :width]
        W = np.linalg.solve(H.T @ H + 0.1 * np.eye(width), H.T @ Y)
        assert rmse == pytest.approx(np.sqrt(np.mean((Y - H @ W) ** 2)), rel=1e-4)
    assert found["rmse"] == log["rmse"][-1]


def test_sweep_and_xi_learn_to_the_end(write: WriteSpec) -> None:
    method = ('"ri"', '"scl-mgsm"')
    options = ("n_units = 12", "block_size = 4, max_units = 12, scales = [0.5, 1.0]")
    nothing = ("options = { n_samples = 20, alphas = [0.1, 10] }\n", "")
    path = write(('"conditioning"', '"sweep"'), nothing, method, options)
    record = only(path)
    data, stream, head = given(
        path, "scl-mgsm", block_size=4, max_units=12, scales=[0.5, 1.0]
    )
    accuracies = []
    for task in stream:
        if task.index:
            head.partial_fit(*rows_of(data, "train", task.train))
        X, y = rows_of(data, "test", stream.seen_test(task.index)[0])
        accuracies.append(np.mean(head.predict(X) == y))
    assert record.results["a_last"] == pytest.approx(accuracies[-1], rel=1e-5)
    assert record.results["a_avg"] == pytest.approx(np.mean(accuracies), rel=1e-5)
    assert record.results["n_units"] == head.n_units_
    assert record.results["trajectory"][-1][1] == len(head.construction_log_) * 4
    assert record.memory["peak_rss_bytes"] >= record.memory["start_rss_bytes"] > 0

    same = only(write(('"conditioning"', '"xi"'), nothing, method, options))
    assert same.results["by_samples"] == record.results["by_samples"]
    # In units of the features' spread, the same xi are other numbers.
    X = data.X_train[stream.tasks[0].train].astype(np.float64)
    rms = np.sqrt(((X - X.mean(axis=0)) ** 2).sum(axis=1).mean())
    assert same.results["feature_rms"] == pytest.approx(rms, rel=1e-5)
    scaled = options[1].replace("[0.5, 1.0]", f"[{float(0.5 * rms)!r}, {float(rms)!r}]")
    unit = ("n_samples = 20, alphas = [0.1, 10]", 'unit = "rms"')
    relative = only(
        write(('"conditioning"', '"xi"'), unit, method, (options[0], scaled))
    )
    assert relative.results["scales"] == pytest.approx([0.5, 1.0], rel=1e-5)
    assert relative.results["by_samples"] == record.results["by_samples"]


def test_random_layers_can_be_swept(write: WriteSpec) -> None:
    nothing = ("options = { n_samples = 20, alphas = [0.1, 10] }\n", "")
    found = only(write(('"conditioning"', '"sweep"'), nothing)).results
    assert found["status"] == "drawn"
    assert (found["n_units"], found["n_guided"], found["rmse"]) == (12, 0, None)
    assert found["layer_bytes"] == (5 + 2) * 12 * 4  # float32 weights, float64 biases
    assert found["state_bytes"] >= 12 * 12 * 8


# -- records ---------------------------------------------------------------------------


def test_analysis_records_have_their_own_schema(write: WriteSpec) -> None:
    outcome = run(write())
    path = outcome.folder / outcome.steps[0].run.file_name
    assert '"schema": "evergrow-analysis"' in path.read_text()
    assert load_record(path) == outcome.records[0]
    assert load_records(outcome.folder) == ({path.resolve(): outcome.records[0]}, {})
    assert str(outcome.folder.parent) not in path.read_text()


# -- specs -----------------------------------------------------------------------------


def test_analyses_reject_methods_without_required_attributes(write: WriteSpec) -> None:
    nothing = ("options = { n_samples = 20, alphas = [0.1, 10] }\n", "")
    with pytest.raises(
        SpecError, match="needs layer_, alpha_, which 'simplecil' does not have"
    ):
        load_spec(write(('"ri"', '"simplecil"'), ("options = { n_units = 12 }", "")))
    with pytest.raises(
        SpecError, match="needs construction_log_, status_, which 'ri' does not have"
    ):
        load_spec(write(('"conditioning"', '"residual"'), nothing))
    with pytest.raises(SpecError, match="needs scales, which 'scsm' does not have"):
        load_spec(write(('"conditioning"', '"xi"'), nothing, ('"ri"', '"scsm"')))
    with pytest.raises(SpecError, match="lacks 'methods'"):
        load_spec(write(add='[[analyses]]\nname = "sweep"\n'))


def test_same_analysis_twice_is_an_error(write: WriteSpec) -> None:
    add = ANALYSIS[ANALYSIS.index("[[analyses]]") :]
    with pytest.raises(ParameterError, match="same settings twice: conditioning"):
        plan_grid(load_spec(write(add=add)))


# -- command line ----------------------------------------------------------------------


def mechanism(*args: object):
    return evergrow("lab", "mechanism", *args)


def test_mechanism_command_writes_records_once(
    write: WriteSpec, tmp_path: Path
) -> None:
    path = write()
    out = tmp_path / "out"
    done = mechanism(path, "-o", out)
    assert done.exit_code == 0, done.output
    assert (
        "[1/1] ok | conditioning | RI | Blobs | B-0 Inc-3 | seed 1993 | n_units 12"
        in done.stderr
    )
    again = json.loads(mechanism(path, "-o", out, "--json").stdout)
    assert again["analyses"][0]["action"] == "skip"
    assert again["analyses"][0]["figures"]["n_units"] == 12
    assert "1 ok; records in" in mechanism(path, "-o", out).stdout
