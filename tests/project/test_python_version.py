"""Every file is in the syntax of the oldest Python that pyproject.toml allows, whichever runs the tests."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDERS = ("flexinfer", "estimator", "kernels", "scripts", "tests")
OLDEST = (3, 10)


def test_the_oldest_is_the_one_that_is_promised() -> None:
    pyproject = (ROOT / "pyproject.toml").read_text()
    assert re.findall(r'^requires-python = ">=3\.(\d+)"', pyproject, re.MULTILINE) == [str(OLDEST[1])]


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_file_is_in_its_syntax(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    for file in files:
        ast.parse(file.read_text(encoding="utf-8"), str(file), feature_version=OLDEST)


def test_newer_syntax_is_noticed() -> None:
    with pytest.raises(SyntaxError):
        ast.parse("try:\n    pass\nexcept* OSError:\n    pass\n", feature_version=OLDEST)
