"""Images stored on the server, and previews."""

from __future__ import annotations

import io
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.serve.samples import files, png, rows

from evergrow.learner.modelfile import commit, open_model

KEPT = "/api/v1/models/pics/kept"


@pytest.fixture
def pics(api: Any) -> Any:
    """A model of two colours whose images are kept."""
    api.taught_images()
    assert api.client.put(KEPT, json={"on": True}).json()["on"]
    return api


def keep(api: Any, sent: Any, **fields: Any) -> Any:
    return api.client.post(KEPT, data=fields, files=sent)


def kept(api: Any) -> list[dict[str, Any]]:
    images: list[dict[str, Any]] = api.client.get(KEPT).json()["images"]
    return images


def pixels_of(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def test_images_are_stored_only_if_storage_is_on(api: Any, folder: Path) -> None:
    api.taught_images()
    off = api.client.get(KEPT).json()
    assert off == {
        "on": False,
        "images": [],
        "bytes": 0,
        "most_images": 500,
        "most_bytes": 128 * 2**20,
    }
    refused = keep(api, files(0, 1), set="review"), api.client.get(f"{KEPT}/evaluation")
    assert [(answer.status_code, answer.json()["error"]) for answer in refused] == [
        (409, "NotKept")
    ] * 2
    api.create("words", "texts", backbone="letters")
    assert (
        api.client.put("/api/v1/models/words/kept", json={"on": True}).status_code
        == 422
    )
    assert not list(folder.glob("*.kept"))


def test_stored_images_are_shared_and_survive_a_restart(pics: Any, serve: Any) -> None:
    assert keep(pics, files(0, 2, 5), set="test", label="0").status_code == 201
    assert keep(pics, files(1, 2, 5), set="test", labels=["1", "0"]).status_code == 201
    told = keep(pics, files(2, 1), set="review").json()
    assert (
        keep(pics, files(2, 1), set="review").json() == told
    )  # the same bytes count once
    assert sorted((image["set"], image["label"]) for image in told["images"]) == [
        *(("review", None), ("test", "0"), ("test", "0"), ("test", "0"), ("test", "1"))
    ]
    assert told["bytes"] == sum(image["bytes"] for image in told["images"])
    for service in (pics, serve(), serve(read_only=True)):
        assert service.client.get(KEPT).json() == told
        found = service.client.get(f"{KEPT}/evaluation").json()
        assert (found["n_samples"], found["accuracy"], len(found["ids"])) == (
            4,
            0.75,
            4,
        )
        (wrong,) = found["wrong"]
        image = service.client.get(f"{KEPT}/{found['ids'][wrong['sample']]}")
        wanted = [pixels_of(png(1, seed)).tolist() for seed in (500, 501)]
        assert pixels_of(image.content).tolist() in wanted
        assert image.headers["content-type"] == "application/octet-stream"
    (waiting,) = [image["id"] for image in told["images"] if image["set"] == "review"]
    assert [pics.client.delete(f"{KEPT}/{waiting}").status_code for _ in range(2)] == [
        204,
        404,
    ]
    assert len(kept(pics)) == 4
    assert serve(read_only=True).client.put(KEPT, json={"on": False}).status_code == 403


SECRET = b"taken at 52.31 N by Anna"


def as_file(kind: str, **settings: Any) -> bytes:
    buffer = io.BytesIO()
    gradient = np.arange(40 * 20 * 3, dtype=np.uint8).reshape(20, 40, 3)
    Image.fromarray(gradient).save(buffer, kind, **settings)
    return buffer.getvalue()


def jpeg_with(marker: int, start: bytes = b"") -> bytes:
    plain = as_file("JPEG")
    body = start + SECRET
    segment = bytes([0xFF, marker]) + struct.pack(">H", len(body) + 2) + body
    return plain[:2] + segment + plain[2:]


def png_with(kind: bytes, body: bytes, *, late: bool = False) -> bytes:
    plain = as_file("PNG")
    where = 33
    if late:
        where = len(plain) - 12
    chunk = struct.pack(">I", len(body)) + kind + body
    chunk += struct.pack(">I", zlib.crc32(kind + body))
    return plain[:where] + chunk + plain[where:]


def exif_block() -> bytes:
    exif = Image.Exif()
    exif[0x010E] = SECRET.decode()
    return exif.tobytes()


FORMS = {
    **{f"JPEG APP{n}": jpeg_with(0xE0 + n) for n in range(16)},
    "JPEG APP0 JFXX": jpeg_with(0xE0, b"JFXX\0\x13"),
    "JPEG comment": jpeg_with(0xFE),
    "JPEG EXIF": as_file("JPEG", exif=exif_block()),
    "JPEG XMP": jpeg_with(0xE1, b"http://ns.adobe.com/xap/1.0/\0"),
    "JPEG extended XMP": jpeg_with(0xE1, b"http://ns.adobe.com/xmp/extension/\0"),
    "JPEG ICC text": as_file("JPEG", icc_profile=bytes(128) + SECRET),
    "JPEG Photoshop": jpeg_with(0xED, b"Photoshop 3.0\0" + b"8BIM"),
    "JPEG trailing": as_file("JPEG") + SECRET,
    "PNG tEXt": png_with(b"tEXt", b"Comment\0" + SECRET),
    "PNG iTXt late": png_with(b"iTXt", b"a\0\0\0\0\0" + SECRET, late=True),
    "PNG private": png_with(b"prVt", SECRET),
    "PNG private late": png_with(b"prVt", SECRET, late=True),
    "PNG eXIf": png_with(b"eXIf", exif_block()),
    "PNG trailing": as_file("PNG") + SECRET,
    "GIF comment": as_file("GIF", comment=SECRET),
    "WebP EXIF": as_file("WEBP", lossless=True, exif=exif_block()),
    "WebP XMP": as_file("WEBP", lossless=True, xmp=SECRET),
    "TIFF description": as_file("TIFF", description=SECRET.decode()),
    "BMP trailing": as_file("BMP") + SECRET,
}


@pytest.mark.parametrize("form", FORMS)
def test_metadata_of_images_is_not_stored(pics: Any, folder: Path, form: str) -> None:
    data = FORMS[form]
    assert SECRET in data
    told = keep(pics, [("images", ("a", data, "image/jpeg"))], set="review").json()
    (image,) = told["images"]
    found = pics.client.get(f"{KEPT}/{image['id']}").content
    assert found.startswith(b"RIFF")
    assert image["bytes"] == len(found)
    np.testing.assert_array_equal(pixels_of(found), pixels_of(data))
    (stored,) = (folder / "pics.evg.kept").glob("[0-9a-f]*")
    assert SECRET not in stored.read_bytes()


def test_the_time_in_a_png_is_not_stored(pics: Any) -> None:
    images = [
        png_with(b"tIME", struct.pack(">H5B", 2026, month, 1, 2, 3, 4))
        for month in (1, 2)
    ]
    for data in images:
        told = keep(pics, [("images", ("a", data, "image/png"))], set="review").json()
    (image,) = told["images"]  # the times differ, the pixels do not
    assert b"tIME" not in pics.client.get(f"{KEPT}/{image['id']}").content


def test_stored_images_are_rotated_by_their_exif_orientation(pics: Any) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    sent = [("images", ("a.jpg", as_file("JPEG", exif=exif), "image/jpeg"))]
    (image,) = keep(pics, sent, set="review").json()["images"]
    found = Image.open(io.BytesIO(pics.client.get(f"{KEPT}/{image['id']}").content))
    assert found.size == (20, 40)
    assert len(found.getexif()) == 0


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF"])
def test_predictions_for_stored_images_equal_those_for_the_originals(
    pics: Any, kind: str
) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (90, 70, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).save(buffer, kind)
    sent = [("images", ("a", buffer.getvalue(), "image/png"))]
    (image,) = keep(pics, sent, set="review").json()["images"]
    found = pics.client.get(f"{KEPT}/{image['id']}").content
    again = [("images", ("a", found, "image/webp"))]
    original, kept_one = (
        pics.post("predict", model="pics", files=files).json()
        for files in (sent, again)
    )
    assert original["answers"][0]["top"]
    assert kept_one["answers"] == original["answers"]


def test_images_too_long_for_webp_are_stored_as_png(pics: Any) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (17_000, 2), "red").save(buffer, "BMP")
    sent = [("images", ("a", buffer.getvalue(), "image/bmp"))]
    (image,) = keep(pics, sent, set="review").json()["images"]
    found = pics.client.get(f"{KEPT}/{image['id']}").content
    assert found.startswith(b"\x89PNG")
    np.testing.assert_array_equal(pixels_of(found), pixels_of(buffer.getvalue()))


