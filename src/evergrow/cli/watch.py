"""``evergrow watch``: learn what appears in a folder and answer what lies in its inbox."""

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
    reject_unknown: bool = True,
    false_alarm: options.FalseAlarm = 0.05,
    device: options.Device = "auto",
    weights: options.Rare[str | None] = None,
    wait: options.Wait = False,
    as_json: options.Json = False,
) -> Answer:
    """Learn what appears in FOLDER/CLASS/ and answer what appears in FOLDER/inbox/, until interrupted.

    One file is one sample: an image, a .txt file for a model of texts, an .npy file for one of feature vectors. What
    was learned is moved to FOLDER/done/learned/CLASS/, what was answered to FOLDER/done/answered/ with the answer in a
    .json file beside it, and what cannot be read to FOLDER/done/refused/ with the reason. A file is learned exactly
    once, also if the command is killed in between: the model's file itself lists what it has learned. Files that are
    still being written are waited for; links and names that cannot be shown are refused.

    For example:

      evergrow watch birds.evg incoming/

      evergrow watch birds.evg incoming/ --once

    Exit codes: 0 done, or ended by Ctrl-C, 1 done but files were refused, 2 bad input, 3 another process is changing
    the model (with --once) or watches the folder.

    Parameters
    ----------
    folder
        Folder with a subfolder per class, and inbox.
    once
        Look once and end, as for cron, instead of going on.
    interval
        Seconds between looks.
    quiet
        Seconds for which a file must not have changed to be taken.
    reject_unknown
        Say in answers what is of no learned class.
    weights
        The backbone's weights, if not where they were: a file, or {evergrow.features.sources:WEIGHT_SOURCES}.
    """
    from evergrow.learner.watching import Watched, WatchedFolder, watch_once

    for name, value in (("--interval", interval), ("--quiet", quiet)):
        if not 0 <= value < float("inf"):
            raise ParameterError(f"{name} is a number of seconds from 0 on, not {value:g}.")
    if not 0 < false_alarm < 1:
        raise ParameterError(f"--false-alarm lies between 0 and 1, not at {false_alarm:g}.")
    run = options.ImageOptions(device, False, weights, as_json, on_error="skip")
    load_model(model, run)  # refuses what is no model before anything is moved
    place = WatchedFolder(folder, quiet)
    alarm = false_alarm if reject_unknown else None

    def look() -> Watched:
        return watch_once(model, place, false_alarm=alarm, wait=wait, **run.loading())

    total, told = Watched(), set[tuple[str, str]]()
    with place.held():
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
                    done.refused = [entry for entry in done.refused if entry not in told]
                    told.update(done.refused)
                    if done.anything:
                        note_line(_told(done))
                    total.add(done)
                    time.sleep(interval)
    learner = load_model(model)
    values = {
        "model": str(model),
        "revision": learner.revision_,
        "learned": total.learned,
        "answered": total.answered,
        "learned_before": total.again,
        "refused": dict(total.refused),
        "waiting": total.waiting,
    }
    names = [name for name, _ in total.refused]
    refused = f"{plural(len(names), 'file or folder', 'files or folders')} refused: {listed(names)}"
    return Answer(values, [_told(total), model_line(model, learner)], [refused] if names else [])


def _told(done: Watched) -> str:
    parts = [f"learned {plural(done.learned, 'file')}", f"answered {done.answered}"]
    if done.again:
        parts.append(f"{done.again} learned before")
    if done.refused:
        parts.append(f"refused {listed([name for name, _ in done.refused])}: {done.refused[0][1]}")
    return ", ".join(parts)
