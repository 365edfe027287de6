"""Speed of the guided construction: against the paper's equations, its growth, and its memory."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator

import torch

from benchmarks.data import VitLike
from benchmarks.paper_equations import PaperConstruction
from benchmarks.timing import Row, seconds
from evergrow.head.layers import FeatureMap, GuidedLayer
from evergrow.head.layers.guided import UnitSampler
from evergrow.lab.bench.analyses import tensor_bytes

SEED = 0
BLOCK = 50
CANDIDATES = 10


def against_paper(quick: bool) -> list[Row]:
    """N=600, d=768, C=5 to L=10,000; the transcription to 3,000 and extrapolated by its own growth."""
    target = 2_000 if quick else 10_000
    if quick:
        sizes = [500, 1_000]
    else:
        sizes = [1_000, 2_000, 3_000]
    Z, Y = VitLike(5, seed=SEED).sample(list(range(5)), 600)
    options = {
        "scales": (0.0008,),
        "contraction": 0.9999999,
        "tol": 0.0,
        "max_units": target,
    }
    ours = seconds(lambda: GuidedLayer(**options).build(Z, Y, seed=SEED), repeat=3)
    sampler = UnitSampler(Z, (0.0008,), "gaussian", SEED, "mgsm")

    def draw(round_: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        weights, bias = sampler.draw_round(round_, CANDIDATES, BLOCK, 0)
        return list(zip(weights.double().split(BLOCK, dim=1), bias.split(BLOCK)))

    paper = PaperConstruction(Z, Y, alpha=0.01, contraction=0.9999999, draw=draw)
    times: list[float] = []
    for size in sizes:
        spent = seconds(lambda size=size: paper.grow_to(size), repeat=1)
        times.append((times[-1] if times else 0.0) + spent)
    # The last two sizes give the exponent of its growth, which cannot stay above that
    # of its leading term, L^3.
    exponent = min(
        math.log(times[-1] / times[-2]) / math.log(sizes[-1] / sizes[-2]), 3.0
    )
    whole = times[-1] * (target / sizes[-1]) ** exponent
    measured = ", ".join(f"{t:.1f} s at L={n:,}" for n, t in zip(sizes, times))
    figure = (
        f"{whole / ours:,.0f}x ({ours:.2f} s against {whole:,.0f} s "
        f"extrapolated as L^{exponent:.2f} from {measured})"
    )
    values = {
        "ours_s": ours,
        "paper_s": dict(zip(map(str, sizes), times)),
        "exponent": exponent,
        "paper_total_s": whole,
    }
    return [
        Row(
            f"construction to L={target:,}, N=600",
            figure,
            ">= 300x",
            whole / ours >= 300,
            values,
        )
    ]


def growth(quick: bool) -> Iterator[Row]:
    """Cost of building and of one update with a solve, over the number of samples and of units."""
    if quick:
        sizes = [150, 600]
    else:
        sizes = [150, 600, 2_400, 9_600]
    if quick:
        widths = [1_000]
    else:
        widths = [1_000, 4_000, 16_000]
    for width in widths:
        for n in sizes:
            yield _growth_cell(n, width)


def _growth_cell(n: int, width: int) -> Row:
    from evergrow.head.linalg.statistics import RidgeStatistics

    Z, Y = VitLike(10, seed=SEED).sample(list(range(10)), n)
    layers: list[FeatureMap] = []
    guided = GuidedLayer(
        scales=(0.0008,), contraction=1.0 - 1e-12, tol=0.0, max_units=width
    )
    build = seconds(lambda: layers.append(guided.build(Z, Y, seed=SEED)), repeat=1)
    layer = layers[0]
    states = [RidgeStatistics.create(layer.n_units, 10)]

    def update() -> None:
        states[0] = states[0].accumulate(
            (H, Y[rows]) for rows, H in layer.iter_transform(Z)
        )
        states[0].solve(0.01)

    first = seconds(update, repeat=1)
    again = seconds(update, repeat=1)
    state = states[0]
    form = layer.construction.form
    held = "dense" if state.basis is None else "compact"
    figure = f"build {build:.2f} s ({form}), first update {first:.2f} s, next {again:.2f} s ({held})"
    values = {
        "build_s": build,
        "form": form,
        "first_update_s": first,
        "update_s": again,
        "state_bytes": tensor_bytes(state),
    }
    return Row(f"growth N={n:,}, L={width:,}", figure, "", None, values)


def large_first_task(quick: bool) -> list[Row]:
    """N=20,000 first-task samples in a process of its own: its peak memory is the figure."""
    n, width = (2_000, 500) if quick else (20_000, 2_000)
    code = (
        "import json, time\n"
        # Of this process alone: ru_maxrss starts from the parent's
        "def high_water():\n"
        "    lines = open('/proc/self/status').read().splitlines()\n"
        "    return 1024 * int(next(x for x in lines if x.startswith('VmHWM')).split()[1])\n"
        "from benchmarks.data import VitLike\n"
        "from evergrow import SCLClassifier\n"
        f"Z, Y = VitLike(10).sample(list(range(10)), {n})\n"
        "base = high_water()\n"
        "t = time.perf_counter()\n"
        f"m = SCLClassifier(n_units={width}, tol=0.0, random_state=0).fit(Z.numpy(), Y.argmax(1).numpy())\n"
        "m.predict(Z[:10].numpy())\n"
        "s = time.perf_counter() - t\n"
        "print(json.dumps({'seconds': s, 'peak_bytes': high_water(), 'before_bytes': base,"
        " 'form': m.layer_.construction.form}))\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    values = json.loads(out.stdout.strip().splitlines()[-1])
    figure = (
        f"{values['peak_bytes'] / 2**30:.2f} GB peak of the process ({values['before_bytes'] / 2**30:.2f} GB before), "
        f"{values['seconds']:.0f} s to L={width:,} ({values['form']})"
    )
    return [
        Row(
            f"first task of N={n:,}",
            figure,
            "<= 4 GB",
            values["peak_bytes"] <= 4 * 2**30,
            values,
        )
    ]


def on_gpu(quick: bool) -> list[Row]:
    """Grow to 15,000 units on a GPU in float64, with the paper's scales."""
    if not torch.cuda.is_available():
        return [
            Row(
                "construction to L=15,000 on a GPU",
                "not measured: no CUDA device here",
                "< 1 s",
                None,
                {},
            )
        ]
    rows = []
    for n, classes in ((150, 5), (300, 10), (600, 10)):
        Z, Y = (
            t.cuda()
            for t in VitLike(classes, seed=SEED).sample(list(range(classes)), n)
        )
        guided = GuidedLayer(tol=0.0, contraction=1 - 1e-9, max_units=15_000)
        layer = guided.build(Z, Y, seed=SEED)  # warm up
        spent = seconds(
            lambda guided=guided, Z=Z, Y=Y: guided.build(Z, Y, seed=SEED), repeat=5
        )
        name = torch.cuda.get_device_name()
        figure = f"{spent:.2f} s for {layer.n_units:,} units ({name}, {layer.construction.form}, float64)"
        values = {"seconds": spent, "units": layer.n_units, "device": name}
        rows.append(
            Row(
                f"construction to L=15,000 on a GPU, N={n}",
                figure,
                "< 1 s",
                spent < 1.0,
                values,
            )
        )
    return rows
