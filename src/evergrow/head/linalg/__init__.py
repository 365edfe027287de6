"""Statistics of ridge regression, their solvers and the choice of the ridge."""
