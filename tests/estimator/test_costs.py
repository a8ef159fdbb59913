"""Op costs: hand arithmetic with factors, and curves through samples."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexinfer.estimator.costs import DeviceCosts, LinkCosts
from flexinfer.estimator.profile import (
    DTYPES,
    OP_CLASSES,
    AttentionSample,
    CpuProfile,
    Efficiency,
    LinearSample,
    LinkProfile,
    Samples,
)


def device(samples: Samples | None = None, fixed_s: float = 1e-6) -> CpuProfile:
    share = {op: Efficiency(0.5, 0.25, fixed_s) for op in OP_CLASSES}
    peaks = dict(zip(DTYPES, (1e9, 4e9, 2e9), strict=True))
    return CpuProfile("cpu", 1, 10**9, 1e8, 1e8, peaks, share, 0.0, 0.0, samples or Samples())


def linear(rows: int, out: int, into: int, seconds: float) -> LinearSample:
    return LinearSample("float32", rows, out, into, seconds, 0.0, 5)


def test_factors_add_up_by_hand() -> None:
    cost = DeviceCosts(device(), "float32").linear(2, 10, 20)
    arithmetic, memory = 2 * 2 * 200 / (1e9 * 0.5), (200 + 2 * 30) * 4 / (1e8 * 0.25)
    assert cost.seconds == pytest.approx(arithmetic + memory + 1e-6)
    assert cost.compute_s == pytest.approx(arithmetic)


def test_dtype_changes_bytes_and_peak() -> None:
    full, half = DeviceCosts(device(), "float32"), DeviceCosts(device(), "bfloat16")
    assert half.linear(1, 10, 20).compute_s == pytest.approx(full.linear(1, 10, 20).compute_s / 4)
    assert half.elementwise(1000.0, 3).seconds == full.elementwise(1000.0, 3).seconds == pytest.approx(43e-6)


def test_samples_replace_factors_and_are_met_exactly() -> None:
    samples = Samples(linear=(linear(1, 100, 100, 1e-3), linear(64, 100, 100, 4e-3)))
    costs = DeviceCosts(device(samples), "float32")
    assert costs.linear(1, 100, 100).seconds == pytest.approx(1e-3)
    assert costs.linear(64, 100, 100).seconds == pytest.approx(4e-3)
    assert costs.linear(8, 100, 100).seconds == pytest.approx(2e-3)  # halfway between the logarithms
    assert costs.linear(128, 100, 100).seconds == pytest.approx(8e-3)  # compute-bound beyond the last
    assert costs.linear(1, 200, 100).seconds == pytest.approx(2e-3)  # by the element
    other = DeviceCosts(device(samples), "float16")
    assert other.linear(1, 100, 100).seconds == DeviceCosts(device(), "float16").linear(1, 100, 100).seconds


def test_rates_are_interpolated_between_sizes_of_matrices() -> None:
    samples = Samples(linear=(linear(1, 10, 10, 100e-6), linear(1, 1000, 1000, 10_000e-6)))
    costs = DeviceCosts(device(samples, fixed_s=0.0), "float32")
    assert costs.linear(1, 100, 100).seconds == pytest.approx(10_000 * (1e-6 * 1e-8) ** 0.5)
    assert costs.linear(1, 1, 1).seconds == pytest.approx(1e-6)


def test_no_product_is_cheaper_than_a_call() -> None:
    costs = DeviceCosts(device(Samples(linear=(linear(1, 100, 100, 1e-3),)), fixed_s=5e-6), "float32")
    assert costs.linear(1, 2, 2).seconds == 5e-6


@given(
    seconds=st.lists(st.floats(1e-6, 1.0), min_size=2, max_size=6),
    rows=st.lists(st.integers(1, 4000), min_size=2, max_size=8),
)
def test_more_rows_never_look_cheaper_however_noisy_the_samples(seconds: list[float], rows: list[int]) -> None:
    samples = tuple(linear(4**i, 64, 64, s) for i, s in enumerate(seconds))
    costs = DeviceCosts(device(Samples(linear=samples)), "float32")
    times = [costs.linear(m, 64, 64).seconds for m in sorted(rows)]
    assert all(a <= b * (1 + 1e-12) for a, b in zip(times, times[1:], strict=False))


def test_attention_curves_by_bytes_and_by_flops() -> None:
    decode = AttentionSample("float32", 1, 4, 2, 16, 1, 100, 1e-3, 0.0, 5)
    prefill = AttentionSample("float32", 2, 4, 2, 16, 100, 100, 8e-3, 0.0, 5)
    costs = DeviceCosts(device(Samples(attention_decode=(decode,), attention_prefill=(prefill,))), "float32")
    kv_bytes = 2 * 2 * 16 * 100 * 4
    assert costs.attention_decode(1.0, kv_bytes, 2.0).seconds == pytest.approx(1e-3)
    assert costs.attention_decode(1.0, 3 * kv_bytes, 2.0).seconds == pytest.approx(3e-3)
    flops = 4.0 * 4 * 16 * 100 * 101 / 2
    assert costs.attention_prefill(3, flops, 1.0).seconds == pytest.approx(3 * 4e-3)


def test_the_nearest_group_of_heads_is_used() -> None:
    shared = AttentionSample("float32", 1, 8, 1, 16, 1, 100, 5e-3, 0.0, 5)
    plain = replace(shared, kv_heads=8, median_s=1e-3)
    costs = DeviceCosts(device(Samples(attention_decode=(shared, plain))), "float32")
    small = 2 * 16 * 100 * 4
    assert costs.attention_decode(1.0, small, 7.0).seconds == pytest.approx(5e-3)
    assert costs.attention_decode(1.0, 8 * small, 1.0).seconds == pytest.approx(1e-3)


def test_link_by_hand() -> None:
    link = LinkCosts(LinkProfile("link", 100.0, 50.0, 0.5, 0.8, 0.25))
    assert link.h2d(200, copies=2) == pytest.approx(200 / 50 + 0.5)
    assert link.d2h(200) == pytest.approx(200 / 40 + 0.25)
    assert link.h2d(0, copies=9) == 0.0
