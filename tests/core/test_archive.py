import hashlib
import json
import os
import struct
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from evergrow.core import archive as archive_module
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
def test_write_archive_on_a_full_disk_raises_oserror_and_keeps_the_old_file(
    tmp_path, sample
):
    """The system itself refuses to write on, as on a full disk."""
    path = tmp_path / "m.evg"
    write_archive(path, sample)
    old = path.read_bytes()
    program = (
        "import resource, sys, torch\n"
        "from evergrow.core.archive import Archive, write_archive\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "archive = Archive('Thing', {}, {'x': torch.zeros(100_000)})\n"
        "try:\n"
        "    write_archive(sys.argv[1], archive)\n"
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
def test_read_archive_rejects_truncated_files(tmp_path, sample, share):
    path = tmp_path / "m.evg"
    write_archive(path, sample)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(FileFormatError):
        read_archive(path)


def test_read_archive_rejects_every_flipped_byte(tmp_path, sample):
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


def test_read_archive_rejects_other_file_formats(tmp_path):
    (tmp_path / "a.txt").write_text("hello, I am not a model at all, only a text file")
    (tmp_path / "endless").write_bytes(struct.pack("<Q", 2**62) + b"{}")
    save_file({"w": torch.zeros(2)}, tmp_path / "b.safetensors")
    torch.save({"x": 1}, tmp_path / "pickle.evg")
    for other in list(tmp_path.iterdir()):
        for read in (read_archive, read_header):
            with pytest.raises(FileFormatError, match="is not an evergrow file"):
                read(other)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "it is empty"),
        (b"abc", "it has only 3 bytes"),
        (b"\x89PNG\r\n\x1a\n" + bytes(20), "another file type"),
        (struct.pack("<Q", 99) + b"{}", "cut off within its header"),
        (struct.pack("<Q", 2) + b"{}", "a safetensors file of another program"),
        (struct.pack("<Q", 2) + b"[]", "its header has the wrong form"),
        (struct.pack("<Q", 2) + b"\xff\xff", "another file type"),
    ],
)
def test_the_message_says_why_a_file_is_not_ours(tmp_path, data, reason):
    (tmp_path / "m.evg").write_bytes(data)
    for read in (read_archive, read_header):
        with pytest.raises(FileFormatError, match=reason):
            read(tmp_path / "m.evg")


def test_read_archive_rejects_duplicate_keys(tmp_path):
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


def test_read_archive_rejects_deeply_nested_values(tmp_path):
    path = tmp_path / "deep.evg"
    value = []
    for _ in range(400):  # Python's parser takes it; what walks through it may not
        value = [value]
    write_archive(path, Archive("toy", {"n": value}))
    with pytest.raises(FileFormatError, match="nested more than 100 deep"):
        read_archive(path)


def archive_of_parts(n_parts):
    """Return an archive of many parts, each with one empty tensor."""
    part = Archive("toy", {}, {"x": np.zeros(0, np.float32)})
    return Archive("toy", {}, parts={f"p{index}": part for index in range(n_parts)})


def test_reading_many_parts_takes_linear_time(tmp_path, monkeypatch):
    """A quadratic reader needs over a minute for these parts."""
    monkeypatch.setattr(archive_module, "_MAX_PARTS", 100_000, raising=False)
    path = tmp_path / "parts.evg"
    write_archive(path, archive_of_parts(20_000))
    start = time.perf_counter()
    found = read_archive(path)
    assert time.perf_counter() - start < 20
    assert len(found.parts) == 20_000
    assert list(found.parts["p7"].tensors) == ["x"]


def test_too_many_parts_are_neither_read_nor_written(tmp_path, monkeypatch):
    path = tmp_path / "parts.evg"
    with monkeypatch.context() as patch:
        patch.setattr(archive_module, "_MAX_PARTS", 10_001, raising=False)
        write_archive(path, archive_of_parts(10_000))
    for read in (read_archive, read_header):
        with pytest.raises(FileFormatError, match="at most 4,096 parts"):
            read(path)
    with pytest.raises(FileFormatError, match="at most 4,096 parts"):
        write_archive(tmp_path / "other.evg", archive_of_parts(4096))
    assert not (tmp_path / "other.evg").exists()
    write_archive(path, archive_of_parts(4095))
    assert len(read_archive(path).parts) == 4095


def with_header(path, header):
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)


def test_headers_with_too_many_objects_are_refused_before_parsing(
    tmp_path, monkeypatch
):
    """Each object in JSON of three bytes would take sixty in memory."""
    path = tmp_path / "objects.evg"
    lists = "[" + "[]," * 300 + "[]]"
    monkeypatch.setattr(archive_module, "_MAX_CONTAINERS", 200)
    contents = {"schema": 3, "needs": "0.3", "digest": "", "archive": lists}
    escaped = json.dumps(contents).replace("[", "\\u005b")
    headers = [
        {"__metadata__": {"evergrow": "{}"}, "x": json.loads(lists)},
        {"__metadata__": {"evergrow": json.dumps(contents)}},
        {"__metadata__": {"evergrow": escaped}},
    ]
    for header in headers:
        with_header(path, header)
        for read in (read_archive, read_header):
            with pytest.raises(FileFormatError, match="200 lists and objects"):
                read(path)


def test_too_many_tensors_are_refused(tmp_path):
    path = tmp_path / "tensors.evg"
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    header = {f"t{index}": empty for index in range(70_000)}
    with_header(path, {"__metadata__": {"evergrow": "{}"}, **header})
    with pytest.raises(FileFormatError, match="more than 65,536 tensors"):
        read_archive(path)


def test_write_archive_rejects_separators_in_names(tmp_path, sample):
    path = tmp_path / "part.evg"
    write_archive(path, Archive("toy", {}, parts={"a_b": sample}))
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    head = json.loads(header["__metadata__"]["evergrow"])
    head["archive"] = head["archive"].replace("a_b", "a/b")
    header["__metadata__"]["evergrow"] = json.dumps(head)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])
    with pytest.raises(FileFormatError, match="no '/' in the name of a part"):
        read_header(path)
