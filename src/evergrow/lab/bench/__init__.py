"""Many runs: a spec, its grid, a resumable runner that writes records, and tables made from them."""

from evergrow.core.errors import BusyError
from evergrow.lab.bench.grid import Run, expand, select
from evergrow.lab.bench.mechanism import load_mechanism, plan_mechanism, run_mechanism
from evergrow.lab.bench.resumable import Outcome, Reporter, Step
from evergrow.lab.bench.runner import plan_bench, run_bench
from evergrow.lab.bench.spec import Spec, SpecError, load_spec
from evergrow.lab.tables.compare import Comparison, compare
from evergrow.lab.tables.metric import METRICS
from evergrow.lab.tables.render import render

__all__ = [
    "METRICS",
    "BusyError",
    "Comparison",
    "Outcome",
    "Reporter",
    "Run",
    "Spec",
    "SpecError",
    "Step",
    "compare",
    "expand",
    "load_mechanism",
    "load_spec",
    "plan_bench",
    "plan_mechanism",
    "render",
    "run_bench",
    "run_mechanism",
    "select",
]
