"""Learners in other people's tools: review in Label Studio and FiftyOne, MLflow, SetFit.

Each module imports its tool only when it is used, and a missing one says which pip line brings it.
"""
