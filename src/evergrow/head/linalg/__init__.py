"""Statistics of ridge regression, and what is solved and chosen from them."""
