"""``evergrow data`` describes and checks a data set."""

from __future__ import annotations

import warnings
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evergrow.cli import model_files, options
from evergrow.cli.console import Answer, facts, plural, table
from evergrow.cli.exits import ExitCode
from evergrow.cli.registry import command
from evergrow.core.errors import DataWarning, InputError

if TYPE_CHECKING:
    from evergrow.data import DataOptions
    from evergrow.tools.data_check import DataCheck
    from evergrow.tools.mislabelled import Suspects

_MAX_FINDINGS = 5  # of each kind
_MAX_SUSPECTS = 20

_PAIR_COLUMNS = ["sample", "class", "and sample", "of class", "similarity"]
_FINDINGS = (
    ("two labels", "the same under two labels", _PAIR_COLUMNS),
    ("training and test", "the same in training and test", _PAIR_COLUMNS),
    (
        "misplaced",
        "perhaps of another class",
        ["sample", "class", "looks like", "of class", "similarity"],
    ),
    ("unread", "cannot be read", ["sample"]),
)
"""Kind, heading and columns of the findings of ``--check``."""


@command("data")
def data_command(
    source: str,
    layout: str = "auto",
    root: Path | None = None,
    columns: options.ColumnOptions = options.DEFAULT_COLUMNS,
    check: bool = False,
    levels: Annotated[bool, typer.Option("--try")] = False,
    suspects: Annotated[Path | None, typer.Option(metavar="MODEL")] = None,
    new: bool = False,
    backbone: str = "auto",
    device: options.Device = "auto",
) -> Answer:
    """Show the kind, classes and sample counts of a data set.

    With --check also look for wrong labels, with --suspects rank samples by how likely
    a model finds their labels wrong, with --try also compare feature levels. The
    training samples are those that fit would learn.

    For example:

      evergrow data birds/

      evergrow data birds/ --check

      evergrow data birds/ --suspects birds.evg

      evergrow data birds/ --try

    Exit codes: 0 shown, and --check and --suspects found nothing; 1 one of them found
    something; 2 the data cannot be read, or has classes that MODEL does not know.

    Parameters
    ----------
    source : DATA
        Folder, file or address.
    layout
        Layout of the data: auto, train-test, class-folders, sorted, table, parquet,
        arrays or webdataset.
    root
        Base folder of the image files that a table lists.
    check
        Look for samples with two labels, samples in both train and test, labels that
        look wrong, and unreadable samples.
    levels
        Measure accuracy and time of the feature levels fast, rich and best on some of
        the data, in about two minutes.
    suspects
        Score each sample by this model as if it had not been learned, and list samples
        whose labels are likely wrong.
    new
        MODEL of --suspects has not learned the samples: score them as they are.
    backbone
        Backbone for --try and --check: auto, or a name. With none, --check compares
        file contents only and finds no wrong labels.
    """
    from evergrow.data import inspect_data

    data_options = columns.data_options(layout=layout, root=root, test_size=0.0)
    if new and suspects is None:
        raise InputError(
            "--new is for --suspects MODEL; name a model, or leave it out."
        )
    report = inspect_data(source, data_options).to_dict()
    values = dict(report)
    lines = report_lines(report)
    code = ExitCode.OK
    with warnings.catch_warnings():
        # The report and the findings contain these warnings.
        warnings.simplefilter("ignore", DataWarning)
        if levels:
            values["levels"], level_lines = _try_levels(
                source, data_options, backbone, device
            )
            lines += ["", *level_lines]
        if check:
            found = _check_data(source, data_options, backbone, device)
            values["check"] = found.to_dict()
            lines += ["", *_check_lines(found)]
            if not found.clean:
                code = ExitCode.LOOK
        if suspects is not None:
            ranked = _find_suspects(source, data_options, suspects, device, new=new)
            values["suspects"] = asdict(ranked)
            lines += ["", *_suspect_lines(ranked)]
            if ranked.likely:
                code = ExitCode.LOOK
    return Answer(values, lines, code=code)


def report_lines(report: dict[str, Any]) -> list[str]:
    """Return the description of a data set as lines.

    Parameters
    ----------
    report : dict
        Result of ``evergrow.data.inspect_data(...).to_dict()``.
    """

    def sizes(key: str) -> str:
        """Return classes with their numbers of training and test samples."""
        return ", ".join(
            f"{name} ({train} + {test})" for name, train, test in report[key]
        )

    kind = report["kind"]
    if report["n_features"]:
        kind = f"{kind}, {report['n_features']} wide"
    pairs = [
        ("data set", report["name"]),
        ("source", report["source"]),
        ("kind", kind),
        ("layout", report["layout"]),
        ("classes", report["n_classes"]),
        ("samples", f"{report['n_train']} training, {report['n_test']} test"),
        ("smallest classes", sizes("smallest")),
        ("largest classes", sizes("largest")),
    ]
    for label in ("note", "caution"):
        pairs += [(label, text) for text in report[f"{label}s"]]
    return facts((label, "" if value is None else str(value)) for label, value in pairs)


