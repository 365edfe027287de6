"""Why CODA-Prompt stands where it does in cifar100_vit_small: a second implementation, with parts to take away.

The method is written out here in plain torch, without evergrow, for two purposes: to
see that the library's numbers are the method's and not a mistake of the library, and to
ask what becomes of it without prompts, in a single task, or if the network of every
task were kept. Data and weights as in cifar100_vit_small.toml, searched in the folders
of $EVERGROW_DATA; a CPU would take hours.

    python experiments/coda_prompt_check.py experiments/coda_prompt_check.jsonl --name
    prompts python experiments/coda_prompt_check.py experiments/coda_prompt_check.jsonl
    --name "no prompts" --prompts none

appends one line of JSON per call. Fields, in %:

    last, average   accuracy over all classes seen, at the end and on the mean over
    tasks within          the same at the end, if the task of an image were known
    within_new      the same for the images of every task when it had just been learned
    kept            [last, within] if every image were shown to the network as it was
    after the image's own task:
                    what is lost from there to [last, within] is lost to the components
                    of later tasks
    drift           mean cosine of a task's features, after it against at the end means,
    ridge    nearest class means, and ridge on all training images, on the features at
    the end mass            share of the class token's attention that goes to prompts,
    by block
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

Pool = list[list[Tensor]]
"""By block: prompts (k, length, d), keys (k, d), attention (k, d)."""


def arguments() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(description="A second CODA-Prompt.")
    parser.add_argument("out", help="file that a line is appended to")
    parser.add_argument("--name", required=True)
    parser.add_argument("--seed", type=int, default=1993)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--lr", type=float, default=1e-3, help="of prompts and rows")
    parser.add_argument(
        "--crop", type=float, default=0.08, help="smallest crop; 1 for none"
    )
    parser.add_argument(
        "--filter", choices=["bicubic", "bilinear"], default="bicubic", help="of crops"
    )
    parser.add_argument(
        "--prompts", choices=["trained", "none", "zero"], default="trained"
    )
    parser.add_argument("--increment", type=int, default=10)
    parser.add_argument("--components", type=int, default=10, help="per task and block")
    parser.add_argument("--float32", action="store_true")
    return parser.parse_args()


def find(name: str) -> Path:
    """Return a file of the data folders."""
    for folder in os.environ.get("EVERGROW_DATA", "").split(os.pathsep):
        if folder and Path(folder, name).is_file():
            return Path(folder, name)
    raise SystemExit(f"{name} must be in a folder of $EVERGROW_DATA, got none there")


class Data:
    """Images as they come (32 pixels) for crops, and at 64 pixels; labels in the order of arrival."""

    def __init__(self, seed: int, device: torch.device) -> None:
        found = np.load(find("cifar100_32px.npz"))
        place = np.argsort(np.random.RandomState(seed).permutation(100))
        self.device = device
        self.small = torch.from_numpy(found["X_train"]).permute(0, 3, 1, 2).to(device)
        self.train = self._large(found["X_train"])
        self.test = self._large(found["X_test"])
        self.y = torch.from_numpy(place[found["y_train"]]).to(device)
        self.wanted = torch.from_numpy(place[found["y_test"]]).to(device)

    def _large(self, pixels: Any) -> Tensor:
        made = [
            np.asarray(Image.fromarray(one).resize((64, 64), Image.Resampling.BICUBIC))
            for one in pixels
        ]
        return torch.from_numpy(np.stack(made)).permute(0, 3, 1, 2).to(self.device)

    def batch(self, rows: Tensor, args: argparse.Namespace) -> Tensor:
        """Return images to train on: a random crop of random proportions, mirrored half of the time."""
        if args.crop >= 1:
            return normalised(self.train[rows])
        n = len(rows)

        def draw(low: float, high: float) -> Tensor:
            return torch.empty(n, device=self.device).uniform_(low, high)

        area = draw(args.crop, 1)
        ratio = torch.exp(draw(math.log(3 / 4), math.log(4 / 3)))
        wide = (area * ratio).sqrt().clamp(max=1)
        tall = (area / ratio).sqrt().clamp(max=1)
        x = draw(-1, 1) * (1 - wide)
        y = draw(-1, 1) * (1 - tall)
        none = torch.zeros(n, device=self.device)
        mirror = torch.where(draw(0, 1) < 0.5, -1.0, 1.0)
        theta = torch.stack([wide * mirror, none, x, none, tall, y], dim=1).reshape(
            n, 2, 3
        )
        grid = functional.affine_grid(theta, [n, 3, 64, 64], align_corners=False)
        cut = functional.grid_sample(
            normalised(self.small[rows]),
            grid,
            args.filter,
            "reflection",
            align_corners=False,
        )
        return cut.clamp(-1, 1)


def normalised(pixels: Tensor) -> Tensor:
    """Return bytes as numbers from -1 to 1."""
    return pixels.float() / 127.5 - 1


class Network:
    """The small ViT, block by block, with keys and values added in the first five."""

    def __init__(self, device: torch.device) -> None:
        vit = timm.create_model(
            "vit_small_patch16_224", img_size=64, patch_size=8, num_classes=200
        )
        stored = load_file(find("vit_small_p8_64_tinyimagenet.safetensors"))
        vit.load_state_dict({name: tensor.float() for name, tensor in stored.items()})
        vit.reset_classifier(0)
        self.vit: Any = vit.to(device).eval().requires_grad_(False)
        self.heads: int = self.vit.blocks[0].attn.num_heads
        self.width: int = self.vit.embed_dim
        self.mass: list[float] = []

    def __call__(
        self, images: Tensor, pool: Pool | None, watch: bool = False
    ) -> Tensor:
        """Return features, of the plain network for no pool."""
        query = None
        if pool is not None:
            with torch.no_grad():
                query = self(images, None).float()
        x = self.vit.patch_embed(images)
        x = (
            torch.cat([self.vit.cls_token.expand(len(x), -1, -1), x], dim=1)
            + self.vit.pos_embed
        )
        for number, block in enumerate(self.vit.blocks):
            q, k, v = self._split(block.attn.qkv(block.norm1(x)), 3)
            if pool is not None and query is not None and number < len(pool):
                keys, values = prompt(query, pool[number])
                (more,), (ahead,) = (
                    self._split(values.to(v.dtype), 1),
                    self._split(keys.to(k.dtype), 1),
                )
                k = torch.cat([ahead, k], dim=2)
                v = torch.cat([more, v], dim=2)
                if watch:
                    share = (
                        q[:, :, :1] @ k.transpose(2, 3) * q.shape[-1] ** -0.5
                    ).softmax(-1)
                    self.mass.append(share[..., : keys.shape[1]].sum(-1).mean().item())
            mixed = (
                functional.scaled_dot_product_attention(q, k, v)
                .transpose(1, 2)
                .flatten(2)
            )
            x = x + block.attn.proj(mixed)
            x = x + block.mlp(block.norm2(x))
        return self.vit.norm(x)[:, 0]

    def _split(self, rows: Tensor, parts: int) -> Tensor:
        """Return (parts, B, heads, N, d) of rows (B, N, parts * heads * d)."""
        return rows.unflatten(2, (parts, self.heads, -1)).permute(2, 0, 3, 1, 4)

    @torch.no_grad()
    def features(self, pixels: Tensor, pool: Pool | None) -> Tensor:
        """Return features of images as bytes."""
        return torch.cat(
            [self(normalised(part), pool).float() for part in pixels.split(500)]
        )


def prompt(query: Tensor, parts: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return keys and values: components weighted by the cosine of the attended query with their key."""
    prompts, keys, attention = parts
    weights = functional.cosine_similarity(
        query[:, None] * attention, keys[None], dim=2
    )
    mixed = torch.einsum("bk,kld->bld", weights, prompts)
    half = prompts.shape[1] // 2
    return mixed[:, :half], mixed[:, half:]


