"""Every name, file, command and link in docstrings and pages exists."""

from __future__ import annotations

import ast
import copy
import re
from pathlib import Path

import pytest
from tests.code_names import ROOT, Checker, Code, Finding
from typer.main import get_command

from evergrow.cli.registry import COMMANDS, build_app

PAGES = sorted(
    [
        *(ROOT / "docs").rglob("*.md"),
        *ROOT.glob("*.md"),
        *(ROOT / name / "README.md" for name in ("experiments", "benchmarks")),
    ]
)


@pytest.fixture(scope="module")
def checker() -> Checker:
    app = get_command(build_app())
    commands = {"": options(app)}
    for name in COMMANDS:
        found = app
        for word in name.split():
            found = found.commands[word]
        commands[name] = options(found)
    return Checker(Code(), commands)


def options(command) -> set[str]:
    known = {"--help"}
    for item in command.params:
        known.update((*item.opts, *item.secondary_opts))
    return known


def present(path: Path) -> str:
    """Return a page without what it says about older versions."""
    text = path.read_text(encoding="utf-8")
    if path.name == "CHANGELOG.md":
        text = "\n## ".join(text.split("\n## ")[:2])
        old = r"\n### (?:Changed|Removed).*?(?=\n### |\Z)"
        text = re.sub(old, lambda match: "\n" * match[0].count("\n"), text, flags=re.S)
    if path.name == "releases.md":
        text = re.sub(r"^\|[^|]*\|", "|", text, flags=re.MULTILINE)
    return text


def report(findings: list[Finding]) -> str:
    lines = sorted(str(finding) for finding in findings)
    return "\n".join([f"{len(lines)} names do not exist:", *lines])


def test_docstrings_name_what_exists(checker):
    found = []
    for module, tree in checker.code.trees.items():
        found += checker.source(module, tree, checker.code.paths[module])
    assert not found, report(found)


def test_pages_name_what_exists(checker):
    found = []
    for path in PAGES:
        found += checker.page(path, present(path))
    assert not found, report(found)


# -- the checker itself ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name", "hint"),
    [
        ("`evergrow.core.seeding.generate`", "evergrow.core.seeding.generate", ""),
        ("`Learner.predit`", "Learner.predit", "predict"),
        ("`Learner.predit(X)`", "Learner.predit", "predict"),
        ("`learner.predit(X)`", "learner.predit", "predict"),
        ("`learner.update_head()`", "learner.update_head", ""),
        ("`TrainConfig.epoch`", "TrainConfig.epoch", "epochs"),
        ("`Learner.fit(X, labels=y)`", "Learner.fit(labels=...)", ""),
        ('`best_backbones("image")`', "best_backbones", "best_backbone"),
        ("`seeding.generate`", "seeding.generate", ""),
        ("`@HEADS.registr(name)`", "HEADS.registr", ""),
        ("`RawSet`", "RawSet", ""),
        ("`DataOption`", "DataOption", "DataOptions"),
        ("`torch.Generators`", "torch.Generators", ""),
        ("`shape_direction`", "shape_direction", ""),
        ("`core/seeds.py`", "core/seeds.py", ""),
        ("`seeds.py`", "seeds.py", ""),
        ("`tests/core/test_seeds.py`", "tests/core/test_seeds.py", ""),
        ("`docs/seeds.md`", "docs/seeds.md", ""),
        ("`evergrow sortt MODEL`", "evergrow sortt", "sort"),
        ("`evergrow sort MODEL FOLDER --intoo OUT`", "--intoo", "--into"),
        ("`sort --intoo OUT`", "--intoo", "--into"),
        ("`--no-unknowns`", "--no-unknowns", "--no-unknown"),
        ("`--set epoch_count=3`", "epoch_count", ""),
        (
            "`POST /api/v1/models/{m}/predicted`",
            "POST /api/v1/models/{m}/predicted",
            "",
        ),
        ("Set EVERGROW_CACHES.", "EVERGROW_CACHES", "EVERGROW_CACHE"),
        ("::: evergrow.core.seeds", "evergrow.core.seeds", ""),
        ("```console\n$ evergrow fitt data\n```", "evergrow fitt", "fit"),
        ("```\nevergrow fitt data\n```", "evergrow fitt", "fit"),
        ("    evergrow fitt data", "evergrow fitt", "fit"),
        ("```sh\nevergrow fit data --modl m.evg\n```", "--modl", "--model"),
        ("```py\nfrom evergrow import Learners\n```", "evergrow.Learners", "Learner"),
        ("```py\nlearner.predit(X)\n```", "learner.predit", "predict"),
    ],
)
def test_a_wrong_name_on_a_page_is_found(checker, text, name, hint):
    (finding,) = checker.page(Path("page.md"), f"One line.\n\n{text}\n")
    assert finding.name == name
    assert finding.line == (4 if text.startswith("```") else 3)
    assert hint in finding.nearest
    assert str(finding).startswith(f"page.md:{finding.line}: `{name}`: ")


