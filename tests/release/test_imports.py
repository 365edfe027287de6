"""An import of evergrow loads no heavy library, and its first use only PyTorch."""

from __future__ import annotations

import json
import subprocess
import sys

import evergrow

# All that the public names load beside the standard library, evergrow itself and what
# PyTorch loads of its own accord. Image networks, scikit-learn, SciPy, the command
# line, and whatever an extra brings, wait until something needs them.
NAMED = {"numpy", "safetensors", "torch", "typing_extensions"}
LOADED = """
import json, sys
{}
loaded = {{name.partition(".")[0] for name in sys.modules}}
print(json.dumps(sorted(loaded - set(sys.stdlib_module_names))))
"""


def loaded(statement: str) -> set[str]:
    """Return the third-party packages that a fresh process loads for a statement."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED.format(statement)],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(done.stdout))


def test_a_bare_import_loads_nothing_but_itself() -> None:
    # What the interpreter loads at its start, such as the hooks of editable
    # installations, is not evergrow's.
    assert loaded("import evergrow") - loaded("pass") - {"evergrow"} == set()


def test_the_learner_loads_torch_and_nothing_else_that_is_heavy() -> None:
    names = (
        loaded("from evergrow import Classifier, Learner, SCLClassifier")
        - loaded("import torch")
        - {"evergrow"}
    )
    assert {name for name in names if not name.startswith("_")} <= NAMED


def test_features_are_learned_without_an_image_library() -> None:
    learned = (
        "import numpy as np; from evergrow import Learner; X, y = np.eye(40), np.arange(40) % 4;"
        "one = Learner(options={'n_units': 20}).fit(X, y).partial_fit(X, y);"
        "one.evaluate(X, y), one.is_unknown(X), one.state_.describe()"
    )
    assert loaded(learned) & {"PIL", "timm", "torchvision", "matplotlib"} == set()


def test_every_public_name_is_found() -> None:
    for name in evergrow.__all__:
        assert getattr(evergrow, name) is not None
