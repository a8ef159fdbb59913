"""scripts/austen_text.py: R's serialized strings, written here by hand, come back as text."""

from __future__ import annotations

import importlib.util
import struct
import sys
import zlib
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "austen_text.py"


@pytest.fixture(scope="module")
def austen() -> ModuleType:
    spec = importlib.util.spec_from_file_location("austen_script", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def chunk(lines: list[str], version: int = 3) -> bytes:
    head = b"X\n" + struct.pack(">iii", version, 0x040201, 0x030500)
    if version == 3:
        head += struct.pack(">i", 5) + b"UTF-8"
    body = struct.pack(">ii", 16, len(lines))
    for line in lines:
        data = line.encode()
        body += struct.pack(">ii", 0x40009, len(data)) + data
    raw = head + body
    return struct.pack(">I", len(raw)) + zlib.compress(raw)


@pytest.mark.parametrize("version", [2, 3])
def test_the_novel_of_a_title(austen: ModuleType, version: int) -> None:
    data = chunk(["EMMA", "", "caf\u00e9"], version) + chunk(["Persuasion", "x"], version)
    assert austen.novel(data, "EMMA") == "EMMA\n\ncaf\u00e9"
    assert austen.novel(data, "Persuasion") == "Persuasion\nx"
    with pytest.raises(austen.NotStrings, match="no text begins"):
        austen.novel(data, "OTHER")


@pytest.mark.parametrize(
    "data,word",
    [
        (b"abc", "janeaustenr"),
        (chunk(["EMMA"])[:-3], "ends after"),
        (struct.pack(">I", 4) + zlib.compress(b"abcd"), "serialization"),
        (b"", "no text begins"),
    ],
)
def test_other_files_are_refused_in_one_line(
    austen: ModuleType,
    data: bytes,
    word: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "d.rdb").write_bytes(data)
    monkeypatch.setattr(sys, "argv", ["austen_text.py", str(tmp_path / "d.rdb"), "emma"])
    assert austen.main() == 2
    text = capsys.readouterr().err
    assert word in text and text.count("\n") == 1
