"""Commands for signed receipts of unlearning."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evergrow.cli import model_files
from evergrow.cli.console import Answer, listed
from evergrow.cli.registry import command, command_group
from evergrow.core.errors import ParameterError

if TYPE_CHECKING:
    from evergrow.tools.receipts import ModelStatistics

command_group("receipt", "Make keys for receipts of unlearning, and check receipts.")

SIGNER = (
    "The signature proves that the owner of this key made the receipt and nobody "
    "changed it. It does not prove who that is; compare the key with a published one "
    "(--public-key)."
)


@command("receipt key")
def key_command(
    path: Annotated[Path, typer.Argument(metavar="FILE")],
) -> Answer:
    """Make a private key that signs receipts, and print its public key.

    Publish the public key, so that others recognise receipts of yours. Keep the file
    secret: whoever has it can sign in your name. Only you may read it.

    For example:

      evergrow receipt key key.pem

    Exit codes: 0 written; 2 the file exists or cannot be written.

    Parameters
    ----------
    path
        New file for the key, an Ed25519 key as PEM without a password.
    """
    from evergrow.tools.receipts import create_key

    model_files.check_target("FILE", path, force=False, existing="name a new file")
    public_key = create_key(path)
    return Answer(
        {"key": str(path), "public_key": public_key},
        [f"{path}: private key", f"public key: {public_key}"],
        done=f"{path} was written",
    )


@command("receipt verify")
def verify_command(
    path: Annotated[Path, typer.Argument(metavar="FILE")],
    before: Path | None = None,
    after: Path | None = None,
    removed: Path | None = None,
    public_key: str = "",
) -> Answer:
    """Check a receipt of unlearning, without the samples.

    With --before and --after, both models must have the hashes in the receipt, and
    their difference must be a sum over the stated numbers of samples. With --removed,
    the difference must equal these statistics up to rounding. Without --before, only
    the signature is checked.

    For example:

      evergrow receipt verify r.json --before old.evg --after birds.evg

    Exit codes: 0 everything holds; 1 something does not hold; 2 the file is not a
    receipt or its signature is invalid, or a model cannot be read.

    Parameters
    ----------
    before : MODEL
        The model before the samples were unlearned.
    after : MODEL
        The model after it.
    removed : STATISTICS
        File that unlearn --removed wrote.
    public_key : HEX
        Public key that the signer is known to use.
    """
    from evergrow.tools import receipts

    if (before is None) != (after is None):
        raise ParameterError("Give both --before and --after, or neither.")
    if removed is not None and before is None:
        raise ParameterError("--removed needs --before and --after.")
    if public_key:
        public_key = receipts.check_public_key(public_key)
    receipt = receipts.read_receipt(path)
    found = receipts.verify_receipt(
        receipt,
        None if before is None else _statistics(before),
        None if after is None else _statistics(after),
        removed=None if removed is None else receipts.read_statistics(removed),
        public_key=public_key,
    )
    classes = listed([f"{name} {count}" for name, count in receipt.classes.items()])
    lines = [f"{receipt.n_samples:,} samples unlearned ({classes}) on {receipt.when}"]
    lines += [f"holds: {text}" for text in found.holds]
    if before is None:
        lines.append("not checked: the subtraction; it needs --before and --after")
    elif removed is None:
        lines.append("not checked: which samples were removed; it needs --removed")
    if receipt.for_good:
        lines.append("not checked: whether history and cache were cleared")
    lines.append(f"signed by key {receipt.public_key}")
    if not public_key:
        lines.append(SIGNER)
    values = {
        "receipt": str(path),
        "when": receipt.when,
        "classes": receipt.classes,
        "for_good": receipt.for_good,
        "public_key": receipt.public_key,
        "holds": list(found.holds),
        "fails": list(found.fails),
        "gap": found.gap,
    }
    return Answer(values, lines, list(found.fails))


def _statistics(path: Path) -> ModelStatistics | None:
    """Return the statistics of a model file."""
    from evergrow.tools.receipts import model_statistics

    return model_statistics(model_files.load_model(path))
