"""The models of a folder, by name; several names of one file are one model."""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path

from evergrow.core.errors import FileFormatError, PathError
from evergrow.core.files import PARTIAL, locked
from evergrow.learner.modelfile import ModelNotFoundError, ModelWriteError, open_model
from evergrow.serve.config import ServeConfig
from evergrow.serve.drafts import SUFFIX as DRAFT
from evergrow.serve.drafts import Draft
from evergrow.serve.model import ServedModel
from evergrow.serve.pool import BackbonePool
from evergrow.serve.problems import Problem
from evergrow.serve.removal import finish_removals
from evergrow.serve.schemas import MODEL_SUFFIX as SUFFIX
from evergrow.serve.schemas import is_model_name


class Store:
    """All models of the service.

    Parameters
    ----------
    config : ServeConfig
        The folder, and how models are changed.
    pool : BackbonePool
        Where their backbones are shared.
    """

    def __init__(self, config: ServeConfig, pool: BackbonePool) -> None:
        self._config, self._pool = config, pool
        try:
            if not config.read_only:
                config.folder.mkdir(parents=True, exist_ok=True)
            self.folder = config.folder.resolve(strict=True)
        except OSError as error:
            raise PathError(
                f"folder of the models must be one that can be used, got {config.folder}: {error}"
            ) from error
        if not self.folder.is_dir():
            raise PathError(f"folder of the models must be a folder, got {config.folder}")
        if not config.read_only:
            finish_removals(self.folder)
        self._models: dict[Path, ServedModel] = {}
        self._guard = threading.Lock()

    def names(self) -> list[str]:
        """Return the names of all models, sorted."""
        stems = {
            entry.name[: -len(ending)]
            for entry in os.scandir(self.folder)
            for ending in (SUFFIX, DRAFT)
            if entry.name.endswith(ending) and not entry.is_dir()
        }
        return sorted(name for name in stems if is_model_name(name))

    def model(self, name: str) -> ServedModel:
        """Return a model by name, or raise :class:`ModelNotFoundError`; a name is never taken for a path."""
        path = self.folder / f"{name}{SUFFIX}"
        if not is_model_name(name) or not (path.is_file() or path.with_suffix(DRAFT).is_file()):
            raise ModelNotFoundError(f"there is no model {name[:80]!r}")
        return self._of_file(Path(os.path.realpath(path)))

    def link(self, name: str) -> Path | None:
        """Return the link that a name is; None where it is the file itself."""
        path = self.folder / f"{name}{SUFFIX}"
        return path if path.is_symlink() else None

    def create(self, name: str, draft: Draft) -> ServedModel:
        """Return a new model that knows nothing yet."""
        with self._guard, locked(self.folder, wait=True):
            path = self._free(name)
            draft.write(path.with_suffix(DRAFT))
        return self._of_file(path)

    def adopt(self, name: str, data: bytes) -> ServedModel:
        """Return a new model out of a file from a stranger, after checking all of it.

        Parameters
        ----------
        name : str
            What to call it.
        data : bytes
            The file.

        Raises
        ------
        Problem
            422 if it is no whole model, or its backbone is not offered here; nothing is left behind.
        """
        handle, temporary = tempfile.mkstemp(dir=self.folder, prefix=".upload.", suffix=PARTIAL)
        try:
            with open(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            try:
                self._pool.check_offered(open_model(temporary, device="cpu", cache=False))
            except FileFormatError as error:
                told = str(error).replace(temporary, "file")
                raise Problem(422, told, type(error).__name__) from error
            with self._guard, locked(self.folder, wait=True):
                path = self._free(name)
                os.link(temporary, path)  # fails where there is one, unlike a rename
        except OSError as error:
            if isinstance(error, FileExistsError):
                raise _taken(name) from error
            raise ModelWriteError(f"{name}{SUFFIX} must be writable: {error.strerror}") from error
        finally:
            os.unlink(temporary)
        return self._of_file(path)

    def _free(self, name: str) -> Path:
        """Return where a new model will lie, or raise the problem 409 if the name is taken, in whatever case."""
        if name.casefold() in {other.casefold() for other in self.names()}:
            raise _taken(name)
        path = self.folder / f"{name}{SUFFIX}"
        if os.path.lexists(path):
            raise _taken(name)
        return path

    def _of_file(self, path: Path) -> ServedModel:
        with self._guard:
            if path not in self._models:
                limits = self._config.limits
                self._models[path] = ServedModel(
                    path, self._pool, device=self._config.device, writers=limits.writers, patience=limits.lock_seconds
                )
            return self._models[path]


def _taken(name: str) -> Problem:
    return Problem(409, f"there is a model {name!r} already: take another name", "NameTaken")
