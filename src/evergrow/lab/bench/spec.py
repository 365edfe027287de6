"""Specs: TOML files of methods x data sets x protocols x seeds, checked before anything runs.

A spec looks like this; paths in it are relative to its own folder::

    name = "example"
    seeds = [1993, 1994, 1995]
    device = "cpu"                      # "auto" by default
    threads = 2                         # torch's choice by default
    output = "records/example"          # runs/<name> in the working directory by default
    confusion = false                   # whether records hold which classes were taken for which at the end

    [[methods]]
    name = "ranpac"
    label = "RanPAC"                    # name in tables
    options = { n_units = 2000 }
    sweep = { alpha = [0.1, 1.0] }      # one method entry per combination

    [[datasets]]
    name = "clinc150_minilm"            # or path = "features.npz"
    label = "CLINC150"

    [[datasets]]
    path = "../data/birds"              # images or texts, whatever evergrow.data.load_data takes
    backbone = "tf_efficientnet_lite0"  # the features are computed on demand, once
    weights = "bundled"                 # as for evergrow.features.create_backbone; files: by the spec or by the data
    preset = "timm"                     # or a table of the settings of evergrow.features.Preprocessing
    backbone_options = { img_size = 224 }
    recipe = "rich"                     # blocks from several depths of the pass; "final" (the default) or a list
    options = { test_size = 0.2 }       # the settings of evergrow.data.DataOptions

    [[protocols]]
    initial = 0                         # the settings of evergrow.lab.streams.Protocol
    increment = 10
    disjoint = true
"""

from __future__ import annotations

import importlib
import itertools
import os
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, TypeVar

from evergrow.core.devices import resolve_device
from evergrow.core.errors import DeviceError, MissingExtraError, ParameterError, UnknownNameError
from evergrow.core.registry import nearest
from evergrow.core.settings import check_keys, field_names
from evergrow.data import DataOptions, search_path
from evergrow.features import Preprocessing
from evergrow.features.recipes import check_recipe
from evergrow.features.sources import WEIGHT_SOURCES
from evergrow.lab.bench.data import BackboneEntry, DataEntry
from evergrow.lab.bench.toml_lines import KeyLines, KeyPath
from evergrow.lab.methods import create_method, list_methods, method_options
from evergrow.lab.streams import DEFAULT_SEED, Protocol

SettingsT = TypeVar("SettingsT")

COMMON_KEYS = ("name", "seeds", "device", "threads", "output", "confusion", "datasets", "protocols")
_METHOD = ("name", "label", "options", "sweep")
_DATASET = ("name", "path", "label", "options", "backbone", "weights", "preset", "backbone_options", "recipe")


class SpecError(ParameterError):
    """A spec that cannot be run; the message has the file, the line and the nearest key."""


@dataclass(frozen=True)
class MethodEntry:
    """A method with the options that the spec gives it."""

    name: str
    label: str
    options: dict[str, Any]


@dataclass(frozen=True)
class Spec:
    """A checked specification; see the module's docstring for the file it comes from."""

    name: str
    methods: tuple[MethodEntry, ...]
    datasets: tuple[DataEntry, ...]
    protocols: tuple[Protocol, ...]
    seeds: tuple[int, ...]
    device: str
    threads: int | None
    output: Path
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
        For a missing file, a syntax error, an unknown key, method or option, or a value out of range.
    """
    table, reader = open_spec(path)
    return reader.spec(table)


def open_spec(path: str | os.PathLike[str]) -> tuple[dict[str, Any], SpecReader]:
    """Return the parsed but unchecked contents of a spec, and the reader that checks them."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"spec must be a readable TOML file, got {os.fspath(path)!r}: {error}") from error
    toml = _toml()
    try:
        table = toml.loads(text)
    except toml.TOMLDecodeError as error:
        raise SpecError(f"{path}: spec must be valid TOML: {error}") from error
    return table, SpecReader(Path(path), KeyLines(text))


