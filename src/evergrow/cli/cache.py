"""``evergrow cache``: list and clear the features that were extracted earlier."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.filesize import decimal

from evergrow.cli.console import Answer, plural, table, warn_line
from evergrow.cli.exits import ExitCode
from evergrow.cli.registry import command, command_group
from evergrow.core.errors import BusyError, ParameterError
from evergrow.core.escaping import printable

if TYPE_CHECKING:
    from evergrow.features.cache import CacheInfo

command_group("cache", "List and clear the features that were extracted earlier.")

_FOLDER = "Folder of the cache; EVERGROW_CACHE or the user's cache by default."
Folder = Annotated[Path | None, typer.Option(help=_FOLDER)]


@command("cache list")
def list_command(folder: Folder = None) -> Answer:
    """List the features that are kept, the newest first.

    Exit codes: 0 listed.
    """
    from evergrow.features.cache import FeatureCache

    cache = FeatureCache(folder)
    infos = cache.list()
    total = decimal(sum(info.bytes for info in infos))
    lines = [*_table(infos), f"{plural(len(infos), 'entry', 'entries')}, {total} in {cache.root}"]
    return Answer({"folder": str(cache.root), "entries": [vars(info) for info in infos]}, lines)


@command("cache clear")
def clear_command(
    older_than: Annotated[float | None, typer.Option(min=0)] = None,
    yes: Annotated[bool, typer.Option("-y")] = False,
    folder: Folder = None,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> Answer:
    """Remove all entries, or old ones; those that another process is writing stay.

    Exit codes: 0 all removed, 1 the question was answered with no, 2 the request makes no sense, 3 some are in use by
    another process and stay, the others are removed.

    Parameters
    ----------
    older_than : DAYS
        Clear only what was last written before that.
    yes
        Do not ask.
    as_json
        Print the outcome as JSON; needs --yes.
    """
    from evergrow.features.cache import FeatureCache

    if as_json and not yes:
        raise ParameterError("Add --yes to --json: nobody can be asked.")
    cache = FeatureCache(folder)
    chosen = [info for info in cache.list() if older_than is None or info.age_seconds > older_than * 86400]
    if chosen and not yes:
        for line in _table(chosen):
            typer.echo(line)
        typer.confirm(f"remove {len(chosen)} from {printable(str(cache.root))}?", abort=True)
    removed, busy = [], []
    for info in chosen:
        try:
            cache.remove(info.key)
            removed.append(info)
        except BusyError as error:  # noqa: PERF203  the others can still go
            warn_line(f"{info.key[:12]} is in use: {error}")
            busy.append(info.key)
        except OSError as error:
            raise ParameterError(f"Cannot remove from {cache.root}: {error}") from error
    freed = sum(info.bytes for info in removed)
    done = f"removed {len(removed)}, {decimal(freed)}"
    values = {"removed": [info.key for info in removed], "in_use": busy, "bytes": freed}
    return Answer(values, [done], code=ExitCode.BUSY if busy else ExitCode.OK, done=done)


def _table(infos: list[CacheInfo]) -> list[str]:
    rows = []
    for info in infos:
        what = f"{info.kind}s" if info.kind else "?"
        if info.first:
            what += f" from {info.first if len(info.first) <= 32 else '...' + info.first[-29:]}"
        age = f"{info.age_seconds / 86400:.1f} d"
        rows.append([info.key[:12], what, f"{info.n_items:,}", decimal(info.bytes), age, info.backbone or "?"])
    columns = ("key", "what", "items", "size", "age", "backbone")
    return table(columns, rows, right=("items", "size", "age")) if rows else []
