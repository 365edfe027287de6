"""Names that docstrings and pages mention, resolved against the source code.

The package is read with :mod:`ast`; only third-party modules are imported. A checker
gets a text and the place where it stands, and returns one :class:`Finding` for each
name that does not exist.
"""

from __future__ import annotations

import ast
import builtins
import difflib
import importlib
import importlib.util
import re
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "evergrow"

ROLE = re.compile(r":(?:func|class|meth|mod|attr|data|exc|obj):`~?\.?([\w.]+)`")
"""A cross-reference of Sphinx; `website/docstrings.py` turns it into a link."""

SPAN = re.compile(r"(?<!`)(`{1,2})(?!`)(.+?)(?<!`)\1(?!`)", flags=re.DOTALL)
FENCE = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```$", flags=re.DOTALL | re.MULTILINE)
CHAIN = re.compile(r"^@?([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\s*(\(.*\))?(?:[.\[ =].*)?$")
CLASS_NAME = re.compile(r"\b(?:[A-Za-z_]\w*\.)*[A-Z]+[a-z]\w*\b")
FILE_NAME = re.compile(r"^[\w.-]+(?:/[\w.-]+)*/?$")
DOTTED = re.compile(r"\bevergrow\.\w+(?:\.\w+)+")
EXAMPLE = re.compile(r"^ +(evergrow [a-z-]+ .*)$", flags=re.MULTILINE)
INDENTED = re.compile(r"^    (evergrow .*)$", flags=re.MULTILINE)
DIRECTIVE = re.compile(r"^::: ([\w.]+)$", flags=re.MULTILINE)
SNAKE = re.compile(r"^([A-Za-z]\w*_\w*)(?:=[^=]*)?$")
ROUTE = re.compile(
    r"^(?:[A-Z]+ |(?=/api/|\.\.\./))((?:/|\.\.\./)[a-z-]+(?:/[\w{}.-]+)*)$"
)
SETTING = re.compile(r"--set ([a-z_]+)=")
FILE_SUFFIX = re.compile(
    r"\.(csv|evg|html|jpg|json|jsonl|lock|npz|onnx|parquet|py|safetensors|tex|toml|txt)$"
)
FLAG = re.compile(r"(?<![\w-])(--[a-z][a-z-]*)")
VARIABLE = re.compile(r"\bEVERGROW_[A-Z_]*[A-Z]\b")

FOLDERS = ("tests", "docs", "src", "experiments", "benchmarks", "website", ".github")
"""Folders of the repository; a path in backticks that begins with one must exist."""

SHORT = {
    "data": "evergrow.data.items.Dataset",
    "learner": "evergrow.learner.learner.Learner",
}
"""Variables with one meaning on all pages."""

ALIASES = {"np": "numpy", "pd": "pandas", "F": "torch.nn.functional"}
LIBRARIES = ("torch", "numpy", "sklearn", "scipy", "timm", "PIL", "pyarrow", "onnx")

ALLOWED = {
    # Symbols of formulas.
    "GCV",
    "score_c",
    "shape_c",
    "tr",
    # Arguments, attributes and functions of other libraries.
    "check_estimator",
    "coef_",
    "create_pr",
    "cross_val_score",
    "forward_intermediates",
    "max_fails",
    "init_cls",
    "init_lr",
    "intercept_",
    "memory_size",
    "registered_model_name",
    "tuned_epoch",
    # Variables of the environment that other libraries read.
    "AWS_ACCESS_KEY_ID",
    "AWS_ENDPOINT_URL",
    "AWS_PROFILE",
    "FSSPEC_S3_ANON",
    "FSSPEC_S3_ENDPOINT_URL",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "HF_ENDPOINT",
    "HF_TOKEN",
    "LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT",
    # Symbols, and names that are put together: columns of tables, parameters.
    "A_0",
    "class_1",
    "class_2",
    "nearest_class",
    "nearest_probability",
    "options__NAME",
    "probability_1",
    "probability_2",
    # Files that others write: this repository's benchmarks, the Hub, LAMDA-PILOT.
    "benchmarks/results/latest.json",
    "data/train-00000-of-00002.parquet",
    "trainer.py",
    # Names of other programs and of data sets.
    "FiftyOneImageClassificationDataset",
    "ImageNetR",
    "ONLINE_ITER",
    # Classes of other libraries, which evergrow does not import by name.
    "CalibratedClassifierCV",
    "ColumnTransformer",
    "FeatureUnion",
    "FrozenEstimator",
    "GridSearchCV",
    "MLPClassifier",
    "PassiveAggressiveClassifier",
    "Perceptron",
    "Pipeline",
    "SGDClassifier",
    "StandardScaler",
    "TruncatedSVD",
}
"""Reviewed names that exist neither in evergrow nor in what it imports."""


@dataclass(frozen=True)
class Finding:
    """A name that does not exist, and where it is mentioned."""

    path: Path
    line: int
    name: str
    reason: str
    nearest: str = ""

    def __str__(self) -> str:
        place = self.path
        if place.is_absolute() and place.is_relative_to(ROOT):
            place = place.relative_to(ROOT)
        hint = f"; nearest: {self.nearest}" if self.nearest else ""
        return f"{place}:{self.line}: `{self.name}`: {self.reason}{hint}"


@dataclass(frozen=True, eq=False)
class Definition:
    """What a name stands for: a syntax node and its module, or an imported object.

    The node is an `ast.Module`, `ast.ClassDef` or `ast.FunctionDef`, or an expression:
    the annotation or the value of a variable. It is None if nothing is known.
    """

    module: str
    node: ast.AST | None = None
    imported: Any = None


UNKNOWN = Definition("")
"""A value of unknown type, which may have any attribute."""

Function = (ast.FunctionDef, ast.AsyncFunctionDef)


def strings(tree: ast.Module) -> Iterator[tuple[ast.Constant, tuple[ast.AST, ...]]]:
    """Yield each docstring with the definitions around it, the outermost first."""

    def walk(body: list[ast.stmt], around: tuple[ast.AST, ...]) -> Iterator[Any]:
        for node in body:
            value = getattr(node, "value", None)
            if isinstance(node, ast.Expr) and isinstance(value, ast.Constant):
                if isinstance(value.value, str):
                    yield value, around
            elif isinstance(node, (ast.ClassDef, *Function)):
                yield from walk(node.body, (*around, node))
            else:
                for part in ("body", "orelse", "finalbody", "handlers"):
                    yield from walk(getattr(node, part, []), around)

    yield from walk(tree.body, ())


def bound_names(body: Iterable[ast.stmt]) -> Iterator[tuple[str, ast.AST]]:
    """Yield the names that statements bind, also below `if`, `try` and `with`."""
    for node in body:
        if isinstance(node, (ast.ClassDef, *Function)):
            yield node.name, node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node.annotation
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                for name in ast.walk(target):
                    if isinstance(name, ast.Name):
                        single = isinstance(target, ast.Name)
                        yield name.id, node.value if single else ast.Constant(None)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                yield alias.asname or alias.name.partition(".")[0], node
        for part in ("body", "orelse", "finalbody"):
            if isinstance(node, (ast.If, ast.Try, ast.With, ast.For)):
                yield from bound_names(getattr(node, part, ()))


class Code:
    """The names of a package.

    Parameters
    ----------
    package : Path
        Folder of the package.
    """

    def __init__(self, package: Path = PACKAGE) -> None:
        self.name = package.name
        self.paths: dict[str, Path] = {}
        self.trees: dict[str, ast.Module] = {}
        for path in sorted(package.rglob("*.py")):
            parts = path.relative_to(package.parent).with_suffix("").parts
            name = ".".join(parts).removesuffix(".__init__")
            self.paths[name] = path
            self.trees[name] = ast.parse(path.read_text(encoding="utf-8"))
        self.members = {
            name: dict(bound_names(tree.body)) for name, tree in self.trees.items()
        }
        # Nodes of all modules, in one list: walking them anew for each set is slow.
        self.nodes = [node for tree in self.trees.values() for node in ast.walk(tree)]
        self.classes: dict[ast.AST, dict[str, ast.AST]] = {}

    # -- the whole package

    @cached_property
    def top_level(self) -> dict[str, list[Definition]]:
        """Names that modules define, with every definition."""
        found: dict[str, list[Definition]] = defaultdict(list)
        for module, members in self.members.items():
            for name, node in members.items():
                if not isinstance(node, (ast.Import, ast.ImportFrom)):
                    found[name].append(Definition(module, node))
            found[module.rpartition(".")[2]].append(
                Definition(module, self.trees[module])
            )
        return found

    @cached_property
    def defined(self) -> set[str]:
        """Names that modules and classes define."""
        found = set(self.top_level)
        for node in self.nodes:
            if isinstance(node, ast.ClassDef):
                found.update(class_attributes(node))
        return found

    @cached_property
    def used(self) -> set[str]:
        """Identifiers in the code, including those of other libraries."""
        found = set(dir(builtins))
        for node in self.nodes:
            if isinstance(node, ast.Name):
                found.add(node.id)
            elif isinstance(node, ast.Attribute):
                found.add(node.attr)
            elif isinstance(node, ast.arg):
                found.add(node.arg)
            elif isinstance(node, (ast.ClassDef, *Function)):
                found.add(node.name)
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                found.update(alias.name for alias in node.names)
        return found

    @cached_property
    def called(self) -> set[str]:
        """Names of functions, classes and methods, also of other libraries."""
        found = set(dir(builtins))
        for node in self.nodes:
            if isinstance(node, (ast.ClassDef, *Function)):
                found.add(node.name)
            elif isinstance(node, ast.Call):
                found.add(ast.unparse(node.func).rpartition(".")[2])
        return found

    @cached_property
    def libraries(self) -> set[str]:
        """Libraries that the package imports, also where they are not installed."""
        found = set()
        for node in self.nodes:
            if isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.partition(".")[0])
            elif isinstance(node, ast.Import):
                found.update(alias.name.partition(".")[0] for alias in node.names)
        return found

    @cached_property
    def literals(self) -> set[str]:
        """String constants of the code, except docstrings."""
        docstrings = {
            id(node) for tree in self.trees.values() for node, _ in strings(tree)
        }
        found = set()
        for node in self.nodes:
            if not isinstance(node, ast.Constant) or id(node) in docstrings:
                continue
            if isinstance(node.value, str):
                found.add(node.value)
        return found

    def nearest(self, name: str) -> str:
        """Return the existing name that is most like this one."""
        owner, _, last = name.rpartition(".")
        owner = SHORT.get(owner, owner).rpartition(".")[2]
        for place in self.top_level.get(owner, []):
            if isinstance(place.node, ast.ClassDef):
                found = nearest(last, class_attributes(place.node))
                if found:
                    return f"{owner}.{found}"
        return nearest(last, self.defined)

    # -- one name

    def resolve(self, dotted: str) -> Definition | None:
        """Return what an absolute name stands for, in the package or in a library."""
        first = dotted.partition(".")[0]
        if first != self.name:
            installed = first in ALIASES or importlib.util.find_spec(first)
            missing = first in self.libraries and not installed
            return UNKNOWN if missing else import_name(dotted)
        module = dotted
        while module not in self.trees:
            module = module.rpartition(".")[0]
        rest = dotted[len(module) + 1 :]
        found: Definition | None = Definition(module, self.trees[module])
        for part in rest.split(".") if rest else ():
            found = self.member(found, part) if found else None
        return found

    def lookup(self, definition: Definition, rest: Iterable[str]) -> Definition | None:
        """Follow attributes from a definition."""
        found: Definition | None = definition
        for part in rest:
            found = self.member(found, part) if found else None
        return found

    def member(self, owner: Definition, name: str) -> Definition | None:
        """Return an attribute of a definition, or None if there is none."""
        node = owner.node
        if owner is UNKNOWN:
            return UNKNOWN
        if owner.imported is not None:
            if hasattr(owner.imported, name):
                return Definition("", imported=getattr(owner.imported, name))
            # A class sets attributes of its objects when they are made.
            return UNKNOWN if isinstance(owner.imported, type) else None
        if isinstance(node, ast.Module):
            return self.module_member(owner.module, name)
        if isinstance(node, ast.ClassDef):
            return self.class_member(owner, name)
        if isinstance(node, Function):
            decorators = {ast.unparse(item) for item in node.decorator_list}
            if decorators & {
                "property",
                "cached_property",
                "functools.cached_property",
            }:
                return self.member(self.typed(node.returns, owner.module), name)
            return UNKNOWN if node.decorator_list else None
        return self.member(self.typed(node, owner.module), name)

    def module_member(self, module: str, name: str) -> Definition | None:
        """Return a name of a module, through imports."""
        node = self.members[module].get(name)
        inner = f"{module}.{name}"
        if isinstance(node, ast.ImportFrom):
            (found,) = (
                alias.name
                for alias in node.names
                if (alias.asname or alias.name) == name
            )
            if node.module is None or node.level:
                raise ValueError(f"{module}: relative imports are not understood")
            return self.resolve(f"{node.module}.{found}")
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname == name:
                    return self.resolve(alias.name)
            return self.resolve(name)
        if node is not None:
            return Definition(module, node)
        return Definition(inner, self.trees[inner]) if inner in self.trees else None

    def class_member(self, owner: Definition, name: str) -> Definition | None:
        """Return an attribute of a class or of its objects, also an inherited one."""
        node = owner.node
        assert isinstance(node, ast.ClassDef)
        if node not in self.classes:
            self.classes[node] = class_attributes(node)
        if name in self.classes[node]:
            return Definition(owner.module, self.classes[node][name])
        for base in node.bases:
            parent = self.typed(base, owner.module)
            if parent is UNKNOWN:
                continue
            if parent.imported is not None:
                if hasattr(parent.imported, name):
                    return UNKNOWN
                continue
            found = self.member(parent, name)
            if found is not None:
                return found
        keywords = {"__class__", "__dict__", "__doc__", "__init__", "__module__"}
        return UNKNOWN if name in keywords else None

    def typed(self, node: ast.AST | None, module: str) -> Definition:
        """Return the class that an annotation names, or that a value is made from."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            try:
                node = ast.parse(node.value, mode="eval").body
            except SyntaxError:
                return UNKNOWN
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            sides = [node.left, node.right]
            left = [
                side
                for side in sides
                if not (isinstance(side, ast.Constant) and side.value is None)
            ]
            return self.typed(left[0], module) if len(left) == 1 else UNKNOWN
        if isinstance(node, ast.Subscript):
            found = self.typed(node.value, module)
            return found if isinstance(found.node, ast.ClassDef) else UNKNOWN
        if isinstance(node, ast.Call):
            found = self.typed(node.func, module)
            return found if isinstance(found.node, ast.ClassDef) else UNKNOWN
        if isinstance(node, (ast.Name, ast.Attribute)):
            first, *rest = ast.unparse(node).split(".")
            if module not in self.members:
                return UNKNOWN
            found = self.module_member(module, first)
            end = self.lookup(found, rest) if found else None
            if end is None:
                return UNKNOWN
            if isinstance(end.node, ast.ClassDef) or isinstance(end.imported, type):
                return end
        return UNKNOWN

    # -- calls

    def parameters(self, target: Definition) -> tuple[set[str], bool]:
        """Return the parameters of a function or class, and whether it takes others."""
        node = target.node
        if isinstance(node, Function):
            arguments = node.args
            named = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
            names = {item.arg for item in named}
            for extra in (arguments.vararg, arguments.kwarg):
                if extra is not None:
                    names.add(extra.arg)
            return names, arguments.kwarg is not None
        if not isinstance(node, ast.ClassDef):
            return set(), True
        for method in node.body:
            if isinstance(method, Function) and method.name == "__init__":
                return self.parameters(Definition(target.module, method))
        names, others = set(), False
        for base in node.bases:
            inherited, open_ended = self.parameters(self.typed(base, target.module))
            names |= inherited
            others = others or open_ended
        if any("dataclass" in ast.unparse(item) for item in node.decorator_list):
            others = False
            names |= {
                item.target.id
                for item in node.body
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
            }
        elif not names:
            others = True
        else:
            names |= {name for name, _ in bound_names(node.body)}
        return names, others


def class_attributes(node: ast.ClassDef) -> dict[str, ast.AST]:
    """Return what a class body binds and what its methods set on `self`."""
    found: dict[str, ast.AST] = {}
    for inner in ast.walk(node):
        targets: list[ast.expr] = []
        value: ast.AST = ast.Constant(None)
        if isinstance(inner, ast.Assign):
            targets = inner.targets
        elif isinstance(inner, ast.AnnAssign):
            targets = [inner.target]
            value = inner.annotation
        elif isinstance(inner, ast.Call) and len(inner.args) > 1:
            # object.__setattr__(self, "name", value), in frozen dataclasses
            name = inner.args[1]
            if ast.unparse(inner.func).endswith("setattr__") and isinstance(
                name, ast.Constant
            ):
                found.setdefault(str(name.value), value)
        for target in targets:
            for part in ast.walk(target):
                if isinstance(part, ast.Attribute) and ast.unparse(part.value) in (
                    "self",
                    "cls",
                ):
                    found.setdefault(part.attr, value)
    return {**found, **dict(bound_names(node.body))}


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name that is most like this one, or an empty string."""
    return next(iter(difflib.get_close_matches(name, sorted(known), n=1)), "")


def import_name(dotted: str) -> Definition | None:
    """Return an object of a library, or None if there is none."""
    first, _, rest = dotted.partition(".")
    path = ALIASES.get(first, first)
    if first in LIBRARIES or first in ALIASES:
        found = importlib.import_module(path)
    else:
        # Others may be missing, or take seconds to import.
        return UNKNOWN if importlib.util.find_spec(first) else None
    for part in rest.split(".") if rest else ():
        path = f"{path}.{part}"
        if not hasattr(found, part):
            try:
                importlib.import_module(path)
            except ImportError:
                return UNKNOWN if isinstance(found, type) else None
        found = getattr(found, part)
    return Definition("", imported=found)


# -- texts


@dataclass
class Checker:
    """Checks what a text names.

    Parameters
    ----------
    code : Code
        The names of the package.
    commands : mapping of str to set of str
        Options of each command by its name; an empty name stands for `evergrow` alone.
    """

    code: Code
    commands: Mapping[str, set[str]] = field(default_factory=dict)

    # -- Markdown

    def page(self, path: Path, text: str) -> list[Finding]:
        """Check the prose and the shell blocks of a page."""
        found = []
        for match in FENCE.finditer(text):
            first = text.count("\n", 0, match.start(2)) + 1
            if match[1] in ("sh", "console", ""):
                found += self.shell(path, match[2], first, match[1] == "console")
            if match[1] in ("python", "py"):
                found += self.example(path, match[2], first)
        prose = FENCE.sub(lambda match: "\n" * match[0].count("\n"), text)
        for match in SPAN.finditer(prose):
            line = prose.count("\n", 0, match.start()) + 1
            found += self.span(path, line, " ".join(match[2].split()), None, ())
        for match in INDENTED.finditer(prose):
            line = prose.count("\n", 0, match.start(1)) + 1
            found += self.shell(path, match[1], line, prompt=False)
        for match in DIRECTIVE.finditer(prose):
            if self.code.resolve(match[1]) is None:
                line = prose.count("\n", 0, match.start()) + 1
                found.append(self.missing(path, line, match[1]))
        for match in DOTTED.finditer(text):
            if self.code.resolve(match[0]) is None:
                line = text.count("\n", 0, match.start()) + 1
                found.append(self.missing(path, line, match[0]))
        for match in VARIABLE.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found += self.variable(path, line, match[0])
        return list(dict.fromkeys(found))

    def example(self, path: Path, text: str, first: int) -> list[Finding]:
        """Check imports, methods of the learner and keywords in a block of Python."""
        found = []
        tree = ast.parse(textwrap.dedent(text))
        known = set(SHORT) - {"data"}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                own = node.module.partition(".")[0] == self.code.name
                for alias in node.names if own else ():
                    name = f"{node.module}.{alias.name}"
                    known.add(alias.asname or alias.name)
                    if self.code.resolve(name) is None:
                        line = first + node.lineno - 1
                        found.append(self.missing(path, line, name))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                line = first + node.lineno - 1
                if name.partition(".")[0] in known and CHAIN.match(name):
                    found += self.expression(path, line, ast.unparse(node), None, ())
        return found

    def shell(self, path: Path, text: str, first: int, prompt: bool) -> list[Finding]:
        """Check the commands of a block; lines without a prompt may be output."""
        found = []
        for offset, line in enumerate(text.replace("\\\n", "  ").splitlines()):
            command = line.strip()
            if prompt and not command.startswith("$ "):
                continue
            for part in re.split(r" [|&]+ | # ", command.removeprefix("$ ")):
                if part.startswith("evergrow "):
                    found += self.command(path, first + offset, part)
        return found

    # -- docstrings

    def source(self, module: str, tree: ast.Module, path: Path) -> list[Finding]:
        """Check the docstrings of a module."""
        found = []
        for node, around in strings(tree):
            text = str(node.value)
            for match in ROLE.finditer(text):
                line = node.lineno + text.count("\n", 0, match.start())
                if not self.exists(match[1], module, around):
                    found.append(self.missing(path, line, match[1]))
            prose = blank_examples(ROLE.sub("", text))
            for match in EXAMPLE.finditer(text):
                line = node.lineno + text.count("\n", 0, match.start(1))
                found += self.shell(path, match[1], line, prompt=False)
            for match in SPAN.finditer(prose):
                line = node.lineno + prose.count("\n", 0, match.start())
                span = " ".join(match[2].split())
                found += self.span(path, line, span, module, around)
            for match in VARIABLE.finditer(prose):
                line = node.lineno + prose.count("\n", 0, match.start())
                found += self.variable(path, line, match[0])
            found += self.sections(path, node, module, around)
        return found

    def sections(
        self, path: Path, node: ast.Constant, module: str, around: tuple[ast.AST, ...]
    ) -> list[Finding]:
        """Check names and types in the sections of a numpydoc docstring."""
        found = []
        for section, offset, entry in entries(str(node.value)):
            line = node.lineno + offset
            names, _, types = entry.rpartition(" : ")
            if section in ("Returns", "Yields", "Raises"):
                types = entry
            elif section == "Parameters" and around:
                found += self.documented(path, line, names or entry, module, around[-1])
            bare = re.sub(r"\"[^\"]*\"|``.*?``|`.*?`|\([^)]*\)$", "", types)
            for match in CLASS_NAME.finditer(bare):
                if not self.exists(match[0], module, around):
                    found.append(self.missing(path, line, match[0]))
        return found

    def documented(
        self, path: Path, line: int, names: str, module: str, owner: ast.AST
    ) -> list[Finding]:
        """Check that documented parameters are parameters."""
        known, others = self.code.parameters(Definition(module, owner))
        given = [name.strip().lstrip("*") for name in names.split(",")]
        return [
            Finding(
                path,
                line,
                name,
                f"no parameter of {getattr(owner, 'name', '')}",
                nearest(name, known),
            )
            for name in given
            if name.isidentifier() and name not in known and not others
        ]

    # -- one span

    def span(
        self,
        path: Path,
        line: int,
        text: str,
        module: str | None,
        around: tuple[ast.AST, ...],
    ) -> list[Finding]:
        """Check what stands between backticks."""
        words = text.split()
        if words[0] == "evergrow" and len(words) > 1:
            return self.command(path, line, text)
        if text in ALLOWED:
            return []
        if self.file_is_missing(text):
            return [Finding(path, line, text, "no such file")]
        if words[0].startswith("--"):
            return self.flags(path, line, text, set().union(*self.commands.values()))
        name = " ".join(words[:2]) if " ".join(words[:2]) in self.commands else words[0]
        if name in self.commands and FLAG.search(text):
            return self.flags(path, line, text, self.commands[name])
        return self.expression(path, line, text, module, around)

    def expression(
        self,
        path: Path,
        line: int,
        text: str,
        module: str | None,
        around: tuple[ast.AST, ...],
    ) -> list[Finding]:
        """Check a name, an attribute or a call."""
        snake = SNAKE.match(text)
        if snake and snake[1] not in self.words | ALLOWED:
            return [self.missing(path, line, snake[1])]
        route = ROUTE.match(text)
        if route and not self.segments.issuperset(fixed_segments(route[1])):
            return [Finding(path, line, text, "no such route")]
        match = CHAIN.match(text)
        if match is None:
            return []
        name, call = match[1], match[2]
        first = name.partition(".")[0]
        dotted = "." in name
        if re.match(r"^[A-Z]+[a-z]", first) or first == self.code.name:
            checked = dotted or call is not None or is_class_name(first)
        elif dotted:
            checked = self.is_code(first, module, around)
        else:
            checked = call is not None
        if FILE_SUFFIX.search(text):
            checked = False
        if not checked or name in self.code.literals or name in ALLOWED:
            return []
        targets = self.targets(name, module, around)
        elsewhere = self.code.called if call else self.code.used
        if not targets and (dotted or name not in elsewhere):
            return [self.missing(path, line, name)]
        return self.keywords(path, line, text, name, targets) if call else []

    def is_code(
        self, first: str, module: str | None, around: tuple[ast.AST, ...]
    ) -> bool:
        """Return whether a lower-case name before a dot is one of code."""
        if first in SHORT or first in LIBRARIES or first in ALIASES:
            return True
        for node in around if module is not None else ():
            if self.inside(Definition(module, node), first):
                return True
        places = self.code.top_level.get(first, [])
        constant = len(first) > 2 and first.isupper()
        return any(constant or isinstance(item.node, ast.Module) for item in places)

    def keywords(
        self, path: Path, line: int, text: str, name: str, targets: list[Definition]
    ) -> list[Finding]:
        """Check the keywords of a call."""
        try:
            call = ast.parse(text.removeprefix("@"), mode="eval").body
        except SyntaxError:
            return []
        if not isinstance(call, ast.Call) or ast.unparse(call.func) != name:
            return []
        known: set[str] = set()
        for target in targets:
            names, others = self.code.parameters(target)
            known |= names
            if others:
                return []
        return [
            Finding(
                path,
                line,
                f"{name}({keyword.arg}=...)",
                "no such parameter",
                nearest(keyword.arg, known),
            )
            for keyword in call.keywords
            if keyword.arg and known and keyword.arg not in known
        ]

    def targets(
        self, name: str, module: str | None, around: tuple[ast.AST, ...]
    ) -> list[Definition]:
        """Return the definitions that a name may stand for, the nearest ones only."""
        first, *rest = name.split(".")
        if first == self.code.name:
            found = [self.code.resolve(name)]
            return [target for target in found if target is not None]
        starts: list[list[Definition]] = []
        if module is not None:
            for node in reversed(around):
                own = self.inside(Definition(module, node), first)
                starts.append([own] if own is not None else [])
            own = self.code.module_member(module, first)
            starts.append([own] if own is not None else [])
        if first in SHORT:
            short = self.code.resolve(SHORT[first])
            starts.append([short] if short is not None else [])
        starts.append(self.code.top_level.get(first, []))
        if rest and first not in self.code.members[self.code.name]:
            outside = self.code.resolve(name)
            if outside is not None:
                return [outside]
        for start in starts:
            ends = [self.code.lookup(item, rest) for item in start]
            found = [end for end in ends if end is not None]
            # Of several definitions, one with known attributes decides.
            decided = any(end is not UNKNOWN for end in found) or None not in ends
            if found and decided:
                return found
        return []

    def inside(self, owner: Definition, name: str) -> Definition | None:
        """Return a member of a class, or a parameter of a function."""
        node = owner.node
        if isinstance(node, ast.ClassDef):
            return self.code.class_member(owner, name)
        if isinstance(node, Function):
            arguments = node.args
            named = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
            for item in named:
                if item.arg == name:
                    return self.code.typed(item.annotation, owner.module)
        return None

    def exists(self, name: str, module: str, around: tuple[ast.AST, ...]) -> bool:
        """Return whether a cross-reference or a type leads somewhere."""
        if name in ALLOWED or ("." not in name and name in self.code.used):
            return True
        return bool(self.targets(name, module, around))

    def missing(self, path: Path, line: int, name: str) -> Finding:
        """Return the finding for a name that does not exist."""
        return Finding(path, line, name, "no such name", self.code.nearest(name))

    # -- files, commands, variables

    def file_is_missing(self, text: str) -> bool:
        """Return whether a span looks like a path in the repository, without one."""
        if not FILE_NAME.match(text) or not ("/" in text or text.endswith(".py")):
            return False
        first = text.partition("/")[0]
        room = "/" in text and (PACKAGE / first).is_dir()
        if first not in FOLDERS and not text.endswith(".py") and not room:
            return False
        if "/" not in text:
            return not any(ROOT.glob(f"[a-z]*/**/{text}"))
        if (ROOT / text).exists() or (PACKAGE / text).exists():
            return False
        return not (room and not re.search(r"\.\w+$", text) and first == "data")

    def command(self, path: Path, line: int, text: str) -> list[Finding]:
        """Check a command line that begins with `evergrow`."""
        words = text.split()[1:]
        if words[0].startswith("-") or not re.match(r"^[a-z-]+$", words[0]):
            return self.flags(path, line, text, self.commands[""])
        name = " ".join(words[:2])
        if name not in self.commands:
            name = words[0]
        group = any(known.startswith(f"{name} ") for known in self.commands)
        if name not in self.commands:
            if group and len(words) == 1:
                return []
            near = nearest(name, self.commands)
            return [Finding(path, line, f"evergrow {name}", "no such command", near)]
        return self.flags(path, line, text, self.commands[name])

    def flags(self, path: Path, line: int, text: str, known: set[str]) -> list[Finding]:
        """Check the long options of a command line, and the names of its settings."""
        found = []
        for flag in FLAG.findall(text):
            if flag not in known:
                reason = f"no such option in {text!r}"
                found.append(Finding(path, line, flag, reason, nearest(flag, known)))
        for setting in SETTING.findall(text):
            if setting not in self.code.used:
                reason = f"no such setting in {text!r}"
                found.append(Finding(path, line, setting, reason))
        return found

    def variable(self, path: Path, line: int, name: str) -> list[Finding]:
        """Check an environment variable."""
        if name in self.variables:
            return []
        near = nearest(name, self.variables)
        return [Finding(path, line, name, "nothing reads it", near)]

    @cached_property
    def words(self) -> set[str]:
        """Identifiers of the code, of its strings, and of experiments."""
        found = set(self.code.used)
        texts = [*self.code.literals]
        for folder in ("experiments", "benchmarks"):
            for pattern in ("*.py", "*.toml"):
                for path in (ROOT / folder).glob(pattern):
                    texts.append(path.read_text(encoding="utf-8"))  # noqa: PERF401
        for text in texts:
            found.update(re.findall(r"\w+", text))
        return found

    @cached_property
    def segments(self) -> set[str]:
        """Fixed segments of the routes of the service."""
        found = set()
        for text in self.code.literals:
            if re.match(r"^/[\w{}/.-]+$", text):
                found.update(fixed_segments(text))
        return found

    @cached_property
    def variables(self) -> set[str]:
        """Environment variables that the package or its tests read."""
        found = set()
        for text in self.code.literals:
            found.update(VARIABLE.findall(text))
        for path in [*(ROOT / "tests").rglob("*.py"), *(ROOT / ".ci").rglob("*")]:
            if path.is_file() and path.name != "test_references.py":
                found.update(VARIABLE.findall(path.read_text(encoding="utf-8")))
        return found


def is_class_name(name: str) -> bool:
    """Return whether a word is a name of code and not of prose: two capitals."""
    return bool(re.match(r"^[A-Z]+[a-z]+\w*[A-Z]\w*$|^[A-Z]{2,}[a-z]\w+$", name))


def fixed_segments(route: str) -> set[str]:
    """Return the segments of a route that are not parameters."""
    return {part for part in route.split("/") if part.strip(".") and part[0] != "{"}


def blank_examples(text: str) -> str:
    """Replace doctests by empty lines: they run."""
    lines = text.split("\n")
    inside = False
    for number, line in enumerate(lines):
        inside = line.lstrip().startswith(">>>") or (inside and bool(line.strip()))
        if inside:
            lines[number] = ""
    return "\n".join(lines)


def entries(text: str) -> Iterator[tuple[str, int, str]]:
    """Yield section, line and text of each entry of a numpydoc docstring."""
    lines = text.split("\n")
    section = ""
    indent = 0
    for number, line in enumerate(lines):
        following = lines[number + 1].strip() if number + 1 < len(lines) else ""
        if re.match(r"^-{3,}$", following):
            section = line.strip()
            indent = len(line) - len(line.lstrip())
            continue
        if re.match(r"^-{3,}$", line.strip()) or not line.strip():
            continue
        depth = len(line) - len(line.lstrip())
        listed = ("Parameters", "Returns", "Yields", "Raises", "Attributes")
        if section in listed and depth == indent:
            yield section, number, line.strip()
