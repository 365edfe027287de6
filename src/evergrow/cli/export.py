"""``evergrow export``: a model as one ONNX file, for machines without evergrow."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evergrow.cli.console import Answer, plural
from evergrow.cli.models import check_target, load_model
from evergrow.cli.options import ModelFile, Rare, RunOptions
from evergrow.cli.registry import command


@command("export", panel="Share")
def export_command(
    model: ModelFile,
    onnx: Annotated[Path, typer.Option("-o")],
    opset: int = 18,
    check: Annotated[bool | None, typer.Option("--check/--no-check")] = None,
    head_only: bool = False,
    weights: Rare[str | None] = None,
    force: bool = False,
) -> Answer:
    """Write a model as one ONNX file: from pixels to scores and labels, without evergrow or torch.

    Its input is [bold]pixels[/bold], bytes of shape (n, 3, height, width), resized and cropped as its metadata say;
    normalisation, backbone, layer and class weights are in the graph. The labels are in the metadata.

    Of a model of texts the inputs are [bold]input_ids[/bold], [bold]attention_mask[/bold] and, where the encoder has
    them, [bold]token_type_ids[/bold]; its tokenizer is written beside the graph, as intents.tokenizer.json.

    For example:

      evergrow export birds.evg --onnx birds.onnx

      evergrow export intents.evg --onnx intents.onnx

    Exit codes: 0 written, 2 it cannot be exported, or the file exists, and nothing was written.

    Parameters
    ----------
    onnx
        File to write, such as birds.onnx.
    opset
        Version of ONNX's operators, from 17.
    check
        Compare with onnxruntime before writing; where it is, the default.
    head_only
        Leave the backbone out: the input is features.
    weights
        The backbone's weights, if not where they were: a file, or {evergrow.features.sources:WEIGHT_SOURCES}.
    force
        Replace an existing file.
    """
    from evergrow.export.onnx_export import ExportConfig, export_learner, tokenizer_path
    from evergrow.learner.answers import LIKELIEST

    check_target("--onnx", onnx, force=force)
    config = ExportConfig(opset=opset, check=check)
    learner = load_model(model, RunOptions(device="cpu", weights=weights, as_json=True))
    if learner.spec_ is not None and learner.spec_.kind == "text" and not head_only:
        check_target("the tokenizer beside --onnx", tokenizer_path(onnx), force=force)
    report = export_learner(learner, onnx, config=config, head_only=head_only)
    shape = ", ".join(str(size) for size in report.input["shape"])
    names = ", ".join(entry["name"] for entry in report.inputs)
    lines = [
        f"{report.path}: {names}, {report.input['type']} ({shape}), to {plural(report.n_classes, 'class', 'classes')}; "
        f"{report.nbytes / 2**20:.1f} MiB, operator set {report.opset}, in {report.seconds:.1f} s",
        *(f"{path}: its tokenizer, which belongs to it" for path in report.beside),
        "not checked: pip install 'evergrow[onnx]' brings onnxruntime",
    ]
    if report.check is not None:
        rows = f"({report.check.rows} {report.check.samples})"
        lines[-1] = f"checked: onnxruntime's scores differ by {report.check.difference:.1g} of their spread {rows}"
    if learner.answering_ != LIKELIEST:
        lines.append(f"not in the graph, which gives scores: {learner.answering_.summary()}")
    return Answer({"model": str(model), **report.to_dict()}, lines, done=f"{onnx} was written")
