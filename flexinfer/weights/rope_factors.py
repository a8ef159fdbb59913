"""GGUF's rope_freqs.weight: LLaMA 3.1's frequency factors, held against the model's rope settings. No torch.

A specification read from the file has them; one read from a config.json beside it may not, and then short prompts
would read well and long ones fall apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from flexinfer.spec.model_spec import RopeSpec


def frequency_factors(rope: RopeSpec, head_dim: int) -> list[float]:
    """What each of the head_dim / 2 rotation frequencies is divided by, whichever way `rope` states it."""
    if rope.freq_factors:
        return list(rope.freq_factors)
    if rope.type != "llama3":
        return [1.0] * (head_dim // 2)
    return [_factor(rope, rope.theta ** (2 * i / head_dim)) for i in range(head_dim // 2)]


def _factor(rope: RopeSpec, divisor: float) -> float:
    """Long waves are slowed by the full factor, short ones not at all, those between in proportion."""
    turns = (rope.original_max_positions or 0) / (2 * math.pi * divisor)
    share = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    share = min(1.0, max(0.0, share))
    return 1.0 / ((1.0 - share) / rope.factor + share)


def factors_agree(stored: Sequence[float], rope: RopeSpec, head_dim: int) -> bool:
    """True when the file's factors are those of `rope`, to the precision of float32."""
    wanted = frequency_factors(rope, head_dim)
    return len(stored) == len(wanted) and all(
        math.isclose(a, b, rel_tol=1e-4) for a, b in zip(stored, wanted, strict=True)
    )