def _toml() -> ModuleType:
    name = "tomllib" if sys.version_info >= (3, 11) else "tomli"
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtraError(
            "reading a spec on Python 3.10 must have a TOML parser, got none: pip install tomli"
        ) from error


def _distinct_labels(methods: list[MethodEntry]) -> list[MethodEntry]:
    """Add to labels that stand more than once what their entries differ in."""
    distinct = []
    for entry in methods:
        rivals = [{"method": other.name, **other.options} for other in methods if other.label == entry.label]
        names = dict.fromkeys(name for options in rivals for name in options)
        differing = [name for name in names if len({repr(options.get(name)) for options in rivals}) > 1]
        own = {"method": entry.name, **entry.options}
        shown = ", ".join(f"{name}={own[name]}" for name in differing if name in own)
        distinct.append(replace(entry, label=f"{entry.label} ({shown})") if shown else entry)
    return distinct


def _blamed(error: ParameterError, keys: Iterable[str]) -> str:
    """Return the key that an error is about, which its message begins with; empty if that is none of these."""
    return next((key for key in keys if str(error).startswith(key)), "")


class SpecReader:
    """Turns parsed TOML into a :class:`Spec`; keeps the lines for messages.

    Parameters
    ----------
    path : Path
        The file, which paths in it are relative to.
    lines : KeyLines
        Where its keys stand.
    """

    def __init__(self, path: Path, lines: KeyLines) -> None:
        self._path = path
        self._lines = lines

    def spec(self, table: dict[str, Any]) -> Spec:
        """Return a checked spec."""
        self.check_keys(table, (*COMMON_KEYS, "methods"), (), "the spec")
        methods = self.methods(table, ())
        return replace(self.common(table), methods=methods)

    def common(self, table: dict[str, Any]) -> Spec:
        """Return a spec with everything but methods."""
        name = self.text(table, ("name",), self._path.stem)
        output = table.get("output")
        return Spec(
            name=name,
            methods=(),
            datasets=tuple(self._dataset(d, ("datasets", i)) for i, d in enumerate(self.tables(table, "datasets"))),
            protocols=tuple(self._protocol(p, ("protocols", i)) for i, p in enumerate(self.tables(table, "protocols"))),
            seeds=self.seeds(table, ()),
            device=self._device(table),
            threads=self._threads(table),
            confusion=self._confusion(table),
            output=self._path.parent / self.text(table, ("output",)) if output is not None else Path("runs") / name,
        )

    def methods(self, table: dict[str, Any], path: KeyPath) -> tuple[MethodEntry, ...]:
        """Return the methods of a table at ``path``, sweeps multiplied out."""
        entries = [
            entry
            for index, item in enumerate(self.tables(table, "methods", path))
            for entry in self._methods(item, (*path, "methods", index))
        ]
        self._check_distinct(entries, path)
        return tuple(_distinct_labels(entries))

    def seeds(self, table: dict[str, Any], path: KeyPath) -> tuple[int, ...]:
        """Return the seeds of a table at ``path``."""
        seeds = table.get("seeds", [DEFAULT_SEED])
        whole = isinstance(seeds, list) and all(type(seed) is int and 0 <= seed < 2**32 for seed in seeds)
        if not whole or not seeds or len(set(seeds)) != len(seeds):
            message = f"seeds must be a list of different integers from 0 to 2^32 - 1, got {seeds!r}"
            self.fail((*path, "seeds"), message)
        return tuple(seeds)

    # -- parts ------------------------------------------------------------------------------------------

    def _methods(self, table: dict[str, Any], path: KeyPath) -> list[MethodEntry]:
        self.check_keys(table, _METHOD, path, "[[methods]]")
        name = self.text(table, (*path, "name"))
        if name not in list_methods():
            self.fail(
                (*path, "name"),
                f"method must be a registered name, got {name!r}; nearest: {nearest(name, list_methods())}",
            )
        for part in ("options", "sweep"):
            options = self._table(table, (*path, part))
            self.check_keys(options, tuple(method_options(name)), (*path, part), f"the options of {name!r}")
        sweep = table.get("sweep", {})
        for option, values in sweep.items():
            if not isinstance(values, list) or not values:
                self.fail((*path, "sweep", option), f"{option} in sweep must be a non-empty list, got {values!r}")
        entries = []
        for values in itertools.product(*sweep.values()):
            options = {**table.get("options", {}), **dict(zip(sweep, values))}
            self._check_options(name, options, path, sweep)
            entries.append(MethodEntry(name, self.text(table, (*path, "label"), name), options))
        return entries

    def _check_options(self, name: str, options: dict[str, Any], path: KeyPath, sweep: Mapping[str, Any]) -> None:
        """Ask the method itself whether it accepts these values, before hours of others have run."""
        try:
            create_method(name, **options)._check_params()
        except ParameterError as error:
            option = _blamed(error, options)
            part = "sweep" if option in sweep else "options"
            self.fail((*path, part, option) if option else (*path, "name"), str(error))

    def _check_distinct(self, methods: list[MethodEntry], path: KeyPath) -> None:
        seen: list[tuple[str, dict[str, Any]]] = []
        for entry in methods:
            resolved = (entry.name, {**method_options(entry.name), **entry.options})
            if resolved in seen:
                self.fail((*path, "methods"), f"methods must differ, got {entry.name!r} twice with the same options")
            seen.append(resolved)

    def _dataset(self, table: dict[str, Any], path: KeyPath) -> DataEntry:
        self.check_keys(table, _DATASET, path, "[[datasets]]")
        if ("name" in table) == ("path" in table):
            self.fail(path, "a data set must have either a name or a path, got both or none")
        if "path" in table:
            # A path with a folder in it is never mistaken for a name.
            source = os.path.join(self._path.parent or ".", self.text(table, (*path, "path")))
            label = self.text(table, (*path, "label"), Path(source).stem)
        else:
            source = self.text(table, (*path, "name"))
            label = self.text(table, (*path, "label"), source)
        return DataEntry(source, label, self._backbone(table, path), self._data_options(table, path))

    def _data_options(self, table: dict[str, Any], path: KeyPath) -> dict[str, Any]:
        options = self._table(table, (*path, "options"))
        self.settings(DataOptions, options, (*path, "options"), "a data set")
        return options

    def _backbone(self, table: dict[str, Any], path: KeyPath) -> BackboneEntry | None:
        settings = [key for key in ("weights", "preset", "backbone_options", "recipe") if key in table]
        if "backbone" not in table:
            if settings:
                self.fail((*path, settings[0]), f"{settings[0]} must come with a backbone, got none")
            return None
        return BackboneEntry(
            self.text(table, (*path, "backbone")),
            self._weights(table, (*path, "weights")),
            self._preset(table, (*path, "preset")),
            self._table(table, (*path, "backbone_options")),
            self._recipe(table, (*path, "recipe")),
        )

    def _recipe(self, table: dict[str, Any], path: KeyPath) -> str | list[str]:
        """Return the name of a recipe or its blocks; whether the network has them is seen when it is loaded."""
        recipe: str | list[str] = table.get("recipe", "final")
        try:
            check_recipe(recipe)
        except ParameterError as error:
            self.fail(path, str(error))
        return recipe

    def _weights(self, table: dict[str, Any], path: KeyPath) -> str | None:
        """Return where weights come from; a file is relative to the spec or lies in a folder that data come from."""
        if "weights" not in table:
            return None
        weights = self.text(table, path)
        if weights in WEIGHT_SOURCES:
            return weights
        places = [self._path.parent, *search_path()]
        file = next((place / weights for place in places if (place / weights).exists()), None)
        if file is None:
            looked = ", ".join(str(place) for place in places)
            known = ", ".join(map(repr, WEIGHT_SOURCES.names()))
            self.fail(path, f"weights must be {known} or a file, got {weights!r}; looked in {looked}")
        return str(file)

    def _preset(self, table: dict[str, Any], path: KeyPath) -> str | dict[str, Any]:
        """Return the name of a preprocessing, or its settings."""
        if not isinstance(table.get("preset"), dict):
            return self.text(table, path, "timm")
        self.settings(Preprocessing, table["preset"], path, "a preset")
        settings: dict[str, Any] = table["preset"]
        return settings

    def _table(self, table: dict[str, Any], path: KeyPath) -> dict[str, Any]:
        value = table.get(str(path[-1]), {})
        if not isinstance(value, dict):
            self.fail(path, f"{path[-1]} must be a table, got {value!r}")
        return value

    def _protocol(self, table: dict[str, Any], path: KeyPath) -> Protocol:
        return self.settings(Protocol, table, path, "[[protocols]]")

    def _device(self, table: dict[str, Any]) -> str:
        device = self.text(table, ("device",), "auto")
        try:
            return str(resolve_device(device))
        except (ParameterError, DeviceError) as error:
            self.fail(("device",), str(error))

    def _threads(self, table: dict[str, Any]) -> int | None:
        threads = table.get("threads")
        if threads is not None and (type(threads) is not int or threads < 1):
            self.fail(("threads",), f"threads must be an integer >= 1, got {threads!r}")
        return threads

    def _confusion(self, table: dict[str, Any]) -> bool:
        confusion = table.get("confusion", False)
        if not isinstance(confusion, bool):
            self.fail(("confusion",), f"confusion must be true or false, got {confusion!r}")
        return confusion

    # -- checks -----------------------------------------------------------------------------------------

    def tables(self, table: dict[str, Any], key: str, path: KeyPath = ()) -> list[dict[str, Any]]:
        """Return the array of tables ``key`` of a table at ``path``."""
        value = table.get(key)
        if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
            name = ".".join([*(part for part in path if isinstance(part, str)), key])
            self.fail((*path, key), f"the spec must have at least one [[{name}]] table, got {value!r:.60}")
        return value

    def text(self, table: Mapping[str, Any], path: KeyPath, default: str | None = None) -> str:
        """Return the string at the end of ``path``, which leads to an entry of ``table``."""
        value = table.get(str(path[-1]), default)
        if not isinstance(value, str) or not value:
            self.fail(path, f"{path[-1]} must be a non-empty string, got {value!r}")
        return value

    def check_keys(self, table: Mapping[str, Any], known: Collection[str], path: KeyPath, where: str) -> None:
        """Fail for a key that is not known, with its line and the nearest that is."""
        for key in table:
            try:
                check_keys([key], known, f"key of {where}")
            except UnknownNameError as error:  # noqa: PERF203 - the line is that of this key
                self.fail((*path, key), str(error))

    def settings(self, kind: type[SettingsT], table: Any, path: KeyPath, where: str) -> SettingsT:
        """Return settings from a table; what is wrong with one is said with its line.

        Parameters
        ----------
        kind : type
            Frozen dataclass of the settings, which checks them.
        table : object
            Its values, which must be a table.
        path : KeyPath
            Where the table stands.
        where : str
            What messages call the table.
        """
        if not isinstance(table, dict):
            self.fail(path, f"{path[-1]} must be a table, got {table!r}")
        self.check_keys(table, field_names(kind), path, where)
        try:
            return kind(**table)
        except ParameterError as error:
            key = _blamed(error, table)
            self.fail((*path, key) if key else path, str(error))

    def fail(self, path: KeyPath, message: str) -> NoReturn:
        """Raise with the file and the line of a key."""
        raise SpecError(f"{self._path}, line {self._lines.find(path)}: {message}")
