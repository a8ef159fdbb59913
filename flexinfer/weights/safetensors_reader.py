"""Safetensors: tensors are views of the mapped file, or converted from it piece by piece."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from flexinfer.weights.entry import TensorEntry
from flexinfer.weights.source import FileSource
from flexinfer.weights.values import PIECE_BYTES, STORED, convert, keep


class SafetensorsReader:
    """Values of one file."""

    def __init__(self, file: Path, mapped: bool | None = None) -> None:
        self._source = FileSource(file, mapped)

    def read(self, entry: TensorEntry, dtype: torch.dtype) -> torch.Tensor:
        """The tensor in `dtype`, contiguous, scanned. Raises ModelError for NaN, infinity and overflow."""
        stored = STORED[entry.dtype]
        if stored == dtype:
            return keep(self._typed(entry, 0, entry.nbytes, stored).view(entry.shape), entry)
        out = convert(self._pieces(entry, stored), entry, dtype)
        self.release(entry)
        return out

    def _pieces(self, entry: TensorEntry, stored: torch.dtype) -> Iterator[torch.Tensor]:
        for start in range(0, entry.nbytes, PIECE_BYTES):
            yield self._typed(entry, start, min(PIECE_BYTES, entry.nbytes - start), stored)

    def _typed(self, entry: TensorEntry, start: int, nbytes: int, stored: torch.dtype) -> torch.Tensor:
        piece = self._source.piece(entry.offset + start, nbytes)
        if piece.data_ptr() % stored.itemsize:
            piece = piece.clone()  # the format does not promise alignment, though its writers keep it
        return piece.view(stored)

    def release(self, entry: TensorEntry) -> None:
        """Give the tensor's pages back."""
        self._source.release(entry.offset, entry.nbytes)

    def close(self) -> None:
        self._source.close()
