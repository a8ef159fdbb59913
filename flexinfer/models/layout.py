"""Memory layout of tensors."""

from __future__ import annotations

import torch


def contiguous(x: torch.Tensor) -> torch.Tensor:
    """x itself where it is contiguous, else a contiguous copy.

    As Tensor.contiguous, which fails on fake CUDA tensors where torch is built without CUDA; clone does not.
    """
    return x if x.is_contiguous() else x.clone(memory_format=torch.contiguous_format)
