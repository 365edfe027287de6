"""Rules of the source tree that no linter checks: privacy, names and imports."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from tests.phrases import phrases, prose_of_page, prose_of_source

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "evergrow"
SOURCES = sorted(PACKAGE.rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")])
MAY_IMPORT_LAB = ("tests/lab/", "tests/release/", "tests/test_docs.py")
FOREIGN = {
    "_exit",  # os
    "_modules",  # torch.nn.Module
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_get_rel_pos_bias",  # timm
    "_worker_logs_enabled",  # ray
}
"""Private names of other libraries that evergrow uses."""

DOCSTRING_LIMIT = 1.3
PAGE_LIMIT = 0.6
"""Hard phrases per 1,000 words. Well-known libraries of this field have about 0.6."""


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def package_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else ""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def at(path: Path, node: ast.AST) -> str:
    line = getattr(node, "lineno", 1)
    return f"{path.relative_to(ROOT).as_posix()}:{line}: {ast.unparse(node)[:70]}"


def is_own(value: ast.expr) -> bool:
    """Return whether an object is `self`, `cls` or `super()`."""
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id == "super"
    return isinstance(value, ast.Name) and value.id in ("self", "cls")


def defined_names(module: ast.Module) -> Iterator[str]:
    """Yield the functions, classes, variables and attributes that a module defines."""
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        if not isinstance(getattr(node, "ctx", None), ast.Store):
            continue
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute) and is_own(node.value):
            yield node.attr


def imported_modules(module: ast.Module) -> Iterator[tuple[ast.AST, str, list[str]]]:
    """Yield every import: the node, the module, and the names imported from it."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name, []
        elif isinstance(node, ast.ImportFrom):
            yield node, node.module or "", [alias.name for alias in node.names]


def mentions(annotation: ast.AST | None, classes: set[str]) -> bool:
    """Return whether a type annotation names one of some classes."""
    if annotation is None:
        return False
    return not classes.isdisjoint(re.findall(r"\w+", ast.unparse(annotation)))


def makes_own(value: ast.expr | None, classes: set[str]) -> bool:
    """Return whether an expression makes an object of a class of the same module.

    Such expressions are calls of the class, of ``cls`` and of ``type(...)``, methods of
    ``self`` and ``cls``, copies of ``self``, and casts.
    """
    if not isinstance(value, ast.Call):
        return False
    function = value.func
    if isinstance(function, ast.Attribute) and is_own(function.value):
        return True
    name = ast.unparse(function).rpartition(".")[2]
    if name in {"cls", *classes} or ast.unparse(function).startswith("type("):
        return True
    first = value.args[0] if value.args else None
    if name in ("copy", "replace") and first is not None:
        return is_own(first)
    return name == "cast" and mentions(first, classes)


def own_variables(function: ast.AST, classes: set[str]) -> set[str]:
    """Return the variables of a function that hold objects of classes of its module."""
    known = set()
    for node in ast.walk(function):
        if isinstance(node, ast.arg) and mentions(node.annotation, classes):
            known.add(node.arg)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            if mentions(node.annotation, classes):
                known.add(node.target.id)
        elif isinstance(node, ast.Assign) and makes_own(node.value, classes):
            known.update(name.id for name in node.targets if isinstance(name, ast.Name))
    for node in ast.walk(function):
        if isinstance(node, ast.For) and isinstance(node.target, ast.Name):
            names = {name.id for name in ast.walk(node.iter) if hasattr(name, "id")}
            if not names.isdisjoint(known):
                known.add(node.target.id)
    return known


def foreign_access(module: ast.Module, elsewhere: set[str]) -> list[ast.Attribute]:
    """Return uses of private attributes of objects of other modules.

    A module may use a private name that it defines. If other packages define the name
    as well, the object must be of a class of the module, as its annotation or its
    assignment shows.

    Parameters
    ----------
    module : ast.Module
        The module.
    elsewhere : set of str
        Names that modules of other packages define.
    """
    defined = set(defined_names(module))
    classes = {node.name for node in ast.walk(module) if isinstance(node, ast.ClassDef)}
    classes.add("Self")
    functions = [
        node
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    allowed = set()
    for function in functions:
        known = own_variables(function, classes)
        for node in ast.walk(function):
            owner = getattr(node, "value", None)
            if isinstance(owner, ast.Name) and owner.id in known:
                allowed.add(node)
    found = []
    for node in ast.walk(module):
        if not isinstance(node, ast.Attribute) or not is_private(node.attr):
            continue
        if is_own(node.value) or node.attr in FOREIGN:
            continue
        is_shared = node.attr in elsewhere and node not in allowed
        if node.attr not in defined or is_shared:
            found.append(node)
    return found


def test_modules_use_no_private_attributes_of_other_modules():
    homes = defaultdict(set)
    for path in SOURCES:
        for name in defined_names(tree(path)):
            homes[name].add(package_of(path))
    found = []
    for path in SOURCES:
        package = package_of(path)
        elsewhere = {name for name, packages in homes.items() if packages - {package}}
        found += [at(path, node) for node in foreign_access(tree(path), elsewhere)]
    assert not found


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def f(learner: Learner): return learner._state", ["learner._state"]),
        (
            "class Head:\n def __init__(self): self._state = 1\n"
            "def f(learner: Learner, head: Head): return learner._state, head._state",
            ["learner._state"],
        ),
        (
            "class Head:\n def copy(self): self._state = 1; other = copy(self); other._state",
            [],
        ),
        ("def f(other): return other._unique", ["other._unique"]),
        ("def _unique(): return 1\ndef f(other): return other._unique", []),
    ],
)
def test_private_attributes_of_other_objects_are_found(source, expected):
    found = foreign_access(ast.parse(source), elsewhere={"_state"})
    assert [ast.unparse(node) for node in found] == expected


