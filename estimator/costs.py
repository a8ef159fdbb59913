"""What one op costs on one device: seconds = flops/(peak * share) + bytes/(bandwidth * share) + fixed.

The sum, not the maximum: factors are fitted to it, and near the ridge neither limit is reached alone. Where a profile
has samples of a class in the model's dtype, curves through them replace the factors.
"""

from __future__ import annotations

from dataclasses import dataclass

from flexinfer.estimator.profile import CpuProfile, GpuProfile, LinkProfile, OpClass
from flexinfer.estimator.samples import decode_curves, linear_curves, prefill_curve
from flexinfer.spec.model_spec import DTYPE_BYTES


@dataclass(frozen=True, slots=True)
class Cost:
    """`seconds`, of which `compute_s` is arithmetic; the rest is memory traffic and the calls themselves."""

    seconds: float
    compute_s: float

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.seconds + other.seconds, self.compute_s + other.compute_s)

    def times(self, count: float) -> Cost:
        return Cost(self.seconds * count, self.compute_s * count)


NOTHING = Cost(0.0, 0.0)


class DeviceCosts:
    """Op costs on one device for one dtype. Curves are built once; every method is a pure function of its arguments."""

    def __init__(self, device: CpuProfile | GpuProfile, dtype: str) -> None:
        self.item_bytes = DTYPE_BYTES[dtype]
        self.bandwidth = device.memory_bytes_per_s
        self.peak = device.peak_flops_per_s[dtype]
        self.efficiency = device.efficiency
        self.dispatch_s = device.dispatch_s
        self._linear = linear_curves(device.samples.linear, dtype)
        self._decode = decode_curves(device.samples.attention_decode, dtype, self.item_bytes)
        self._prefill = prefill_curve(device.samples.attention_prefill, dtype)

    def _split(self, op: OpClass, flops: float, nbytes: float) -> tuple[float, float]:
        share = self.efficiency[op]
        return flops / (self.peak * share.eff_compute), nbytes / (self.bandwidth * share.eff_memory)

    def _factors(self, op: OpClass, flops: float, nbytes: float, calls: int = 1) -> Cost:
        compute_s, memory_s = self._split(op, flops, nbytes)
        return Cost(compute_s + memory_s + calls * self.efficiency[op].fixed_s, compute_s)

    def _measured(self, op: OpClass, seconds: float, flops: float, nbytes: float) -> Cost:
        """A sampled time, shared between arithmetic and memory as the factors would share it."""
        compute_s, memory_s = self._split(op, flops, nbytes)
        return Cost(seconds, seconds * compute_s / (compute_s + memory_s))

    def linear(self, rows: int, out: int, into: int) -> Cost:
        """x[rows, into] @ weight[out, into]: memory-bound for few rows, compute-bound for many."""
        elements = out * into
        flops, nbytes = 2.0 * rows * elements, (elements + rows * (out + into)) * self.item_bytes
        if self._linear is None:
            return self._factors("linear", flops, nbytes)
        seconds = max(self._linear.seconds(rows, elements), self.efficiency["linear"].fixed_s)
        return self._measured("linear", seconds, flops, nbytes)

    def attention_prefill(self, batch: int, flops: float, nbytes: float) -> Cost:
        """`batch` sequences of `flops` and `nbytes` (q, k, v and context) each."""
        if self._prefill is None:
            return self._factors("attention_prefill", batch * flops, batch * nbytes)
        return self._measured("attention_prefill", batch * self._prefill.at(flops), flops, nbytes)

    def attention_decode(self, flops: float, kv_bytes: float, group: float) -> Cost:
        """One new token a sequence: `kv_bytes` read in all, `group` query heads to a kv head."""
        if not self._decode:
            return self._factors("attention_decode", flops, kv_bytes)
        nearest = min(self._decode, key=lambda measured: (abs(measured - group), measured))
        return self._measured("attention_decode", self._decode[nearest].at(kv_bytes), flops, kv_bytes)

    def elementwise(self, nbytes: float, calls: int) -> Cost:
        """`calls` small ops that move `nbytes` among them."""
        return self._factors("elementwise", 0.0, nbytes, calls)


class LinkCosts:
    """Seconds of copies over the link."""

    def __init__(self, link: LinkProfile) -> None:
        self.h2d_rate = link.h2d_bytes_per_s * link.eff_h2d
        self.d2h_rate = link.d2h_bytes_per_s * link.eff_d2h
        self.fixed_s = link.fixed_s

    def h2d(self, nbytes: float, copies: int = 1) -> float:
        return nbytes / self.h2d_rate + copies * self.fixed_s if nbytes else 0.0

    def d2h(self, nbytes: float, copies: int = 1) -> float:
        return nbytes / self.d2h_rate + copies * self.fixed_s if nbytes else 0.0
