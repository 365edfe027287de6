"""The order of the page: every result table and figure of the paper, and a few of our own.

Each entry says how it is made from records, and, where there are none, which records and which command would supply it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from evergrow.lab.report import depth_figures as depths
from evergrow.lab.report import mechanism_figures as mechanism
from evergrow.lab.report import record_tables
from evergrow.lab.report import run_figures as runs
from evergrow.lab.report.collect import RecordSet, RunFolder
from evergrow.lab.report.contents import Figure, NotRun, Section, Table, distinct_names
from evergrow.lab.report.published import known_backbone, known_dataset, load_published
from evergrow.lab.report.styles import FSA
from evergrow.lab.tables import dataset_label

MECHANISM = "evergrow lab mechanism experiments/mechanism.toml"
HEADS = "evergrow lab run experiments/feature_heads_official.toml"
HEADS_SMALL = "evergrow lab run experiments/feature_heads_2000.toml"
STRATEGY = "evergrow lab run experiments/rpl_strategy.toml"
IMAGES = "evergrow lab run experiments/cifar100_vit_small.toml"
CONFUSION = "evergrow lab run experiments/confusion.toml"
RECIPES = "evergrow lab run experiments/depths_vit.toml"
DEPTHS = "python experiments/depths.py"
PAPER_VIT = "evergrow lab run experiments/paper_vit.toml"
PAPER_DINOV2 = "evergrow lab run experiments/paper_dinov2.toml"
PAPER_RESNET = "evergrow lab run experiments/paper_resnet101.toml"

DATASETS = ("ImageNet-R", "ImageNet-A", "ObjectNet", "OmniBenchmark")


@dataclass(frozen=True)
class CatalogueEntry:
    """One result of the paper.

    Parameters
    ----------
    name, title, paper : str
        Of the section; ``paper`` names the paper's table or figure.
    build : callable
        Makes tables and figures from a record set; none where it holds no records for them.
    why, command : str
        Which records would supply it, and what makes them; no command where nothing makes them.
    published : str
        The table of the paper that stands below, by its name in the data file.
    """

    name: str
    title: str
    paper: str
    build: Callable[[RecordSet], Iterable[Table | Figure]]
    why: str
    command: str = ""
    published: str = ""


ENTRIES: tuple[CatalogueEntry, ...] = (
    CatalogueEntry(
        "accuracy",
        "Accuracy",
        "Table “Comparison of CIL Performance Across Methods and Benchmarks”",
        record_tables.main_tables,
        "Records of runs of several methods.",
        HEADS,
        "main",
    ),
    CatalogueEntry(
        "stage-accuracy",
        "Accuracy by session",
        "Figure “Top-1 accuracy during sequential continual learning”",
        runs.stage_accuracy,
        "Records of runs with more than one session.",
        HEADS,
    ),
    CatalogueEntry(
        "dinov2",
        "DINOv2 backbone",
        "Table “Comparison of CIL performance across methods with DINO-v2 as the PTM”",
        lambda record_set: record_tables.main_tables(record_set, "DINO-v2", "dinov2"),
        'Records of runs of a spec whose data sets have backbone = "vit_base_patch14_dinov2.lvd142m".',
        PAPER_DINOV2,
        "dinov2",
    ),
    CatalogueEntry(
        "resnet101",
        "ResNet-101 backbone",
        "Table “Comparison of CIL performance across methods with ResNet101 as the PTM”",
        lambda record_set: record_tables.main_tables(record_set, "ResNet101", "resnet101"),
        'Records of runs of a spec whose data sets have backbone = "resnet101".',
        PAPER_RESNET,
        "resnet101",
    ),
    CatalogueEntry(
        "forgetting",
        "Average forgetting",
        "Table “Comparison of Average Forgetting”",
        record_tables.forgetting_tables,
        "Records of runs with more than one session.",
        HEADS,
        "forgetting",
    ),
    CatalogueEntry(
        "within-tasks",
        "Accuracy within tasks",
        "",
        record_tables.within_tables,
        "Records of runs that hold a_last_within, as every finished run of a method with scores does by now.",
        HEADS_SMALL,
    ),
    CatalogueEntry(
        "strategies",
        "Strategies of construction",
        "Table “Performance Comparison of RPL Construction Strategies Without FSA”",
        record_tables.strategy_tables,
        "A folder of runs of scl-mgsm, scsm and ri alone, at equal width.",
        STRATEGY,
        "strategy",
    ),
    CatalogueEntry(
        "norm",
        "Norm of Pₜ",
        "Figure “Comparison of Pₜ Norm Curves”",
        mechanism.norm_curves,
        "Records of the analysis conditioning.",
        MECHANISM,
    ),
    CatalogueEntry(
        "eigenvalues",
        "Eigenvalues and condition number of Pₜ",
        "Figure “Eigenvalue and condition number analysis of Pₜ”",
        lambda record_set: [*mechanism.eigenvalue_curves(record_set), *record_tables.conditioning_tables(record_set)],
        "Records of the analysis conditioning.",
        MECHANISM,
    ),
    CatalogueEntry(
        "effective-rank",
        "Effective rank",
        "",
        mechanism.effective_rank,
        "Records of the analysis conditioning.",
        MECHANISM,
    ),
    CatalogueEntry(
        "condition-number",
        "Condition number of H",
        "Figure “Comparison of Condition Numbers”",
        mechanism.condition_bars,
        "Records of the analysis conditioning.",
        MECHANISM,
    ),
    CatalogueEntry(
        "similarity",
        "Similarity of bases",
        "Figure “Comparison of basis cosine similarity across different strategies”",
        mechanism.similarity_maps,
        "Records of the analysis similarity.",
        MECHANISM,
    ),
    CatalogueEntry(
        "residual",
        "Residual and trajectory of ξ",
        "",
        mechanism.residual_curves,
        "Records of the analysis residual.",
        MECHANISM,
    ),
    CatalogueEntry(
        "xi",
        "Fixed against adaptive ξ",
        "Figure “Parameter Analysis of MGSM on Three Datasets”",
        mechanism.xi_settings,
        "Records of the analysis xi.",
        MECHANISM,
    ),
    CatalogueEntry(
        "search",
        "Settings of the search",
        "Table “Performance Comparison of s and B_max on ImageNet-R (B-0 Inc-5)”",
        record_tables.search_table,
        "Records of the analysis sweep that differ in block_size and n_candidates.",
        MECHANISM,
        "search",
    ),
    CatalogueEntry(
        "sizes",
        "Final hidden sizes",
        "Table “Average final hidden sizes (L*) of SCL-MGSM across datasets”",
        record_tables.size_table,
        "Records of the analysis sweep, residual or xi whose construction converged by itself.",
        MECHANISM,
        "sizes",
    ),
    CatalogueEntry(
        "width",
        "Accuracy against hidden size",
        "",
        mechanism.width_curves,
        "Records of one method at several widths (n_units), all else equal.",
        STRATEGY,
    ),
    CatalogueEntry(
        "training-time",
        "Training time",
        "Figure “Comparison of Training Time Across Representative CIL Methods”",
        lambda record_set: runs.measured(record_set, runs.TIME),
        "Records of runs with times.",
        HEADS,
    ),
    CatalogueEntry(
        "gflops",
        "Computational cost",
        "Figure “Comparison of Computational Cost”",
        lambda record_set: [figure for measure in runs.COSTS for figure in runs.measured(record_set, measure)],
        "Records of runs with extra.cost, which methods that train a network write (ease, coda-prompt, apt, sd-lora, "
        "joint-ft, and those ending in +fsa), of a spec on images.",
        IMAGES,
    ),
    CatalogueEntry(
        "peak-memory",
        "Peak memory",
        "Figure “Comparison of Peak GPU Memory”",
        lambda record_set: runs.measured(record_set, runs.MEMORY),
        "Records of runs with their peak memory.",
        HEADS,
    ),
    CatalogueEntry(
        "probe-gain",
        "Gain over the joint linear probe",
        "Figure “Impact of first-session adaptation on representative RPL-based methods”",
        runs.probe_gain,
        "Records of joint-lp and of other methods on the same data, protocol and seeds.",
        HEADS,
    ),
    CatalogueEntry(
        "recipes",
        "Features from several depths",
        "",
        depths.recipe_gain,
        'Records of the same methods on a data set with recipe = "rich" and without a recipe, in one folder.',
        RECIPES,
    ),
    CatalogueEntry(
        "depths",
        "Accuracy against depth and pooling",
        "",
        depths.depth_curves,
        "Records of the analysis depths.",
        DEPTHS,
    ),
    CatalogueEntry(
        "confusion",
        "Per-class confusion",
        "",
        runs.confusion,
        "Records of runs of a spec with confusion = true.",
        CONFUSION,
    ),
)


def build_sections(record_set: RecordSet) -> list[Section]:
    """Return every section of the page, with its tables and figures and a note on each that is missing.

    Parameters
    ----------
    record_set : RecordSet
        What the page is made from.

    Returns
    -------
    list of Section
        One per entry of the catalogue, in order.
    """
    sections = []
    for entry in ENTRIES:
        parts = list(entry.build(record_set))
        missing = _missing(entry, record_set, bool(parts))
        if entry.published:
            parts.append(published_part(entry.published))
        sections.append(Section(entry.name, entry.title, entry.paper, parts, missing))
    return distinct_names(sections)


def published_part(name: str) -> Table:
    """Return a table of the paper as a part of the page."""
    table = load_published().tables[name]
    heading, _, rest = table.caption.partition(". ")
    caption = f"{rest} After ±: {table.error}. Backbone {table.backbone}; {table.label} in the paper.".strip()
    return Table(f"published-{name}", f"Published: {heading.rstrip('.')}", caption, table.comparison(), published=True)


def _missing(entry: CatalogueEntry, record_set: RecordSet, anything: bool) -> list[NotRun]:
    missing = [] if anything else [NotRun(entry.title, entry.why, entry.command)]
    if entry.name == "accuracy":
        missing += _paper_settings(record_set) + _holes(record_set)
    if entry.name == "strategies" and anything:
        missing += [hole for item in record_set.folders if record_tables.is_strategy(item) for hole in holes(item)]
    if entry.name == "probe-gain" and anything and not any(map(runs.adapted, record_set.runs)):
        why = "Records of runs whose backbone was adapted in the first session: methods such as ranpac+fsa and "
        why += "scl-mgsm+fsa, of a spec on images."
        missing.append(NotRun("Gain with first-session adaptation (FSA)", why, IMAGES))
    return missing


_PAPER_METHODS = {
    "coda-prompt": "CODA-Prompt",
    "sd-lora": "SD-LoRA",
    "ease": "EASE",
    "apt": "APT",
    "joint-ft": "Joint fine-tuning",
}


def _paper_settings(record_set: RecordSet) -> list[NotRun]:
    """Return the data sets and methods of the paper's main setting that have no record."""
    done = {known_dataset(run.dataset) for run in record_set.runs if known_backbone(run.dataset) == "ViT-B/16-IN21K"}
    missing = []
    absent = [dataset for dataset in DATASETS if dataset not in done]
    if absent:
        why = "Records of runs of a spec whose data sets are folders of these images, of these names, with "
        why += 'backbone = "vit_base_patch16_224.augreg_in21k".'
        missing.append(NotRun(f"{', '.join(absent)} with ViT-B/16-IN21K", why, PAPER_VIT))
    methods = {run.method.removesuffix(FSA) for run in record_set.runs}
    lacking = [f"{name} ({method})" for method, name in _PAPER_METHODS.items() if method not in methods]
    if lacking:
        why = "Records of runs of these methods, by the name in brackets, of a spec on images: they train a network."
        missing.append(NotRun(", ".join(lacking), why, IMAGES))
    return missing


