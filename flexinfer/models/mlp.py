"""The MLP block, gated or plain.

Legend: B batch, S tokens a sequence, R rows (tokens of all sequences), D model dim, F ffn dim.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from flexinfer.models.norm import norm
from flexinfer.models.opset import OpSet
from flexinfer.schedule.buffers import MLP_TOKENS
from flexinfer.spec.model_spec import ModelSpec

Weights = Mapping[str, torch.Tensor]


def mlp(weights: Weights, hidden_BSD: torch.Tensor, spec: ModelSpec, ops: OpSet) -> torch.Tensor:
    """Norm, MLP and residual, added into hidden_BSD (contiguous), which is returned.

    In place, and MLP_TOKENS rows at a time, so that temporaries are bounded however long the prompt.
    """
    all_RD = hidden_BSD.view(-1, spec.hidden_size)
    for first in range(0, all_RD.shape[0], MLP_TOKENS):
        rows_RD = all_RD.narrow(0, first, min(MLP_TOKENS, all_RD.shape[0] - first))
        if spec.norm_first:
            rows_RD.add_(_feed_forward(weights, norm(weights, rows_RD, spec, ops), spec, ops))
        else:
            sum_RD = _feed_forward(weights, rows_RD, spec, ops).add_(rows_RD)
            torch.cat((norm(weights, sum_RD, spec, ops),), out=rows_RD)
    return hidden_BSD


def _feed_forward(weights: Weights, x_RD: torch.Tensor, spec: ModelSpec, ops: OpSet) -> torch.Tensor:
    first = "gate" if spec.gated_mlp else "up"
    inner_RF = ops.activation(spec.activation, _project(weights, first, x_RD, ops))
    if spec.gated_mlp:
        inner_RF = inner_RF.mul_(_project(weights, "up", x_RD, ops))
    return _project(weights, "down", inner_RF, ops)


def _project(weights: Weights, part: str, x: torch.Tensor, ops: OpSet) -> torch.Tensor:
    return ops.linear(x, weights[f"{part}.weight"], weights.get(f"{part}.bias"))
