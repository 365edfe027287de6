"""Upper bounds of options. Importing them loads no other package."""

LARGEST_WIDTH = 65_536
"""Largest number of units of a layer, and of rows held at once. The Gram matrix of such a
layer has 32 GiB, and solving holds three matrices of that size."""

MOST_ROUNDS = 1_000
"""Largest number of repetitions that an option may ask for: candidates of a round,
epochs, passes, members of an ensemble."""
