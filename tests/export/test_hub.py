"""Publishing on the Hugging Face Hub and loading, against a stand-in."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
from huggingface_hub import file_download
from tests.export.hub_stand_in import TOKEN, Hub, running_hub
from tests.learner.toys import Letters
from tests.samples import separated_rows

from evergrow import Learner
from evergrow.core.archive import read_archive, write_archive
from evergrow.core.errors import (
    FileFormatError,
    ModelNotFoundError,
    NotFittedError,
    ParameterError,
)
from evergrow.export.hub import (
    HubError,
    load_from_hub,
    published_archive,
    push_to_hub,
)
from evergrow.learner.modelfile import commit, open_model
from evergrow.tools.comparison import measured_change

ROOT = Path(__file__).parents[2]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """Serve a stand-in. The Hub's client reads its settings at import."""
    constants = huggingface_hub.constants
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with running_hub() as found:
        monkeypatch.setattr(constants, "ENDPOINT", found.address)
        template = found.address + "/{repo_id}/resolve/{revision}/{filename}"
        for module in (
            constants,
            file_download,
        ):  # older clients have it in both
            monkeypatch.setattr(
                module,
                "HUGGINGFACE_CO_URL_TEMPLATE",
                template,
                raising=module is constants,
            )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        api = huggingface_hub.HfApi
        monkeypatch.setattr(
            api,
            "create_repo",
            lambda self, **settings: found.create_repo(self, **settings),
        )
        monkeypatch.setattr(
            api, "upload_folder", lambda _, **settings: found.upload_folder(**settings)
        )
        yield found


@pytest.fixture
def data() -> tuple[np.ndarray, np.ndarray]:
    y = np.arange(120) % 4
    return separated_rows(y, 6), y


def small(data: Any) -> Learner:
    X, y = data
    return Learner(None, options={"n_units": 20}).fit(
        X, np.array(["ant", "bee", "<script>|x", "=cat"])[y]
    )


def test_published_model_is_loaded(hub: Hub, data: Any, tmp_path: Path) -> None:
    learner = small(data)
    address = push_to_hub(
        learner, "me/insects", token=TOKEN, licence="cc-by-4.0", dataset="me/garden"
    )
    assert address.startswith(f"{hub.address}/me/insects/commit/")
    assert sorted(hub.files("me/insects")) == ["README.md", "model.evg"]
    again = load_from_hub("me/insects", cache_dir=tmp_path / "cache")
    assert again.state_.label_counts == learner.state_.label_counts
    assert again.state_.history == learner.state_.history
    assert np.array_equal(
        again.decision_function(data[0]), learner.decision_function(data[0])
    )
    asked = [line for line in hub.asked if "resolve" in line]
    assert {line.rpartition("/")[2] for line in asked} == {
        "model.evg"
    }  # nothing else is read


def test_every_push_is_a_commit_and_revisions_are_kept(
    hub: Hub, data: Any, tmp_path: Path
) -> None:
    learner = small(data)
    first = push_to_hub(learner, "me/insects", token=TOKEN, private=True).rpartition(
        "/"
    )[2]
    learner.partial_fit(data[0][:20] + 9.0, ["wasp"] * 20)
    push_to_hub(learner, "me/insects", token=TOKEN, message="Wasps")
    repository = hub.repository("me/insects")
    assert repository.private
    assert repository.messages == ["Publish an evergrow model", "Wasps"]
    where = {"cache_dir": tmp_path / "cache"}
    assert len(load_from_hub("me/insects", **where).classes_) == 5
    assert len(load_from_hub("me/insects", revision=first, **where).classes_) == 4
    served = len(hub.asked)
    again = load_from_hub("me/insects", revision=first, local_files_only=True, **where)
    assert len(again.classes_) == 4
    assert len(hub.asked) == served  # out of the cache


