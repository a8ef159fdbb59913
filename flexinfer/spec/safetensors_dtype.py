"""The dtype in which a folder's safetensors files store their weights, from their headers. No torch."""

from __future__ import annotations

import json
from collections import Counter
from math import prod
from pathlib import Path
from typing import Any

_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_LONGEST_HEADER = 100_000_000


def stored_dtype(folder: Path) -> str | None:
    """The dtype of most weights in the folder's first safetensors file; None where there is no such file or dtype.

    A file that cannot be understood counts as none: reading the weights reports it, with what is wrong.
    """
    files = sorted(folder.glob("*.safetensors"))
    header = _read_header(files[0]) if files else {}
    elements: Counter[str] = Counter()
    for name, entry in header.items():
        if name != "__metadata__" and isinstance(entry, dict):
            elements[str(entry.get("dtype"))] += _count(entry.get("shape"))
    most = elements.most_common(1)
    return _DTYPES.get(most[0][0]) if most else None


def _count(shape: object) -> int:
    whole = isinstance(shape, list) and all(isinstance(n, int) for n in shape)
    return prod(shape) if isinstance(shape, list) and whole else 1


def _read_header(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length)) if length <= _LONGEST_HEADER else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return header if isinstance(header, dict) else {}
