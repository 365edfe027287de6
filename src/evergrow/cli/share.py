"""``evergrow spawn`` and ``merge``: learn in several places and add it up, exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from evergrow.cli.console import Answer, plural
from evergrow.cli.models import REPLACING, ModelChange, check_target, classes_note, load_model, settle_model
from evergrow.cli.options import Json, ModelFile, Settle
from evergrow.cli.registry import command
from evergrow.core.errors import ParameterError

Output = Annotated[Path, typer.Option("--output", "-o", help="File to write.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing file, keeping what it was for rollback.")]


@command("spawn", panel="Share")
def spawn_command(model: ModelFile, output: Output, as_json: Json = False) -> Answer:
    """Write an empty model with the same backbone and layer, to be taught elsewhere and merged back.

    For example:

      evergrow spawn birds.evg -o worker.evg

      evergrow update worker.evg their-birds/

      evergrow merge birds.evg worker.evg -o all.evg

    Exit codes: 0 written, 2 bad input or the file exists.
    """
    check_target("--output", output, force=False, existing="choose another name")
    load_model(model).spawn().save(output)  # a beginning, not a change: its history starts with what it is taught
    values = {"model": str(output), "parent": str(model), "n_classes": 0}
    line = f"{output} has the layer of {model} and knows nothing yet: teach it with evergrow update"
    return Answer(values, [line], done=f"{output} was written")


@command("merge", panel="Share")
def merge_command(
    models: Annotated[list[Path], typer.Argument(metavar="MODEL MODEL...", help="Models to add up.")],
    output: Output,
    base: Annotated[
        Path | None, typer.Option("--base", help="The model that all began as copies of: it is counted once.")
    ] = None,
    force: Force = False,
    settle: Settle = False,
    as_json: Json = False,
) -> Answer:
    """Add up what several models know: exactly as if one had learned everything. Needs no data and no backbone.

    They must share a layer: all but one made by [bold]spawn[/bold], or all copies of one model, given as --base, that
    learned more. What would be counted twice is refused.

    For example:

      evergrow merge birds.evg worker.evg -o all.evg

      evergrow merge berlin.evg paris.evg -o all.evg --base start.evg

    Exit codes: 0 merged, 2 they do not go together or the file exists, and nothing written, 3 another process is
    changing the output.
    """
    from evergrow.learner.modelfile import commit

    if len(models) < 2:
        raise ParameterError("Name at least two models to merge.")
    check_target("--output", output, force=force, existing=REPLACING)
    learner, origin = load_model(models[0]), None if base is None else load_model(base)
    known = set(learner.class_names_.tolist())
    samples = sum(learner.n_samples_.values())
    for path in models[1:]:
        learner.merge(load_model(path), base=origin)
    settled, notes = settle_model(learner, settle)
    commit(output, learner)
    added = sum(learner.n_samples_.values()) - samples
    news = tuple(name for name in learner.class_names_.tolist() if name not in known)
    said = f"added {plural(added, 'sample')}{classes_note(news, 'new')} to what {models[0]} knows"
    merged = [str(path) for path in models]
    more: dict[str, Any] = {"samples": added, "classes": list(news), "merged": merged, "settled": settled}
    return ModelChange(output, learner, settled, notes).answer([said], **more)
