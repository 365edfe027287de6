"""Specs: TOML files of methods (or analyses) x datasets x protocols x seeds.

An example; paths are relative to the folder of the spec::

    name = "example"
    seeds = [1993, 1994, 1995]
    device = "cpu"                      # "auto" by default
    threads = 2                         # torch's choice by default
    output = "records/example"          # runs/<name> by default
    confusion = false                   # whether records have the confusion matrix

    [[methods]]
    name = "ranpac"
    label = "RanPAC"                    # name in tables
    options = { n_units = 2000 }
    sweep = { alpha = [0.1, 1.0] }      # one method entry per combination

    [[datasets]]
    name = "clinc150_minilm"            # or path = "features.npz"
    label = "CLINC150"

    [[datasets]]
    path = "../data/birds"              # any source of lab.benchmarks.load_benchmark
    backbone = "tf_efficientnet_lite0"  # computes the features, on demand and once
    weights = "bundled"                 # as for evergrow.features.create_backbone;
                                        # files are next to the spec or the data
    preset = "timm"                     # or settings of evergrow.features.Preprocessing
    backbone_options = { img_size = 224 }
    recipe = "rich"                     # several depths of the backbone, or a list;
                                        # "final" by default
    options = { test_size = 0.2 }       # settings of evergrow.data.DataOptions
    bring = "python make_birds.py"      # command that creates missing data

    [[protocols]]
    initial = 0                         # settings of evergrow.lab.streams.Protocol
    increment = 10
    disjoint = true

A spec for ``lab mechanism`` has analyses instead of methods, each with its methods::

    [[analyses]]
    name = "conditioning"               # or residual, similarity, sweep, xi
    options = { n_samples = 500 }       # settings in evergrow.lab.bench.analyses
    seeds = [1993, 1994]                # if different from those of the spec

    [[analyses.methods]]
    name = "ri"
    options = { n_units = 1000 }

Specs are validated before anything runs.
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
from evergrow.features.backbone import check_recipe
from evergrow.features.weights import WEIGHT_SOURCES
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
    """An invalid spec; the message names the file, the table and the nearest key."""


@dataclass(frozen=True)
class Spec:
    """A validated spec; the docstring of the module describes the file."""

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


# Tables of the file, with the types of their entries.

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
        For a missing file, a syntax error, an unknown key, method or option, or an
        invalid value.
    """
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SpecError(f"{os.fspath(path)} is not a readable spec: {error}") from error
    return _Reader(Path(path)).spec(values)