def test_model_card_describes_the_model(hub: Hub, data: Any) -> None:
    learner = small(data)
    push_to_hub(learner, "me/insects", token=TOKEN)
    text = hub.files("me/insects")["README.md"].decode()
    assert "Not measured." in text
    push_to_hub(
        learner,
        "me/insects",
        token=TOKEN,
        licence="cc-by-4.0",
        dataset="me/garden",
        summary="Insects of *one* garden.",
        evaluation=learner.evaluate(data[0], learner.predict(data[0])),
    )
    text = hub.files("me/insects")["README.md"].decode()
    card = huggingface_hub.ModelCard(text)
    values = card.data.to_dict()
    assert values["library_name"] == "evergrow"
    assert values["pipeline_tag"] == "tabular-classification"
    assert values["license"] == "cc-by-4.0"
    assert values["datasets"] == ["me/garden"]
    assert "| ant | 30 |" in text
    assert "<script>" not in text
    assert r"&lt;script&gt;\|x | 30 |" in text
    assert "100.0% of 120 test samples" in text
    assert "Insects of *one* garden." in text
    assert 'load_from_hub("me/insects")' in text
    learner.partial_fit(data[0][:20] + 9.0, ["wasp"] * 20)
    push_to_hub(learner, "me/insects", token=TOKEN)
    assert "Not measured." in hub.files("me/insects")["README.md"].decode()


def test_model_card_names_the_backbone_and_its_licence() -> None:
    from evergrow.features.backbone import BackboneSpec
    from evergrow.features.weights import hub_name, licence_of

    def spec(name: str, kind: Any, weights: str) -> BackboneSpec:
        return BackboneSpec(name, kind, 8, weights, "", "", {}, {})

    assert licence_of(spec("tf_efficientnet_lite0", "image", "bundled")) == "apache-2.0"
    assert (
        hub_name(spec("all-MiniLM-L6-v2", "text", "bundled"))
        == "sentence-transformers/all-MiniLM-L6-v2"
    )
    assert licence_of(spec("all-MiniLM-L6-v2", "text", "bundled")) == "apache-2.0"
    for name, kind, weights in (
        ("tf_efficientnet_lite0", "image", "file:lite.pth"),  # may be anyone's
        ("toy-linear", "image", "hub"),
        ("sentence:someone/encoder", "text", "hub"),
        ("all-MiniLM-L6-v2", "text", "random"),
    ):
        assert licence_of(spec(name, kind, weights)) is None


def test_model_card_of_a_text_model(tmp_path: Path) -> None:
    from evergrow.export.hub import model_card

    learner = Learner(Letters(), options={"n_units": 20}).fit(
        ["aaa", "aab", "zzz", "zzy"] * 5, ["a", "a", "z", "z"] * 5
    )
    card = model_card(learner, "me/letters")
    assert "A classifier of texts, 2 classes" in card.text
    assert "Licence of its weights: not known" in card.text
    assert card.data.to_dict()["pipeline_tag"] == "text-classification"


def test_published_model_names_no_user_or_folder(data: Any, tmp_path: Path) -> None:
    learner = small(data)
    np.savez(tmp_path / "t.npz", X_train=data[0], y_train=learner.predict(data[0]))
    with measured_change(learner, tmp_path / "t.npz"):
        learner.partial_fit(data[0][:20] + 9.0, ["wasp"] * 20)
    commit(tmp_path / "model.evg", learner, "the first", who="jane")
    held = open_model(tmp_path / "model.evg")
    held.state_ = dataclasses.replace(
        held.state_,
        reason="from file",
        extra=dataclasses.replace(held.state_.extra, values={"x": "file:/home/j/w"}),
    )
    archive = published_archive(held)
    for private in ("jane", "/home/j"):
        assert private in json.dumps(held.state_.to_archive().meta)
        assert private not in json.dumps(archive.meta)
    assert archive.meta["x"] == "file:w"
    assert archive.meta["history"][-1]["note"] == "the first"
    write_archive(tmp_path / "published.evg", archive)
    assert np.array_equal(
        Learner.load(tmp_path / "published.evg").predict(data[0]),
        learner.predict(data[0]),
    )


