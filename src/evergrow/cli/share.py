"""Commands that bring a model to others: ``spawn`` and ``merge``, ``export`` to ONNX, and ``serve`` over HTTP."""

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
from evergrow.core.optional import require

Output = Annotated[Path, typer.Option("-o", help="File to write.")]


@command("spawn", panel="Share")
def spawn_command(model: options.ModelFile, output: Output) -> Answer:
    """Write an empty model with the same backbone and layer, to be taught elsewhere and merged back.

    For example:

      evergrow spawn birds.evg -o worker.evg

      evergrow update worker.evg their-birds/

      evergrow merge birds.evg worker.evg -o all.evg

    Exit codes: 0 written, 2 bad input or the file exists.
    """
    model_files.check_target(
        "--output", output, force=False, existing="choose another name"
    )
    # A beginning, not a change: its history starts with what it is taught.
    model_files.load_model(model).spawn().save(output)
    values = {"model": str(output), "parent": str(model), "n_classes": 0}
    line = f"{output} has the layer of {model} and knows nothing yet: teach it with evergrow update"
    return Answer(values, [line], done=f"{output} was written")


@command("merge", panel="Share")
def merge_command(
    sources: Annotated[
        list[Path], typer.Argument(metavar="MODEL MODEL...", help="Models to add up.")
    ],
    output: Output,
    base: Path | None = None,
    force: bool = False,
) -> Answer:
    """Add up what several models know: exactly as if one had learned everything. Needs no data and no backbone.

    They must share a layer: all but one made by [bold]spawn[/bold], or all copies of
    one model, given as --base, that learned more. What would be counted twice is
    refused.

    For example:

      evergrow merge birds.evg worker.evg -o all.evg

      evergrow merge berlin.evg paris.evg -o all.evg --base start.evg

    Exit codes: 0 merged, 2 they do not go together or the file exists, and nothing
    written, 3 another process is changing the output.

    Parameters
    ----------
    base
        The model that all began as copies of: it is counted once.
    force
        Replace an existing file, keeping what it was for rollback.
    """
    from evergrow.learner.modelfile import commit

    if len(sources) < 2:
        raise ParameterError("Name at least two models to merge.")
    model_files.check_target(
        "--output", output, force=force, existing=model_files.REPLACING
    )
    learner = model_files.load_model(sources[0])
    origin = None
    if base is not None:
        origin = model_files.load_model(base)
    known = set(learner.class_names_.tolist())
    samples = sum(learner.n_samples_.values())
    for path in sources[1:]:
        learner.merge(model_files.load_model(path), base=origin)
    change = model_files.ModelChange(output, learner)
    learner.settle()
    change.dropped = commit(output, learner).dropped
    added = sum(learner.n_samples_.values()) - samples
    news = tuple(name for name in learner.class_names_.tolist() if name not in known)
    said = f"added {plural(added, 'sample')}{model_files.classes_note(news, 'new')} to what {sources[0]} knows"
    return change.answer(
        [said], samples=added, classes=list(news), merged=list(map(str, sources))
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
    """Write a model as one ONNX file: from pixels to scores and labels, without evergrow or torch.

    Its input is [bold]pixels[/bold], bytes of shape (n, 3, height, width), resized and
    cropped as its metadata say; normalisation, backbone, layer and class weights are in
    the graph. The labels are in the metadata.

    Of a model of texts the inputs are [bold]input_ids[/bold],
    [bold]attention_mask[/bold] and, where the encoder has them,
    [bold]token_type_ids[/bold]; its tokenizer is written beside the graph, as
    intents.tokenizer.json.

    For example:

      evergrow export birds.evg --onnx birds.onnx

      evergrow export intents.evg --onnx intents.onnx

    Exit codes: 0 written, 2 it cannot be exported, or the file exists, and nothing was
    written.

    Parameters
    ----------
    onnx
        File to write, such as birds.onnx.
    opset
        Version of ONNX's operators, from 17.
    check
        Compare with onnxruntime before writing.
    head_only
        Leave the backbone out: the input is features.
    weights
        The backbone's weights, if not where they were: a file, or bundled, hub or
        random.
    force
        Replace an existing file.
    """
    from evergrow.export.onnx_backbone import tokenizer_path
    from evergrow.export.onnx_export import export_learner

    model_files.check_target("--onnx", onnx, force=force)
    learner = model_files.load_model(
        model, options.RunOptions(device="cpu", weights=weights, as_json=True)
    )
    if learner.spec_ is not None and learner.spec_.kind == "text" and not head_only:
        model_files.check_target(
            "the tokenizer beside --onnx", tokenizer_path(onnx), force=force
        )
    report = export_learner(
        learner, onnx, opset=opset, check=check, head_only=head_only
    )
    names = ", ".join(entry["name"] for entry in report.inputs)
    first = report.inputs[0]
    shape = ", ".join(map(str, first["shape"]))
    known = plural(report.n_classes, "class", "classes")
    lines = [
        f"{report.path}: {names}, {first['type']} ({shape}), to {known}; "
        f"{report.nbytes / 2**20:.1f} MiB, operator set {report.opset}, in {report.seconds:.1f} s",
        *(f"{path}: its tokenizer, which belongs to it" for path in report.beside),
    ]
    if report.check is not None:
        rows = f"({report.check.rows} {report.check.samples})"
        lines.append(
            f"checked: onnxruntime's scores differ by {report.check.difference:.1g} of their spread {rows}"
        )
    return Answer(
        {"model": str(model), **report.to_dict()}, lines, done=f"{onnx} was written"
    )


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
    """Serve the models of a folder: a page to teach them on, and an HTTP API to ask and change them.

    Nothing leaves this machine and no sample is kept. A change is on disk before it is
    acknowledged. Other commands may change the same files meanwhile. Ctrl-C ends it,
    after the change in flight.

    For example:

      evergrow serve models/

      evergrow serve models/ --open

      evergrow serve models/ --lan

      evergrow serve models/ --host 0.0.0.0 --token-file tokens.txt --allow-host
      birds.example.org

      evergrow serve models/ --read-only --port 8081

    Exit codes: 0 ended as asked, 2 it could not begin (the address is taken, a file
    cannot be read).

    Parameters
    ----------
    folder
        Folder of model files; made if missing.
    host
        Address to bind; any but this machine's own needs --token-file.
    port
        Port to bind; 0 takes a free one.
    lan
        Let phones in the same network in too: prints a QR code with an address (TLS)
        and a token that lives an hour.
    token_file
        File of lines 'read TOKEN [NAME]' or 'teach TOKEN [NAME]'.
    allow_host
        A further name that the service is reached by, as behind a proxy.
    read_only
        Answer, and change nothing.
    rate
        Requests in a second of one token, or of one address.
    label_studio
        Address of a Label Studio that images of tasks may be fetched from.
    label_studio_token_file
        File with the token for it.
    log_level
        Least level of the log; info logs every request.
    open_page
        Open the page in a browser.
    """
    for module in ("fastapi", "uvicorn", "python_multipart", "prometheus_client"):
        require(module, extra="serve", purpose="serving models")
    from evergrow.serve.config import Limits, ServeConfig, Tokens
    from evergrow.serve.server import run_server

    secrets = _contents("--token-file", token_file)
    config = ServeConfig(
        folder,
        host=host,
        port=port,
        lan=lan,
        tokens=Tokens()
        if token_file is None
        else Tokens.parse(secrets, os.fspath(token_file)),
        read_only=read_only,
        allowed_hosts=tuple(allow_host or ()),
        device=device,
        limits=Limits(requests_per_second=rate),
        label_studio=label_studio or "",
        label_studio_token=_contents(
            "--label-studio-token-file", label_studio_token_file
        ).strip(),
    )

    def announce(address: str, code: str = "") -> None:
        if not as_json:
            if read_only:
                kept = "nothing can be changed"
            else:
                kept = f"what you teach is kept in {printable(str(folder.resolve()))}"
            typer.echo(
                f"serving {printable(os.fspath(folder))} on {address}\n{kept}; Ctrl-C ends it"
            )
            typer.echo(code, nl=bool(code))
            flush()
        if open_page and not _opened(address):
            note_line(f"no browser can be opened here: open {address} yourself")

    run_server(config, announce, log_level=log_level)
    return Answer(
        {"models": os.fspath(folder), "read_only": read_only},
        ["ended; all changes are on disk"],
    )


def _contents(option: str, file: Path | None) -> str:
    """Return the text of the file of an option; none is empty."""
    try:
        if file is None:
            return ""
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ParameterError(
            f"The file of {option} cannot be read: {file}: {error}"
        ) from error


def _opened(address: str) -> bool:
    """Open a page in a browser with a window, and return whether there is one; one of text would take the terminal."""
    import webbrowser

    if sys.platform.startswith("linux") and not (
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    ):
        return False
    try:
        return webbrowser.open(address)
    except webbrowser.Error:
        return False
