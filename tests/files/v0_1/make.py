"""How the files beside this one were made. It runs with evergrow 0.1.0 alone and is kept for the record.

The files stand for those that people have. They must never be made again: a file that a later version wrote proves
nothing. The script therefore refuses another version, and writes into an empty folder only::

    PYTHONPATH=src:. python tests/data/v0_1/make.py EMPTY_FOLDER
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

NAMES = np.array(["ant", "bee", "cat", "dog"])
VIT = {"img_size": 16, "patch_size": 4, "embed_dim": 8, "depth": 2, "num_heads": 2}
SMALL = {"n_units": 9, "block_size": 3, "random_state": 0}

SCL: dict[str, dict[str, Any]] = {
    "paper": {"scales": (0.5, 1.0)},
    "paper-scales": {"n_candidates": 3},
    "theorem": {"scales": "auto", "criterion": "theorem", "activation": "tanh"},
    "recommended": {
        "scales": "auto",
        "direct_link": True,
        "alpha": "gcv",
        "readout": "discriminant",
        "normalize": "auto",
    },
    "linked-ridge": {"scales": "auto", "direct_link": True, "alpha": "gcv"},
    "discriminant": {"scales": "auto", "readout": "discriminant", "alpha": 0.3},
    "holdout": {"scales": "auto", "alpha": "holdout"},
    "moments": {"scales": "auto", "class_moments": True},
    "gaussian": {"projection": "gaussian", "activation": "relu"},
    "gaussian-linked": {"projection": "gaussian", "direct_link": True},
    "fourier": {"projection": "fourier"},
    "scsm": {"projection": "scsm", "n_candidates": 3},
    "normalize-none": {"scales": "auto", "normalize": "none", "activation": "gelu"},
    "normalize-l2": {"scales": "auto", "normalize": "l2", "activation": "cos"},
    "normalize-sqrt-l2": {"scales": "auto", "normalize": "sqrt-l2", "activation": "identity"},
    "dense": {"scales": "auto", "solver": "dense"},
    "recursive": {"scales": "auto", "solver": "recursive"},
    "recursive-gcv": {"scales": "auto", "solver": "recursive", "alpha": "gcv"},
    "compact": {"scales": "auto", "solver": "compact"},
    "auto-compact": {"projection": "gaussian", "n_units": 20},
    "auto-wide": {"projection": "gaussian", "n_units": 20, "alpha": "gcv", "readout": "discriminant"},
    "unguided-width": {"scales": "auto", "n_units": None, "max_units": 16, "tol": 0.3},
}
LABELS: dict[str, Any] = {
    "str": NAMES,
    "str-unicode": np.array(["böse", "gut", "日本", "🙂"]),
    "int": np.array([-3, 0, 7, 2**40]),
    "uint": np.array([1, 2, 3, 200], dtype=np.uint8),
    "float": np.array([-1.0, 1.0, 2.0, 1e9]),
    "bool": np.array([False, True]),
}
RIVALS: dict[str, tuple[str, dict[str, Any]]] = {
    "acil": ("acil", {"n_units": 9, "random_state": 0}),
    "g-acil": ("g-acil", {"n_units": 9, "random_state": 0, "alpha": 1.0}),
    "anacp": ("anacp", {"n_units": 9, "n_ensembles": 2, "samples_per_class": 5, "random_state": 0, "alpha": 1.0}),
    "anacp-paper": ("anacp", {"n_units": 9, "n_ensembles": 1, "variant": "paper", "random_state": 0, "alpha": 1.0}),
    "joint-lp-sgd": ("joint-lp", {"n_epochs": 3, "batch_size": 8, "random_state": 0}),
    "joint-lp-analytic": ("joint-lp", {"solver": "analytic", "random_state": 0}),
    "klda": ("klda", {"n_units": 9, "random_state": 0}),
    "klda-ensemble": ("klda", {"n_units": 9, "n_ensembles": 2, "inverse": "pinv", "gamma": 0.1, "random_state": 0}),
    "loranpac": ("loranpac", {"n_units": 20, "rank": 8, "batch_size": 16, "random_state": 0}),
    "ranpac": ("ranpac", {"n_units": 9, "random_state": 0}),
    "ranpac-alpha": ("ranpac", {"n_units": 9, "alpha": 10.0, "random_state": 0}),
    "ranpac-identity": ("ranpac", {"n_units": 0, "random_state": 0}),
    "ri": ("ri", {"n_units": 9, "random_state": 0}),
    "scsm": ("scsm", {"n_units": 9, "n_candidates": 3, "random_state": 0}),
    "simplecil": ("simplecil", {}),
}
TRAINED: dict[str, tuple[str, dict[str, Any]]] = {
    "apt": ("apt", {"epochs": 2, "lr": 0.05, "batch_size": 8}),
    "ease": ("ease", {"epochs": 2, "lr": 0.5, "batch_size": 8, "bottleneck": 2}),
    "coda-prompt": (
        "coda-prompt",
        {"epochs": 2, "lr": 0.02, "batch_size": 8, "pool_size": 4, "n_tasks": 2, "prompt_length": 4},
    ),
    "sd-lora": ("sd-lora", {"epochs": 2, "lr": 0.1, "batch_size": 8, "rank": 2}),
    "joint-ft": ("joint-ft", {"epochs": 2, "lr": 0.01, "batch_size": 8}),
    "ranpac+fsa": ("ranpac+fsa", {"adapt": "adapter", "epochs": 2, "n_units": 9}),
    "scl-mgsm+fsa": ("scl-mgsm+fsa", {"adapt": "ssf", "epochs": 2, "n_units": 9, "scales": "auto"}),
    "simplecil+fsa-frozen": ("simplecil+fsa", {"adapt": None}),
}
TUNERS: dict[str, dict[str, Any]] = {
    "adapter": {"bottleneck": 2},
    "additive": {},
    "lora": {"rank": 2},
    "prefix": {},
    "sdlora": {"rank": 2},
    "ssf": {},
    "vpt-deep": {"tokens": 2},
    "vpt-shallow": {"tokens": 2},
}
SPEC = """name = "kept"
seeds = [1993]
device = "cpu"
threads = 1

