"""One run of a grid: a method, data, a protocol and a seed with everything resolved, known by a hash of all of it."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from typing import Any

from evergrow.lab.bench.data import DataEntry
from evergrow.lab.records import to_json_values
from evergrow.lab.streams import Protocol


@dataclass(frozen=True)
class MethodEntry:
    """A method with the options that the spec gives it."""

    name: str
    label: str
    options: dict[str, Any]


@dataclass(frozen=True)
class AnalysisEntry:
    """An analysis with its settings, and the methods and seeds that it is applied to."""

    name: str
    settings: Any
    methods: tuple[MethodEntry, ...]
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class Run:
    """One run, or one analysis of one method, with everything resolved.

    Parameters
    ----------
    method : MethodEntry
        Method, label and the options given.
    options : dict
        Every option of the method: defaults, then device and seed, then what the spec
        gives.
    data : DataEntry
        Where the data is.
    dataset : dict
        What the record says about the data, its fingerprint included.
    protocol : Protocol
        Settings of the stream.
    seed : int
        Seed of the class order, and of the method unless the spec gives it its own.
    earlier_seeds : tuple of int
        Seeds whose first tasks must be left alone; empty unless the protocol is
        disjoint.
    device : str
        Where it runs.
    confusion : bool
        Whether its record holds which classes were taken for which.
    analysis : AnalysisEntry, optional
        What to measure, for an analysis.
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
    analysis: AnalysisEntry | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """All that decides the outcome; labels, paths and threads do not."""
        if self.analysis:
            analysis = {
                "analysis": self.analysis.name,
                "settings": to_json_values(asdict(self.analysis.settings)),
            }
        else:
            analysis = {}
        return {
            **analysis,
            "method": self.method.name,
            "options": to_json_values(self.options),
            "dataset": {key: self.dataset[key] for key in ("name", "fingerprint")},
            "protocol": self.protocol_entry,
            "seed": self.seed,
        }

    @property
    def protocol_entry(self) -> dict[str, Any]:
        """The protocol's entry in the record."""
        return {
            "name": self.protocol.name,
            **self.protocol.to_dict(),
            "earlier_seeds": list(self.earlier_seeds),
        }

    @property
    def run_id(self) -> str:
        """Hash of the settings: the same settings give the same id on every machine."""
        return settings_id(self.settings)

    @property
    def file_name(self) -> str:
        """Name of the record's file."""
        method = self.method.name
        dataset = self.dataset["name"]
        seed = f"s{self.seed}"
        if self.analysis:
            return record_name(self.analysis.name, method, dataset, seed, self.run_id)
        return record_name(method, dataset, self.protocol.name, seed, self.run_id)

    @property
    def title(self) -> str:
        """One line for people."""
        analysis = f"{self.analysis.name} | " if self.analysis else ""
        return f"{analysis}{self.method.label} | {self.data.label} | {self.protocol.name} | seed {self.seed}"


def settings_id(settings: dict[str, Any]) -> str:
    """Return a hash of plain settings."""
    text = json.dumps(settings, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def record_name(*parts: str) -> str:
    """Return a file name made of these parts.

    Examples
    --------
    >>> from evergrow.lab.bench.run import record_name
    >>> record_name("ranpac", "B-0 Inc-5", "s1993")
    'ranpac--B-0_Inc-5--s1993.json'
    """
    return "--".join(re.sub(r"[^\w.-]+", "_", part) for part in parts) + ".json"
