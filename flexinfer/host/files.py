"""Small files of the kernel: read whole, or None where they are not there or not ours to read."""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/")


def read_text(path: Path) -> str | None:
    """The file's text without the last newline; None when it is missing, not readable or not text."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None


def read_fields(path: Path, separator: str | None = None) -> dict[str, str]:
    """Lines of `key<separator>value`, such as meminfo and memory.stat; empty when the file is missing."""
    pairs = (line.split(separator, 1) for line in (read_text(path) or "").splitlines())
    return {pair[0].strip(): pair[1].strip() for pair in pairs if len(pair) == 2}


def read_int(path: Path) -> int | None:
    """The file's whole number; None when it is missing or says something else, such as "max"."""
    text = read_text(path)
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """CPU numbers of the kernel's list form: "0-2,8" is (0, 1, 2, 8). An empty list is ()."""
    numbers: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers.extend(range(int(first), int(last or first) + 1))
    return tuple(numbers)
