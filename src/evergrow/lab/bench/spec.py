"""Specs: TOML files of methods (or analyses) x data sets x protocols x seeds, checked before anything runs.

A spec looks like this; paths in it are relative to its own folder::

    name = "example" seeds = [1993, 1994, 1995] device = "cpu"                      #
    "auto" by default threads = 2                         # torch's choice by default
    output = "records/example"          # runs/<name> in the working directory by
    default confusion = false                   # whether records hold which classes
    were taken for which at the end

    [[methods]]
    name = "ranpac"
    label = "RanPAC"                    # name in tables
    options = { n_units = 2000 }
    sweep = { alpha = [0.1, 1.0] }      # one method entry per combination

    [[datasets]]
    name = "clinc150_minilm"            # or path = "features.npz"
    label = "CLINC150"

    [[datasets]] path = "../data/birds"              # images or texts, whatever
    evergrow.lab.benchmarks.load_benchmark takes backbone = "tf_efficientnet_lite0"  #
    the features are computed on demand, once weights = "bundled"                 # as
    for evergrow.features.create_backbone; files: by the spec or by the data preset =
    "timm"                     # or a table of the settings of
    evergrow.features.Preprocessing backbone_options = { img_size = 224 } recipe =
    "rich"                     # blocks from several depths of the pass; "final" (the
    default) or a list options = { test_size = 0.2 }       # the settings of
    evergrow.data.DataOptions bring = "python make_birds.py"      # what to run where
    the data are missing; the message says so

    [[protocols]]
    initial = 0                         # the settings of evergrow.lab.streams.Protocol
    increment = 10
    disjoint = true

A spec for ``lab mechanism`` has analyses in place of methods, each with methods of its
own::

    [[analyses]] name = "conditioning"               # conditioning, residual,
    similarity, sweep or xi options = { n_samples = 500 }       # the settings of
    evergrow.lab.bench.analyses seeds = [1993, 1994]                # where they are to
    differ from the spec's

    [[analyses.methods]]
    name = "ri"
    options = { n_units = 1000 }
"""

from __future__ import annotations

import itertools
import os
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

from evergrow.core.errors import EvergrowError, ParameterError
from evergrow.core.record import Between, from_values
from evergrow.core.registry import nearest
from evergrow.core.validation import (
    check_keys,
    field_names,
    from_mapping,
    resolve_device,
)
from evergrow.data import DataOptions, search_path
from evergrow.features import Preprocessing
from evergrow.features.recipe import check_recipe
from evergrow.features.weight_sources import WEIGHT_SOURCES
from evergrow.head.base import HEADS
from evergrow.lab.bench.analyses import ANALYSES
from evergrow.lab.bench.data import BackboneEntry, DataEntry
from evergrow.lab.bench.run import AnalysisEntry, MethodEntry
from evergrow.lab.methods import create_method, list_methods, method_options
from evergrow.lab.streams import DEFAULT_SEED, Protocol

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SettingsT = TypeVar("SettingsT")


class SpecError(ParameterError):
    """A spec that cannot be run; the message names the file, the table in it and the nearest key."""


@dataclass(frozen=True)
class Spec:
    """A checked specification, of methods or of analyses; see the module's docstring for the file it comes from."""

    path: Path
    name: str
    methods: tuple[MethodEntry, ...]
    analyses: tuple[AnalysisEntry, ...]
    datasets: tuple[DataEntry, ...]
    protocols: tuple[Protocol, ...]
    seeds: tuple[int, ...]
    device: str
    threads: int | None
    output: Path
    confusion: bool = False


# The tables of the file, by the types of their entries.

Seeds = list[Annotated[int, Between(0, 2**32 - 1)]]


