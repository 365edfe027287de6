"""Specs of analyses: TOML files of analyses, each with its methods, over data sets x protocols x seeds.

The file is like that of ``lab run`` (see :mod:`evergrow.lab.bench.spec`), with analyses in place of methods::

    name = "example"
    seeds = [1993]
    output = "records/example"

    [[datasets]]
    name = "clinc150_minilm"

    [[protocols]]
    increment = 10

    [[analyses]]
    name = "conditioning"               # conditioning, residual, similarity, sweep or xi
    options = { n_samples = 500 }       # the settings of evergrow.lab.bench.analyses
    seeds = [1993, 1994]                # where they are to differ from the spec's

    [[analyses.methods]]                # name, label, options, sweep as for lab run
    name = "ri"
    options = { n_units = 1000 }
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

from evergrow.core.registry import nearest
from evergrow.head.base import HEADS
from evergrow.lab.bench.analyses import ANALYSES
from evergrow.lab.bench.spec import COMMON_KEYS, Spec, SpecReader, open_spec
from evergrow.lab.bench.toml_lines import KeyPath
from evergrow.lab.methods import method_options

_ANALYSIS = ("name", "options", "seeds", "methods")


@dataclass(frozen=True)
class AnalysisEntry:
    """An analysis with its settings, and the grid that it is applied to."""

    name: str
    settings: Any
    grid: Spec


@dataclass(frozen=True)
class MechanismSpec:
    """A checked specification; see the module's docstring for the file it comes from.

    Parameters
    ----------
    common : Spec
        Everything but the methods, which stand in the grids of the analyses.
    analyses : tuple of AnalysisEntry
        What to measure on what.
    """

    common: Spec
    analyses: tuple[AnalysisEntry, ...]


def load_mechanism(path: str | os.PathLike[str]) -> MechanismSpec:
    """Read and check a spec of analyses.

    Parameters
    ----------
    path : path-like
        A TOML file.

    Returns
    -------
    MechanismSpec

    Raises
    ------
    SpecError
        For a missing file, a syntax error, an unknown key, analysis, method or option, or a value out of range.
    """
    table, reader = open_spec(path)
    reader.check_keys(table, (*COMMON_KEYS, "analyses"), (), "the spec")
    items = reader.tables(table, "analyses")
    common = reader.common(table)
    return MechanismSpec(common, tuple(_entry(reader, item, i, common) for i, item in enumerate(items)))


def _entry(reader: SpecReader, table: dict[str, Any], index: int, common: Spec) -> AnalysisEntry:
    path: KeyPath = ("analyses", index)
    reader.check_keys(table, _ANALYSIS, path, "[[analyses]]")
    name = reader.text(table, (*path, "name"))
    if name not in ANALYSES:
        message = f"analysis must be a registered name, got {name!r}; nearest: {nearest(name, ANALYSES.names())}"
        reader.fail((*path, "name"), message)
    kind, options = ANALYSES[name].settings, table.get("options", {})
    settings = reader.settings(kind, options, (*path, "options"), f"the options of analysis {name!r}")
    methods = reader.methods(table, path)
    for method in methods:
        known = method_options(method.name)
        lacking = [need for need in ANALYSES[name].needs if need not in known and not hasattr(HEADS[method.name], need)]
        if lacking:
            message = f"methods of analysis {name!r} must have {', '.join(lacking)}, got {method.name!r} without"
            reader.fail((*path, "methods"), message)
    seeds = reader.seeds(table, path) if "seeds" in table else common.seeds
    return AnalysisEntry(name, settings, replace(common, methods=methods, seeds=seeds))