def test_labels_of_stored_images_follow_renamed_classes(pics: Any) -> None:
    keep(pics, files(0, 1, 5), set="test", label="0")
    pics.post("rename", {"old": "0", "new": "Goldfinch ♀"}, model="pics")
    keep(pics, files(1, 1, 5), set="test", label="1")
    assert sorted(image["label"] for image in kept(pics)) == ["1", "Goldfinch ♀"]
    pics.post("rollback", {}, model="pics")
    assert sorted(image["label"] for image in kept(pics)) == ["0", "1"]


def stored(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "pics.evg.kept").glob("[0-9a-f]*"))


def test_stored_images_of_a_forgotten_class_are_removed(
    pics: Any, folder: Path
) -> None:
    keep(pics, files(0, 2, 5), set="test", label="0")
    keep(pics, files(1, 1, 5), set="test", label="1")
    keep(pics, files(0, 1, 6), set="review")
    keep(pics, files(2, 1, 5), set="test", label="never taught")
    ids = {image["id"]: image["label"] for image in kept(pics)}
    pics.post("rename", {"old": "0", "new": "zero"}, model="pics")
    assert pics.post("forget", {"names": ["zero"]}, model="pics").status_code == 200
    left = [known for known, label in ids.items() if label != "0"]
    assert sorted(image["id"] for image in kept(pics)) == sorted(left)
    assert stored(folder) == sorted(left)
    for known, label in ids.items():
        found = pics.client.get(f"{KEPT}/{known}")
        assert found.status_code == (404 if label == "0" else 200)
    pics.post("rollback", {}, model="pics")
    assert "zero" in pics.counts("pics")
    assert sorted(image["id"] for image in kept(pics)) == sorted(left)
    keep(pics, files(0, 1, 5), set="test", label="zero")
    assert len(kept(pics)) == len(left) + 1


