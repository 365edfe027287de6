"""``evergrow serve``: the models of a folder over HTTP, and the page to teach them on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from evergrow.cli.console import Answer
from evergrow.cli.exits import flush
from evergrow.cli.options import Device, Json
from evergrow.cli.registry import command
from evergrow.core.errors import ParameterError
from evergrow.core.escaping import printable
from evergrow.core.optional import require

ONE_WRITER = (
    "Leave --workers out: one process writes a model, so that no change is lost and no answer mixes two "
    "revisions. More processes may read: start them on the same folder with --read-only and another --port"
)


@command("serve", panel="Share")
def serve_command(
    models: Annotated[Path, typer.Argument(metavar="MODELS")],
    host: str = "127.0.0.1",
    port: int = 8080,
    token_file: Path | None = None,
    allow_host: list[str] | None = None,
    read_only: bool = False,
    device: Device = "auto",
    rate: float = 500.0,
    label_studio: str | None = None,
    label_studio_token_file: Path | None = None,
    log_level: Literal["debug", "info", "warning", "error"] = "info",
    open_page: Annotated[bool, typer.Option("--open")] = False,
    workers: Annotated[int | None, typer.Option(hidden=True)] = None,
    as_json: Json = False,
) -> Answer:
    """Serve the models of a folder: a page to teach them on, and an HTTP API to ask and change them.

    Nothing leaves this machine and no sample is kept. A change is on disk before it is acknowledged. Other commands may
    change the same files meanwhile. Ctrl-C ends it, after the change in flight.

    For example:

      evergrow serve models/

      evergrow serve models/ --open

      evergrow serve models/ --host 0.0.0.0 --token-file tokens.txt --allow-host birds.example.org

      evergrow serve models/ --read-only --port 8081

    Exit codes: 0 ended as asked, 2 it could not begin (the address is taken, a file cannot be read).

    Parameters
    ----------
    models
        Folder of model files; made if missing.
    host
        Address to bind; any but this machine's own needs --token-file.
    port
        Port to bind; 0 takes a free one.
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
        Least level of the log.
    open_page
        Open the page in a browser.
    """
    if workers is not None:
        raise ParameterError(ONE_WRITER)
    for module in ("fastapi", "uvicorn", "python_multipart", "prometheus_client"):
        require(module, extra="serve", purpose="serving models")
    from evergrow.serve.app import run_server
    from evergrow.serve.config import Limits, ServeConfig, Tokens

    try:
        secret = "" if label_studio_token_file is None else label_studio_token_file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        about = f"{label_studio_token_file}: {error}"
        raise ParameterError(f"The file of --label-studio-token-file cannot be read: {about}") from error
    config = ServeConfig(
        models,
        host=host,
        port=port,
        tokens=Tokens() if token_file is None else Tokens.read(token_file),
        read_only=read_only,
        allowed_hosts=tuple(allow_host or ()),
        device=device,
        limits=Limits(requests_per_second=rate),
        label_studio=label_studio or "",
        label_studio_token=secret,
    )

    def announce(address: str) -> None:
        if not as_json:
            typer.echo(f"serving {printable(os.fspath(models))} on {address}")
            flush()
        if open_page:
            import webbrowser

            webbrowser.open(address)

    run_server(config, announce, log_level=log_level)
    return Answer({"models": os.fspath(models), "read_only": read_only}, ["ended; all changes are on disk"])
