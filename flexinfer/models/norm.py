"""The norm of a block, as its family has it. A block's norm is named "norm", a head's q and k norms their own."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from flexinfer.models.opset import OpSet
from flexinfer.spec.model_spec import ModelSpec


def norm(weights: Mapping[str, torch.Tensor], x: torch.Tensor, spec: ModelSpec, ops: OpSet) -> torch.Tensor:
    """RMS norm, or layer norm with or without its affine part, over the last dimension."""
    if spec.norm == "rms":
        return ops.rms_norm(x, weights["norm.weight"], spec.norm_eps)
    return ops.layer_norm(x, weights.get("norm.weight"), weights.get("norm.bias"), spec.norm_eps)
