"""GGUF: tensors kept as they lie when they are plain numbers of the wanted type, else dequantized a few rows at a time.

LLaMA-architecture files store the rows of q and k for interleaved RoPE: within a head, row 2i and row 2i + 1 are the
pair that rotates together. The store's order is half-split (i and i + H/2), so the rows, still packed, are put back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch

from flexinfer.errors import ModelError
from flexinfer.weights.entry import TensorEntry
from flexinfer.weights.source import FileSource
from flexinfer.weights.values import STORED, convert, keep

EXPANDED_BYTES = 2 * 2**20
"""Bytes of dequantized float32 rows worked on at a time; the dequantizers need about four times that.

One thread: the package works through 16 rows a call, so a second thread waits for the interpreter and gains nothing.
"""


class GgufReader:
    """Values of one file. `interleaved` names the tensors whose rows are to be put back, with their head counts."""

    def __init__(self, file: Path, interleaved: Mapping[str, int], mapped: bool | None = None) -> None:
        self._source = FileSource(file, mapped)
        self._interleaved = interleaved

    def read(self, entry: TensorEntry, dtype: torch.dtype) -> torch.Tensor:
        """The tensor in `dtype`, contiguous, scanned, its rows in half-split order.

        Raises ModelError for NaN, infinity and overflow, and for a type that the gguf package cannot dequantize.
        """
        heads = self._interleaved.get(entry.name)
        if heads is None and STORED.get(entry.dtype) == dtype:
            whole = self._source.piece(entry.offset, entry.nbytes)
            return keep(whole.view(dtype).view(entry.shape), entry)
        out = convert((_expand(rows, entry) for rows in self._packed(entry, heads)), entry, dtype)
        self._source.release(entry.offset, entry.nbytes)
        return out

    def _packed(self, entry: TensorEntry, heads: int | None) -> Iterator[torch.Tensor]:
        """uint8 [a few rows, bytes of a row] at a time, in half-split order."""
        width = entry.shape[-1] if len(entry.shape) > 1 else 1
        rows = entry.numel // width
        row_bytes = entry.nbytes // rows
        step = max(1, EXPANDED_BYTES // (width * 4))
        if heads is not None:
            packed = self._source.piece(entry.offset, entry.nbytes).view(rows, row_bytes)
            yield from torch.split(half_split_rows(packed, heads), step)
            return
        for start in range(0, rows, step):
            count = min(step, rows - start)
            yield self._source.piece(entry.offset + start * row_bytes, count * row_bytes).view(count, row_bytes)

    def release(self, entry: TensorEntry) -> None:
        """Give the tensor's pages back."""
        self._source.release(entry.offset, entry.nbytes)

    def close(self) -> None:
        self._source.close()


def half_split_rows(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """[heads x H, ...] with pairs side by side -> the same rows with pairs H/2 apart. A copy."""
    paired = rows.view(heads, rows.shape[0] // heads // 2, 2, -1)
    return paired.transpose(1, 2).reshape(rows.shape)


def _expand(packed: torch.Tensor, entry: TensorEntry) -> torch.Tensor:
    """uint8 rows -> their values: flat as stored for plain types, float32 rows for quantized ones."""
    if entry.dtype in STORED:
        return packed.reshape(-1).view(STORED[entry.dtype])
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    try:
        # numpy warns of the NaN and infinity that the scan is about to report
        with np.errstate(all="ignore"):
            values = dequantize(packed.numpy(), GGMLQuantizationType[entry.dtype])
    except NotImplementedError:
        text = f"{entry.where} is stored as {entry.dtype}, which the gguf package cannot dequantize"
        raise ModelError(f"{text}; use a file of another quantization") from None
    return torch.from_numpy(np.ascontiguousarray(values))
