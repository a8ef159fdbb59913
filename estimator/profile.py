"""HardwareProfile: what a machine can do, as the cost functions read it. No torch.

A device has peaks (FLOP/s by dtype, memory bytes per second) and, for each class of op, the share of the peaks that
the op reaches and what one call costs before any work is done. Measured profiles also carry the samples from which
this was seen; the cost functions read those first. Units are in every name: bytes, seconds, FLOP per second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

SCHEMA = "flexinfer.hardware/1"
DTYPES = ("float32", "bfloat16", "float16")

OpClass = Literal["linear", "attention_prefill", "attention_decode", "elementwise"]
OP_CLASSES: tuple[OpClass, ...] = ("linear", "attention_prefill", "attention_decode", "elementwise")
Kind = Literal["nominal", "measured"]


@dataclass(frozen=True)
class Efficiency:
    """One op class on one device: seconds = flops/(peak * eff_compute) + bytes/(bandwidth * eff_memory) + fixed_s.

    Both shares are positive (a measured one may pass 1 where the peak was measured low). `fixed_s` is for one call as
    a step makes it, with the caches full of weights: one matrix product, one attention, one element-wise op. How many
    element-wise calls a block makes is `blocks.small_calls`.
    """

    eff_compute: float
    eff_memory: float
    fixed_s: float


@dataclass(frozen=True)
class LinearSample:
    """y[rows, out] = x[rows, in] @ weight[out, in], the weight not in the caches: median of n runs."""

    dtype: str
    rows: int
    out_features: int
    in_features: int
    median_s: float
    spread_s: float
    n: int


@dataclass(frozen=True)
class AttentionSample:
    """One layer's attention over `context` keys, `new` of them new: 1 in decode, all of them (causal) in prefill."""

    dtype: str
    batch: int
    heads: int
    kv_heads: int
    head_dim: int
    new: int
    context: int
    median_s: float
    spread_s: float
    n: int


@dataclass(frozen=True)
class Samples:
    """Measurements of one device. An op class without samples falls back on the efficiency factors."""

    linear: tuple[LinearSample, ...] = ()
    attention_prefill: tuple[AttentionSample, ...] = ()
    attention_decode: tuple[AttentionSample, ...] = ()


@dataclass(frozen=True)
class CpuProfile:
    """The host. `memory_bytes_per_s` is the read bandwidth of `threads` threads, copy_bytes_per_s what memcpy moves.

    dispatch_s: the executor's own cost of one block op. step_overhead_s: Python, sampling and bookkeeping of one step.
    """

    name: str
    threads: int
    memory_bytes: int
    memory_bytes_per_s: float
    copy_bytes_per_s: float
    peak_flops_per_s: Mapping[str, float]
    efficiency: Mapping[OpClass, Efficiency]
    dispatch_s: float
    step_overhead_s: float
    samples: Samples = field(default_factory=Samples)


@dataclass(frozen=True)
class GpuProfile:
    """The accelerator. dispatch_s: the executor's own cost of one block op, launches apart (they are in fixed_s)."""

    name: str
    memory_bytes: int
    memory_bytes_per_s: float
    peak_flops_per_s: Mapping[str, float]
    efficiency: Mapping[OpClass, Efficiency]
    dispatch_s: float
    samples: Samples = field(default_factory=Samples)


@dataclass(frozen=True)
class LinkProfile:
    """The way between them: pinned copies of whole blocks, each way. `fixed_s` is for one copy.

    pageable_*: rates from and to memory that is not pinned, where they were measured.
    """

    name: str
    h2d_bytes_per_s: float
    d2h_bytes_per_s: float
    eff_h2d: float
    eff_d2h: float
    fixed_s: float
    pageable_h2d_bytes_per_s: float | None = None
    pageable_d2h_bytes_per_s: float | None = None


@dataclass(frozen=True)
class HardwareProfile:
    """One machine. Without a GPU both `gpu` and `link` are None.

    fingerprint: what identifies the host that was measured (empty for nominal profiles). sources: for a dotted key, or
    a prefix of one, where its number is from. cpu_one_thread: the same host measured with a single thread, which is
    what a device has when two threads are split in two budgets. noisy: repeated measurements disagreed.
    """

    name: str
    kind: Kind
    cpu: CpuProfile
    gpu: GpuProfile | None = None
    link: LinkProfile | None = None
    fingerprint: Mapping[str, str | int | float | None] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    cpu_one_thread: CpuProfile | None = None
    noisy: bool = False

    def __post_init__(self) -> None:
        if (self.gpu is None) != (self.link is None):
            raise ValueError("a profile has both a GPU and a link, or neither")

    def to_json(self) -> dict[str, Any]:
        """The JSON object, plain dicts and lists throughout."""
        from flexinfer.estimator.profile_json import profile_to_json

        return profile_to_json(self)

    @staticmethod
    def from_json(data: object, where: str = "profile") -> HardwareProfile:
        """Checks every key. Raises ProfileError: one line that names the key and `where` it was read."""
        from flexinfer.estimator.profile_json import profile_from_json

        return profile_from_json(data, where)

    @staticmethod
    def load(profile: str | Path) -> HardwareProfile:
        """A file, or the name of a shipped profile. Raises ProfileError."""
        from flexinfer.estimator.profile_json import load_profile

        return load_profile(profile)

    def save(self, path: str | Path) -> None:
        """Writes a temporary file beside `path` and renames it, so that no reader sees half a profile."""
        from flexinfer.estimator.profile_json import save_profile

        save_profile(self, path)
