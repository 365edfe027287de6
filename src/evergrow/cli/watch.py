"""``evergrow watch``: learn what appears in a folder."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evergrow.cli import options
from evergrow.cli.console import Answer, listed, note_line, plural, warn_line
from evergrow.cli.models import load_model, model_line
from evergrow.cli.registry import command
from evergrow.core.errors import BusyError, ParameterError

if TYPE_CHECKING:
    from evergrow.learner.watching import Watched


@command("watch", panel="Learn")
def watch_command(
    model: options.ModelFile,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER")],
    once: bool = False,
    interval: float = 2.0,
    quiet: float = 2.0,
    device: options.Device = "auto",
    weights: options.Rare[str | None] = None,
    wait: options.Wait = False,
    as_json: options.Json = False,
) -> Answer:
    """Learn what appears in FOLDER/CLASS/, until interrupted.

    One file is one sample: an image, a .txt file for a model of texts, an .npy file for one of feature vectors. What
    was learned is moved to FOLDER/done/learned/CLASS/, and what cannot be read to FOLDER/done/refused/CLASS/. A file is
    learned exactly once, also if the command is killed in between: the model's file itself lists what it has learned.
    Files that are still being written are waited for; links and names that cannot be shown are left where they are.

    For example:

      evergrow watch birds.evg incoming/

      evergrow watch birds.evg incoming/ --once

    Exit codes: 0 done, or ended by Ctrl-C, 1 done but files were refused, 2 bad input, 3 another process is changing
    the model or looks at the folder (with --once).

    Parameters
    ----------
    folder
        Folder with a subfolder per class.
    once
        Look once and end, as for cron, instead of going on.
    interval
        Seconds between looks.
    quiet
        Seconds for which a file must not have changed to be taken.
    weights
        The backbone's weights, if not where they were: a file, or {evergrow.features.sources:WEIGHT_SOURCES}.
    """
    from evergrow.learner.watching import Watched, watch_once

    for name, value in (("--interval", interval), ("--quiet", quiet)):
        if not 0 <= value < float("inf"):
            raise ParameterError(f"{name} is a number of seconds from 0 on, not {value:g}.")
    run = options.ImageOptions(device, False, weights, as_json, on_error="skip")
    load_model(model, run)  # refuses what is no model before anything is moved

    def look() -> Watched:
        return watch_once(model, folder, quiet=quiet, wait=wait, **run.loading())

    total = Watched()
    if once:
        total.add(look())
        if total.waiting:  # files had just arrived; what changes still is left for the next run
            time.sleep(quiet)
            total.add(look())
    else:
        note_line(f"watching {folder} for {model}; Ctrl-C ends it")
        with suppress(KeyboardInterrupt):
            while True:
                try:
                    done = look()
                except BusyError as error:
                    warn_line(f"{error}")
                    done = Watched()
                done.refused = {name: why for name, why in done.refused.items() if total.refused.get(name) != why}
                if done.learned or done.again or done.refused:
                    note_line(_told(done))
                total.add(done)
                time.sleep(interval)
    learner = load_model(model)
    values = {
        "model": str(model),
        "revision": learner.revision_,
        "learned": total.learned,
        "learned_before": total.again,
        "refused": total.refused,
        "waiting": total.waiting,
    }
    refused = f"{plural(len(total.refused), 'file or folder', 'files or folders')} refused: {listed([*total.refused])}"
    return Answer(values, [_told(total), model_line(model, learner)], [refused] if total.refused else [])


def _told(done: Watched) -> str:
    parts = [f"learned {plural(done.learned, 'file')}"]
    if done.again:
        parts.append(f"{done.again} learned before")
    if done.refused:
        parts.append(f"refused {listed([*done.refused])}: {next(iter(done.refused.values()))}")
    return ", ".join(parts)
