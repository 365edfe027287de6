"""``evergrow cache``: what features are kept, and how to be rid of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evergrow.core.errors import BusyError, ParameterError

if TYPE_CHECKING:
    from evergrow.backbones.cache import CacheInfo, FeatureCache

cache_app = typer.Typer(help="List and clear the features that were extracted earlier.", no_args_is_help=True)

Folder = Annotated[
    Path | None, typer.Option("--folder", help="Folder of the cache; EVERGROW_CACHE or the user's cache by default.")
]

_COLUMNS = ("key", "what", "items", "size", "age", "backbone", "preset", "state")


@cache_app.command("list")
def list_command(
    folder: Folder = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the entries as JSON.")] = False,
) -> None:
    """List what is kept, the newest first."""
    from evergrow.backbones.cache import FeatureCache

    cache = FeatureCache(folder)
    infos = cache.list()
    if as_json:
        entries = [info.to_dict() for info in infos]
        typer.echo(json.dumps({"folder": str(cache.root), "entries": entries}, indent=1))
        return
    if infos:
        _print_table(infos)
    total = sum(info.bytes for info in infos)
    typer.echo(f"{len(infos)} {'entry' if len(infos) == 1 else 'entries'}, {_size(total)} in {cache.root}")


@cache_app.command("clear")
def clear_command(
    keys: Annotated[list[str] | None, typer.Argument(help="Keys, or their first characters.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Clear every entry.")] = False,
    older_than: Annotated[
        float | None, typer.Option("--older-than", metavar="DAYS", min=0, help="Clear what was begun before that.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    folder: Folder = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON; needs --yes.")] = False,
) -> None:
    """Remove entries; what another process is writing stays.

    Exit codes: 0 all removed, 1 some are in use or the question was answered with no, 2 the request makes no sense.
    """
    from evergrow.backbones.cache import FeatureCache

    if as_json and not yes:
        raise ParameterError("--json must come with --yes, since nobody can be asked")
    cache = FeatureCache(folder)
    chosen = _chosen(cache, keys or [], everything, older_than)
    if chosen and not yes:
        _print_table(chosen)
        typer.confirm(f"remove {len(chosen)} from {cache.root}?", abort=True)
    removed, busy = _remove(cache, chosen)
    freed = sum(info.bytes for info in removed)
    if as_json:
        outcome = {"removed": [info.key for info in removed], "in_use": list(busy), "bytes": freed}
        typer.echo(json.dumps(outcome, indent=1))
    else:
        typer.echo(f"removed {len(removed)}, {_size(freed)}")
        for key, error in busy.items():
            typer.echo(f"error: {key[:12]} is in use: {error}", err=True)
    if busy:
        raise typer.Exit(1)


def _chosen(cache: FeatureCache, keys: list[str], everything: bool, older_than: float | None) -> list[CacheInfo]:
    """Return the entries that a request is about."""
    ways = (bool(keys), everything, older_than is not None)
    if sum(ways) != 1:
        raise ParameterError(f"clear must be given keys, --all or --older-than, one of them, got {sum(ways)}")
    if keys:
        return list({info.key: info for info in map(cache.find, keys)}.values())
    return [info for info in cache.list() if older_than is None or info.age_seconds > older_than * 86400]


def _remove(cache: FeatureCache, chosen: list[CacheInfo]) -> tuple[list[CacheInfo], dict[str, BusyError]]:
    removed: list[CacheInfo] = []
    busy: dict[str, BusyError] = {}
    for info in chosen:
        try:
            cache.remove(info.key)
            removed.append(info)
        except BusyError as error:  # noqa: PERF203  the others can still go
            busy[info.key] = error
        except OSError as error:
            raise ParameterError(f"cache must be a folder that can be written to, got {cache.root}: {error}") from error
    return removed, busy


def _print_table(infos: list[CacheInfo]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for column in _COLUMNS:
        table.add_column(column, justify="right" if column in ("items", "size", "age") else "left", no_wrap=True)
    for info in infos:
        table.add_row(*(Text(cell) for cell in _cells(info)))
    console = Console()
    if not console.is_terminal:  # a pipe has no width that cells would have to be cut for
        console = Console(width=240)
    console.print(table)


def _cells(info: CacheInfo) -> tuple[str, ...]:
    what = f"{info.kind}s" if info.kind else "?"
    if info.first:
        what += f" from {info.first if len(info.first) <= 32 else '...' + info.first[-29:]}"
    items = f"{info.n_items:,}" if info.state == "finished" else f"{info.done:,}/{info.n_items:,}"
    state = info.state + (f", {info.failures} unreadable" if info.failures else "")
    return (
        info.key[:12],
        what,
        items,
        _size(info.bytes),
        _age(info.age_seconds),
        info.backbone or "?",
        info.preset,
        state,
    )


def _size(n_bytes: int) -> str:
    size = float(n_bytes)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def _age(seconds: float) -> str:
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
