"""The README's Python runs as printed."""

import re
from pathlib import Path

import pytest

BLOCKS = re.findall(r"```python\n(.*?)```", (Path(__file__).parents[1] / "README.md").read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("index", range(len(BLOCKS)))
def test_readme_block(index, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    exec(compile(BLOCKS[index], f"README block {index}", "exec"), namespace)
    if index == 0:
        assert (tmp_path / "digits.evg").exists()
        assert namespace["model"].predict(namespace["X"][:5]).tolist() == [0, 1, 2, 3, 4]


def test_readme_has_blocks():
    assert len(BLOCKS) >= 2
