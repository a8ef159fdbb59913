"""The two ends of a model: token embedding and LM head.

Legend: B batch, S tokens a sequence, D model dim, E embedding width, V vocabulary (or some of its rows).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from flexinfer.models.norm import norm
from flexinfer.models.opset import OpSet
from flexinfer.spec.model_spec import ModelSpec

Weights = Mapping[str, torch.Tensor]


def embed(
    weights: Weights, tokens_BS: torch.Tensor, positions_BS: torch.Tensor, spec: ModelSpec, ops: OpSet
) -> torch.Tensor:
    """Hidden [B, S, D]: token rows; positions are not looked at, rotary models carry them in attention."""
    return ops.embedding(tokens_BS, weights["tokens.weight"])


def head_input(weights: Weights, hidden_BD: torch.Tensor, spec: ModelSpec, ops: OpSet) -> torch.Tensor:
    """[B, E]: final norm, and the projection to the embedding's width, where the model has them."""
    x_BD = norm(weights, hidden_BD, spec, ops) if spec.final_norm else hidden_BD
    return ops.linear(x_BD, weights["project.weight"]) if "project.weight" in weights else x_BD


def head_logits(weights_out_VE: torch.Tensor, head_input_BE: torch.Tensor, ops: OpSet) -> torch.Tensor:
    """Logits [B, V] over the given rows of the output matrix, in the weights' dtype."""
    return ops.linear(head_input_BE, weights_out_VE)
