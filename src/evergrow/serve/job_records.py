"""Jobs on disk, so that one that was begun is known after a restart, with what became of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from evergrow.core.archive import register_kind
from evergrow.core.documents import open_document, parse_json
from evergrow.core.errors import EvergrowError
from evergrow.core.fields import Fields
from evergrow.core.files import atomic_path
from evergrow.serve.logs import log

KIND = register_kind("serve/jobs")
NAME = ".jobs.json"
STATES = ("running", "writing", "done", "failed", "cancelled", "interrupted")
_FIELDS = ("id", "model", "state", "done", "total", "skipped", "failures", "error")


class JobRecords:
    """The file in the folder of the models that remembers jobs; what a job changed is in the model's own history.

    Parameters
    ----------
    folder : Path
        The folder.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME

    def read(self) -> list[dict[str, Any]]:
        """Return the jobs that are remembered, the oldest first; none where the file is missing or damaged."""
        try:
            values = parse_json(self._path.read_bytes(), NAME)
            version = values.get("version") if isinstance(values, dict) else None
            return [_job(fields) for fields in open_document(values, KIND, NAME, version=version).records("jobs")]
        except FileNotFoundError:
            return []
        except (EvergrowError, OSError) as error:
            log("jobs are forgotten", problem=str(error))
            return []

    def write(self, jobs: Iterable[Mapping[str, Any]]) -> None:
        """Write jobs in one step; where that fails they are still known until the service ends."""
        plain = [{name: job[name] for name in _FIELDS} for job in jobs]
        try:
            with atomic_path(self._path) as temporary:
                temporary.write_text(json.dumps({"version": KIND.version, "jobs": plain}), encoding="utf-8")
        except (EvergrowError, OSError) as error:
            log("jobs are not written down", problem=str(error))


def _job(fields: Fields) -> dict[str, Any]:
    failures = [{"name": entry.text("name"), "reason": entry.text("reason")} for entry in fields.records("failures")]
    return {
        "id": fields.text("id"),
        "model": fields.text("model"),
        "state": fields.text("state", choices=STATES),
        "done": fields.integer("done", low=0),
        "total": fields.integer("total", low=0),
        "skipped": fields.integer("skipped", low=0),
        "failures": failures,
        "error": fields.text("error") if fields.has("error") else None,
    }