@pytest.mark.parametrize(
    ("docstring", "name"),
    [
        (
            "See :func:`evergrow.core.seeding.generate`.",
            "evergrow.core.seeding.generate",
        ),
        ("See :meth:`HeadSummary.run`.", "HeadSummary.run"),
        ("See :meth:`walks`.", "walks"),
        ("See :attr:`~evergrow.features.EncodeConfig.policy`.", "policy"),
        ("See :class:`RawSet`.", "RawSet"),
        ("See ``RawSet``.", "RawSet"),
        ("See ``Walker.runs``.", "Walker.runs"),
        ("See ``walk(metres=3)``.", "walk(metres=...)"),
        ("See ``config.epoch``.", "config.epoch"),
        ("Say so.\\n\\n      evergrow fitt data", "evergrow fitt"),
        ("Walk.\n\n    Parameters\n    ----------\n    steps : RawSet", "RawSet"),
        ("Walk.\n\n    Parameters\n    ----------\n    step : int", "step"),
        ("Walk.\n\n    Returns\n    -------\n    RawSet\n        All.", "RawSet"),
        ("Walk.\n\n    Raises\n    ------\n    WalkError\n        Never.", "WalkError"),
    ],
)
def test_a_wrong_name_in_a_docstring_is_found(checker, docstring, name):
    code = planted(checker.code, docstring)
    (finding,) = Checker(code).source(
        "evergrow.planted", code.trees["evergrow.planted"], Path("planted.py")
    )
    assert finding.name.endswith(name)


@pytest.mark.parametrize(
    "docstring",
    [
        "See :func:`evergrow.core.seeding.generator` and :meth:`walk`.",
        "See :class:`Walker`, ``Walker.speed``, ``Walker.pace`` and ``self.pace``.",
        "See ``config.epochs``, ``torch.nn.Module`` and ``walk(steps=3)``.",
        "Walk.\n\n    Parameters\n    ----------\n    steps : int\n    config : TrainConfig",
        "Walk.\n\n    >>> Nothing.like(this)\n    `RawSet`",
    ],
)
def test_right_names_are_accepted(checker, docstring):
    code = planted(checker.code, docstring)
    found = Checker(code).source(
        "evergrow.planted", code.trees["evergrow.planted"], Path("planted.py")
    )
    assert not found, report(found)


def planted(code: Code, docstring: str) -> Code:
    """Return the code with one more module, in which a method has this docstring."""
    source = f'''
from evergrow.adapt import TrainConfig

class Walker:
    speed: float = 1.0

    def __init__(self):
        self.pace = 2

    def walk(self, steps: int, config: TrainConfig):
        """{docstring}"""
'''
    tree = ast.parse(source)
    found = copy.copy(code)
    found.trees = {**code.trees, "evergrow.planted": tree}
    names = {"TrainConfig": tree.body[0], "Walker": tree.body[1]}
    found.members = {**code.members, "evergrow.planted": names}
    return found
