"""``evergrow demo``: learn handwritten digits before the user's eyes, or write them as images to play with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from evergrow.cli.console import Answer, facts, percent
from evergrow.cli.options import Json
from evergrow.cli.registry import command


@command("demo")
def demo_command(
    seed: Annotated[int, typer.Option(help="Seed of the random layer.")] = 0,
    units: Annotated[int, typer.Option(min=50, max=20_000, help="Width of the random layer.")] = 600,
    images: Annotated[
        Path | None,
        typer.Option("--pictures", help="Only write digits as images into this folder, to try the other commands on."),
    ] = None,
    as_json: Json = False,
) -> Answer:
    """Learn handwritten digits two at a time, forget one of them, and spot one never seen.

    Examples: [bold]evergrow demo --units 1000[/bold], [bold]evergrow demo --pictures digits[/bold]
    """
    from evergrow.cli.demonstration import run_demo, write_images

    if images is None:
        results = run_demo(seed, units, quiet=as_json)
        return Answer(results, _story(results))
    written = write_images(images)
    parts = ", ".join(f"{count} in {part}" for part, count in written.items())
    return Answer({"folder": str(images), **written}, [f"{images}: {parts}"], done=f"{images} was written")


def _story(results: dict[str, Any]) -> list[str]:
    """Return the figures of the demonstration as lines."""
    from evergrow.cli.demonstration import HELD_BACK

    digit = results["forgotten_digit"]
    lines = facts(
        [
            ("mean fall of earlier tasks since their best", f"{100 * results['forgetting']:.1f} points"),
            (
                "largest difference to learning everything at once",
                f"{results['largest_difference_to_joint_training']:.0e}",
            ),
            (f"telling the unseen digit {HELD_BACK} from known ones (AUROC)", percent(results["unknown_auroc"])),
            (
                f"after forget_classes([{digit}]): {digit}s still called {digit}",
                str(results["predicted_after_forgetting"]),
            ),
            ("    accuracy on the other digits", percent(results["accuracy_on_the_rest"])),
        ]
    )
    return ["", *(f"  {line}" for line in lines), "", f"  done in {results['seconds']:.1f} s", ""]