def fresh(old: Tensor, count: int, shape: tuple[int, ...]) -> Tensor:
    """Return components of length 1 by subtracting the projections on all earlier ones, one by one."""
    if len(old):
        known = list(old.flatten(1))
    else:
        known = []
    for _ in range(count):
        drawn = torch.randn(math.prod(shape), device=old.device)
        known.append(
            drawn
            - sum(
                (drawn @ one / (one @ one) * one for one in known),
                torch.zeros_like(drawn),
            )
        )
    made = torch.stack(known[len(old) :])
    return functional.normalize(made, dim=1).reshape(count, *shape)


class Learner:
    """CODA-Prompt."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.manual_seed(args.seed)
        self.data = Data(args.seed, self.device)
        self.network = Network(self.device)
        d = self.network.width
        self.shapes: tuple[tuple[int, ...], ...] = ((8, d), (d,), (d,))
        self.past: Pool = [
            [torch.zeros(0, *shape, device=self.device) for shape in self.shapes]
            for _ in range(5)
        ]
        self.rows = (torch.rand(100, d + 1, device=self.device) * 2 - 1) / d**0.5

    @property
    def pool(self) -> Pool | None:
        """What answers are made with."""
        return None if self.args.prompts == "none" else self.past

    def learn(self, task: int) -> None:
        """Train on the classes of a task."""
        args, low = self.args, task * self.args.increment
        new = [
            [
                nn.Parameter(fresh(o, args.components, s))
                for o, s in zip(old, self.shapes)
            ]
            for old in self.past
        ]
        rows = nn.Parameter(self.rows[low : low + args.increment].clone())
        trained = [rows]
        if args.prompts == "zero":
            for parts in new:
                parts[0].data.zero_()
        elif args.prompts == "trained":
            trained += [part for parts in new for part in parts]
        optimizer = torch.optim.Adam(trained)
        members = torch.nonzero(self.data.y // args.increment == task)[:, 0]
        for epoch in range(args.epochs):
            for group in optimizer.param_groups:
                group["lr"] = args.lr * math.cos(
                    99 * math.pi * epoch / (200 * max(args.epochs - 1, 1))
                )
            for batch in members[
                torch.randperm(len(members), device=self.device)
            ].split(args.batch):
                pool = [
                    [torch.cat([o, n]) for o, n in zip(*pair)]
                    for pair in zip(self.past, new)
                ]
                with torch.autocast(
                    self.device.type, torch.bfloat16, enabled=not args.float32
                ):
                    z = self.network(
                        self.data.batch(batch, args),
                        None if args.prompts == "none" else pool,
                    )
                loss = functional.cross_entropy(
                    z.float() @ rows[:, :-1].T + rows[:, -1], self.data.y[batch] - low
                )
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        self.rows[low : low + args.increment] = rows.data
        self.past = [
            [torch.cat([o, n.data]) for o, n in zip(*pair)]
            for pair in zip(self.past, new)
        ]

    def right(self, z: Tensor, wanted: Tensor, classes: int) -> tuple[float, float]:
        """Return the accuracy over all classes so far, and among those of the task."""
        logits = z @ self.rows[:classes, :-1].T + self.rows[:classes, -1]
        tasks = torch.arange(classes, device=self.device) // self.args.increment
        other = tasks[None] != wanted[:, None] // self.args.increment
        return share(logits.argmax(1) == wanted), share(
            logits.masked_fill(other, -torch.inf).argmax(1) == wanted
        )


def share(right: Tensor) -> float:
    """Return the share of what is true, in %."""
    return round(100 * right.float().mean().item(), 2)


def heads(learner: Learner) -> dict[str, float]:
    """Return how well the features at the end serve classifiers that see all classes."""
    data = learner.data
    train, test = (
        learner.network.features(x, learner.pool) for x in (data.train, data.test)
    )
    means = functional.normalize(
        torch.stack([train[data.y == c].mean(0) for c in range(100)]), dim=1
    )
    centre = train.mean(0)
    z = (train - centre).double()
    held = (test - centre).double()
    gram = z.T @ z / len(z)
    product = z.T @ functional.one_hot(data.y, 100).double() / len(z)
    eye = torch.eye(len(gram), device=gram.device, dtype=gram.dtype)
    ridges = [
        share(
            (held @ torch.linalg.solve(gram + a * eye, product)).argmax(1)
            == data.wanted
        )
        for a in (0.01, 0.1)
    ]
    return {
        "means": share(
            (functional.normalize(test, dim=1) @ means.T).argmax(1) == data.wanted
        ),
        "ridge": max(ridges),
    }


def main() -> None:
    """Run one variant and append its figures."""
    args = arguments()
    learner = Learner(args)
    began = time.perf_counter()
    data = learner.data
    step = args.increment
    seen = []
    new = []
    kept = torch.zeros(len(data.test), learner.network.width, device=learner.device)
    for task in range(100 // step):
        learner.learn(task)
        known = data.wanted < (task + 1) * step
        z = learner.network.features(data.test[known], learner.pool)
        mine = data.wanted[known] // step == task
        kept[data.wanted // step == task] = z[mine]
        seen.append(learner.right(z, data.wanted[known], (task + 1) * step))
        new.append(
            learner.right(z[mine], data.wanted[known][mine], (task + 1) * step)[1]
        )
    with torch.no_grad():
        learner.network(normalised(data.test[:500]), learner.pool, watch=True)
    cosine = functional.cosine_similarity(kept, z)
    line = {name: value for name, value in vars(args).items() if name != "out"} | {
        "last": seen[-1][0],
        "average": round(float(np.mean([one[0] for one in seen])), 2),
        "within": seen[-1][1],
        "within_new": round(float(np.mean(new)), 2),
        "kept": list(learner.right(kept, data.wanted, 100)),
        "drift": [
            round(cosine[data.wanted // step == task].mean().item(), 3)
            for task in range(100 // step)
        ],
        **heads(learner),
        "mass": [round(value, 3) for value in learner.network.mass],
        "seconds": round(time.perf_counter() - began, 1),
    }
    with open(args.out, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
