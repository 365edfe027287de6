"""Many runs: a spec, its grid, and a resumable runner that writes one record per run."""

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
