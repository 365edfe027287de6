"""Grids of experiments: a spec, its runs, and a resumable runner with a record each."""

from evergrow.lab.bench.grid import GridResult, Step, expand, plan_grid, run_grid
from evergrow.lab.bench.run import Run
from evergrow.lab.bench.spec import Spec, SpecError, load_spec

__all__ = [
    "GridResult",
    "Run",
    "Spec",
    "SpecError",
    "Step",
    "expand",
    "load_spec",
    "plan_grid",
    "run_grid",
]
