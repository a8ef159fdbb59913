"""Attention: one new token over cold KV, and whole prompts."""

from __future__ import annotations

from collections.abc import Callable

import torch

from flexinfer.calibrate.effort import Effort, Heads
from flexinfer.calibrate.ops import Bench
from flexinfer.calibrate.timing import Case, Measurement, measure_all
from flexinfer.estimator.profile import AttentionSample

SPARE_TOKENS = 32
"""Capacity beyond what is filled, as a cache that is still growing has."""

OnCase = Callable[[Case], None]


def decode_case(bench: Bench, dtype: torch.dtype, heads: Heads, batch: int, context: int) -> Case:
    """One new token for each sequence; K and V are cold."""
    q_BNSH = bench.activation(dtype, batch, heads.heads, 1, heads.head_dim)
    lengths_B = torch.full((batch,), context, dtype=torch.int32, device=bench.device)
    kv_shape = (batch, heads.kv_heads, context + SPARE_TOKENS, heads.head_dim)

    def operands() -> tuple[torch.Tensor, ...]:
        return q_BNSH, bench.work.cut(dtype, *kv_shape), bench.work.cut(dtype, *kv_shape), lengths_B

    return Case(f"decode attention {batch} x {context}", operands, bench.decode_attention)


def prefill_case(bench: Bench, dtype: torch.dtype, heads: Heads, new: int) -> Case:
    """One prompt; K and V were computed a moment ago, so they are warm."""
    q_BNSH = bench.activation(dtype, 1, heads.heads, new, heads.head_dim)
    k_BKTH, v_BKTH = (bench.activation(dtype, 1, heads.kv_heads, new, heads.head_dim) for _ in range(2))
    return Case(f"prefill attention {new}", lambda: (q_BNSH, k_BKTH, v_BKTH), bench.prefill_attention)


def decode_samples(
    bench: Bench, dtype_name: str, effort: Effort, on_case: OnCase | None = None
) -> list[tuple[AttentionSample, Measurement]]:
    dtype: torch.dtype = getattr(torch, dtype_name)
    shapes = [(h, b, c) for h in effort.heads for b, c in effort.decode if _fits(bench, dtype, h, b, c)]
    cases = [decode_case(bench, dtype, heads, batch, context) for heads, batch, context in shapes]
    results = measure_all(cases, effort.case_s, bench.clock, on_case)
    return [
        (_sample(dtype_name, heads, batch, 1, context, result), result)
        for (heads, batch, context), result in zip(shapes, results, strict=True)
    ]


def _fits(bench: Bench, dtype: torch.dtype, heads: Heads, batch: int, context: int) -> bool:
    return bench.work.fits(dtype, 2 * batch * heads.kv_heads, context + SPARE_TOKENS, heads.head_dim)


def prefill_samples(
    bench: Bench, dtype_name: str, effort: Effort, on_case: OnCase | None = None
) -> list[tuple[AttentionSample, Measurement]]:
    dtype: torch.dtype = getattr(torch, dtype_name)
    heads = effort.heads[0]
    cases = [prefill_case(bench, dtype, heads, new) for new in effort.prefill]
    results = measure_all(cases, effort.case_s, bench.clock, on_case)
    return [
        (_sample(dtype_name, heads, 1, new, new, result), result)
        for new, result in zip(effort.prefill, results, strict=True)
    ]


def _sample(dtype: str, heads: Heads, batch: int, new: int, context: int, result: Measurement) -> AttentionSample:
    return AttentionSample(
        dtype,
        batch,
        heads.heads,
        heads.kv_heads,
        heads.head_dim,
        new,
        context,
        result.median_s,
        result.spread_s,
        result.n,
    )
