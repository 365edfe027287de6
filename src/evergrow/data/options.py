"""The settings of loading a data set, as one frozen record."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from typing_extensions import Self

from evergrow.core.errors import ParameterError
from evergrow.core.settings import from_mapping
from evergrow.core.validation import check_choice, check_number
from evergrow.core.wording import setting
from evergrow.data.readers import list_layouts

SPLITS = ("auto", "none")
"""Whether a test set is drawn where there is none."""


@dataclass(frozen=True)
class DataOptions:
    """Settings of reading a data set.

    Parameters
    ----------
    layout : str
        How a folder is laid out, one of :func:`evergrow.data.list_layouts`; ``"auto"`` finds out.
    name : str
        Name for people and records; empty takes the name of the source.
    root : path-like, optional
        Folder that data sets are looked for in by name and that the paths of a list are relative to; without it
        :func:`search_path` and the list's own surroundings serve.
    split : {"auto", "none"}
        What to do where the data come without a test set: ``"auto"`` draws one, ``"none"`` leaves all samples in the
        training set, so that one sample is enough. Data that come with a test set keep it.
    test_size : float
        Share of each class that becomes the test set where one is drawn.
    seed : int
        Seed of that split.
    allow_empty : bool
        Whether class folders without images are left out with a warning; they are an error otherwise.
    text_column, label_column, split_column, image_column : str
        Columns of tables and of Hugging Face data sets. An empty ``image_column`` means ``path``, ``image``, ``file``
        or ``filename``, whichever is there.
    class_level : int
        How many folders down the folders named after classes are, where every class has a folder: 1 for
        ``<class>/``, 2 for ``<line>/<class>/`` with the same class in several lines. 0 is 1, with a warning where the
        same names repeat one level down.
    download : bool
        Whether data sets asked for by name may be downloaded.

    Examples
    --------
    >>> from evergrow.data import DataOptions
    >>> DataOptions(test_size=0.3).seed
    1993
    >>> DataOptions.from_dict({"test_sise": 0.3})
    Traceback (most recent call last):
        ...
    evergrow.core.errors.UnknownNameError: data setting must be known, got 'test_sise'; nearest: 'test_size'
    """

    layout: str = "auto"
    name: str = ""
    root: str | os.PathLike[str] | None = None
    split: str = "auto"
    test_size: float = 0.2
    seed: int = 1993
    allow_empty: bool = False
    text_column: str = "text"
    label_column: str = "label"
    split_column: str = "split"
    image_column: str = ""
    class_level: int = 0
    download: bool = True

    def __post_init__(self) -> None:
        check_choice("layout", self.layout, ("auto", *list_layouts()))
        check_choice("split", self.split, SPLITS)
        check_number("test_size", self.test_size, low=0, high=1, low_open=True, high_open=True)
        check_number("seed", self.seed, low=0, high=2**32 - 1, integer=True)
        check_number("class_level", self.class_level, low=0, high=32, integer=True)
        for name in ("allow_empty", "download"):
            if not isinstance(getattr(self, name), bool):
                raise ParameterError(f"{setting(name)} must be true or false, got {getattr(self, name)!r}")
        for name in ("name", "text_column", "label_column", "split_column", "image_column"):
            if not isinstance(getattr(self, name), str):
                raise ParameterError(f"{setting(name)} must be a string, got {getattr(self, name)!r}")
        if self.root is not None and not isinstance(self.root, (str, os.PathLike)):
            raise ParameterError(f"{setting('root')} must be a path, got {self.root!r}")

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> Self:
        """Build the settings from plain values, rejecting unknown keys."""
        return from_mapping(cls, settings, "data setting")

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as plain values."""
        return {**asdict(self), "root": None if self.root is None else os.fspath(self.root)}

    @property
    def root_path(self) -> Path | None:
        """The root as a path."""
        return None if self.root is None else Path(self.root)
