"""Peaks and efficiency factors from samples: what the cost functions use for shapes and dtypes without samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from flexinfer.calibrate.small_ops import SmallOps
from flexinfer.estimator.profile import DTYPES, AttentionSample, Efficiency, LinearSample, OpClass, Samples
from flexinfer.spec.model_spec import DTYPE_BYTES


@dataclass(frozen=True)
class Measured:
    """A device's raw figures. `call_s` is a matrix product too small to take time."""

    bytes_per_s: float
    copy_bytes_per_s: float
    call_s: float
    small: SmallOps
    dispatch_s: float
    step_overhead_s: float
    samples: Samples
    noisy: bool


def linear_flops(sample: LinearSample) -> float:
    return 2.0 * sample.rows * sample.out_features * sample.in_features


def weight_bytes(sample: LinearSample) -> float:
    return sample.out_features * sample.in_features * DTYPE_BYTES[sample.dtype]


def kv_bytes(sample: AttentionSample) -> float:
    return 2 * sample.batch * sample.kv_heads * sample.head_dim * sample.context * DTYPE_BYTES[sample.dtype]


def prefill_flops(sample: AttentionSample) -> float:
    return 4.0 * sample.batch * sample.heads * sample.head_dim * sample.new * (sample.new + 1) / 2


def peaks(samples: Iterable[LinearSample]) -> dict[str, float]:
    """FLOP/s of the best product of each dtype; a dtype that was not measured gets the slowest of the others."""
    best: dict[str, float] = {}
    for sample in samples:
        best[sample.dtype] = max(best.get(sample.dtype, 0.0), linear_flops(sample) / sample.median_s)
    return {dtype: best.get(dtype, min(best.values())) for dtype in DTYPES}


def efficiencies(measured: Measured, peak: Mapping[str, float]) -> dict[OpClass, Efficiency]:
    """The share of the peaks that each class reaches at its best, and what its smallest call takes."""
    linear, bandwidth = measured.samples.linear, measured.bytes_per_s
    decode, prefill = measured.samples.attention_decode, measured.samples.attention_prefill
    lone = [weight_bytes(s) / s.median_s for s in linear if s.rows == 1]
    over_kv = [kv_bytes(s) / s.median_s for s in decode]
    shares = [prefill_flops(s) / s.median_s / peak[s.dtype] for s in prefill]
    read, prefill_share = max(lone) / bandwidth, max(shares)
    return {
        "linear": Efficiency(1.0, read, measured.call_s),
        "attention_prefill": Efficiency(prefill_share, read, min(s.median_s for s in prefill)),
        "attention_decode": Efficiency(prefill_share, max(over_kv) / bandwidth, min(s.median_s for s in decode)),
        "elementwise": Efficiency(1.0, measured.small.bytes_per_s / bandwidth, measured.small.fixed_s),
    }
