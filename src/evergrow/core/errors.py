"""The error tree: everything evergrow raises on purpose derives from :class:`EvergrowError`.

Each error also derives from the built-in exception that a caller who does not know evergrow would expect, so
``except ValueError`` keeps working.
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
    """A name that is not in a registry; the message lists the nearest ones."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""  # KeyError would print the repr


class UnsupportedError(ParameterError, AttributeError):
    """Something was asked of a method that it cannot do; the message says what, and which methods can."""


class NotFittedError(EvergrowError, ValueError, AttributeError):
    """A model was asked for an answer before it learned anything.

    scikit-learn's error of this name has the same two parents; learners raise one that is of both kinds, so that this
    module need not import scikit-learn, which takes longer than all of evergrow.
    """


class NumericalError(EvergrowError, ArithmeticError):
    """A factorisation failed, or a result is not finite."""


class ConstructionError(EvergrowError, RuntimeError):
    """A guided layer could not be built as demanded."""


class MergeError(EvergrowError, ValueError):
    """Two learners cannot be merged."""


class UnlearnError(EvergrowError, ValueError):
    """Samples or classes cannot be removed because they were never learned."""


class NothingLeftError(UnlearnError):
    """The last samples were to be taken out of a head, which keeps at least one class."""


class DeviceError(EvergrowError, RuntimeError):
    """A device was asked for that this machine does not have."""


class MissingExtraError(EvergrowError, ImportError):
    """An optional dependency is not installed; the message holds the pip line that cures it."""


class FileFormatError(EvergrowError, ValueError):
    """A file is not an evergrow file, is damaged, or contradicts itself."""


class BusyError(EvergrowError, RuntimeError):
    """Another process is writing in the same place."""


class PathError(EvergrowError, OSError):
    """A file that cannot be written where it was asked for: it is read-only, no ordinary file, or a link to nothing."""


class ModelNotFoundError(EvergrowError, FileNotFoundError):
    """There is no model where one was looked for."""


class DatasetNotFoundError(EvergrowError, FileNotFoundError):
    """A data set is not on disk; the message says what was looked for, where, and how to get it."""


class ImageError(InputError):
    """An image that cannot be read; the message names it."""


class WeightsError(EvergrowError, RuntimeError):
    """Weights that cannot be had or do not fit; the message says what to install or where to put a file."""


class EngineError(EvergrowError, RuntimeError):
    """Work on several processes or machines cannot begin or go on: no answer, other versions, too many failures."""


class NewerSchemaError(FileFormatError):
    """A file was written by a newer evergrow than this one."""


class EvergrowWarning(UserWarning):
    """Base class of all warnings issued by evergrow."""


class ConstructionWarning(EvergrowWarning):
    """A guided layer stopped before it reached its tolerance."""


class DataWarning(EvergrowWarning):
    """Data that can be used but is not what was expected: counts that differ, images left out."""


class FewSamplesWarning(DataWarning):
    """Classes with too few samples beside the others to be recognised as surely."""


class CacheWarning(EvergrowWarning):
    """The feature cache cannot be used; work goes on without it."""
