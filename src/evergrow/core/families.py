"""Registries of classes whose objects are written to files: one name, used in settings and in files alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from evergrow.core.archive import KINDS, Archive, Kind, check_kind, register_kind
from evergrow.core.errors import FileFormatError, ParameterError
from evergrow.core.record import register_class
from evergrow.core.registry import Registry, nearest

T = TypeVar("T")


class Family(Registry[type[T]]):
    """Classes by name; what they write is an archive of kind ``<prefix>/<name>``.

    Parameters
    ----------
    kind : str
        What is registered, for messages ("solver", "projection", ...).
    prefix : str
        What kinds of archives begin with.

    Examples
    --------
    >>> from evergrow.core.families import Family
    >>> shapes = Family("shape", "docs-shape")
    >>> @shapes.register("circle")
    ... class Circle: ...
    >>> shapes.kind_of(Circle).name
    'docs-shape/circle'
    >>> shapes.class_of(shapes.kind_of(Circle).archive({})) is Circle
    True
    """

    def __init__(self, kind: str, prefix: str) -> None:
        super().__init__(kind, plugins=True)
        self.prefix = prefix

    def register(self, name: str, *, version: int = 1, since: str = "0.3") -> Callable[[type[T]], type[T]]:
        """Return a decorator that files a class under a name, in settings and in files.

        Parameters
        ----------
        name : str
            What users call it.
        version, since
            Of its archives; see :func:`~evergrow.core.archive.register_kind`.
        """
        file_under_name = super().register(name)

        def decorate(item: type[T]) -> type[T]:
            file_under_name(item)
            register_kind(f"{self.prefix}/{name}", version, since=since)
            register_class(f"{self.prefix}/{name}", version, item)
            return item

        return decorate

    def name_of(self, item: type[T]) -> str:
        """Return the name that a class is registered under, or the class that it derives from."""
        names = {self[name]: name for name in self.names()}
        for kind in item.__mro__:
            if kind in names:
                return names[kind]
        raise ParameterError(
            f"{item.__name__} must be registered as a {self.kind} to be saved, got a class that is not"
        )

    def kind_of(self, item: type[T]) -> Kind:
        """Return the kind of archive that objects of a class are written as."""
        return KINDS[f"{self.prefix}/{self.name_of(item)}"]

    def class_of(self, archive: Archive, name: str = "the archive") -> type[T]:
        """Return the class whose objects are written as an archive is, or raise :class:`FileFormatError`."""
        check_kind(archive, name)
        kind = archive.kind
        prefix, _, own = kind.partition("/")
        if prefix != self.prefix or own not in self:
            known = [f"{self.prefix}/{item}" for item in self.names()]
            raise FileFormatError(f"{name} must hold a {self.kind}, got {kind!r}; nearest: {nearest(kind, known)}")
        return self[own]