@dataclass(frozen=True)
class _MethodTable:
    name: str
    label: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    sweep: dict[str, list[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class _AnalysisTable:
    name: str
    methods: list[Any]
    options: dict[str, Any] = field(default_factory=dict)
    seeds: Seeds | None = None


@dataclass(frozen=True)
class _DataTable:
    name: str = ""
    path: str = ""
    label: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    backbone: str = ""
    weights: str | None = None
    preset: str | dict[str, Any] = "timm"
    backbone_options: dict[str, Any] = field(default_factory=dict)
    recipe: str | list[str] = "final"
    bring: str = ""


@dataclass(frozen=True)
class _SpecTable:
    datasets: list[Any]
    protocols: list[Any]
    methods: list[Any] = field(default_factory=list)
    analyses: list[Any] = field(default_factory=list)
    name: str = ""
    seeds: Seeds = field(default_factory=lambda: [DEFAULT_SEED])
    device: str = "auto"
    threads: Annotated[int, Between(1)] | None = None
    output: str | None = None
    confusion: bool = False


def load_spec(path: str | os.PathLike[str]) -> Spec:
    """Read and check a spec.

    Parameters
    ----------
    path : path-like
        A TOML file.

    Returns
    -------
    Spec

    Raises
    ------
    SpecError
        For a missing file, a syntax error, an unknown key, method or option, or a value
        out of range.
    """
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SpecError(f"{os.fspath(path)} is no readable spec: {error}") from error
    return _Reader(Path(path)).spec(values)


class _Reader:
    """Turns parsed TOML into a :class:`Spec`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def spec(self, values: Any) -> Spec:
        table = self._table(_SpecTable, values, "the spec")
        if bool(table.methods) == bool(table.analyses):
            self._fail("the spec", "it should have either [[methods]] or [[analyses]]")
        if not table.datasets or not table.protocols:
            self._fail(
                "the spec",
                "it should have at least one of [[datasets]] and of [[protocols]]",
            )
        name = table.name or self._path.stem
        seeds = self._seeds(table.seeds, "the spec")
        try:
            device = str(resolve_device(table.device))
        except EvergrowError as error:
            self._fail("the spec", str(error))
        return Spec(
            path=self._path,
            name=name,
            methods=self._methods(table.methods, ""),
            analyses=tuple(
                self._analysis(item, number, seeds)
                for number, item in _numbered(table.analyses)
            ),
            datasets=tuple(
                self._dataset(item, f"datasets {number}")
                for number, item in _numbered(table.datasets)
            ),
            protocols=tuple(
                self._settings(Protocol, item, f"protocols {number}")
                for number, item in _numbered(table.protocols)
            ),
            seeds=seeds,
            device=device,
            threads=table.threads,
            output=Path("runs") / name
            if table.output is None
            else self._path.parent / table.output,
            confusion=table.confusion,
        )

    def _seeds(self, seeds: list[int], where: str) -> tuple[int, ...]:
        if not seeds or len(set(seeds)) != len(seeds):
            self._fail(
                where, f"seeds should be a list of different integers, but is {seeds}"
            )
        return tuple(seeds)

    def _methods(self, tables: list[Any], inside: str) -> tuple[MethodEntry, ...]:
        """Return the methods of a list of tables, sweeps multiplied out."""
        entries: list[MethodEntry] = []
        for number, values in _numbered(tables):
            where = f"{inside}methods {number}"
            table = self._table(_MethodTable, values, where)
            if table.name not in list_methods():
                self._fail(
                    where,
                    f"no method {table.name!r}; nearest: {nearest(table.name, list_methods())}",
                )
            for part in (table.options, table.sweep):
                self._checked(
                    where,
                    check_keys,
                    part,
                    method_options(table.name),
                    f"option of {table.name!r}",
                )
            for chosen in itertools.product(*table.sweep.values()):
                options = {**table.options, **dict(zip(table.sweep, chosen))}
                # The method itself says whether it accepts these values, before hours
                # of others have run.
                self._checked(where, _check_method, table.name, options)
                entries.append(
                    MethodEntry(table.name, table.label or table.name, options)
                )
            if any(not values for values in table.sweep.values()):
                self._fail(where, "every option in sweep should be a non-empty list")
        resolved = [
            (entry.name, {**method_options(entry.name), **entry.options})
            for entry in entries
        ]
        for number, item in enumerate(resolved):
            if item in resolved[:number]:
                self._fail(
                    f"{inside}methods",
                    f"{item[0]!r} stands there twice with the same options",
                )
        return tuple(_distinct_labels(entries))

    def _analysis(
        self, values: Any, number: int, seeds: tuple[int, ...]
    ) -> AnalysisEntry:
        where = f"analyses {number}"
        table = self._table(_AnalysisTable, values, where)
        if table.name not in ANALYSES:
            self._fail(
                where,
                f"no analysis {table.name!r}; nearest: {nearest(table.name, ANALYSES)}",
            )
        analysis = ANALYSES[table.name]
        methods = self._methods(table.methods, f"{where}: ")
        for method in methods:
            known = method_options(method.name)
            lacking = [
                need
                for need in analysis.needs
                if need not in known and not hasattr(HEADS[method.name], need)
            ]
            if lacking:
                self._fail(
                    where,
                    f"{table.name} needs {', '.join(lacking)}, which {method.name!r} does not have",
                )
        settings = self._settings(analysis.settings, table.options, where)
        if table.seeds is None:
            own = seeds
        else:
            own = self._seeds(table.seeds, where)
        return AnalysisEntry(table.name, settings, methods, own)

    def _dataset(self, values: Any, where: str) -> DataEntry:
        table = self._table(_DataTable, values, where)
        if bool(table.name) == bool(table.path):
            self._fail(where, "a data set should have either a name or a path")
        self._settings(DataOptions, table.options, where)
        # A path with a folder in it is never mistaken for a name.
        source = table.name or os.path.join(self._path.parent or ".", table.path)
        label = table.label or table.name or Path(source).stem
        return DataEntry(
            source,
            label,
            self._backbone(table, values, where),
            table.options,
            table.bring,
        )

    def _backbone(
        self, table: _DataTable, values: dict[str, Any], where: str
    ) -> BackboneEntry | None:
        if not table.backbone:
            alone = [
                key
                for key in ("weights", "preset", "backbone_options", "recipe")
                if key in values
            ]
            if alone:
                self._fail(where, f"{alone[0]} stands without a backbone")
            return None
        self._checked(where, check_recipe, table.recipe)
        if isinstance(table.preset, dict):
            self._settings(Preprocessing, table.preset, where)
        weights = self._weights(table.weights, table.bring, where)
        return BackboneEntry(
            table.backbone, weights, table.preset, table.backbone_options, table.recipe
        )

    def _weights(self, weights: str | None, bring: str, where: str) -> str | None:
        """Return where weights come from; a file is relative to the spec or lies in a folder that data come from."""
        if weights is None or weights in WEIGHT_SOURCES:
            return weights
        folders = [self._path.parent, *search_path()]
        file = next(
            (folder / weights for folder in folders if (folder / weights).exists()),
            None,
        )
        if file is None:
            looked = ", ".join(str(folder) for folder in folders)
            known = ", ".join(map(repr, WEIGHT_SOURCES))
            hint = ""
            if bring:
                hint = f"; this brings what there is: {bring}"
            self._fail(
                where,
                f"no weights {weights!r}: they are {known} or a file; looked in {looked}{hint}",
            )
        return str(file)

    def _table(self, kind: type[SettingsT], values: Any, where: str) -> SettingsT:
        """Return a table whose keys are known and whose entries have the right types."""
        if isinstance(values, dict):
            self._checked(
                where, check_keys, values, field_names(kind), f"key of {where}"
            )
        made: SettingsT = self._checked(where, from_values, kind, values, where)
        return made

    def _settings(self, kind: type[SettingsT], values: Any, where: str) -> SettingsT:
        """Return settings that check themselves."""
        made: SettingsT = self._checked(
            where, from_mapping, kind, values, f"key of {where}"
        )
        return made

    def _checked(self, where: str, call: Any, *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except EvergrowError as error:
            self._fail(where, str(error).removeprefix(f"{where}: "))

    def _fail(self, where: str, message: str) -> NoReturn:
        raise SpecError(f"{self._path}, {where}: {message}")


def _check_method(name: str, options: dict[str, Any]) -> None:
    create_method(name, **options)._check_params()


def _numbered(tables: list[Any]) -> enumerate[Any]:
    return enumerate(tables, start=1)


def _distinct_labels(methods: list[MethodEntry]) -> list[MethodEntry]:
    """Add to labels that stand more than once what their entries differ in."""
    distinct = []
    for entry in methods:
        rivals = [
            {"method": other.name, **other.options}
            for other in methods
            if other.label == entry.label
        ]
        names = dict.fromkeys(name for options in rivals for name in options)
        differing = [
            name
            for name in names
            if len({repr(options.get(name)) for options in rivals}) > 1
        ]
        own = {"method": entry.name, **entry.options}
        shown = ", ".join(f"{name}={own[name]}" for name in differing if name in own)
        distinct.append(
            replace(entry, label=f"{entry.label} ({shown})") if shown else entry
        )
    return distinct
