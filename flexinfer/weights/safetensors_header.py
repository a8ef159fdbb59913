"""The header of a safetensors file: names, types, shapes and offsets as JSON, before the bytes. No torch.

It is parsed here, and not by the safetensors package, because each way in which a file can be damaged needs its own
line, and because the values are mapped by our own FileSource, which can give pages back.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, TypeGuard

from flexinfer.weights.entry import TensorEntry, check_start, damaged

_ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip


class _Malformed(ValueError):
    """A header that is JSON but not a safetensors header; the text says what is wrong."""


def read_safetensors_header(file: Path) -> dict[str, TensorEntry]:
    """Every tensor of the file, its length checked to the byte. Raises ModelError."""
    nbytes = check_start(file)
    with file.open("rb") as stream:
        header_bytes = int.from_bytes(stream.read(8), "little")
        if nbytes < 8 or header_bytes > nbytes - 8:
            raise damaged(
                file, f"has a corrupt header, or is truncated ({nbytes} bytes, the header says {header_bytes})"
            )
        text = stream.read(header_bytes)
    try:
        header = _parse(text)
        entries = [
            _entry(file, name, value, 8 + header_bytes) for name, value in header.items() if name != "__metadata__"
        ]
    except _Malformed as error:
        raise damaged(file, f"has a corrupt header: {error}") from None
    _check_extent(file, entries, 8 + header_bytes, nbytes)
    return {entry.name: entry for entry in entries}


def _parse(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=_no_duplicates)
    except _Malformed:
        raise
    except (ValueError, RecursionError):
        raise _Malformed("it is not JSON") from None
    if not isinstance(header, dict):
        raise _Malformed("it is not a JSON object")
    return header


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in pairs:
        if key in out:
            raise _Malformed(f"{key} is listed twice")
        out[key] = value
    return out


def _entry(file: Path, name: str, value: Any, data_start: int) -> TensorEntry:
    if not isinstance(value, dict):
        raise _Malformed(f"{name} has no description")
    dtype, shape, offsets = value.get("dtype"), value.get("shape"), value.get("data_offsets")
    if not _counts(shape) or not _counts(offsets) or len(offsets) != 2:
        raise _Malformed(f"{name} has no valid shape and data_offsets")
    nbytes = offsets[1] - offsets[0]
    item = _ITEM_BYTES.get(dtype) if isinstance(dtype, str) else None
    if not isinstance(dtype, str) or nbytes < 0 or (item is not None and nbytes != item * math.prod(shape)):
        raise _Malformed(f"{name} takes {nbytes} bytes, which a tensor of type {dtype} and shape {shape} does not")
    return TensorEntry(name, file, dtype, tuple(shape), data_start + offsets[0], nbytes)


def _counts(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in value)


def _check_extent(file: Path, entries: list[TensorEntry], data_start: int, nbytes: int) -> None:
    """Tensors follow one another without gap or overlap, and the last ends where the file does."""
    end = data_start
    for entry in sorted(entries, key=lambda e: (e.offset, e.nbytes)):
        if entry.offset != end:
            raise damaged(file, f"has a corrupt header: {entry.name} does not begin where the tensor before it ends")
        end += entry.nbytes
    if nbytes < end:
        raise damaged(file, f"is truncated: {nbytes} bytes of {end}")
    if nbytes > end:
        raise damaged(file, f"is {nbytes - end} bytes longer than its header says")