def test_unlearning_for_good_removes_stored_copies_and_the_history(
    pics: Any, folder: Path
) -> None:
    keep(pics, files(0, 3), set="test", label="0")
    keep(pics, files(0, 1), set="review")
    keep(pics, files(1, 1, 5), set="test", label="1")
    (other,) = (image["id"] for image in kept(pics) if image["label"] == "1")
    sent = {"data": {"label": "0", "for_good": "true"}, "files": files(0, 3)}
    answer = pics.post("unlearn", model="pics", **sent)
    assert answer.json()["change"]["for_good"]
    assert stored(folder) == [other]
    assert not list(folder.rglob("*.piece"))
    assert pics.get("pics", "").json()["revisions"] == []
    refused = pics.post("rollback", {}, model="pics")
    assert refused.status_code == 422


def test_images_of_a_class_forgotten_by_a_command_are_not_readable(
    pics: Any, serve: Any, folder: Path
) -> None:
    keep(pics, files(0, 2, 5), set="test", label="0")
    keep(pics, files(1, 1, 5), set="test", label="1")
    ids = {image["id"]: image["label"] for image in kept(pics)}
    model = open_model(folder / "pics.evg")
    commit(folder / "pics.evg", model.forget_classes("0"))
    reader = serve(read_only=True)
    for api in (reader, pics):
        for known, label in ids.items():
            found = api.client.get(f"{KEPT}/{known}")
            assert found.status_code == (404 if label == "0" else 200)
        assert [image["label"] for image in kept(api)] == ["1"]
    assert len(stored(folder)) == 1


def test_images_stored_before_a_rollback_are_removed_with_a_class_forgotten_after_it(
    pics: Any, folder: Path
) -> None:
    pics.post("teach", model="pics", data={"label": "1"}, files=files(1, 1, 8))
    keep(pics, files(0, 1, 5), set="test", label="0")
    pics.post("rollback", {}, model="pics")
    pics.post("forget", {"names": ["0"]}, model="pics")
    assert stored(folder) == []


def test_a_repeated_forget_keeps_images_stored_since(pics: Any) -> None:
    key = {"Idempotency-Key": "once"}
    forget = {"names": ["0"]}
    assert pics.post("forget", forget, model="pics", headers=key).is_success
    pics.post("teach", model="pics", data={"label": "0"}, files=files(0, 2, 9))
    keep(pics, files(0, 1, 5), set="test", label="0")
    again = pics.post("forget", forget, model="pics", headers=key).json()
    assert again["replayed"]
    assert [image["label"] for image in kept(pics)] == ["0"]


def test_stored_images_are_not_cached_by_browsers(pics: Any) -> None:
    keep(pics, files(0, 1, 5), set="review")
    (image,) = kept(pics)
    answer = pics.client.get(f"{KEPT}/{image['id']}")
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("bounds", "n"), [({"kept_images": 2}, 3), ({"kept_bytes": 3000}, 3)]
)
def test_storage_limits_reject_further_images(
    serve: Any, bounds: dict[str, int], n: int
) -> None:
    api = serve(limits=bounds)
    api.taught_images()
    api.client.put(KEPT, json={"on": True})
    assert keep(api, files(0, 1), set="review").status_code == 201
    full = keep(api, files(1, n), set="review")
    assert (full.status_code, full.json()["error"]) == (413, "TooMany")
    assert len(kept(api)) == 1


