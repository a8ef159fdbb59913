"""Rotary position embedding: tables for given positions, and the rotation.

Tables are computed in float32 and in the order of operations that checkpoints were trained with: at position 60,000
an angle rounded otherwise is off by several thousandths.

Legend: B batch, S positions, H head dim, F frequencies (H / 2), N heads.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from flexinfer.models.layout import contiguous
from flexinfer.spec.model_spec import ModelSpec, RopeSpec


class RopeRows(NamedTuple):
    """cos and sin of each position's angles, float32; the second half of H repeats the first."""

    cos_BSH: torch.Tensor
    sin_BSH: torch.Tensor


def rope_rows(spec: ModelSpec, positions_BS: torch.Tensor, lengths_B: torch.Tensor) -> RopeRows:
    """Tables on the CPU for integer positions. `lengths_B`: each sequence's tokens, those of this step included.

    Only dynamic scaling looks at lengths, and at each sequence's own: a batch gives each what it gets alone.
    """
    rope = spec.rope
    if rope is None:
        raise ValueError(f"{spec.name} has no rotary embedding")
    inverse_BF = inverse_frequencies(rope, spec.head_dim, lengths_B)
    angles_BSF = positions_BS.unsqueeze(-1).float() * inverse_BF.unsqueeze(-2)
    angles_BSH = torch.cat((angles_BSF, angles_BSF), dim=-1)
    factor = attention_factor(rope)
    cos_BSH, sin_BSH = angles_BSH.cos(), angles_BSH.sin()
    return RopeRows(cos_BSH, sin_BSH) if factor == 1 else RopeRows(cos_BSH * factor, sin_BSH * factor)


def rotate(x_BNSH: torch.Tensor, rows: RopeRows) -> torch.Tensor:
    """x with each (i, i + H/2) pair turned by its angle: contiguous, in x's dtype, computed in float32."""
    cos_B1SH, sin_B1SH = rows.cos_BSH.unsqueeze(1), rows.sin_BSH.unsqueeze(1)
    x_BNSH = contiguous(x_BNSH)
    first, second = x_BNSH.chunk(2, dim=-1)
    turned_BNSH = torch.cat((second.neg(), first), dim=-1)
    return (x_BNSH * cos_B1SH).addcmul_(turned_BNSH, sin_B1SH).to(x_BNSH.dtype)


def inverse_frequencies(rope: RopeSpec, head_dim: int, lengths_B: torch.Tensor) -> torch.Tensor:
    """Radians a position for each pair, float32: [F], or [B, F] for dynamic scaling."""
    exponents_F = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    if rope.type == "dynamic":
        inverse = 1.0 / (_dynamic_base(rope, head_dim, lengths_B).unsqueeze(-1) ** exponents_F)
    elif rope.type == "yarn":
        inverse = _yarn(rope, head_dim, rope.theta**exponents_F)
    else:
        inverse = 1.0 / (rope.theta**exponents_F)
        if rope.type == "linear":
            inverse = inverse / rope.factor
        elif rope.type == "llama3":
            inverse = _llama3(rope, inverse)
    return inverse / torch.tensor(rope.freq_factors) if rope.freq_factors else inverse


def _dynamic_base(rope: RopeSpec, head_dim: int, lengths_B: torch.Tensor) -> torch.Tensor:
    """The base grows with a sequence that has outgrown the original window."""
    original = _original(rope)
    stretch_B = rope.factor * lengths_B.clamp(min=original) / original - (rope.factor - 1)
    return rope.theta * stretch_B ** (head_dim / (head_dim - 2))


def _llama3(rope: RopeSpec, inverse_F: torch.Tensor) -> torch.Tensor:
    """Long waves are slowed by the factor, short ones kept, those between blended."""
    original, low, high = _original(rope), rope.low_freq_factor, rope.high_freq_factor
    wavelength_F = 2 * math.pi / inverse_F
    share_F = (original / wavelength_F - low) / (high - low)
    blended_F = (1 - share_F) * inverse_F / rope.factor + share_F * inverse_F
    slowed_F = torch.where(wavelength_F > original / low, inverse_F / rope.factor, blended_F)
    return torch.where(wavelength_F < original / high, inverse_F, slowed_F)


def _yarn(rope: RopeSpec, head_dim: int, wavelength_F: torch.Tensor) -> torch.Tensor:
    """Fast pairs keep their frequency, slow ones are interpolated by the factor, with a ramp between."""
    low = _turning_pair(rope, head_dim, rope.beta_fast)
    high = _turning_pair(rope, head_dim, rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    ramp_F = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    kept_F = 1 - ramp_F
    return 1.0 / (rope.factor * wavelength_F) * (1 - kept_F) + 1.0 / wavelength_F * kept_F


def _turning_pair(rope: RopeSpec, head_dim: int, turns: float) -> float:
    """The (fractional) pair that makes so many full turns over the original window."""
    return head_dim * math.log(_original(rope) / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))


def _original(rope: RopeSpec) -> int:
    if rope.original_max_positions is None:
        raise ValueError(f"rope type {rope.type} needs original_max_positions")
    return rope.original_max_positions


def attention_factor(rope: RopeSpec) -> float:
    """What cos and sin are multiplied by: 1 but for yarn, which sharpens attention with the log of its factor."""
    if rope.type != "yarn":
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return _log_scale(rope.factor, rope.mscale) / _log_scale(rope.factor, rope.mscale_all_dim)
    return _log_scale(rope.factor, 1.0)


def _log_scale(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0
