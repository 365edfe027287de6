"""Commands that pass a model on: ``spawn``, ``merge``, ``export`` and ``serve``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from evergrow.cli import model_files, options
from evergrow.cli.console import Answer, note_line, plural
from evergrow.cli.exits import flush
from evergrow.cli.registry import command
from evergrow.core.errors import ParameterError
from evergrow.core.escaping import printable
from evergrow.core.imports import import_extra

Output = Annotated[Path, typer.Option("-o", help="Model file to write.")]


@command("spawn", panel="Share")
def spawn_command(model: options.ModelFile, output: Output) -> Answer:
    """Write an empty copy of a model, to teach it elsewhere and merge it back.

    The copy has the backbone and the layer of MODEL, but no classes.

    For example:

      evergrow spawn birds.evg -o worker.evg

      evergrow update worker.evg their-birds/

      evergrow merge birds.evg worker.evg -o all.evg

    Exit codes: 0 written; 2 bad input or the output exists, and nothing was written.
    """
    model_files.check_target(
        "--output", output, force=False, existing="choose another name"
    )
    # Saved without a history entry: the history of a spawned model starts empty.
    from evergrow.learner import empty_copy

    empty_copy(model_files.load_model(model)).save(output)
    values = {"model": str(output), "parent": str(model), "n_classes": 0}
    line = f"{output} has the layer of {model} and no classes: use evergrow update"
    return Answer(values, [line], done=f"{output} was written")


@command("merge", panel="Share")
def merge_command(
    models: Annotated[
        list[Path], typer.Argument(metavar="MODEL", help="Two or more models to merge.")
    ],
    output: Output,
    base: Path | None = None,
    force: bool = False,
) -> Answer:
    """Merge models into one that equals a model trained on all their data.

    Needs no data and no backbone. The models must share a layer: either one was fitted
    and [bold]spawn[/bold] made all others from it, or all are copies of the --base
    model that learned more. If samples would count twice, nothing is merged.

    For example:

      evergrow merge birds.evg worker.evg -o all.evg

      evergrow merge berlin.evg paris.evg -o all.evg --base start.evg

    Exit codes: 0 merged; 2 the models do not fit together, or the output exists and
    --force is missing, and nothing was written; 3 another process is changing the
    output.

    Parameters
    ----------
    base
        Model that all others are copies of. Its samples count once.
    force
        Replace an existing output; rollback restores it.
    """
    if len(models) < 2:
        raise ParameterError("Name at least two models to merge.")
    model_files.check_target(
        "--output", output, force=force, existing=model_files.REPLACING
    )
    learner = model_files.load_model(models[0])
    base_learner = None
    if base is not None:
        base_learner = model_files.load_model(base)
    old_classes = set(learner.state_.classes.tolist())
    n_before = sum(learner.state_.label_counts.values())
    for path in models[1:]:
        learner.merge(model_files.load_model(path), base=base_learner)
    change = model_files.ModelChange(output, learner)
    from evergrow.learner import settle

    settle(learner)  # so that predictions need no solving
    change.commit()
    n_added = sum(learner.state_.label_counts.values()) - n_before
    new_classes = [
        name for name in learner.state_.classes.tolist() if name not in old_classes
    ]
    classes = model_files.classes_note(new_classes, "new")
    return change.answer(
        [f"added {plural(n_added, 'sample')}{classes} to {models[0]}"],
        samples=n_added,
        classes=new_classes,
        merged=[str(path) for path in models],
    )


@command("export", panel="Share")
def export_command(
    model: options.ModelFile,
    onnx: Annotated[Path, typer.Option("-o")],
    opset: Annotated[int, typer.Option(min=17)] = 18,
    check: bool = True,
    head_only: bool = False,
    weights: options.Rare[str | None] = None,
    force: bool = False,
) -> Answer:
    """Write a model as one ONNX file that needs neither evergrow nor torch.

    For a model of images the input is [bold]pixels[/bold]: bytes of shape (n, 3,
    height, width), resized and cropped as the metadata of the file describe.
    Normalisation, backbone, layer and class weights are in the graph, the labels in the
    metadata.

    For a model of texts the inputs are [bold]input_ids[/bold],
    [bold]attention_mask[/bold] and, if the encoder uses them,
    [bold]token_type_ids[/bold]. The tokenizer is written next to the graph, for example
    as intents.tokenizer.json.

    For example:

      evergrow export birds.evg --onnx birds.onnx

      evergrow export intents.evg --onnx intents.onnx

    Exit codes: 0 written; 2 the model cannot be exported, or the file exists and
    --force is missing, and nothing was written.

    Parameters
    ----------
    onnx
        File to write, such as birds.onnx.
    opset
        Version of the ONNX operator set, at least 17.
    check
        Run the graph with onnxruntime before writing, and compare its scores.
    head_only
        Leave out the backbone; the input is then its features.
    weights
        Where the backbone weights are now: a file, bundled (in an installed package),
        hub, or random (to draw them). By default the place in the model file.
    force
        Replace an existing file.
    """
    from evergrow.export.onnx_backbone import tokenizer_path
    from evergrow.export.onnx_export import export_learner

    model_files.check_target("--onnx", onnx, force=force)
    run = options.BackboneOptions(device="cpu", weights=weights, as_json=True)
    learner = model_files.load_model(model, run)
    if (
        learner.state_.spec is not None
        and learner.state_.spec.kind == "text"
        and not head_only
    ):
        model_files.check_target(
            "the tokenizer of --onnx", tokenizer_path(onnx), force=force
        )
    report = export_learner(
        learner, onnx, opset=opset, check=check, head_only=head_only
    )
    names = ", ".join(entry["name"] for entry in report.inputs)
    first = report.inputs[0]
    shape = ", ".join(map(str, first["shape"]))
    classes = plural(report.n_classes, "class", "classes")
    lines = [
        f"{report.path}: {names}, {first['type']} ({shape}), to {classes}; "
        f"{report.nbytes / 2**20:.1f} MiB, operator set {report.opset}, "
        f"in {report.seconds:.1f} s",
        *(f"{path}: its tokenizer; keep both files together" for path in report.beside),
    ]
    if report.check is not None:
        lines.append(
            f"checked: onnxruntime's scores differ by {report.check.difference:.1g} of "
            f"their spread ({report.check.rows} {report.check.samples})"
        )
    values = {"model": str(model), **report.to_dict()}
    return Answer(values, lines, done=f"{onnx} was written")


@command("serve", panel="Share")
def serve_command(
    folder: Annotated[Path, typer.Argument(metavar="MODELS")],
    host: str = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8080,
    lan: bool = False,
    token_file: Path | None = None,
    allow_host: list[str] | None = None,
    read_only: bool = False,
    device: options.Device = "auto",
    rate: float = 500.0,
    label_studio: str | None = None,
    label_studio_token_file: Path | None = None,
    log_level: Literal["debug", "info", "warning", "error"] = "warning",
    open_page: Annotated[bool, typer.Option("--open")] = False,
    as_json: options.Json = False,
) -> Answer:
    """Serve the models of a folder as a web page and an HTTP API.

    All data stays on this machine. Samples are not stored, except images that the owner
    of a model chooses to keep on the page. When a client gets the answer
    to a change, the change is on disk. Other commands may change the same files
    meanwhile. Ctrl-C stops the service after the current change.

    For example:

      evergrow serve models/

      evergrow serve models/ --open

      evergrow serve models/ --lan

      evergrow serve models/ --host 0.0.0.0 --token-file tokens.txt --allow-host
      birds.example.org

      evergrow serve models/ --read-only --port 8081

    Exit codes: 0 stopped; 2 the service could not start (the address is in use, a file
    cannot be read).

    Parameters
    ----------
    folder
        Folder of model files; created if missing.
    host
        Address to listen on; --token-file is required unless only this machine can
        reach it.
    port
        Port to listen on; 0 takes a free one.
    lan
        Also let phones in the same network use the service: prints a QR code with a TLS
        address and a token that is valid for one hour.
    token_file
        File of access tokens, one per line: 'read TOKEN [NAME]' to predict, 'teach
        TOKEN [NAME]' to change models too.
    allow_host
        Additional host name of the service, such as that of a proxy; repeatable.
    read_only
        Refuse all changes of models.
    rate
        Maximum requests per second of one token or address.
    label_studio
        Address of the Label Studio from which to fetch images of tasks.
    label_studio_token_file
        File with the token for that Label Studio.
    log_level
        Minimum level of log messages; info logs every request.
    open_page
        Open the page in a browser.
    """
    for module in ("fastapi", "uvicorn", "python_multipart", "prometheus_client"):
        import_extra(module, extra="serve", purpose="serving models")
    from evergrow.serve.config import Limits, ServeConfig, Tokens
    from evergrow.serve.server import run_server

    tokens = Tokens()
    if token_file is not None:
        text = _read_option_file("--token-file", token_file)
        tokens = Tokens.parse(text, os.fspath(token_file))
    label_studio_token = ""
    if label_studio_token_file is not None:
        label_studio_token = _read_option_file(
            "--label-studio-token-file", label_studio_token_file
        ).strip()
    config = ServeConfig(
        folder,
        host=host,
        port=port,
        lan=lan,
        tokens=tokens,
        read_only=read_only,
        allowed_hosts=tuple(allow_host or ()),
        device=device,
        limits=Limits(requests_per_second=rate),
        label_studio=label_studio or "",
        label_studio_token=label_studio_token,
    )

    def announce(address: str, code: str = "") -> None:
        if not as_json:
            note = f"what you teach is kept in {printable(str(folder.resolve()))}"
            if read_only:
                note = "nothing can be changed"
            typer.echo(f"serving {printable(os.fspath(folder))} on {address}")
            typer.echo(f"{note}; Ctrl-C ends it")
            typer.echo(code, nl=bool(code))
            flush()
        if open_page and not _open_browser(address):
            note_line(f"no browser can be opened here: open {address} yourself")

    run_server(config, announce, log_level=log_level)
    return Answer(
        {"models": os.fspath(folder), "read_only": read_only},
        ["ended; all changes are on disk"],
    )


def _read_option_file(option: str, file: Path) -> str:
    """Return the text of a file that an option names."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ParameterError(
            f"The file of {option} cannot be read: {file}: {error}"
        ) from error


def _open_browser(address: str) -> bool:
    """Open a page in a graphical browser and return whether that worked.

    Without a display a text browser would take over the terminal, so none is opened.
    """
    import webbrowser

    has_display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if sys.platform.startswith("linux") and not has_display:
        return False
    try:
        return webbrowser.open(address)
    except webbrowser.Error:
        return False