def test_invalid_images_and_missing_labels_are_rejected(
    pics: Any, folder: Path
) -> None:
    broken = [*files(0, 1), ("images", ("b.png", b"GIF89a", "image/png"))]
    assert "images[1]" in keep(pics, broken, set="review").json()["detail"]
    for fields in (
        {"set": "test"},
        {"set": "other"},
        {},
        {"set": "test", "labels": ["a", "b"]},
    ):
        assert keep(pics, files(0, 1), **fields).status_code == 422
    for known in ("..%2f", "%2e%2e%2fpics.evg", "0" * 32, "x"):
        assert pics.client.get(f"{KEPT}/{known}").status_code == 404
    (folder / "pics.evg.kept" / ("1" * 32)).symlink_to(folder / "pics.evg")
    (folder / "pics.evg.kept" / ("2" * 32)).write_bytes(b"damaged")
    for known in ("1", "2"):
        assert pics.client.get(f"{KEPT}/{known * 32}").status_code == 404
    assert kept(pics) == []


@pytest.mark.parametrize("end", ["off", "model", "by hand"])
def test_stored_images_are_deleted_with_storage_or_model(
    pics: Any, serve: Any, folder: Path, end: str
) -> None:
    keep(pics, files(0, 2), set="review")
    if end == "off":
        assert pics.client.put(KEPT, json={"on": False}).json()["images"] == []
    elif end == "model":
        assert pics.client.delete("/api/v1/models/pics").status_code == 204
    else:
        (folder / "pics.evg").unlink()
    pics.taught_images()
    assert not pics.client.get(KEPT).json()["on"]
    assert sorted(os.listdir(folder)) == ["pics.evg", "pics.evg.history"]


@pytest.mark.parametrize("kind", ["file", "link", "link to nothing"])
def test_links_and_foreign_files_in_the_folder_are_left_alone(
    api: Any, folder: Path, tmp_path: Path, kind: str
) -> None:
    api.taught_images()
    place = folder / "pics.evg.kept"
    outside = tmp_path / "outside"
    if kind == "file":
        place.write_text("mine")
    else:
        place.symlink_to(outside)
    if kind == "link":
        outside.mkdir()
        (outside / ("0" * 32)).write_text("precious")
    answer = api.client.put("/api/v1/models/pics/kept", json={"on": True})
    assert (answer.status_code, answer.json()["error"]) == (507, "ModelWriteError")
    assert str(tmp_path) not in answer.text
    assert api.get("pics", "/kept").json()["on"] is False


def test_an_interrupted_deletion_of_images_is_finished_at_the_next_start(
    pics: Any, serve: Any, folder: Path, monkeypatch: Any
) -> None:
    keep(pics, files(0, 2), set="review")
    monkeypatch.setattr("shutil.rmtree", lambda *_, **__: None)
    pics.client.put(KEPT, json={"on": False})
    assert not pics.client.get(KEPT).json()["on"]
    monkeypatch.undo()
    serve()
    assert sorted(os.listdir(folder)) == ["pics.evg", "pics.evg.history"]


# -- pictures --------------------------------------------------------------------------


def as_tiff(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, "TIFF")
    return buffer.getvalue()


def test_preview_returns_a_jpeg_of_images_that_browsers_cannot_show(api: Any) -> None:
    deep = np.tile(np.linspace(0, 65535, 900).astype(np.uint16), (300, 1))
    for data in (as_tiff(deep), as_tiff(np.zeros((30, 900, 3), np.uint8))):
        answer = api.client.post("/api/v1/preview", files={"image": ("scan.tif", data)})
        assert (answer.status_code, answer.headers["content-type"]) == (
            200,
            "image/jpeg",
        )
        assert max(Image.open(io.BytesIO(answer.content)).size) == 512
    small = api.client.post(
        "/api/v1/preview",
        files={"image": ("scan.tif", as_tiff(deep))},
        data={"side": "64"},
    )
    pixels = np.asarray(Image.open(io.BytesIO(small.content)))
    assert pixels.shape == (21, 64, 3)
    assert (
        pixels[0, 0, 0] < 20 < 235 < pixels[0, -1, 0]
    )  # 16 bits are scaled, not cut off


def test_preview_rejects_invalid_requests(serve: Any) -> None:
    api = serve(limits={"pixels": 1000})
    for data, words in (
        (b"no image", "scan.tif"),
        (as_tiff(np.zeros((90, 90), np.uint8)), "pixels"),
    ):
        answer = api.client.post("/api/v1/preview", files={"image": ("scan.tif", data)})
        assert (answer.status_code, answer.json()["error"]) == (422, "ImageError")
        assert words in answer.json()["detail"]
    assert (
        api.client.post("/api/v1/preview", json={"rows": rows(0, 1)}).status_code == 415
    )
    assert (
        api.client.post(
            "/api/v1/preview", files={"image": ("a", b"x")}, data={"side": "9999"}
        ).status_code
        == 422
    )
