"""Typed views of byte buffers, and batches cut into groups of sequences.

Views are made by `narrow`, not by indexing: torch's indexing sets the device first, which fake tensors of a device that
is not there cannot do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch


def typed_view(buffer: torch.Tensor, offset: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """`shape` elements of `dtype` that start at byte `offset` of a uint8 buffer."""
    return buffer.narrow(0, offset, math.prod(shape) * dtype.itemsize).view(dtype).view(tuple(shape))


@dataclass(frozen=True)
class Group:
    """Whole sequences of a batch: `count` of them from `first` on."""

    first: int
    count: int

    def of(self, batched: torch.Tensor) -> torch.Tensor:
        """The group's part of a tensor whose first dimension is the batch."""
        return batched.narrow(0, self.first, self.count)