[[methods]]
name = "simplecil"
label = "SimpleCIL"

[[methods]]
name = "ri"
label = "RI"
options = { n_units = 9 }

[[methods]]
name = "scl-mgsm"
label = "SCL"
options = { n_units = 9, projection = "gaussian" }

[[datasets]]
path = "toy.npz"
label = "Toy"

[[protocols]]
increment = 2
"""
MECHANISM = """name = "kept"
seeds = [1993]
device = "cpu"
threads = 1

[[datasets]]
path = "toy.npz"
label = "Toy"

[[protocols]]
increment = 2

[[analyses]]
name = "conditioning"
options = { n_samples = 10, alphas = [0.1, 10] }

[[analyses.methods]]
name = "ri"
label = "RI"
options = { n_units = 9 }
"""


def rows() -> dict[str, np.ndarray]:
    """Return features of a first task of three classes, of a later one of two, and rows to ask about."""
    rng = np.random.default_rng(2024)
    centres = rng.normal(size=(5, 8)) * 1.5
    first, later, query = np.repeat([0, 1, 2], 6), np.repeat([2, 3], 4), np.arange(5)
    found = {name: centres[y] + rng.normal(size=(len(y), 8)) for name, y in (("first", first), ("later", later))}
    found["query"] = centres[query] * np.where(query == 4, 4.0, 1.0)[:, None] + rng.normal(size=(len(query), 8))
    return {**found, "y_first": first, "y_later": later}


def pictures() -> dict[str, np.ndarray]:
    """Return small noisy pictures, one colour gradient per class: a first task, a later one, and some to ask about."""
    rng = np.random.default_rng(7)
    looks = rng.uniform(20, 200, size=(4, 16, 1, 3))

    def drawn(y: np.ndarray) -> np.ndarray:
        noise = rng.uniform(0, 40, size=(len(y), 4, 4, 3)).repeat(4, axis=1).repeat(4, axis=2)
        return (looks[y] + noise).astype(np.uint8)

    first, later, query = np.repeat([0, 1, 2], 5), np.repeat([2, 3], 3), np.arange(4)
    return {
        "first": drawn(first),
        "later": drawn(later),
        "query": drawn(query),
        "y_first": first,
        "y_later": later,
    }


class Maker:
    """Writes all files into one folder.

    Parameters
    ----------
    folder : Path
        An empty one.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows = rows()
        self.pictures = pictures()

    def everything(self) -> None:
        """Write all files and what evergrow 0.1 answers with them."""
        np.savez(self.folder / "rows.npz", **self.rows)
        np.savez_compressed(self.folder / "pictures.npz", **self.pictures)
        self.backbone()
        for part in ("heads", "learners", "model", "trained", "checkpoints", "tuners", "cache", "features", "bench"):
            (self.folder / part).mkdir()
            expected = getattr(self, part)()
            (self.folder / f"{part}.json").write_text(_dump(expected) + "\n", encoding="utf-8")

    # -- backbone ---------------------------------------------------------------------------------------

    def backbone(self) -> None:
        """Write the weights of the tiny backbone and its description."""
        from safetensors.torch import save_file

        backbone = tiny_backbone()
        save_file({name: value.contiguous() for name, value in backbone.module.state_dict().items()}, self._weights)
        (self.folder / "vit.json").write_text(json.dumps(backbone.spec.to_dict(), indent=1) + "\n", encoding="utf-8")

    @property
    def _weights(self) -> Path:
        return self.folder / "vit.safetensors"

    # -- heads ------------------------------------------------------------------------------------------

    def heads(self) -> dict[str, Any]:
        """Write one file of every head, of every form of the SCL head, and of every kind of label."""
        cases: dict[str, tuple[str, dict[str, Any], Any]] = {}
        for name, options in SCL.items():
            cases[f"scl-{name}"] = ("scl-mgsm", {**SMALL, **options}, np.arange(4))
        for name, values in LABELS.items():
            cases[f"labels-{name}"] = ("scl-mgsm", {**SMALL, "projection": "gaussian"}, values)
        for name, (method, options) in RIVALS.items():
            cases[f"rival-{name}"] = (method, options, np.arange(4))
        cases["labels-str-simplecil"] = ("simplecil", {}, NAMES)
        expected = {name: self._head(name, *case) for name, case in cases.items()}
        for name in ("spawned", "forgotten", "merged", "names"):
            expected[f"scl-{name}"] = getattr(self, f"_{name}")(f"scl-{name}")
        return expected

    def _head(self, name: str, method: str, options: dict[str, Any], values: np.ndarray) -> dict[str, Any]:
        from evergrow.lab import create_method

        first, later = self._labels(values, "first"), self._labels(values, "later")
        model = create_method(method, device="cpu", **options).fit(self.rows["first"], first)
        return self._kept_head(name, method, model, later)

    def _labels(self, values: np.ndarray, part: str) -> np.ndarray:
        return values[self.rows[f"y_{part}"] % len(values)]

    def _kept_head(self, name: str, method: str, model: Any, later: np.ndarray) -> dict[str, Any]:
        """Write a head, and return what it answers now, after learning more and after forgetting."""
        from tests.compat.asking import ask_head, plain

        path = self.folder / "heads" / f"{name}.evg"
        model.save(path)
        query, kind = self.rows["query"], type(model)
        given = {key: value for key, value in model.get_params(deep=False).items() if value != defaults(model)[key]}
        entry: dict[str, Any] = {"method": method, "kind": kind.__name__, "params": plain(given)}
        entry["later"] = later.tolist()
        if len(model.classes_):
            entry["answers"] = ask_head(kind.load(path), query)
        entry["updated"] = _changeable(ask_head(kind.load(path).partial_fit(self.rows["later"], later), query))
        if hasattr(model, "forget_classes") and len(model.classes_) > 1:
            forgotten = kind.load(path).forget_classes([model.classes_[0]])
            entry["forgotten"] = _changeable(ask_head(forgotten, query))
            merged = kind.load(path).merge(kind.load(path).spawn().partial_fit(self.rows["later"], later))
            entry["merged"] = _changeable(ask_head(merged, query))
        return entry

    def _scl(self, **options: Any) -> Any:
        from evergrow import SCLClassifier

        model = SCLClassifier(**{**SMALL, "projection": "gaussian", "device": "cpu", **options})
        return model.fit(self.rows["first"], self.rows["y_first"])

    def _spawned(self, name: str) -> dict[str, Any]:
        return self._kept_head(name, "scl-mgsm", self._scl().spawn(), self.rows["y_later"])

    def _forgotten(self, name: str) -> dict[str, Any]:
        return self._kept_head(name, "scl-mgsm", self._scl().forget_classes([1]), self.rows["y_later"])

    def _merged(self, name: str) -> dict[str, Any]:
        home = self._scl()
        away = home.spawn().partial_fit(self.rows["later"], self.rows["y_later"])
        return self._kept_head(name, "scl-mgsm", home.merge(away), self.rows["y_first"][:8] + 1)

    def _names(self, name: str) -> dict[str, Any]:
        import pandas

        from evergrow import SCLClassifier

        table = pandas.DataFrame(self.rows["first"], columns=[f"column {i}" for i in range(8)])
        model = SCLClassifier(**SMALL, projection="gaussian", device="cpu").fit(table, self.rows["y_first"])
        return self._kept_head(name, "scl-mgsm", model, self.rows["y_later"])

    # -- learners ---------------------------------------------------------------------------------------

    def learners(self) -> dict[str, Any]:
        """Write learners on features, texts and pictures, with and without adaptation, solved and not."""
        from evergrow import Learner

        small = {"options": {"n_units": 9}, "device": "cpu", "cache": False}
        first, later = ((self.rows[part], NAMES[self.rows[f"y_{part}"]]) for part in ("first", "later"))

        def features(**settings: Any) -> Learner:
            return Learner(None, **{**small, **settings}).fit(first)

        paper = {"n_units": 9, "projection": "gaussian"}
        away = (base := features()).spawn().partial_fit(later)
        one_each = (self.rows["first"][::6], NAMES[self.rows["y_first"][::6]])
        made = {
            "features": features(),
            "features-updated": features().partial_fit(later),
            "features-unsolved": features().forget_classes(["bee"]),
            "features-unlearned": features().unlearn((first[0][:4], first[1][:4])),
            "features-spawned": base.spawn(),
            "features-merged": base.merge(away),
            "features-uncalibrated": Learner(None, **small).fit(one_each),
            "features-paper": features(settings="paper", options=paper),
            "features-moments": features(options={"n_units": 9, "class_moments": True, "solver": "dense"}),
            "features-ranpac": features(method="ranpac", options={"n_units": 9}),
            "features-simplecil": features(method="simplecil", options=None),
        }
        expected = {name: self._kept_learner(name, learner, "features") for name, learner in made.items()}
        expected |= self._picture_learners(small)
        expected["texts"] = self._text_learner(small)
        return expected

    def _picture_learners(self, small: dict[str, Any]) -> dict[str, Any]:
        from evergrow.lab.methods.trained import FsaConfig
        from tests.compat.toys import Colours

        from evergrow import Learner
        from evergrow.features import create_backbone

        first = (self.pictures["first"], NAMES[self.pictures["y_first"]])
        made = {"images": Learner(tiny_backbone(), **small).fit(first)}
        settings = {"adapter": {"bottleneck": 2}, "lora": {"rank": 2}, "vpt-deep": {"tokens": 2}}
        settings["vpt-shallow"] = {"tokens": 2}
        for kind in ("ssf", "adapter", "lora", "vpt-deep", "vpt-shallow"):
            config = FsaConfig.recipe(tuner=kind, settings=settings.get(kind, {}), epochs=2, lr=0.1, batch_size=8)
            made[f"images-{kind}"] = Learner(tiny_backbone(), adapt=config, **small).fit(first)
        made["images-ssf-updated"] = _reread(made["images-ssf"]).partial_fit(
            (self.pictures["later"], NAMES[self.pictures["y_later"]])
        )
        module = create_backbone(Colours(), preset=tiny_backbone().transform, device="cpu")
        made["images-module"] = Learner(module, **small).fit(first)
        return {name: self._kept_learner(name, learner, "images") for name, learner in made.items()}

    def _text_learner(self, small: dict[str, Any]) -> dict[str, Any]:
        from tests.compat.toys import TEXTS, listed

        from evergrow import Learner

        options = {"n_units": 9, "direct_link": False}
        learner = Learner("all-MiniLM-L6-v2", weights="bundled", **{**small, "options": options})
        return self._kept_learner("texts", learner.fit(listed(TEXTS)), "texts")

    def _kept_learner(self, name: str, learner: Any, kind: str) -> dict[str, Any]:
        """Write a learner, and return what it answers now, after learning more and after forgetting."""
        from tests.compat.asking import answers, ask_learner
        from tests.compat.toys import LATER_TEXTS, QUERY_TEXTS, Colours, listed

        from evergrow import Learner

        path = self.folder / "learners" / f"{name}.evg"
        learner.save(path)
        module = Colours() if name == "images-module" else None

        def again() -> Learner:
            return Learner.load(path, backbone=module, device="cpu", cache=False)

        later: Any
        query: Any
        if kind == "features":
            later, query = (self.rows["later"], NAMES[self.rows["y_later"]]), self.rows["query"]
        elif kind == "images":
            later, query = (self.pictures["later"], NAMES[self.pictures["y_later"]]), self.pictures["query"]
        else:
            later, query = listed(LATER_TEXTS), list(QUERY_TEXTS)
        entry: dict[str, Any] = {"kind": kind}
        if len(learner.classes_):
            entry["answers"] = ask_learner(again(), query)
        if kind == "images":  # what the head makes of features does not depend on how a backbone rounds
            entry["features"] = np.asarray(again().features(query).X, dtype=np.float64).tolist()
            entry["answers_on_features"] = answers(again(), np.array(entry["features"]))
        entry["updated"] = answers(again().partial_fit(later), query)
        if hasattr(learner.head_, "forget_classes") and len(learner.classes_) > 1:
            entry["forgotten"] = answers(again().forget_classes([str(learner.classes_[0])]), query)
        return entry

    # -- a model file with its history ------------------------------------------------------------------

    def model(self) -> dict[str, Any]:
        """Write a model file by commands: fitted, taught more, forgotten, rolled back, and taught again."""
        from tests.compat.asking import ask_learner

        from evergrow import Learner

        with inside() as folder:
            for part in ("first", "later"):
                X, y = self.rows[part], NAMES[self.rows[f"y_{part}"]]
                np.savez(f"{part}.npz", X_train=X, y_train=y, X_test=X, y_test=y)
            command("fit", "first.npz", "-m", "model.evg", "--units", "9", "--seed", "3")
            command("update", "model.evg", "later.npz")
            command("forget", "model.evg", "ant")
            command("rollback", "model.evg")
            command("forget", "model.evg", "bee")
            shown = command("inspect", "model.evg")
            for path in (Path("model.evg"), Path("model.evg.history")):
                copy = shutil.copytree if path.is_dir() else shutil.copyfile
                copy(path, self.folder / "model" / path.name)
            numbers = sorted(int(file.stem) for file in Path("model.evg.history").glob("*.evg"))
            revisions = {
                str(number): ask_learner(Learner.load(f"model.evg.history/{number}.evg"), self.rows["query"])
                for number in numbers
            }
            current = ask_learner(Learner.load(folder / "model.evg"), self.rows["query"])
        return {"current": current, "revisions": revisions, "history": shown["history"]}

    # -- methods that train a network -------------------------------------------------------------------

    def trained(self) -> dict[str, Any]:
        """Write one file of every method that trains a network."""
        from tests.compat.asking import ask_pictures

        from evergrow.lab import create_method

        expected = {}
        for name, (method, options) in TRAINED.items():
            model = create_method(method, backbone=tiny_backbone(), device="cpu", **options)
            model.fit(self.pictures["first"], NAMES[self.pictures["y_first"]])
            if name == "apt":  # after its first task 0.1 cannot save it: two of its tensors share their memory
                model.partial_fit(self.pictures["later"], NAMES[self.pictures["y_later"]])
            path = self.folder / "trained" / f"{name}.evg"
            model.save(path)
            query = self.pictures["query"]
            entry = {"method": method, "answers": ask_pictures(type(model).load(path), query)}
            if not model.joint:
                more = type(model).load(path)
                more.partial_fit(self.pictures["later"], NAMES[self.pictures["y_later"]])
                entry["updated"] = {"predict": more.predict(query).tolist()}
                entry["updated"]["decision_function"] = more.decision_function(query).tolist()
            expected[name] = entry
        return expected

    def checkpoints(self) -> dict[str, Any]:
        """Write trainings that were interrupted, and return what they come to."""
        from tests.compat.asking import answers, ask_pictures
        from tests.compat.toys import ADAM, ADAPTATION, EASE, JOINT

        from evergrow import Learner
        from evergrow.lab import create_method

        folder, expected = self.folder / "checkpoints", {}
        pixels, y, query = self.pictures["first"], NAMES[self.pictures["y_first"]], self.pictures["query"]
        for name, config in (("learner-sgd", ADAPTATION), ("learner-adam", ADAM)):
            settings = {"adapt": config, "options": {"n_units": 9}, "device": "cpu", "cache": False}
            with stopped(at=5):  # two steps make an epoch
                Learner(tiny_backbone(), **settings).fit((pixels, y), checkpoint=folder / f"{name}.evg")
            whole = Learner(tiny_backbone(), **settings).fit((pixels, y))
            expected[name] = {"epochs": 2, "answers": answers(whole, query)}
        for name, options in (("ease", EASE), ("joint-ft", JOINT)):
            place = folder / ("ease" if name == "ease" else "joint.evg")
            with stopped(at=5):
                model = create_method(name, backbone=tiny_backbone(), device="cpu", checkpoint=place, **options)
                model.fit(pixels, y).predict(query)  # one of them trains when it is asked
            whole = create_method(name, backbone=tiny_backbone(), device="cpu", **options).fit(pixels, y)
            expected[name] = {"epochs": 2, "answers": _uncosted(ask_pictures(whole, query))}
        return expected

    def tuners(self) -> dict[str, Any]:
        """Write one file of every kind of tuner, and return what the tuned backbone makes of pictures."""
        import torch

        from evergrow.adapt.tuners import create_tuner, list_tuners

        assert set(TUNERS) == set(list_tuners())
        expected = {}
        for name, settings in TUNERS.items():
            backbone = tiny_backbone()
            tuner = create_tuner(name, backbone.module, seed=1, **settings)
            source = torch.Generator().manual_seed(11)
            with torch.no_grad():
                for parameter in tuner.parameters():
                    parameter += 0.3 * torch.randn(parameter.shape, generator=source)
            tuner.save(self.folder / "tuners" / f"{name}.evg")
            batch = torch.from_numpy(self.pictures["query"]).permute(0, 3, 1, 2).float() / 255
            expected[name] = {"settings": settings, "features": backbone.encode(batch).double().tolist()}
        return expected

    # -- features and records ---------------------------------------------------------------------------

    def cache(self) -> dict[str, Any]:
        """Write a finished entry of the feature cache and an unfinished one."""
        from evergrow.core.items import ImageArrays
        from evergrow.features import FeatureCache, extract

        backbone, expected = tiny_backbone(), {}
        settings = {"batch_size": 4, "shard_size": 4, "workers": 0}
        for name in ("finished", "unfinished"):
            items = ImageArrays(self.pictures["first" if name == "unfinished" else "query"])
            root = self.folder / "cache" / name
            with suppress(KeyboardInterrupt):
                if name == "unfinished":
                    interrupted(backbone, at=3)
                extract(backbone, items, cache=root, **settings)
            backbone = tiny_backbone()
            whole = extract(backbone, items, cache=False, **settings)
            (info,) = FeatureCache(root).list()
            expected[name] = {"info": _unsized(info.to_dict()), "features": whole.features.astype(float).tolist()}
        return expected

    def features(self) -> dict[str, Any]:
        """Write feature sets in both formats, with names and a backbone, and one with strings for labels."""
        from evergrow.lab.streams import FeatureSet, load_features, save_features

        expected = {}
        query, y = self.rows["query"][:4], np.arange(4)
        X = np.concatenate([self.rows["first"], self.rows["later"]])
        labels = np.concatenate([self.rows["y_first"], self.rows["y_later"]])
        about = tiny_backbone().spec.to_dict()
        for file, kind, names in (
            ("single.npz", np.float32, ()),
            ("half.npz", np.float16, tuple(NAMES.tolist())),
            ("strings.npz", np.float64, NAMES),
            ("double.safetensors", np.float64, tuple(NAMES.tolist())),
            ("half.safetensors", np.float16, ()),
        ):
            given = (NAMES[labels], NAMES[y]) if file == "strings.npz" else (labels, y)
            titles = () if file == "strings.npz" else names
            data = FeatureSet("kept", X.astype(kind), given[0], query.astype(kind), given[1], titles, about)
            save_features(self.folder / "features" / file, data)
            found = load_features(self.folder / "features" / file)
            expected[file] = {
                "describe": found.describe(),
                "class_names": list(found.class_names),
                "dtype": str(found.X_train.dtype),
                "X_test": found.X_test.astype(float).tolist(),
                "y_train": found.y_train.tolist(),
            }
        return expected

    def bench(self) -> dict[str, Any]:
        """Write records of runs that went well, failed and were cancelled, and the record of an analysis."""
        from evergrow.lab.records import read_analyses, read_records, write_record

        folder = self.folder / "bench"
        X, y = self.rows, np.concatenate([self.rows["y_first"], self.rows["y_later"]])
        with inside():
            np.savez(
                "toy.npz",
                X_train=np.concatenate([X["first"], X["later"]]),
                y_train=y,
                X_test=X["query"][:4],
                y_test=np.arange(4),
            )
            Path("spec.toml").write_text(SPEC, encoding="utf-8")
            Path("mechanism.toml").write_text(MECHANISM, encoding="utf-8")
            command("bench", "run", "spec.toml", "-o", "runs", codes=(0, 1))
            command("bench", "mechanism", "mechanism.toml", "-o", "analyses", codes=(0, 1))
            for name in ("toy.npz", "spec.toml", "mechanism.toml"):
                shutil.copyfile(name, folder / name)
            for name in ("runs", "analyses"):
                shutil.copytree(name, folder / name)
        (folder / "other").mkdir()
        records, problems = read_records(folder / "runs")
        assert not problems
        write_record(
            folder / "other" / "cancelled.json", dataclasses.replace(records[0], status="cancelled", results={})
        )
        failure = {"type": "RuntimeError", "message": "it broke", "traceback": "RuntimeError: it broke"}
        write_record(
            folder / "other" / "failed.json",
            dataclasses.replace(records[0], status="failed", results={}, error=failure),
        )
        runs, _ = read_records([folder / "runs", folder / "other"])
        analyses, _ = read_analyses(folder / "analyses")
        return {
            "runs": {record.method + ":" + record.status: dataclasses.asdict(record) for record in runs},
            "analyses": {record.analysis: dataclasses.asdict(record) for record in analyses},
        }


