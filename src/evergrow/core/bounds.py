"""Upper bounds of options. Importing them loads no other package."""

LARGEST_WIDTH = 65_536
"""Maximum number of units of a layer, and of rows held at once.

The Gram matrix of such a layer has 32 GiB, and solving needs three such matrices.
"""

MOST_ROUNDS = 1_000
"""Maximum number of repetitions: candidates, epochs, passes, ensemble members."""
