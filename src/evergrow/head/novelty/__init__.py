"""Novelty: how unlike all learned classes a row is.

Novelty is computed in two steps. :mod:`evergrow.head.novelty.terms` computes five terms
of each row from the statistics. :mod:`evergrow.head.novelty.score` standardises the
terms on known rows and adds them up with weights. No term is good on all data, so the
weights are learned from held-out rows of known classes and rows of new classes.
"""
