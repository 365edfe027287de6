import hashlib
import json
import os
import struct
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

from evergrow.core.archive import Archive, read_archive, read_header, write_archive
from evergrow.core.errors import FileFormatError


@pytest.fixture
def sample():
    return Archive(
        "Thing",
        {"a": [1, 2]},
        {"x": torch.arange(6.0).view(2, 3), "n": torch.tensor([3])},
    )


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: limits of file sizes")
def test_a_file_that_cannot_grow_is_an_oserror_and_leaves_the_old_one(tmp_path, sample):
    """The system itself refuses to write on, as on a full disk."""
    path = tmp_path / "m.evg"
    write_archive(path, sample)
    old = path.read_bytes()
    program = (
        "import resource, sys, torch\n"
        "from evergrow.core.archive import Archive, write_archive\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "try:\n"
        "    write_archive(sys.argv[1], Archive('Thing', {}, {'x': torch.zeros(100_000)}))\n"
        "except OSError as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert f"{path} could not be written" in done.stdout
    assert path.read_bytes() == old
    assert os.listdir(tmp_path) == ["m.evg"]


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.99])
def test_truncated(tmp_path, sample, share):
    path = tmp_path / "m.evg"
    write_archive(path, sample)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(FileFormatError):
        read_archive(path)


def test_every_flipped_byte_is_noticed(tmp_path, sample):
    path = tmp_path / "m.evg"
    write_archive(path, sample)
    data = path.read_bytes()
    for place in range(0, len(data), 7):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        try:
            read_archive(path)
        except FileFormatError:
            continue
        pytest.fail(f"byte {place} was altered without notice")


def test_foreign_files(tmp_path):
    (tmp_path / "a.txt").write_text("hello, I am not a model at all, only a text file")
    (tmp_path / "endless").write_bytes(struct.pack("<Q", 2**62) + b"{}")
    save_file({"w": torch.zeros(2)}, tmp_path / "b.safetensors")
    torch.save({"x": 1}, tmp_path / "pickle.evg")
    for other in list(tmp_path.iterdir()):
        for read in (read_archive, read_header):
            with pytest.raises(FileFormatError, match="is no evergrow file"):
                read(other)


def test_a_key_given_twice_is_refused(tmp_path):
    path = tmp_path / "a.evg"
    write_archive(path, Archive("toy", {"n": 1}))
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    head = json.loads(header["__metadata__"]["evergrow"])
    head["archive"] = head["archive"].replace('"n": 1', '"n": 1, "n": 2')
    head["digest"] = hashlib.blake2b(
        (head["needs"] + head["archive"]).encode(), digest_size=16
    ).hexdigest()
    header["__metadata__"]["evergrow"] = json.dumps(head)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])
    with pytest.raises(FileFormatError, match="once in an object"):
        read_archive(path)


def test_values_nested_deeper_than_any_we_write_are_refused(tmp_path):
    path = tmp_path / "deep.evg"
    value = []
    for _ in range(400):  # Python's parser takes it; what walks through it may not
        value = [value]
    write_archive(path, Archive("toy", {"n": value}))
    with pytest.raises(FileFormatError, match="nested more than 100 deep"):
        read_archive(path)