# -- what comes from strangers ---------------------------------------------------------


def test_altered_model_is_rejected(hub: Hub, data: Any, tmp_path: Path) -> None:
    learner = small(data)
    push_to_hub(learner, "me/insects", token=TOKEN)
    whole = hub.files("me/insects")["model.evg"]
    altered = bytearray(whole)
    altered[-9] ^= 1
    hub.repository("me/altered").add(
        {"model.evg": bytes(altered), "config.json": b'{"learner": 1, "self": 2}'}
    )
    hub.repository("me/pickle").add({"model.evg": b"\x80\x04\x95cposix\nsystem\n"})
    for name in ("me/altered", "me/pickle"):
        with pytest.raises(FileFormatError):
            load_from_hub(name, cache_dir=tmp_path / "cache")


def test_missing_models_and_servers_are_reported(
    hub: Hub, data: Any, tmp_path: Path
) -> None:
    hub.repository("me/empty").add({"README.md": b"nothing here"})
    cache = {"cache_dir": tmp_path / "cache"}
    for name in ("me/nowhere", "me/empty"):
        with pytest.raises(
            ModelNotFoundError, match=f"No model.evg in '{name}' that you may read"
        ):
            load_from_hub(name, **cache)
    with pytest.raises(ParameterError, match="repo must be 'OWNER/NAME' or a folder"):
        load_from_hub("a/b/c", **cache)
    with pytest.raises(HubError, match="did not answer the request for me/nowhere"):
        load_from_hub("me/nowhere", local_files_only=True, **cache)
    with pytest.raises(ModelNotFoundError, match="No model"):
        load_from_hub(tmp_path)
    with pytest.raises(HubError, match=r"401|credentials"):
        push_to_hub(small(data), "me/insects", token="hf_wrong")
    with pytest.raises(NotFittedError):
        push_to_hub(Learner(None), "me/insects", token=TOKEN)
    assert ("models", "me/insects") not in hub.repositories


def test_load_from_hub_accepts_folders(hub: Hub, data: Any, tmp_path: Path) -> None:
    learner = small(data)
    write_archive(tmp_path / "model.evg", published_archive(learner))
    assert load_from_hub(tmp_path).state_.label_counts == learner.state_.label_counts
    assert read_archive(tmp_path / "model.evg").kind == learner.state_.to_archive().kind
    assert not hub.asked


# -- data sets -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    ["hf://datasets/me/letters", "hf://datasets/me/letters@main/data/train.csv"],
)
def test_hub_data_set_is_read_by_its_address(hub: Hub, address: str) -> None:
    pytest.importorskip("datasets")
    rows = "".join(
        f"{'aaa aab' if n % 2 else 'zzz zzy'} {n},{'a' if n % 2 else 'z'}\n"
        for n in range(40)
    )
    hub.repository("me/letters", "datasets").add(
        {"data/train.csv": f"text,label\n{rows}".encode()}
    )
    assert Learner(Letters(), options={"n_units": 20}).fit(
        address
    ).state_.label_counts == {
        "a": 20,
        "z": 20,
    }


@pytest.mark.slow
def test_hub_page_runs_as_printed(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "integrations.md").read_text(encoding="utf-8")
    section = page.split("\n## Hugging Face Hub\n")[1].split("\n## ")[0]
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    namespace: dict[str, Any] = {}
    for body in re.findall(
        r"^```python\n(.*?)^```$", section, flags=re.DOTALL | re.MULTILINE
    ):
        exec(compile(body, "integrations.md", "exec"), namespace)
    assert (
        namespace["again"].state_.revision == namespace["learner"].state_.revision + 1
    )
    assert "797 test samples" in hub.files("me/digits")["README.md"].decode()
