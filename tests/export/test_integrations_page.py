"""The page on integrations runs as printed, except for its section on the Hub."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "integrations.md"


def sections() -> dict[str, list[str]]:
    """Return the Python blocks of the page by section."""
    text = PAGE.read_text(encoding="utf-8")
    parts = re.findall(
        r"^## (.+?)\n(.*?)(?=^## |\Z)", text, flags=re.DOTALL | re.MULTILINE
    )
    return {
        title: re.findall(
            r"^```python\n(.*?)^```$", body, flags=re.DOTALL | re.MULTILINE
        )
        for title, body in parts
    }


def run(*titles: str) -> dict[str, Any]:
    """Run the blocks of sections, after the first block, which makes the data."""
    found = sections()
    namespace: dict[str, Any] = {}
    for body in [
        found["Hugging Face Hub"][0],
        *(body for title in titles for body in found[title]),
    ]:
        exec(compile(body, PAGE.name, "exec"), namespace)
    return namespace


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_integrations_page_runs_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for package in ("pandas", "mlflow"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    found = run(
        "scikit-learn", "pandas and polars", "Label Studio and FiftyOne", "MLflow"
    )
    assert found["pipeline"].score(found["X"], found["y"]) > 0.95
    assert found["calibrated"].predict_proba(found["X"]).shape == (300, 10)
    assert (found["tuned"].predict(found["X"]) == found["large"]).mean() > 0.9
    assert found["scores"].min() > 0.8
    assert set(found["reviewed"].columns) >= {
        "pixel 0",
        "class",
        "probability_2",
        "unknown",
    }
    assert '<Choice value="Western Gull"/>' in capsys.readouterr().out
    assert (tmp_path / "digits-model" / "MLmodel").is_file()
