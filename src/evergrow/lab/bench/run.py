"""A resolved run of a grid: method, data, protocol and seed, identified by a hash."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

from evergrow.core.record import to_json_values
from evergrow.lab.bench.data import DataEntry
from evergrow.lab.streams import Protocol


@dataclass(frozen=True)
class MethodEntry:
    """A method with its options in the spec."""

    name: str
    label: str
    options: dict[str, Any]


@dataclass(frozen=True)
class AnalysisEntry:
    """An analysis with its settings, methods and seeds."""

    name: str
    settings: Any
    methods: tuple[MethodEntry, ...]
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class Run:
    """A run, or an analysis of one method, with all settings resolved.

    Parameters
    ----------
    method : MethodEntry
        Method and label, with the options in the spec.
    options : dict
        All options of the method. The spec overrides device and seed, which override
        the defaults.
    data : DataEntry
        Source of the data.
    dataset : dict
        Description of the data for the record, with fingerprint.
    protocol : Protocol
        Settings of the stream.
    seed : int
        Seed of the class order, and of the method unless its options have another one.
    earlier_seeds : tuple of int
        Seeds whose first tasks must be disjoint. Empty unless the protocol is disjoint.
    device : str
        Device of the run.
    confusion : bool
        Whether the record contains the confusion matrix.
    analysis : AnalysisEntry, optional
        The analysis, if it is one.
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
        """Settings that affect the result; without labels, paths and threads."""
        settings: dict[str, Any] = {}
        if self.analysis:
            settings["analysis"] = self.analysis.name
            settings["settings"] = to_json_values(self.analysis.settings)
        settings["method"] = self.method.name
        settings["options"] = to_json_values(self.options)
        settings["dataset"] = {
            key: self.dataset[key] for key in ("name", "fingerprint")
        }
        settings["protocol"] = self.protocol_entry
        settings["seed"] = self.seed
        return settings

    @property
    def protocol_entry(self) -> dict[str, Any]:
        """Protocol entry of the record."""
        return {
            "name": self.protocol.name,
            **self.protocol.to_dict(),
            "earlier_seeds": list(self.earlier_seeds),
        }

    @property
    def run_id(self) -> str:
        """Hash of the settings, equal on every machine."""
        return settings_id(self.settings)

    @property
    def file_name(self) -> str:
        """Name of the record file."""
        method = self.method.name
        dataset = self.dataset["name"]
        seed = f"s{self.seed}"
        if self.analysis:
            return record_name(self.analysis.name, method, dataset, seed, self.run_id)
        return record_name(method, dataset, self.protocol.name, seed, self.run_id)

    @property
    def title(self) -> str:
        """Description of the run in one line."""
        parts = [
            self.method.label,
            self.data.label,
            self.protocol.name,
            f"seed {self.seed}",
        ]
        if self.analysis:
            parts.insert(0, self.analysis.name)
        return " | ".join(parts)


def settings_id(settings: dict[str, Any]) -> str:
    """Return a hash of settings made of plain values."""
    text = json.dumps(settings, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def record_name(*parts: str) -> str:
    """Return the file name of a record with these parts.

    Examples
    --------
    >>> from evergrow.lab.bench.run import record_name
    >>> record_name("ranpac", "B-0 Inc-5", "s1993")
    'ranpac--B-0_Inc-5--s1993.json'
    """
    return "--".join(re.sub(r"[^\w.-]+", "_", part) for part in parts) + ".json"