def tiny_backbone() -> Any:
    """Return a vision transformer of two blocks for pictures of 16 x 16."""
    from evergrow.features import create_backbone

    return create_backbone("vit_tiny_patch16_224", weights="random", preset="pilot", device="cpu", seed=0, **VIT)


@contextmanager
def stopped(at: int) -> Iterator[None]:
    """Interrupt the training inside the block in this step, as Ctrl-C would."""
    from evergrow.lab.methods.trained.loop import _Run

    original, number = _Run._step, itertools.count(1)

    def step(self: Any, *batch: Any) -> Any:
        if next(number) == at:
            raise KeyboardInterrupt
        return original(self, *batch)

    _Run._step = step  # type: ignore[method-assign]
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        _Run._step = original  # type: ignore[method-assign]


def interrupted(backbone: Any, at: int) -> None:
    """Make a backbone stop in this batch, as Ctrl-C would."""
    original: Callable[..., Any] = backbone.encode
    number = itertools.count(1)

    def encode(batch: Any) -> Any:
        if next(number) == at:
            raise KeyboardInterrupt
        return original(batch)

    backbone.encode = encode


@contextmanager
def inside() -> Iterator[Path]:
    """Work in a temporary folder, so that no path of a machine gets into a file."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(before)


def command(*arguments: str, codes: tuple[int, ...] = (0,)) -> dict[str, Any]:
    """Run a command and return what it says in JSON."""
    from typer.testing import CliRunner

    from evergrow.cli.main import app

    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code in codes, result.output
    return dict(json.loads(result.stdout))


def _reread(learner: Any) -> Any:
    """Return a learner that knows the same, apart from the first."""
    from evergrow import Learner

    with tempfile.TemporaryDirectory() as folder:
        learner.save(f"{folder}/m.evg")
        return Learner.load(f"{folder}/m.evg", device="cpu", cache=False)


def defaults(model: Any) -> dict[str, Any]:
    """Return the settings that an estimator has where none are given."""
    return dict(type(model)().get_params(deep=False))


def _changeable(answers: dict[str, Any]) -> dict[str, Any]:
    """Return the answers without what a file says anyway."""
    kept = ("classes", "predict", "decision_function", "novelty_score", "class_counts")
    return {key: value for key, value in answers.items() if key in kept}


def _uncosted(answers: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in answers.items() if key != "cost"}


def _unsized(info: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in info.items() if key != "bytes"}


def _dump(value: Any, indent: str = "") -> str:
    """Return JSON with one key or one row of numbers per line."""
    inner = indent + " "
    if isinstance(value, dict) and any(isinstance(item, (list, dict)) for item in value.values()):
        items = [f"{inner}{json.dumps(key, ensure_ascii=False)}: {_dump(item, inner)}" for key, item in value.items()]
        return "{\n" + ",\n".join(items) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(item, (list, dict)) for item in value):
        return "[\n" + ",\n".join(inner + _dump(item, inner) for item in value) + f"\n{indent}]"
    if isinstance(value, dict):
        return json.dumps({key: _shortened(item) for key, item in value.items()}, ensure_ascii=False)
    return json.dumps(_shortened(value), ensure_ascii=False)


def _shortened(value: Any) -> Any:
    """Return numbers with as many digits as another machine gives too."""
    if isinstance(value, list):
        return [_shortened(item) for item in value]
    return float(f"{value:.11g}") if isinstance(value, float) else value


def main() -> None:
    """Write everything into the folder that is named on the command line."""
    import evergrow

    (target,) = sys.argv[1:]
    folder = Path(target).resolve()
    if evergrow.__version__ != "0.1.0":
        raise SystemExit(f"only evergrow 0.1.0 can make its own files, got {evergrow.__version__}")
    if folder.exists() and any(folder.iterdir()):
        raise SystemExit(f"{target} must be empty: kept files are never made again")
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["EVERGROW_CACHE"] = tempfile.mkdtemp()
    Maker(folder).everything()


if __name__ == "__main__":
    main()
