"""OPT 125m to 175b: layer norm, learned positions, plain MLP; 350m norms after each block and projects its embedding.

Legend: B batch, S tokens a sequence.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from flexinfer.models.attention import attention_out, qkv
from flexinfer.models.embed_head import head_input, head_logits
from flexinfer.models.mlp import mlp
from flexinfer.models.opset import OpSet
from flexinfer.spec.model_spec import ModelSpec

__all__ = ["attention_out", "embed", "head_input", "head_logits", "mlp", "qkv"]


def embed(
    weights: Mapping[str, torch.Tensor],
    tokens_BS: torch.Tensor,
    positions_BS: torch.Tensor,
    spec: ModelSpec,
    ops: OpSet,
) -> torch.Tensor:
    """Hidden [B, S, D]: token rows, projected where the embedding is narrower, plus the rows of their positions."""
    hidden = ops.embedding(tokens_BS, weights["tokens.weight"])
    if "project.weight" in weights:
        hidden = ops.linear(hidden, weights["project.weight"])
    return hidden.add_(ops.embedding(positions_BS + spec.position_offset, weights["positions.weight"]))
