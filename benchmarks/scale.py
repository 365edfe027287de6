"""A hundred million images on paper: what was measured of the parts, and what follows for a size nobody has run.

``python -m benchmarks.scale`` prints the tables of ``docs/scale.md``; a test compares
them. Who measures a part anew (``python -m benchmarks.parts``) changes it in
:data:`MEASURED` and copies the tables.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from evergrow.engine.shard_merge import merge_tree


@dataclass(frozen=True)
class Measured:
    """Parts that were measured; ``docs/scale.md`` says where."""

    images_per_s: float = (
        6_521.0  # ViT-B/16, float16, one H200, files of 500 x 375 decoded by the GPU
    )
    # One H200, float64: statistics of 20,000 rows at L=10,000, C=10,000 in 3.12 s
    gpu_flops: float = 2.86e12
    learn_flops: float = (
        17.4e9  # one core: statistics of 4,096 rows at L=10,000, C=2,000 in 64.6 s
    )
    write_s_per_gb: float = (
        3.4  # this and the next four at L=10,000, C=10,000, a file of 2.49 GB: 8.6 s
    )
    read_s_per_gb: float = 4.1  # with the checksum: 10.2 s
    # That moments and class sums can be what they say: 21.6 s with those of classes
    check_s_per_gb: float = 3.8
    check_s_per_class: float = 1.46e-3
    add_s_per_gb: float = 1.64  # 4.1 s
    gpu_solve_s: float = 20.0  # one H200, the last solve at this very size
    solve_s: float = (
        179.1  # one core, W=3,768 and C=3,500; at W=1,768 and C=1,640 it is 28.1
    )
    solve_order: int = 3_768
    index_s: float = 0.17e-3  # one core, for an image of a tar on disk; one read each
    start_s: float = 15.0  # 5 to 20


@dataclass(frozen=True)
class Assumed:
    """What was not measured."""

    images: int = 100_000_000
    classes: int = 10_000
    units: int = 10_000
    width: int = 768
    image_bytes: float = 110e3  # of ImageNet
    storage_bytes_per_s: float = 1e9  # to each worker
    gpus_per_node: int = 8
    request_s: float = 0.02  # of an object store, for one range
    requests_at_once: int = 8  # tars that are indexed at a time


MEASURED = Measured()
ASSUMED = Assumed()
DEFAULT_BYTES = 256 << 20
SHARD_ROWS = (int(DEFAULT_BYTES / ASSUMED.image_bytes), 10_000, 100_000, 400_000)
"""Images of a shard: what the default of 256 MiB leaves, a tar of a gigabyte, and more."""
CHOSEN = 100_000
GPUS = (8, 64)
HOURS = (math.inf, 24.0, 4.0, 1.0)
_SHAPE_BYTES = 8 * (128 * 129 // 2 + 128)


def order() -> int:
    """Return W, the width of the rows that are added up: units and features."""
    return ASSUMED.units + ASSUMED.width


def file_bytes(units: int, width: int, classes: float, rows: float = math.inf) -> float:
    """Return the bytes of a file of statistics of so many rows a class: second moments, class sums, class shapes."""
    wide = units + width
    shape = 8 * 128 * (rows + 1) if rows <= 64 else _SHAPE_BYTES
    return (
        4 * wide * (wide + 1) + 8 * wide * classes + shape * classes + 8 * 128 * width
    )


def classes_in(rows: int) -> float:
    """Return the classes that a shard of shuffled images is expected to hold."""
    return ASSUMED.classes * -math.expm1(-rows / ASSUMED.classes)


def _part_bytes(rows: int) -> float:
    return file_bytes(
        ASSUMED.units, ASSUMED.width, classes_in(rows), rows / classes_in(rows)
    )


def shard_count(rows: int) -> int:
    """Return the number of shards of so many images."""
    return -(-ASSUMED.images // rows)


def image_seconds() -> dict[str, float]:
    """Return the seconds of a worker for an image: its bytes, the backbone, the statistics. One follows the other."""
    flops = 2.0 * order() * (order() + ASSUMED.classes)
    return {
        "read": ASSUMED.image_bytes / ASSUMED.storage_bytes_per_s,
        "backbone": 1.0 / MEASURED.images_per_s,
        "statistics": flops / MEASURED.gpu_flops,
    }


def check_seconds() -> float:
    """Return the seconds of one core to check what was read from a file of all classes."""
    plain = (
        file_bytes(ASSUMED.units, ASSUMED.width, ASSUMED.classes)
        - _SHAPE_BYTES * ASSUMED.classes
    ) / 1e9
    return (
        plain * MEASURED.check_s_per_gb + ASSUMED.classes * MEASURED.check_s_per_class
    )


def adding_hours(rows: int) -> float:
    """Return the hours of one core for all sums; sums are taken as large as the largest."""
    total = file_bytes(ASSUMED.units, ASSUMED.width, ASSUMED.classes) / 1e9
    read = total * MEASURED.read_s_per_gb + check_seconds()
    add = total * MEASURED.add_s_per_gb
    write = total * MEASURED.write_s_per_gb
    sums = [
        len(node.children)
        for level in merge_tree(shard_count(rows))[1:]
        for node in level
    ]
    return sum(n * read + (n - 1) * add + write for n in sums) / 3600


def folder_bytes(rows: int) -> float:
    """Return the bytes that are written to and read from the folder that all workers share."""
    tree = merge_tree(shard_count(rows))
    total = file_bytes(ASSUMED.units, ASSUMED.width, ASSUMED.classes)
    part = _part_bytes(rows)
    sums = sum(len(level) for level in tree[1:])
    return 2 * (len(tree[0]) * part + sums * total)


def solve_seconds() -> float:
    """Return the seconds of one core for the last solve, which grow as the cube of the order with C / W kept."""
    return MEASURED.solve_s * (order() / MEASURED.solve_order) ** 3


def core_seconds() -> float:
    """Return the seconds of one core for the statistics of all images."""
    return (
        ASSUMED.images
        * 2.0
        * order()
        * (order() + ASSUMED.classes)
        / MEASURED.learn_flops
    )


# -- tables ----------------------------------------------------------------------------


def bytes_table() -> Iterator[str]:
    """Print bytes at rest and over the network."""
    images = ASSUMED.images * ASSUMED.image_bytes
    total = file_bytes(ASSUMED.units, ASSUMED.width, ASSUMED.classes)
    features = 4.0 * ASSUMED.width * ASSUMED.images
    weights = 8.0 * order() * ASSUMED.classes
    yield from _head("what", "bytes")
    yield _row("images at rest", f"{images / 1e12:.1f} TB")
    yield _row(
        "images over the network, each read twice (below)",
        f"{2 * images / 1e12:.1f} TB",
    )
    yield _row(
        "features in float32, where `evergrow features` keeps them; a fit does not",
        f"{features / 1e9:.0f} GB",
    )
    yield _row("one file of statistics of all classes", f"{total / 1e9:.2f} GB")
    yield _row("class weights in memory, float64", f"{weights / 1e9:.2f} GB")
    yield _row(
        "model file: statistics and weights", f"{(total + weights) / 1e9:.2f} GB"
    )


def shards_table() -> Iterator[str]:
    """Print what the size of a shard decides."""
    yield from _head(
        "images a shard",
        "shards",
        "bytes of a shard",
        "its file",
        "through the folder",
        "adding, hours of a core",
    )
    for rows in SHARD_ROWS:
        part = _part_bytes(rows)
        yield _row(
            f"{rows:,}",
            f"{shard_count(rows):,}",
            f"{rows * ASSUMED.image_bytes / 1e9:.2f} GB",
            f"{part / 1e9:.2f} GB",
            f"{folder_bytes(rows) / 1e12:.1f} TB",
            f"{adding_hours(rows):,.1f}",
        )


def hours_table() -> Iterator[str]:
    """Print hours by GPUs, shards of the chosen size."""
    spent = image_seconds()
    solve = MEASURED.gpu_solve_s
    yield from _head("hours", *(f"{gpus} GPUs" for gpus in GPUS))
    for name, seconds in (
        ("first samples: the images read once", spent["read"]),
        ("learning, images read again", spent["read"]),
        ("learning, ViT-B/16", spent["backbone"]),
        ("learning, statistics", spent["statistics"]),
    ):
        yield _row(name, *(_hours(ASSUMED.images * seconds / gpus) for gpus in GPUS))
    adding = 3600 * adding_hours(CHOSEN)
    yield _row(
        "adding up, all workers at it", *(_hours(adding / gpus) for gpus in GPUS)
    )
    yield _row("last solve, one GPU", *(_hours(solve) for _ in GPUS))
    shared = (
        ASSUMED.images * (2 * spent["read"] + spent["backbone"] + spent["statistics"])
        + adding
    )
    sums = [shared / gpus + solve for gpus in GPUS]
    yield _row("**in all**", *(f"**{seconds / 3600:.1f}**" for seconds in sums))
    yield _row(
        "(statistics on a core of each worker instead of its GPU)",
        *(_hours(core_seconds() / n) for n in GPUS),
    )
    yield _row("(last solve on a core)", *(_hours(solve_seconds()) for _ in GPUS))
    yield _row(
        "(planning, tars on a disk)",
        *(_hours(ASSUMED.images * MEASURED.index_s) for _ in GPUS),
    )
    asked = ASSUMED.images * ASSUMED.request_s / ASSUMED.requests_at_once
    yield _row("(planning, tars in an object store)", *(_hours(asked) for _ in GPUS))
    rate = ASSUMED.image_bytes * MEASURED.images_per_s / 1e9
    yield _row(
        "GB/s of images that the GPUs could take",
        *(f"{gpus * rate:.1f}" for gpus in GPUS),
    )


TABLES = {"bytes": bytes_table, "shards": shards_table, "hours": hours_table}


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.2f}"


def _head(*cells: str) -> Iterator[str]:
    yield _row(*cells)
    yield "|" + "---|" * len(cells)


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def table(name: str) -> str:
    """Return one of the tables of the page."""
    return "\n".join(TABLES[name]())


if __name__ == "__main__":
    for title in TABLES:
        print(f"{title}\n\n{table(title)}\n")
