"""The ``evergrow`` command."""

from __future__ import annotations

import sys
from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from evergrow.cli.bench import bench_app
from evergrow.cli.cache import cache_app
from evergrow.cli.choices import NamesListingCommand
from evergrow.cli.commands import register
from evergrow.cli.data import data_check
from evergrow.cli.features import features
from evergrow.cli.report import report
from evergrow.core.errors import BusyError, EvergrowError

app = typer.Typer(
    name="evergrow",
    help="Classifiers that keep learning new classes, without old data and without forgetting.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
register(app)
app.add_typer(bench_app, name="bench")
app.add_typer(cache_app, name="cache")
app.command("data", cls=NamesListingCommand)(data_check)
app.command(cls=NamesListingCommand)(features)
app.command()(report)


@app.callback()
def _root() -> None:
    """Classifiers that keep learning new classes, without old data and without forgetting."""


@app.command()
def version() -> None:
    """Print the version."""
    import evergrow

    typer.echo(evergrow.__version__)


@app.command()
def methods() -> None:
    """List every method, by the name that specs use."""
    from evergrow.methods import list_methods

    typer.echo("\n".join(list_methods()))


@app.command()
def demo(
    seed: int = typer.Option(0, help="Seed of the random layer."),
    units: int = typer.Option(600, min=50, max=20_000, help="Width of the random layer."),
    images: Annotated[
        Path | None, typer.Option(help="Only write digits as images into this folder, to try the other commands on.")
    ] = None,
    json: bool = typer.Option(False, "--json", help="Print the results as JSON instead of tables."),
) -> None:
    """Learn handwritten digits two at a time, forget one of them, and spot one never seen.

    Examples: [bold]evergrow demo --units 1000[/bold], [bold]evergrow demo --pictures digits[/bold]
    """
    from evergrow.cli.demo import run_demo, write_images

    if images is not None:
        written = write_images(images)
        parts = ", ".join(f"{count} in {part}" for part, count in written.items())
        typer.echo(dumps({"folder": str(images), **written}) if json else f"{images}: {parts}")
        return
    run_demo(seed=seed, units=units, as_json=json)


def main() -> None:
    """Run the command line; errors of evergrow's own are shown as one line, without a traceback."""
    try:
        app()
    except EvergrowError as error:
        typer.secho(f"error: {error}", fg=typer.colors.RED, err=True)
        sys.exit(3 if isinstance(error, BusyError) else 2)
