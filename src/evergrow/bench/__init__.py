"""Many runs: a spec, its grid, a resumable runner that writes records, and tables made from them."""

from evergrow.bench.grid import Run, expand, select
from evergrow.bench.mechanism import load_mechanism, plan_mechanism, run_mechanism
from evergrow.bench.resumable import Outcome, Reporter, Step
from evergrow.bench.runner import plan_bench, run_bench
from evergrow.bench.spec import Spec, SpecError, load_spec
from evergrow.core.errors import BusyError
from evergrow.tables.compare import Comparison, compare
from evergrow.tables.metric import METRICS
from evergrow.tables.render import render

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