class _Reader:
    """Converts parsed TOML to a :class:`Spec`."""

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
        output = Path("runs") / name
        if table.output is not None:
            output = self._path.parent / table.output
        seeds = self._seeds(table.seeds, "the spec")
        device = str(self._checked("the spec", resolve_device, table.device))
        analyses = [
            self._analysis(item, f"analyses {number}", seeds)
            for number, item in enumerate(table.analyses, start=1)
        ]
        datasets = [
            self._dataset(item, f"datasets {number}")
            for number, item in enumerate(table.datasets, start=1)
        ]
        protocols = [
            self._settings(Protocol, item, f"protocols {number}")
            for number, item in enumerate(table.protocols, start=1)
        ]
        return Spec(
            path=self._path,
            name=name,
            methods=self._methods(table.methods, ""),
            analyses=tuple(analyses),
            datasets=tuple(datasets),
            protocols=tuple(protocols),
            seeds=seeds,
            device=device,
            threads=table.threads,
            output=output,
            confusion=table.confusion,
        )

    def _seeds(self, seeds: list[int], where: str) -> tuple[int, ...]:
        if not seeds or len(set(seeds)) != len(seeds):
            self._fail(
                where, f"seeds should be a list of different integers, but is {seeds}"
            )
        return tuple(seeds)

    def _methods(self, tables: list[Any], prefix: str) -> tuple[MethodEntry, ...]:
        """Return the methods of a list of tables, with one entry per sweep value."""
        entries: list[MethodEntry] = []
        for number, values in enumerate(tables, start=1):
            entries += self._sweep(values, f"{prefix}methods {number}")
        resolved: list[tuple[str, dict[str, Any]]] = []
        for entry in entries:
            item = (entry.name, {**method_options(entry.name), **entry.options})
            if item in resolved:
                self._fail(
                    f"{prefix}methods",
                    f"{entry.name!r} is listed twice with the same options",
                )
            resolved.append(item)
        return tuple(_distinct_labels(entries))

    def _sweep(self, values: Any, where: str) -> list[MethodEntry]:
        """Return one method entry per combination of the values in ``sweep``."""
        table = self._table(_MethodTable, values, where)
        name = table.name
        if name not in list_methods():
            close = nearest(name, list_methods())
            self._fail(where, f"there is no method {name!r}; nearest: {close}")
        known = method_options(name)
        for part in (table.options, table.sweep):
            self._checked(where, check_keys, part, known, f"option of {name!r}")
        if any(not choices for choices in table.sweep.values()):
            self._fail(where, "every option in sweep should be a non-empty list")
        entries = []
        for chosen in itertools.product(*table.sweep.values()):
            options = {**table.options, **dict(zip(table.sweep, chosen))}
            # Validate the values now, not after hours of other runs.
            self._checked(where, _check_method, name, options)
            entries.append(MethodEntry(name, table.label or name, options))
        return entries

    def _analysis(
        self, values: Any, where: str, seeds: tuple[int, ...]
    ) -> AnalysisEntry:
        table = self._table(_AnalysisTable, values, where)
        if table.name not in ANALYSES:
            close = nearest(table.name, ANALYSES)
            self._fail(where, f"there is no analysis {table.name!r}; nearest: {close}")
        analysis = ANALYSES[table.name]
        methods = self._methods(table.methods, f"{where}: ")
        for method in methods:
            known = method_options(method.name)
            missing = [
                need
                for need in analysis.needs
                if need not in known and not hasattr(HEADS[method.name], need)
            ]
            if missing:
                self._fail(
                    where,
                    f"{table.name} needs {', '.join(missing)}, which {method.name!r} "
                    "does not have",
                )
        settings = self._settings(analysis.settings, table.options, where)
        if table.seeds is not None:
            seeds = self._seeds(table.seeds, where)
        return AnalysisEntry(table.name, settings, methods, seeds)

    def _dataset(self, values: Any, where: str) -> DataEntry:
        table = self._table(_DataTable, values, where)
        if bool(table.name) == bool(table.path):
            self._fail(where, "a dataset should have either a name or a path")
        self._settings(DataOptions, table.options, where)
        # A path that contains a folder cannot be mistaken for a name.
        source = table.name or os.path.join(self._path.parent or ".", table.path)
        label = table.label or table.name or Path(source).stem
        backbone = self._backbone(table, values, where)
        return DataEntry(source, label, backbone, table.options, table.bring)

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
                self._fail(where, f"{alone[0]} needs a backbone")
            return None
        self._checked(where, check_recipe, table.recipe)
        if isinstance(table.preset, dict):
            self._settings(Preprocessing, table.preset, where)
        weights = self._weights(table.weights, table.bring, where)
        return BackboneEntry(
            table.backbone, weights, table.preset, table.backbone_options, table.recipe
        )

    def _weights(self, weights: str | None, bring: str, where: str) -> str | None:
        """Return a source of weights, or the path of a file next to spec or data."""
        if weights is None or weights in WEIGHT_SOURCES:
            return weights
        folders = [self._path.parent, *search_path()]
        files = [folder / weights for folder in folders if (folder / weights).exists()]
        if not files:
            known = ", ".join(map(repr, WEIGHT_SOURCES))
            searched = ", ".join(map(str, folders))
            message = f"no weights {weights!r}: use {known} or a file in {searched}"
            if bring:
                message += f"; this brings them: {bring}"
            self._fail(where, message)
        return str(files[0])

    def _table(self, kind: type[SettingsT], values: Any, where: str) -> SettingsT:
        """Return a table; fail for unknown keys and entries of the wrong type."""
        if isinstance(values, dict):
            known = field_names(kind)
            self._checked(where, check_keys, values, known, f"key of {where}")
        table: SettingsT = self._checked(where, from_values, kind, values, where)
        return table

    def _settings(self, kind: type[SettingsT], values: Any, where: str) -> SettingsT:
        """Return settings of a type that validates itself."""
        key = f"key of {where}"
        settings: SettingsT = self._checked(where, from_mapping, kind, values, key)
        return settings

    def _checked(self, where: str, call: Any, *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except EvergrowError as error:
            self._fail(where, str(error).removeprefix(f"{where}: "))

    def _fail(self, where: str, message: str) -> NoReturn:
        raise SpecError(f"{self._path}, {where}: {message}")


def _check_method(name: str, options: dict[str, Any]) -> None:
    create_method(name, **options).check_params()


def _distinct_labels(methods: list[MethodEntry]) -> list[MethodEntry]:
    """Add to repeated labels the options in which their entries differ."""
    distinct = []
    for entry in methods:
        group = [
            {"method": other.name, **other.options}
            for other in methods
            if other.label == entry.label
        ]
        names = dict.fromkeys(name for options in group for name in options)
        differing = [
            name
            for name in names
            if len({repr(options.get(name)) for options in group}) > 1
        ]
        own = {"method": entry.name, **entry.options}
        shown = ", ".join(f"{name}={own[name]}" for name in differing if name in own)
        if shown:
            entry = replace(entry, label=f"{entry.label} ({shown})")
        distinct.append(entry)
    return distinct
