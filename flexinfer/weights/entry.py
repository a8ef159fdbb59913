"""One tensor of a checkpoint file, and the words that every reader shares. No torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from flexinfer.errors import ModelError

_LFS_POINTER = b"version https://git-lfs"


@dataclass(frozen=True)
class TensorEntry:
    """Where a tensor lies: `dtype` as safetensors and GGUF spell it (F32, BF16, I64, Q4_1, ...), `shape` row-major.

    `offset` is in bytes from the start of the file; in a PyTorch file, whose tensors go by name, only their order.
    """

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def where(self) -> str:
        return f"{self.name} in {self.file.name}"


def plural(more: int) -> str:
    """The tail of a list of which the first is named: "" or " and 3 more"."""
    return f" and {more} more" if more > 0 else ""


def damaged(file: Path, why: str) -> ModelError:
    """The one line for a file that cannot be what it is called."""
    return ModelError(f"{file} {why}; fetch that file again")


def check_start(file: Path) -> int:
    """Bytes of a weight file. Raises ModelError for one that is empty, unreadable or a Git LFS pointer."""
    try:
        with file.open("rb") as stream:
            start = stream.read(len(_LFS_POINTER))
            nbytes = stream.seek(0, 2)
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error.strerror}") from error
    if not start:
        raise damaged(file, "is empty")
    if start == _LFS_POINTER:
        raise ModelError(f"{file} is a Git LFS pointer, not the weights; run `git lfs pull` in its folder")
    return nbytes
