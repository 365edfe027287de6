"""From a spec to its runs: every setting resolved, every run with an id that is a hash of them."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from evergrow.core.errors import ParameterError
from evergrow.core.registry import nearest
from evergrow.lab.bench.data import DataEntry, DataSource
from evergrow.lab.bench.spec import MethodEntry, Spec
from evergrow.lab.methods import method_options
from evergrow.lab.records import plain
from evergrow.lab.streams import Protocol

_FILTERS: dict[str, Callable[[Run], tuple[str, ...]]] = {
    "method": lambda run: (run.method.name, run.method.label),
    "dataset": lambda run: (run.dataset["name"], run.data.label),
    "protocol": lambda run: (run.protocol.name,),
    "seed": lambda run: (str(run.seed),),
}


@dataclass(frozen=True)
class Run:
    """One run with everything resolved.

    Parameters
    ----------
    method : MethodEntry
        Method, label and the options given.
    options : dict
        Every option of the method: defaults, then device and seed, then what the spec gives.
    data : DataEntry
        Where the data is.
    dataset : dict
        What the record says about the data, its fingerprint included.
    protocol : Protocol
        Settings of the stream.
    seed : int
        Seed of the class order, and of the method unless the spec gives it its own.
    earlier_seeds : tuple of int
        Seeds whose first tasks must be left alone; empty unless the protocol is disjoint.
    device : str
        Where it runs.
    confusion : bool
        Whether its record holds which classes were taken for which.
    """

    method: MethodEntry
    options: dict[str, Any]
    data: DataEntry
    dataset: dict[str, Any]
    protocol: Protocol
    seed: int
    earlier_seeds: tuple[int, ...]
    device: str
    confusion: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        """All that decides the outcome; labels, paths and threads do not."""
        return {
            "method": self.method.name,
            "options": plain(self.options),
            "dataset": {key: self.dataset[key] for key in ("name", "fingerprint")},
            "protocol": self.protocol_entry,
            "seed": self.seed,
        }

    @property
    def protocol_entry(self) -> dict[str, Any]:
        """The protocol's entry in the record."""
        settings = self.protocol.to_dict()
        return {"name": self.protocol.name, **settings, "earlier_seeds": list(self.earlier_seeds)}

    @property
    def run_id(self) -> str:
        """Hash of the settings: the same settings give the same id on every machine."""
        return settings_id(self.settings)

    @property
    def file_name(self) -> str:
        """Name of the record's file."""
        return record_name(self.method.name, self.dataset["name"], self.protocol.name, f"s{self.seed}", self.run_id)

    @property
    def title(self) -> str:
        """One line for people."""
        return f"{self.method.label} | {self.data.label} | {self.protocol.name} | seed {self.seed}"


def settings_id(settings: dict[str, Any]) -> str:
    """Return a hash of plain settings."""
    text = json.dumps(settings, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def record_name(*parts: str) -> str:
    """Return a file name made of these parts.

    Examples
    --------
    >>> from evergrow.lab.bench.grid import record_name
    >>> record_name("ranpac", "B-0 Inc-5", "s1993")
    'ranpac--B-0_Inc-5--s1993.json'
    """
    return "--".join(re.sub(r"[^\w.-]+", "_", part) for part in parts) + ".json"


def expand(spec: Spec, datasets: DataSource | None = None) -> list[Run]:
    """Return all runs of a spec, ordered by data set, protocol, seed and method.

    Parameters
    ----------
    spec : Spec
        What to run.
    datasets : DataSource, optional
        Where data sets are kept between calls.

    Raises
    ------
    DatasetNotFoundError
        If a data set is not on disk: nothing runs before all data is there.
    """
    datasets = datasets or DataSource(spec.device)
    runs = []
    for data in spec.datasets:
        dataset = {**datasets.describe(data), "label": data.label}
        for protocol in spec.protocols:
            _check_fit(protocol, dataset, spec.seeds)
            for index, seed in enumerate(spec.seeds):
                earlier = spec.seeds[:index] if protocol.disjoint else ()
                runs += [
                    resolved_run(method, data, dataset, protocol, seed, earlier, spec.device, confusion=spec.confusion)
                    for method in spec.methods
                ]
    return runs


def resolved_run(
    method: MethodEntry,
    data: DataEntry,
    dataset: dict[str, Any],
    protocol: Protocol,
    seed: int,
    earlier_seeds: tuple[int, ...],
    device: str,
    *,
    confusion: bool,
) -> Run:
    """Return a run with every option of its method: defaults, then device and seed, then what the spec gives."""
    options = _resolve(method, device, seed)
    return Run(method, options, data, dataset, protocol, seed, earlier_seeds, device, confusion)


def _check_fit(protocol: Protocol, dataset: dict[str, Any], seeds: tuple[int, ...]) -> None:
    """Fail before anything runs if a protocol asks for more classes than the data has."""
    n_classes = dataset["n_classes"]
    protocol.task_sizes(n_classes)
    if protocol.disjoint and protocol.n_initial * len(seeds) > n_classes:
        raise ParameterError(
            f"{protocol.name} with {len(seeds)} seeds must fit into {dataset['name']}: "
            f"disjoint first tasks need {protocol.n_initial * len(seeds)} classes, got {n_classes}; "
            "use fewer seeds or disjoint = false"
        )


def _resolve(method: MethodEntry, device: str, seed: int) -> dict[str, Any]:
    options = method_options(method.name)
    for name, value in (("device", device), ("random_state", seed)):
        if name in options:
            options[name] = value
    return {**options, **method.options}


def select(runs: Iterable[Run], only: Iterable[str]) -> list[Run]:
    """Return the runs that match every ``key=pattern`` filter.

    Parameters
    ----------
    runs : iterable of Run
        Candidates.
    only : iterable of str
        ``method``, ``dataset``, ``protocol`` or ``seed``, ``=``, and names or shell patterns separated by
        commas; for example ``"method=ranpac,klda"``.

    Raises
    ------
    ParameterError
        For a malformed filter or one that matches nothing.
    """
    chosen = list(runs)
    for text in only:
        key, equals, value = text.partition("=")
        if not equals or key not in _FILTERS:
            raise ParameterError(
                f"--only must be KEY=VALUE with a KEY among {', '.join(_FILTERS)}, got {text!r}; "
                f"nearest: {nearest(key, _FILTERS)}"
            )
        names = sorted({name for run in chosen for name in _FILTERS[key](run)})
        patterns = [value] if value in names else value.split(",")  # a protocol's name may have a comma
        for pattern in patterns:
            if not any(_matches(name, pattern) for name in names):
                raise ParameterError(
                    f"--only {key} must match a run of the spec, got {pattern!r}; nearest: {nearest(pattern, names)}"
                )
        chosen = [run for run in chosen if any(_matches(n, p) for n in _FILTERS[key](run) for p in patterns)]
    return chosen


def _matches(name: str, pattern: str) -> bool:
    return name == pattern or fnmatch.fnmatchcase(name, pattern)
