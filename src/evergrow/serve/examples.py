"""Examples of responses for the OpenAPI description.

``docs/serve.md`` shows the same examples. Tests compare them with the description and
with real responses.
"""

from __future__ import annotations

from typing import Any

_CLASSES = [{"name": "gull", "samples": 12}, {"name": "tern", "samples": 9}]
_WHEN = "2026-05-04T09:30:00.000+00:00"
_IMAGE_ID = "18c50bf65459dea82fdd50439f4d385a"


def _entry(what: str, revision: int, samples: int, **members: Any) -> dict[str, Any]:
    """Return a change in the history."""
    return {
        "what": what,
        "when": _WHEN,
        "samples": samples,
        "classes": [],
        "names": {},
        "note": "",
        "revision": revision,
        "influenced_scores": 0,
        **members,
    }


def _change(
    entry: dict[str, Any],
    *,
    classes: list[dict[str, Any]] = _CLASSES,
    new: tuple[str, ...] = (),
    gone: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Return the response to a change."""
    return {
        "model": "birds",
        "revision": entry["revision"],
        "etag": f'"{entry["revision"]}-6049e7e41d5b"',
        "state": "ready",
        "classes": classes,
        "n_samples": sum(count["samples"] for count in classes),
        "change": entry,
        "new_classes": list(new),
        "gone_classes": list(gone),
        "warnings": [],
        "replayed": False,
    }


_TAUGHT = _change(_entry("update", 3, 9, classes=["tern"]), new=("tern",))
_JOB = {
    "id": "VndpsUYdW6AtHc3r",
    "model": "birds",
    "state": "running",
    "done": 40,
    "total": 900,
    "skipped": 1,
    "failures": [{"name": "gull/7.jpg", "reason": "gull/7.jpg is damaged in the zip"}],
    "error": None,
    "change": None,
}
_MODEL = {
    "name": "birds",
    "kind": "images",
    "state": "ready",
    "revision": 3,
    "classes": _CLASSES,
    "n_samples": 21,
    "n_features": 1280,
    "method": "evergrow",
    "options": {},
    "backbone": {
        "name": "tf_efficientnet_lite0",
        "n_features": 1280,
        "weights_hash": "c8ff6d7a",
        "reason": "",
    },
    "thresholds": {"novelty": 2.65, "false_alarm": 0.05, "calibrated_on": 21},
    "history": [_TAUGHT["change"]],
    "revisions": [1, 2],
    "redoable": 0,
}
_NEW_MODEL = {
    **_MODEL,
    "state": "starting",
    "revision": 1,
    "classes": [],
    "n_samples": 0,
    "thresholds": None,
    "history": [_entry("begin", 1, 0)],
    "revisions": [],
}
_EVALUATION = {
    "model": "birds",
    "revision": 3,
    "n_samples": 3,
    "accuracy": 0.667,
    "accuracy_all": 0.667,
    "balanced_accuracy": 0.75,
    "classes": ["gull", "tern"],
    "confusion": [[1, 1], [0, 1]],
    "per_class": [
        {"name": "gull", "n": 2, "recall": 0.5, "precision": 1.0, "f1": 0.667},
        {"name": "tern", "n": 1, "recall": 1.0, "precision": 0.5, "f1": 0.667},
    ],
    "confused": [{"true": "gull", "predicted": "tern", "n": 1, "share": 0.5}],
    "unknown_classes": {},
    "unknown": None,
    "predicted": ["gull", "tern", "tern"],
    "wrong": [{"sample": 1, "label": "gull", "predicted": "tern"}],
    "seconds": 0.12,
}

EXAMPLES: dict[str, Any] = {
    "ModelList": {
        "models": [
            {
                "name": "birds",
                "kind": "images",
                "state": "ready",
                "revision": 3,
                "n_classes": 2,
                "n_samples": 21,
                "error": None,
            }
        ],
        "read_only": False,
    },
    "BackboneList": {
        "backbones": [
            {
                "name": "tf_efficientnet_lite0",
                "kind": "images",
                "n_features": 1280,
                "about": "EfficientNet-Lite0, ImageNet-1k",
            }
        ]
    },
    "ModelRecord": _MODEL,
    "Predictions": {
        "model": "birds",
        "revision": 3,
        "measure": "probability",
        "threshold": 2.65,
        "answers": [
            {
                "label": "gull",
                "nearest": {"class": "gull", "value": 0.98},
                "top": [
                    {"class": "gull", "value": 0.98},
                    {"class": "tern", "value": 0.02},
                ],
                "novelty": 0.31,
                "familiarity": 0.62,
                "unknown": False,
                "unsure": False,
            }
        ],
    },
    "EvaluationRecord": _EVALUATION,
    "SuggestionRecord": {"order": [4, 0], "unknown": [False, True]},
    "GroupRecord": {"groups": [[5, 2, 3], [7, 1]]},
    "DriftRecord": {
        "classes": [{"name": "gull", "samples": 20, "p": 0.012, "changed": True}],
        "untested": 3,
    },
    "StrictnessRecord": {
        "revision": 3,
        "known_not_filed": 0.18,
        "unknown_filed": 0.12,
        "estimate": {
            "unknown": 34.2,
            "unknown_interval": [28.0, 41.0],
            "filed": 5.1,
            "filed_interval": [2.0, 9.0],
        },
    },
    "CurveRecord": {
        "sizes": [2, 4, 9],
        "accuracy": [0.71, 0.83, 0.9],
        "interval": [[0.6, 0.8], [0.75, 0.89], [0.84, 0.94]],
        "median_samples": 10,
        "gain": [0.03, 0.01, 0.05],
        "recall_gains": {"gull": 0.05, "tern": 0.09},
    },
    "ChangeAnswer": _TAUGHT,
    "KeptRecord": {
        "on": True,
        "images": [
            {
                "id": _IMAGE_ID,
                "set": "test",
                "label": "gull",
                "name": "7.jpg",
                "bytes": 251642,
                "when": _WHEN,
                "revision": 3,
            }
        ],
        "bytes": 251642,
        "most_images": 500,
        "most_bytes": 134217728,
    },
    "KeptEvaluation": {**_EVALUATION, "ids": [_IMAGE_ID] * 3},
    "JobRecord": _JOB,
    "JobList": {"jobs": [_JOB]},
    "LabelStudioHealth": {"status": "UP", "model_class": "evergrow"},
    "LabelStudioSetup": {"model_version": "3"},
    "LabelStudioPredictions": {
        "results": [
            {
                "result": [
                    {
                        "from_name": "choice",
                        "to_name": "image",
                        "type": "choices",
                        "value": {"choices": ["gull"]},
                        "score": 0.98,
                    }
                ],
                "score": 0.93,
                "model_version": "3",
            }
        ],
        "model_version": "3",
    },
    "ServiceHealth": {"status": "ok"},
    "LanRecord": {
        "address": "https://192.168.1.20:8080/#token=5Kb0hJ2mVxQ7",
        "expires": "2026-05-04T10:30:00+00:00",
        "seconds": 3600,
        "svg": '<svg xmlns="http://www.w3.org/2000/svg"></svg>',
    },
    "ServerMetadata": {
        "name": "evergrow",
        "version": "0.4.0",
        "extensions": ["binary_tensor_data"],
    },
    "ServerLive": {"live": True},
    "ServerReady": {"ready": True},
    "ModelMetadata": {
        "name": "birds",
        "versions": ["3"],
        "platform": "evergrow_evg",
        "inputs": [{"name": "images", "datatype": "BYTES", "shape": [-1]}],
        "outputs": [
            {"name": "label", "datatype": "BYTES", "shape": [-1]},
            {"name": "nearest", "datatype": "BYTES", "shape": [-1]},
            {"name": "probability", "datatype": "FP64", "shape": [-1]},
            {"name": "novelty", "datatype": "FP64", "shape": [-1]},
            {"name": "unknown", "datatype": "BOOL", "shape": [-1]},
        ],
    },
    "ModelReady": {"name": "birds", "ready": True},
    "InferResponse": {
        "model_name": "birds",
        "model_version": "3",
        "id": "42",
        "outputs": [
            {"name": "label", "shape": [1], "datatype": "BYTES", "data": ["gull"]},
            {"name": "nearest", "shape": [1], "datatype": "BYTES", "data": ["gull"]},
            {"name": "probability", "shape": [1], "datatype": "FP64", "data": [0.98]},
            {"name": "novelty", "shape": [1], "datatype": "FP64", "data": [0.31]},
            {"name": "unknown", "shape": [1], "datatype": "BOOL", "data": [False]},
        ],
    },
}
"""Example of each response, by the name of its schema."""

_GULLS = [{"name": "gull", "samples": 12}]
ROUTE_EXAMPLES: dict[str, Any] = {
    "create_model": _NEW_MODEL,
    "unlearn": _change(
        _entry("unlearn", 4, 2, influenced_scores=7),
        classes=[{"name": "gull", "samples": 10}, _CLASSES[1]],
    ),
    "learn_unlabelled": _change(
        _entry("unlabelled", 4, 5, note="1 left out as unknown")
    ),
    "forget_unlabelled": _change(_entry("forget-unlabelled", 5, 5)),
    "forget": _change(
        _entry("forget", 4, 9, classes=["tern"]), classes=_GULLS, gone=("tern",)
    ),
    "rename": _change(
        _entry("rename", 4, 9, classes=["common tern"], names={"tern": "common tern"}),
        classes=[{"name": "common tern", "samples": 9}, *_GULLS],
        new=("common tern",),
        gone=("tern",),
    ),
    "merge_classes": _change(
        _entry(
            "merge-classes",
            4,
            21,
            classes=["seabird"],
            names={"gull": "seabird", "tern": "seabird"},
        ),
        classes=[{"name": "seabird", "samples": 21}],
        new=("seabird",),
        gone=("gull", "tern"),
    ),
    "roll_back": _change(
        _entry("rollback", 2, 9, note="undid update"), classes=_GULLS, gone=("tern",)
    ),
    "redo": _change(_entry("redo", 3, 9, note="redid update"), new=("tern",)),
}
"""Examples of routes with the same schema as others, by the name of the function."""


def add_examples(document: dict[str, Any]) -> None:
    """Add an example to every JSON response without an error.

    Parameters
    ----------
    document : dict
        The OpenAPI description, which is changed.
    """
    for operations in document["paths"].values():
        for operation in operations.values():
            for status, response in operation["responses"].items():
                content = response.get("content", {}).get("application/json")
                if status.startswith("2") and content is not None:
                    content["example"] = _example(operation["operationId"], content)


def _example(operation: str, content: dict[str, Any]) -> Any:
    """Return the example of a response. Operations begin with their function's name."""
    schema = content["schema"]["$ref"].rpartition("/")[2]
    for function, example in ROUTE_EXAMPLES.items():
        if operation.startswith(f"{function}_api_"):
            return example
    return EXAMPLES[schema]
