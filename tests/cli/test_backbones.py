"""The command that lists backbones, and the hint of fit to a stronger one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from evergrow.features import weights
from evergrow.features.networks import CATALOG
from evergrow.features.weights import catalog_entry


@pytest.fixture
def online(monkeypatch):
    monkeypatch.setattr(weights, "offline_variable", lambda: "")


def test_backbones_are_listed_with_their_facts_and_whether_they_are_here(
    shell, monkeypatch
):
    here = lambda wanted: "here" if wanted.name.startswith("tf_") else None  # noqa: E731
    monkeypatch.setattr(weights, "find_bundled", here)
    monkeypatch.setattr(weights, "find_cached", lambda wanted: None)
    listed = shell.json("backbones")["backbones"]
    assert [row["name"] for row in listed] == [entry.name for entry in CATALOG]
    small = next(row for row in listed if row["name"] == "small")
    assert small["network"] == "vit_small_patch14_reg4_dinov2.lvd142m"
    assert (small["megabytes"], small["licence"]) == (88, "apache-2.0")
    assert not small["available"]
    lines = shell.run("backbones").stdout.splitlines()
    row = next(line for line in lines if line.startswith("tf_efficientnet_lite0"))
    assert "3.4 M" in row
    assert "package" in row


def hint(name: str, kind: str = "image"):
    return weights.suggest_download(SimpleNamespace(name=name, kind=kind))


@pytest.mark.usefixtures("online")
def test_a_stronger_backbone_is_suggested_to_users_of_weaker_ones():
    assert hint("tf_efficientnet_lite0") is catalog_entry("small")
    assert hint("all-MiniLM-L6-v2", "text") is catalog_entry("text-small")
    for entry in CATALOG:
        found = hint(entry.network, entry.kind)
        assert found is None or CATALOG.index(found) < CATALOG.index(entry)
    assert hint("vit_small_patch14_reg4_dinov2.lvd142m") is None
    assert hint("my_network") is None
    assert hint("tf_efficientnet_lite0+tf_efficientnet_lite2") is None


def test_nothing_is_suggested_where_downloads_are_forbidden(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert hint("tf_efficientnet_lite0") is None


@pytest.mark.usefixtures("online")
def test_fit_prints_the_suggestion_only_for_an_automatic_choice(
    shell, images, monkeypatch
):
    line = "--backbone small downloads 88 MB and is usually more accurate"
    choice = SimpleNamespace(name="test_resnet", weights="random", reason="it is here")
    monkeypatch.setattr(weights, "best_backbone", lambda *_: choice)
    monkeypatch.setattr(
        weights, "suggest_download", lambda spec: catalog_entry("small")
    )
    assert line in shell.run("fit", images, "-m", "a.evg").stdout
    chosen = ("--backbone", "test_resnet", "--set", "weights=random")
    assert line not in shell.run("fit", images, "-m", "b.evg", *chosen).stdout
