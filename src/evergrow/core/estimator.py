"""scikit-learn's estimator interface, without importing scikit-learn.

Importing scikit-learn takes as long as importing torch. Its tools (``clone``,
pipelines, grid search, the conformance suite) need methods, not a base class.
"""

from __future__ import annotations

import functools
import html
import inspect
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from typing_extensions import Self

from evergrow.core.errors import InputError, NotFittedError
from evergrow.core.validation import check_keys, is_instance_of

_MAX_SHOWN = 1000
"""Characters of a value in the display of notebooks."""
_MAX_CLASSES = 30
"""Classes in the display of notebooks."""
_CALLBACKS = ("_skl_callbacks", "_parent_callback_ctx")
"""Attributes that scikit-learn sets on an estimator before it calls ``fit``."""


def param_defaults(kind: type) -> dict[str, Any]:
    """Return the defaults of a constructor's arguments by name, without ``**``.

    Required arguments have the default :attr:`inspect.Parameter.empty`.
    """
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = list(inspect.signature(kind.__init__).parameters.values())  # type: ignore[misc]
    return {item.name: item.default for item in parameters[1:] if item.kind in kinds}


class Estimator:
    """Base class with parameters, representation, score and tags of a classifier."""

    @classmethod
    def _param_names(cls) -> list[str]:
        """Return the sorted names of the constructor's arguments, without ``**``."""
        return sorted(param_defaults(cls))

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the constructor's arguments by name; ``deep`` has no effect."""
        return {name: getattr(self, name) for name in self._param_names()}

    def set_params(self, **params: Any) -> Self:
        """Set constructor arguments by name, and return self.

        Unknown names raise :class:`UnknownNameError`. Values are not checked.
        """
        check_keys(params, self._param_names(), f"parameter of {type(self).__name__}")
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def _reset(self) -> None:
        """Delete all attributes except the parameters and scikit-learn's callbacks."""
        kept = {*self._param_names(), *_CALLBACKS}
        for name in self.__dict__.keys() - kept:
            del self.__dict__[name]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy on labelled samples, from 0 to 1."""
        right = np.asarray(self.predict(X)) == np.asarray(y)  # type: ignore[attr-defined]
        return float(np.average(right, weights=sample_weight))

    def __repr__(self) -> str:
        # Arguments with their default values are left out.
        defaults = param_defaults(type(self))
        values = self.get_params(deep=False).items()
        changed = []
        for name, value in values:
            # Options passed on to another estimator have no default here.
            default = defaults.get(name, inspect.Parameter.empty)
            if not _is_same(value, default):
                changed.append(f"{name}={value!r}")
        return f"{type(self).__name__}({', '.join(changed)})"

    def _repr_html_(self) -> str | None:
        """Return the display of notebooks; None with scikit-learn's display "text".

        It has scikit-learn's diagram, and tables of the parameters and of what was
        learned.
        """
        from sklearn import get_config
        from sklearn.utils import estimator_html_repr

        if get_config()["display"] != "diagram":
            return None
        tables = [_html_table("Parameters", self.get_params(deep=False))]
        learned = self._learned_values()
        if learned:
            tables.append(_html_table("Learned", learned))
        diagram: str = estimator_html_repr(self)
        return diagram + "".join(tables)

    def _learned_values(self) -> dict[str, Any]:
        """Return learned values by name, for notebooks. Empty before ``fit``."""
        return {}

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, Tags, TargetTags

        return Tags(
            "classifier", TargetTags(required=True), classifier_tags=ClassifierTags()
        )


def _html_table(title: str, values: Mapping[str, Any]) -> str:
    """Return names and values as an HTML table that can be folded.

    Names and values are escaped: class names come from users and from files.
    """
    rows = [
        f"<tr><td>{html.escape(name)}</td><td>{html.escape(_shown(value))}</td></tr>"
        for name, value in values.items()
    ]
    return (
        f"<details open><summary>{html.escape(title)}</summary>"
        f"<table>{''.join(rows)}</table></details>"
    )


def _shown(value: Any) -> str:
    """Return a text for a value, shortened. Texts have no quotes."""
    text = value if isinstance(value, str) else repr(value)
    if len(text) > _MAX_SHOWN:
        return f"{text[: _MAX_SHOWN - 1]}…"
    return text


def listed_counts(counts: Mapping[str, float]) -> str:
    """Return classes with their numbers of samples as a text for notebooks.

    Examples
    --------
    >>> from evergrow.core.estimator import listed_counts
    >>> listed_counts({"gull": 12, "tern": 9.5})
    'gull (12), tern (9.5)'
    """
    names = [f"{name} ({n:g})" for name, n in list(counts.items())[:_MAX_CLASSES]]
    if len(counts) > _MAX_CLASSES:
        names.append(f"and {len(counts) - _MAX_CLASSES:,} more")
    return ", ".join(names)


def _is_same(value: Any, default: Any) -> bool:
    """Compare by representation, because arrays have no single ``==``."""
    if value is default:
        return True
    return type(value) is type(default) and repr(value) == repr(default)


def not_fitted(message: str) -> NotFittedError:
    """Return an error that is evergrow's and scikit-learn's NotFittedError."""
    return _learner_not_fitted_error()(message)


@functools.cache
def _learner_not_fitted_error() -> type[NotFittedError]:
    """Make the class on first use, because it needs scikit-learn."""
    from sklearn.exceptions import NotFittedError as SklearnNotFittedError

    return type(
        "LearnerNotFittedError",
        (NotFittedError, SklearnNotFittedError),
        {
            "__module__": __name__,
            "__doc__": "A learner was used before it was fitted.",
        },
    )


def plain_value(name: str, value: Any) -> Any:
    """Return a constructor argument as a JSON value.

    Parameters
    ----------
    name : str
        Name of the argument for messages.
    value : object
        JSON values; paths, devices and NumPy values; containers of them; and objects
        with a method ``to_plain``. Random generators become None.

    Raises
    ------
    InputError
        If there is no JSON value for it.

    Examples
    --------
    >>> import torch
    >>> from evergrow.core.estimator import plain_value
    >>> plain_value("scales", (0.5, 1.0)), plain_value("device", torch.device("cpu"))
    ([0.5, 1.0], 'cpu')
    """
    if isinstance(value, (np.random.RandomState, np.random.Generator)):
        # The seed drawn from it is stored with the model.
        return None
    if isinstance(value, os.PathLike) or is_instance_of(value, "torch", "device"):
        return str(value)
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [plain_value(name, item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain_value(name, item) for key, item in value.items()}
    if hasattr(value, "to_plain"):
        return value.to_plain()
    raise InputError(
        f"{name} must be a plain value to be saved, got {type(value).__name__}"
    )
