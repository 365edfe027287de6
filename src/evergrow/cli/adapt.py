"""``evergrow adapt``: adapt a backbone, for models on this or another machine."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from evergrow.cli import options
from evergrow.cli.console import Answer
from evergrow.cli.model_files import adapted_note, check_target
from evergrow.cli.registry import command
from evergrow.core.errors import ParameterError


@command("adapt", panel="Learn")
def adapt_command(
    data: options.Data,
    out: Annotated[Path, typer.Option("--out", "-o")],
    backbone: str = "auto",
    mode: str = "auto",
    epochs: options.Rare[int | None] = None,
    features: options.Recipe = "auto",
    preset: options.Rare[str] = "timm",
    seed: Annotated[int, typer.Option(min=0)] = 0,
    columns: options.ColumnOptions = options.DEFAULT_COLUMNS,
    run: options.NewModelOptions = options.DEFAULT_NEW_MODEL,
    force: bool = False,
) -> Answer:
    """Adapt a backbone to images, and write the change of its weights to a file.

    Use this on a machine with a GPU. Copy the file, and learn on any machine:

      evergrow adapt birds/ -o tuned.safetensors

      evergrow fit birds/ --weights tuned.safetensors -m birds.evg

    The same as [bold]evergrow fit --adapt[/bold] in one step. The file has no images
    and not the weights of the original backbone.

    Exit codes: 0 written; 2 bad input, or the file exists and --force is missing, and
    nothing was written; 130 interrupted and nothing was written.

    Parameters
    ----------
    out
        File to write, such as tuned.safetensors.
    backbone
        Name of the backbone; auto takes the best one with weights on this machine.
    mode
        auto measures whether adapting helps, full fine-tunes all weights, and ssf,
        adapter, lora, vpt-deep or vpt-shallow train a tuner.
    epochs
        Number of epochs: by default 40 for auto and full, 20 for tuners.
    preset
        Preprocessing of images: that of the backbone (timm), or that of published
        results (pilot, pilot-cifar).
    seed
        Random seed of the training.
    force
        Replace an existing file.
    """
    if out.suffix != ".safetensors":
        raise ParameterError(
            f"{out.name!r} does not end in .safetensors; choose such a name for --out."
        )
    check_target("--out", out, force=force)
    started = time.perf_counter()
    # Before torch is imported, because most mistakes are in the data.
    from evergrow.data.inputs import read_labelled

    samples = read_labelled(data, "train", options=columns.data_options())
    from evergrow.adapt.fsa import adaptation_config
    from evergrow.learner.adaptation_file import save_adaptation
    from evergrow.learner.learner import Learner

    config = adaptation_config(mode)
    if config is not None and epochs is not None:
        config = config.changed(epochs=epochs)
    learner = Learner(
        backbone,
        adapt=config,
        features=features,
        preset=preset,
        random_state=seed,
        **{**run.load_settings(), "device": run.device},
    )
    learner.fit(samples)
    save_adaptation(learner, out)
    adaptation = learner.state_.describe()["adaptation"]
    seconds = time.perf_counter() - started
    megabytes = out.stat().st_size / 1e6
    return Answer(
        {
            "file": str(out),
            "megabytes": megabytes,
            "adaptation": adaptation,
            "seconds": seconds,
        },
        [
            f"{out} was written, {megabytes:.1f} MB, in {seconds:.1f} s",
            f"adapted: {adapted_note(adaptation)}",
        ],
        done=f"{out} was written",
    )
