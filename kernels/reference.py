"""Torch versions of the kernels: what runs where the library could not be built, and what tests compare it with.

Shapes: B sequences, N query heads, K kv heads, G query heads of a kv head, T tokens, H head dim.
"""

from __future__ import annotations

import torch

_BLOCK = 512  # tokens widened to float32 at a time, which bounds what is allocated


def decode_attention(
    q_BNH: torch.Tensor,
    k_BKTH: torch.Tensor,
    v_BKTH: torch.Tensor,
    lengths_B: torch.Tensor,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks_N: torch.Tensor | None = None,
) -> torch.Tensor:
    """As flexinfer.kernels.decode_attention, whose arguments it takes as checked."""
    out_BNH = torch.empty_like(q_BNH)
    kv_heads = k_BKTH.shape[1]
    for b, length in enumerate(lengths_B.tolist()):
        q_KGH = q_BNH[b].float().unflatten(0, (kv_heads, -1)) * scale
        sinks_KG = None if sinks_N is None else sinks_N.unflatten(0, (kv_heads, -1))
        first = 0 if window is None else max(0, length - window)
        o_KGH = _attend(q_KGH, k_BKTH[b, :, first:length], v_BKTH[b, :, first:length], softcap, sinks_KG)
        out_BNH[b] = o_KGH.flatten(0, 1)
    return out_BNH


def _attend(
    q_KGH: torch.Tensor,
    k_KTH: torch.Tensor,
    v_KTH: torch.Tensor,
    softcap: float | None,
    sinks_KG: torch.Tensor | None,
) -> torch.Tensor:
    """Softmax over blocks of tokens with a running maximum: no float32 copy of the whole of K or V is made."""
    largest_KG = q_KGH.new_full(q_KGH.shape[:2], float("-inf")) if sinks_KG is None else sinks_KG
    total_KG = torch.zeros_like(largest_KG) if sinks_KG is None else torch.ones_like(largest_KG)
    sum_KGH = torch.zeros_like(q_KGH)
    for k_KSH, v_KSH in zip(k_KTH.split(_BLOCK, dim=1), v_KTH.split(_BLOCK, dim=1), strict=True):
        scores_KGS = q_KGH @ k_KSH.float().transpose(1, 2)
        if softcap is not None:
            scores_KGS = softcap * torch.tanh(scores_KGS / softcap)
        peak_KG = torch.maximum(largest_KG, scores_KGS.amax(-1))
        weights_KGS = torch.exp(scores_KGS - peak_KG[..., None])
        shrink_KG = torch.exp(largest_KG - peak_KG)
        total_KG = total_KG * shrink_KG + weights_KGS.sum(-1)
        sum_KGH = sum_KGH * shrink_KG[..., None] + weights_KGS @ v_KSH.float()
        largest_KG = peak_KG
    return sum_KGH / total_KG[..., None]
