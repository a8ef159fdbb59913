"""Cold operands: one buffer much larger than the cache, cut into pieces that are used in turn.

A decode step reads every weight once, so no weight is in the caches when its turn comes. Measured here: 50 us for a
576 x 576 matrix that is warm, 90 us for a cold one, and no change from 128 MB to 1 GB of weights in use, although the
processor shares 480 MB of cache among its users.
"""

from __future__ import annotations

import math

import torch

from flexinfer.host import cache_bytes, memory_limit_bytes

LEAST_BYTES = 256 * 2**20
MOST_BYTES = 512 * 2**20


def workset_bytes() -> int:
    """Twice the largest cache within 256 to 512 MiB, and never more than a quarter of the memory that is free."""
    wanted = min(max(2 * cache_bytes(), LEAST_BYTES), MOST_BYTES)
    return min(wanted, memory_limit_bytes() // 4)


class WorkSet:
    """Numbers of ordinary size, whichever 16- or 32-bit float type they are read as."""

    def __init__(self, nbytes: int, device: torch.device | str = "cpu") -> None:
        count = nbytes // 2
        # A block is drawn and repeated: drawing them all would take longer than the measurements. 0.01 to 0.04 with
        # either sign: as float16 the same bits are about 1, as float32 (two of them) about 0.02; no denormals.
        block = torch.empty(2**20).uniform_(0.01, 0.04)
        block *= torch.randint(0, 2, block.shape) * 2 - 1
        self._numbers = torch.empty(count, dtype=torch.bfloat16, device=device)
        for start in range(0, count, block.numel()):
            part = self._numbers[start : start + block.numel()]
            part.copy_(block[: part.numel()])
        self._next = 0

    @property
    def nbytes(self) -> int:
        return self._numbers.nbytes

    def cut(self, dtype: torch.dtype, *shape: int) -> torch.Tensor:
        """The next piece as a contiguous tensor of this shape: the one used longest ago. Raises ValueError if larger
        than the whole."""
        numbers = math.prod(shape) * dtype.itemsize // 2
        if numbers > self._numbers.numel():
            raise ValueError(f"{shape} of {dtype} is larger than the work set")
        if self._next + numbers > self._numbers.numel():
            self._next = 0
        piece = self._numbers[self._next : self._next + numbers]
        self._next += -(-numbers // 32) * 32
        return piece.view(dtype).view(shape)

    def fits(self, dtype: torch.dtype, *shape: int) -> bool:
        """Whether at least four such pieces lie in the set, so that none is warm when its turn comes."""
        return 4 * math.prod(shape) * dtype.itemsize <= 2 * self._numbers.numel()
