"""Attention: the projections around it, and the two forms of it over keys and values.

Grouped queries share keys and values without copies of them: in prefill each kv head is seen by its query heads
through a stride of zero, in decode the query heads of a kv head are the rows of one product.

Legend: B batch, S query length, T key length, N query heads, K kv heads, G query heads a kv head, H head dim,
D model dim.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from flexinfer.models.layout import contiguous
from flexinfer.models.norm import norm
from flexinfer.models.opset import OpSet
from flexinfer.models.rope import RopeRows, rotate
from flexinfer.schedule.buffers import MASKED_CELLS
from flexinfer.spec.model_spec import ModelSpec

Weights = Mapping[str, torch.Tensor]


def qkv(
    weights: Weights, hidden_BSD: torch.Tensor, rope: RopeRows | None, spec: ModelSpec, ops: OpSet
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q [B, N, S, H], k and v [B, K, S, H], contiguous: normed first where the family does, projected, rotated."""
    x_BSD = norm(weights, hidden_BSD, spec, ops) if spec.norm_first else hidden_BSD
    q_BNSH = _heads(_project(weights, "q", x_BSD, ops), spec.head_dim)
    k_BKSH = _heads(_project(weights, "k", x_BSD, ops), spec.head_dim)
    v_BKSH = contiguous(_heads(_project(weights, "v", x_BSD, ops), spec.head_dim))
    if spec.qk_norm:
        q_BNSH = ops.rms_norm(q_BNSH, weights["q_norm.weight"], spec.norm_eps)
        k_BKSH = ops.rms_norm(k_BKSH, weights["k_norm.weight"], spec.norm_eps)
    if rope is None:
        return contiguous(q_BNSH), contiguous(k_BKSH), v_BKSH
    return rotate(q_BNSH, rope), rotate(k_BKSH, rope), v_BKSH


def attention_out(
    weights: Weights, hidden_BSD: torch.Tensor, context_BNSH: torch.Tensor, spec: ModelSpec, ops: OpSet
) -> torch.Tensor:
    """hidden plus the projected context; normed after where the family does. A new tensor [B, S, D]."""
    context_BSD = context_BNSH.transpose(1, 2).flatten(2)
    sum_BSD = _project(weights, "o", context_BSD, ops).add_(hidden_BSD)
    return sum_BSD if spec.norm_first else norm(weights, sum_BSD, spec, ops)


def _project(weights: Weights, part: str, x: torch.Tensor, ops: OpSet) -> torch.Tensor:
    return ops.linear(x, weights[f"{part}.weight"], weights.get(f"{part}.bias"))


def _heads(x_BSD: torch.Tensor, head_dim: int) -> torch.Tensor:
    return x_BSD.view(x_BSD.shape[0], x_BSD.shape[1], -1, head_dim).transpose(1, 2)


# -- attention over keys and values -----------------------------------------------------------------------------


def prefill_attention(
    q_BNSH: torch.Tensor,
    k_BKTH: torch.Tensor,
    v_BKTH: torch.Tensor,
    mask_BST: torch.Tensor | None,
    scale: float,
    ops: OpSet,
) -> torch.Tensor:
    """Context [B, N, S, H]. Without a mask: causal, S == T. With one: True = attend, and every key must be finite."""
    if mask_BST is None:
        q, k, v = _grouped(q_BNSH, k_BKTH, v_BKTH)
        return ops.scaled_dot_product_attention(q, k, v, None, True, scale).reshape(q_BNSH.shape)
    # Sequences one by one: a mask folded with the kv heads of a batch would be copied for each of them.
    contexts = []
    for i in range(q_BNSH.shape[0]):
        q, k, v, mask = (x.narrow(0, i, 1) for x in (q_BNSH, k_BKTH, v_BKTH, mask_BST))
        contexts.append(_masked_attention(q, k, v, mask, scale, ops))
    return torch.cat(contexts) if len(contexts) > 1 else contexts[0]


def _grouped(
    q_BNSH: torch.Tensor, k_BKTH: torch.Tensor, v_BKTH: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q as [B * K, G, S, H], and k and v as [B * K, G, T, H], where all G heads see the same memory."""
    new, head_dim = q_BNSH.shape[2:]
    kv_heads, keys = k_BKTH.shape[1:3]
    group = q_BNSH.shape[1] // kv_heads
    q = q_BNSH.reshape(-1, group, new, head_dim)
    k, v = (x.reshape(-1, 1, keys, head_dim).expand(-1, group, -1, -1) for x in (k_BKTH, v_BKTH))
    return q, k, v


def _masked_attention(
    q_1NSH: torch.Tensor,
    k_1KTH: torch.Tensor,
    v_1KTH: torch.Tensor,
    mask_1ST: torch.Tensor,
    scale: float,
    ops: OpSet,
) -> torch.Tensor:
    """One sequence, in pieces of queries that keep the widened mask small."""
    q_KGSH, k, v = _grouped(q_1NSH, k_1KTH, v_1KTH)
    new, keys = mask_1ST.shape[1:]
    piece = max(1, MASKED_CELLS // keys)
    contexts = []
    for first in range(0, new, piece):
        rows = min(piece, new - first)
        q, mask = q_KGSH.narrow(2, first, rows), mask_1ST.narrow(1, first, rows).unsqueeze(0)
        contexts.append(ops.scaled_dot_product_attention(q, k, v, mask, False, scale))
    context_KGSH = torch.cat(contexts, dim=2) if len(contexts) > 1 else contexts[0]
    return context_KGSH.reshape(q_1NSH.shape)


def decode_attention(
    q_BNSH: torch.Tensor,
    k_BKTH: torch.Tensor,
    v_BKTH: torch.Tensor,
    lengths_B: torch.Tensor,
    mask_BST: torch.Tensor | None,
    window: int | None,
    scale: float,
    ops: OpSet,
) -> torch.Tensor:
    """Context [B, N, 1, H] of one new token a sequence, whose key and value are already in the cache.

    The op set goes by lengths and window (the CPU's), or by the mask [B, 1, T] (torch's): see OpSet.decode_attention.
    """
    q_BNH = q_BNSH.squeeze(2)
    return ops.decode_attention(q_BNH, k_BKTH, v_BKTH, lengths_B, mask_BST, window, scale).unsqueeze(2)


def causal_mask(starts_B: torch.Tensor, new: int, capacity: int, window: int | None) -> torch.Tensor:
    """Boolean [B, new, capacity] on the CPU, True = attend: each new token at its position to itself and before.

    starts_B: tokens held before the new ones. A window of w reaches the token itself and the w - 1 before it.
    """
    queries_BS1 = (starts_B.unsqueeze(-1) + torch.arange(new)).unsqueeze(-1)
    keys_T = torch.arange(capacity)
    mask_BST = keys_T <= queries_BS1
    return mask_BST if window is None else mask_BST & (keys_T > queries_BS1 - window)