def test_modules_import_no_private_names():
    found = [
        at(path, node)
        for path in SOURCES
        for node, module, names in imported_modules(tree(path))
        if module.partition(".")[0] == "evergrow"
        and any(is_private(name) for name in (*module.split("."), *names))
    ]
    assert not found


def test_product_class_names_are_unique():
    places = defaultdict(list)
    for path in SOURCES:
        if package_of(path) == "lab":
            continue
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not {name: found for name, found in places.items() if len(found) > 1}


def test_public_function_names_are_unique():
    places = defaultdict(list)
    for path in SOURCES:
        if package_of(path) == "lab":
            continue
        for node in tree(path).body:
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            # Routes of the service are named after the functions that they call.
            is_route = package_of(path) == "serve" and node.decorator_list
            if not is_route and not is_private(node.name):
                places[node.name].append(at(path, node))
    assert not {name: found for name, found in places.items() if len(found) > 1}


def test_product_tests_do_not_import_the_laboratory():
    found = []
    for path in TESTS:
        if path.relative_to(ROOT).as_posix().startswith(MAY_IMPORT_LAB):
            continue
        for node, module, names in imported_modules(tree(path)):
            targets = {module, *(f"{module}.{name}" for name in names)}
            if any(f"{name}.".startswith("evergrow.lab.") for name in targets):
                found.append(at(path, node))
    assert not found


def is_parallel(node: ast.AST) -> bool:
    """Return whether a statement assigns several values to several targets.

    Swaps such as ``a, b = b, a`` are allowed.
    """
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
        return False
    values = sorted(map(ast.unparse, node.value.elts))
    return any(
        isinstance(target, ast.Tuple | ast.List)
        and sorted(map(ast.unparse, target.elts)) != values
        for target in node.targets
    )


def test_each_assignment_has_one_value():
    found = [
        at(path, node)
        for path in SOURCES
        for node in ast.walk(tree(path))
        if is_parallel(node)
    ]
    assert not found


@pytest.mark.parametrize(
    ("statement", "parallel"),
    [
        ("a, b = x, y", True),
        ("[a, b] = x, y", True),
        ("a, b = b, a", False),
        ("a, b = pair", False),
        ("a = x, y", False),
    ],
)
def test_parallel_assignments_are_found(statement, parallel):
    assert is_parallel(ast.parse(statement).body[0]) == parallel


def phrase_rate(texts: list[tuple[Path, str]]) -> tuple[float, list[str]]:
    """Return hard phrases per 1,000 words, and the text around each."""
    n_words = sum(len(text.split()) for _, text in texts)
    found = [
        f"{path.relative_to(ROOT)}: {phrase!r} in {' '.join(text.split())[:100]!r}"
        for path, text in texts
        for phrase in phrases(text)
    ]
    return 1000 * len(found) / n_words, found


def test_docstrings_and_comments_are_plain_english():
    texts = [(path, text) for path in SOURCES for text in prose_of_source(path)]
    rate, found = phrase_rate(texts)
    assert rate < DOCSTRING_LIMIT, "\n".join([f"{rate:.2f} per 1,000 words", *found])


def test_pages_are_plain_english():
    texts = [(path, text) for path in PAGES for text in prose_of_page(path)]
    rate, found = phrase_rate(texts)
    assert rate < PAGE_LIMIT, "\n".join([f"{rate:.2f} per 1,000 words", *found])


@pytest.mark.parametrize(
    ("sentence", "count"),
    [
        ("Return what it was told, and those that have as many as it.", 3),
        ("Return the held-out scores of each class.", 0),
        ("Whichever is reached first is used anew.", 2),
        ("The sum of all rows, and of\nthose that are left.", 1),
    ],
)
def test_hard_phrases_are_counted(sentence, count):
    assert len(phrases(sentence)) == count


def test_code_is_not_counted_as_prose(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("Plain.\n\n```text\nwhat it is\n```\n\nAlso plain.\n")
    assert not [found for text in prose_of_page(page) for found in phrases(text)]
    source = tmp_path / "module.py"
    source.write_text(
        '"""Example.\n\n>>> "what it is"\n"""\n\nx = "as many"  # as much\n'
    )
    found = [found for text in prose_of_source(source) for found in phrases(text)]
    assert found == ["as much"]
