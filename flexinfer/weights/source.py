"""Bytes of a weight file as uint8 tensors: mapped on a local disk, read in order over a network.

A mapping costs no copy, and its pages can be given back once a tensor has been converted. On a network file system
each fault is a small request (tens of times slower, by public reports), so there the bytes are read sequentially.
"""

from __future__ import annotations

import mmap
from pathlib import Path

import torch

from flexinfer.host import file_system
from flexinfer.weights.entry import damaged

_PRIVATE = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0)
"""Private and writable, because torch warns of read-only buffers; not reserved, so that a file may exceed memory."""


class FileSource:
    """One open file. `piece` may be called in any order; ascending offsets are fast."""

    def __init__(self, file: Path, mapped: bool | None = None) -> None:
        self.file = file
        self.mapped = not file_system(file).network if mapped is None else mapped
        self._stream = file.open("rb", buffering=0)
        self._map: mmap.mmap | None = None
        if self.mapped:
            self._map = mmap.mmap(self._stream.fileno(), 0, flags=_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
            self._map.madvise(mmap.MADV_SEQUENTIAL)

    def piece(self, offset: int, nbytes: int) -> torch.Tensor:
        """uint8 [nbytes]: a view of the mapping, or a new tensor read from the file. Raises ModelError past its end."""
        if nbytes == 0:
            return torch.empty(0, dtype=torch.uint8)
        if self._map is not None:
            return torch.frombuffer(self._map, dtype=torch.uint8, count=nbytes, offset=offset)
        out = torch.empty(nbytes, dtype=torch.uint8)
        view = memoryview(out.numpy().data)
        self._stream.seek(offset)
        while view:
            count = self._stream.readinto(view)
            if not count:
                raise damaged(self.file, "ended while it was read")
            view = view[count:]
        return out

    def release(self, offset: int, nbytes: int) -> None:
        """Give back the pages that lie wholly in these bytes of the mapping; what is read again is fetched again."""
        if self._map is None:
            return
        first = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
        length = (offset + nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - first
        if length > 0:
            self._map.madvise(mmap.MADV_DONTNEED, first, length)

    def close(self) -> None:
        """Close the file. A mapping lives on for as long as a tensor views it."""
        self._stream.close()
        if self._map is not None:
            self._map.madvise(mmap.MADV_NORMAL)
            self._map = None