def _try_levels(
    source: str, data_options: DataOptions, backbone: str, device: str
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the accuracy and cost of the feature levels, as values and as lines.

    The values are the fields of :class:`evergrow.tools.feature_levels.LevelTrial`.
    """
    from evergrow.data.inputs import read_parts
    from evergrow.tools.feature_levels import try_levels

    samples = read_parts(source, data_options).part("train")
    trials = try_levels(samples, backbone, device=device)
    rows = []
    for trial in trials:
        accuracy = f"{100 * trial.accuracy:.1f} % +- {100 * trial.error:.1f}"
        fit = f"evergrow fit {source} -m model.evg"
        if trial.level != "rich":
            fit += f" --features {trial.level}"
        rows.append([trial.level, accuracy, f"{trial.seconds:.3f}", fit])
    n_samples = plural(trials[0].samples, "sample")
    n_classes = plural(trials[0].classes, "class", "classes")
    lines = [
        f"cross-validated on {n_samples} of {n_classes}: accuracy +- standard error, "
        "seconds per sample on this machine",
        *table(["level", "accuracy", "seconds", "command"], rows),
    ]
    return [vars(trial) for trial in trials], lines


def _check_data(
    source: str, data_options: DataOptions, backbone: str, device: str
) -> DataCheck:
    """Look for probable mistakes in a data set.

    Parameters
    ----------
    source : str
        The data set.
    data_options : DataOptions
        How to read it.
    backbone : str
        Backbone whose features are compared, ``"auto"``, or ``"none"`` to compare file
        contents only.
    device : str
        Compute device.

    Returns
    -------
    DataCheck
        The findings. Unreadable samples are among them instead of raising.
    """
    from evergrow.data.inputs import read_parts
    from evergrow.tools.data_check import check_samples

    data = read_parts(source, data_options)
    train = data.part("train")
    test = None
    if data.has_test:
        test = data.part("test")
    if backbone == "none" or train.kind == "features":
        return check_samples(train, test)
    from evergrow.features import best_backbone, create_backbone, encode

    if backbone == "auto":
        backbone = best_backbone(train.raw_items().kind).name
    model = create_backbone(backbone, None, device=device)

    def encode_items(items: Any) -> Any:
        features = encode(model, items, on_error="skip")
        return features.X, features.rows

    return check_samples(train, test, encode=encode_items, backbone=backbone)


def _find_suspects(
    source: str, data_options: DataOptions, model: Path, device: str, *, new: bool
) -> Suspects:
    """Rank the training samples of a data set by how likely their labels are wrong.

    Parameters
    ----------
    source : str
        The data set.
    data_options : DataOptions
        How to read it.
    model : Path
        The model file.
    device : str
        Compute device.
    new : bool
        Whether the model has not learned the samples.
    """
    from evergrow import tools
    from evergrow.data.inputs import read_labelled

    learner = model_files.load_model(model, options.BackboneOptions(device=device))
    samples = read_labelled(source, "train", learner.state_.kind, data_options)
    return tools.suspects(learner, samples, learned=False if new else None)


def _suspect_lines(ranked: Suspects) -> list[str]:
    """Return the number of likely wrong labels and, as a table, the first ones."""
    lines = [f"scored {plural(len(ranked.samples), 'sample')} without learning it"]
    if ranked.n_new:
        lines.append(
            f"{plural(ranked.n_new, 'sample')} was never learned, and scored as it is"
            if ranked.n_new == 1
            else f"{ranked.n_new:,} samples were never learned, and scored as they are"
        )
    if ranked.alone:
        lines.append(
            f"{plural(len(ranked.alone), 'sample')} alone in the class, without a score"
        )
    likely = ranked.likely
    if not likely:
        return [*lines, "no label looks wrong"]
    rows = [
        [sample.name, sample.label, sample.suggestion, f"{sample.score:.3f}"]
        for sample in likely[:_MAX_SUSPECTS]
    ]
    lines += ["", f"labels that are likely wrong: {len(likely)}"]
    lines += table(["sample", "class", "rather", "score"], rows, ["score"])
    if len(likely) > _MAX_SUSPECTS:
        lines.append(f"({len(likely) - _MAX_SUSPECTS} more; --json shows all samples)")
    return lines


def _check_lines(check: DataCheck) -> list[str]:
    """Return the counts and, as tables, the first findings of each kind."""
    method = "by content"
    if check.backbone:
        method = f"by content and by features of {check.backbone}"
    lines = [f"checked {plural(check.n_samples, 'sample')} {method}", *check.notes]
    if check.repeated:
        repeated = plural(check.repeated, "sample")
        lines.append(f"{repeated} repeated with the same label, which count twice")
    if check.clean:
        return [*lines, "no problem was found"]
    rows_by_kind: dict[str, list[list[str]]] = {
        "unread": [[name] for name in check.unread]
    }
    for finding in check.findings:
        row = []
        for name, label in zip(finding.names, finding.labels, strict=True):
            row += [name, label]
        row.append("same" if finding.exact else f"{finding.similarity:.3f}")
        rows_by_kind.setdefault(finding.kind, []).append(row)
    for kind, heading, columns in _FINDINGS:
        rows = rows_by_kind.get(kind, [])
        if rows:
            lines += ["", f"{heading}: {len(rows)}"]
            lines += table(columns, rows[:_MAX_FINDINGS])
        if len(rows) > _MAX_FINDINGS:
            lines.append(f"({len(rows) - _MAX_FINDINGS} more; --json shows them)")
    return lines