def _holes(record_set: RecordSet) -> list[NotRun]:
    return [hole for item in record_set.folders if not record_tables.is_strategy(item) for hole in holes(item)]


def holes(folder: RunFolder) -> list[NotRun]:
    """Return the runs that a folder lacks to be a full grid of its methods, data sets, protocols and seeds.

    Parameters
    ----------
    folder : RunFolder
        Runs of one folder.

    Returns
    -------
    list of NotRun
        One entry if anything is missing.
    """
    done = {(run.label, dataset_label(run), run.protocol["name"], run.seed) for run in folder.finished}
    labels, data, protocols, seeds = (
        (list(dict.fromkeys(values)) for values in zip(*sorted(done))) if done else [[]] * 4
    )
    lacking: dict[tuple[str, str], list[str]] = {}
    for dataset in data:
        for protocol in protocols:
            for label in labels:
                absent = [seed for seed in seeds if (label, dataset, protocol, seed) not in done]
                if absent:
                    every = len(absent) == len(seeds)
                    text = label if every else f"{label} (seed{'s' if len(absent) > 1 else ''} {_listed(absent)})"
                    lacking.setdefault((dataset, protocol), []).append(text)
    if not lacking:
        return []
    total = len(labels) * len(data) * len(protocols) * len(seeds)
    listed = "; ".join(f"{dataset}, {protocol}: {', '.join(names)}" for (dataset, protocol), names in lacking.items())
    title = f"{total - len(done)} of {total} runs of {folder.name}"
    return [NotRun(title, f"{listed}. The command resumes there.", folder.command)]


def _listed(seeds: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(seeds)))
