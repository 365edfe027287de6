"""Errors and warnings. All of them derive from :class:`EvergrowError`.

Each error also derives from a built-in exception, so that ``except ValueError`` works
for callers who do not know evergrow.
"""

from __future__ import annotations


class EvergrowError(Exception):
    """Base class of all errors raised by evergrow."""


class InputError(EvergrowError, ValueError):
    """Data of the wrong shape, type or content."""


class LabelError(InputError):
    """Labels that do not fit the data or the labels seen so far."""


class KnownSamplesError(InputError):
    """Samples were learned before, and would count twice."""


class ParameterError(EvergrowError, ValueError):
    """A setting outside its allowed range, or an unknown name."""


class UnknownNameError(ParameterError, KeyError):
    """A name is not in a registry. The message lists the nearest ones."""

    def __str__(self) -> str:
        # KeyError would return the repr.
        return str(self.args[0]) if self.args else ""


class UnsupportedError(ParameterError, AttributeError):
    """An operation is not supported. The message says which method supports it."""


class NotFittedError(EvergrowError, ValueError, AttributeError):
    """A model was used before it was fitted.

    scikit-learn's error of this name has the same base classes. Learners raise an error
    that derives from both, so that this module does not import scikit-learn.
    """


class NumericalError(EvergrowError, ArithmeticError):
    """A factorisation failed, or a result is not finite."""


class ConstructionError(EvergrowError, RuntimeError):
    """A guided layer could not be built with the required settings."""


class MergeError(EvergrowError, ValueError):
    """Two learners cannot be merged."""


class UnlearnError(EvergrowError, ValueError):
    """Samples or classes cannot be removed because they were never learned."""


class NothingLeftError(UnlearnError):
    """Removing these samples would leave no class."""


class DeviceError(EvergrowError, RuntimeError):
    """A device does not exist on this machine."""


class MissingExtraError(EvergrowError, ImportError):
    """An optional dependency is not installed. The message has the pip command."""


class FileFormatError(EvergrowError, ValueError):
    """A file is not an evergrow file, is damaged, or contradicts itself."""


class BusyError(EvergrowError, RuntimeError):
    """Another process is using this folder."""


class PathError(EvergrowError, OSError):
    """A file cannot be written: it is read-only, not a file, or a broken link."""


class ModelNotFoundError(EvergrowError, FileNotFoundError):
    """There is no model at this path."""


class DatasetNotFoundError(EvergrowError, FileNotFoundError):
    """A data set was not found. The message says how to get it."""


class ImageError(InputError):
    """An image is unreadable. The message names it."""


class WeightsError(EvergrowError, RuntimeError):
    """Weights are missing or do not match. The message says what to install."""


class EngineError(EvergrowError, RuntimeError):
    """Work on several processes or machines failed."""


class NewerSchemaError(FileFormatError):
    """A file was written by a newer evergrow."""


class EvergrowWarning(UserWarning):
    """Base class of all warnings issued by evergrow."""


class ConstructionWarning(EvergrowWarning):
    """A guided layer stopped before it reached its tolerance."""


class DataWarning(EvergrowWarning):
    """Data is usable but unexpected, for example because images were left out."""


class FewSamplesWarning(DataWarning):
    """Some classes have too few samples to be recognised reliably."""


class CacheWarning(EvergrowWarning):
    """The feature cache is unusable. Work continues without it."""
