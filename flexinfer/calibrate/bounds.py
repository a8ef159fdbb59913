"""Noisy samples of several threads, cut at what one thread takes for the same work."""

from __future__ import annotations

from dataclasses import replace

from flexinfer.calibrate.factors import kv_bytes, prefill_flops
from flexinfer.estimator.profile import AttentionSample, CpuProfile, LinearSample
from flexinfer.estimator.samples import decode_curves, linear_curves, prefill_curve
from flexinfer.spec.model_spec import DTYPE_BYTES


def bounded_linear(sample: LinearSample, alone: CpuProfile | None) -> LinearSample:
    curves = None if alone is None else linear_curves(alone.samples.linear, sample.dtype)
    if curves is None:
        return sample
    limit_s = curves.seconds(sample.rows, sample.out_features * sample.in_features)
    return replace(sample, median_s=min(sample.median_s, limit_s))


def bounded_prefill(sample: AttentionSample, alone: CpuProfile | None) -> AttentionSample:
    curve = None if alone is None else prefill_curve(alone.samples.attention_prefill, sample.dtype)
    if curve is None:
        return sample
    limit_s = sample.batch * curve.at(prefill_flops(sample) / sample.batch)
    return replace(sample, median_s=min(sample.median_s, limit_s))


def bounded_decode(sample: AttentionSample, alone: CpuProfile | None) -> AttentionSample:
    if alone is None:
        return sample
    curves = decode_curves(alone.samples.attention_decode, sample.dtype, DTYPE_BYTES[sample.dtype])
    curve = curves.get(sample.heads / sample.kv_heads)
    return sample if curve is None else replace(sample, median_s=min(sample.median_s, curve.at(kv_bytes(sample))))
