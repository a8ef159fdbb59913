"""From a file's values to the store's: kept as they lie or converted piece by piece, and scanned on the way.

The scan finds NaN and infinity before anything computes with them. It takes the minimum and the maximum of a piece
(7 GB/s a core here, where isfinite makes 0.5), both of which either spoils, and it brings mapped pages into memory.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from flexinfer.errors import ModelError
from flexinfer.weights.entry import TensorEntry

PIECE_BYTES = 32 * 2**20
"""Bytes worked on at a time: temporaries stay below it, and Ctrl-C is heard between two."""

STORED = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Stored types that are plain numbers, under the names that TensorEntry uses."""


def keep(tensor: torch.Tensor, entry: TensorEntry) -> torch.Tensor:
    """The tensor itself, scanned. Raises ModelError for NaN and infinity."""
    start = 0
    for piece in split(tensor.view(-1)):
        if not _finite(piece):
            raise _spoiled(piece, start, entry)
        start += piece.numel()
    return tensor


def convert(pieces: Iterable[torch.Tensor], entry: TensorEntry, dtype: torch.dtype) -> torch.Tensor:
    """A new tensor of `entry.shape` and `dtype`, filled from consecutive flat pieces and scanned.

    Raises ModelError for NaN and infinity, and for a value that `dtype` cannot hold.
    """
    out = torch.empty(entry.shape, dtype=dtype)
    flat, start = out.view(-1), 0
    for piece in pieces:
        target = flat[start : start + piece.numel()]
        target.copy_(piece.view(-1))
        if not _finite(target):
            raise _spoiled(piece.view(-1), start, entry) if not _finite(piece) else _too_large(piece, dtype, entry)
        start += piece.numel()
    if start != flat.numel():
        raise AssertionError(f"{entry.where}: {start} of {flat.numel()} values were given")
    return out


def split(flat: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Consecutive pieces of a flat tensor, each of at most PIECE_BYTES."""
    return torch.split(flat, max(1, PIECE_BYTES // flat.element_size()))


def _finite(piece: torch.Tensor) -> bool:
    if piece.numel() == 0:
        return True
    low, high = torch.aminmax(piece)
    return bool(torch.isfinite(low) & torch.isfinite(high))


def _spoiled(piece: torch.Tensor, start: int, entry: TensorEntry) -> ModelError:
    at = int((~torch.isfinite(piece)).nonzero()[0])
    value = "NaN" if bool(piece[at].isnan()) else "infinity"
    index = list(_unravel(start + at, entry.shape))
    return ModelError(f"{entry.where} holds {value} at {index}; the weights are damaged, fetch that file again")


def _unravel(flat: int, shape: tuple[int, ...]) -> Iterable[int]:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    for stride in strides[: len(shape)]:
        yield flat // stride
        flat %= stride


def _too_large(piece: torch.Tensor, dtype: torch.dtype, entry: TensorEntry) -> ModelError:
    largest = float(piece.abs().max())
    name = str(dtype).removeprefix("torch.")
    return ModelError(f"{entry.where} holds {largest:.3g}, which {name} cannot; load it with dtype bfloat16 or float32")
