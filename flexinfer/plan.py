"""Plans as data: what the planner writes, the schedule reads and the executor follows. No torch.

A PhasePlan says for every layer and block where its weights lie, where it computes, and where its KV lives. The
executor knows no strategy names: everything it does follows from these placements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Home = Literal["gpu", "cpu"]
Phase = Literal["prefill", "decode"]


@dataclass(frozen=True)
class BlockPlacement:
    """One block: the home of the weights it computes with, and the device that computes it."""

    weights: Home
    compute: Home

    def __post_init__(self) -> None:
        if self.weights == "gpu" and self.compute == "cpu":
            raise ValueError("a block computed on the CPU uses the CPU's copy of its weights")

    @property
    def streamed(self) -> bool:
        """Weights cross the link each time the block computes."""
        return self.compute == "gpu" and self.weights == "cpu"


ON_CPU = BlockPlacement(weights="cpu", compute="cpu")
ON_GPU = BlockPlacement(weights="gpu", compute="gpu")
STREAMED = BlockPlacement(weights="cpu", compute="gpu")


@dataclass(frozen=True)
class LayerPlacement:
    """One layer: its two blocks, the home of its KV between steps, and where attention over the KV is computed.

    With `kv` on the CPU and `attend` on the GPU, KV streams through a GPU buffer and new rows go back. With the
    attention block's matrices on the GPU and `attend` on the CPU, q, k and v go down and the context comes up.
    """

    attention: BlockPlacement
    mlp: BlockPlacement
    kv: Home
    attend: Home

    def __post_init__(self) -> None:
        if self.attend == "gpu" and self.attention.compute == "cpu":
            raise ValueError("attention over KV on the GPU needs the attention block's matrices there too")
        if self.attend == "cpu" and self.kv == "gpu":
            raise ValueError("the CPU attends over KV that lies in its own memory")

    @property
    def kv_streamed(self) -> bool:
        return self.kv == "cpu" and self.attend == "gpu"

    @property
    def delegated(self) -> bool:
        """Matrices on the GPU, attention beside its KV on the CPU."""
        return self.attention.compute == "gpu" and self.attend == "cpu"


@dataclass(frozen=True)
class PhasePlan:
    """One phase. `strategy` is a label for people; everything else is what happens.

    resident: layers whose weights have a copy in GPU memory during this phase, whether it uses them or not.
    embed: where embedding rows are gathered. head_slices: pieces in which a streamed head crosses the link.
    prefetch_depth: weight staging buffers on the GPU when any block streams.
    """

    strategy: str
    layers: tuple[LayerPlacement, ...]
    resident: tuple[int, ...] = ()
    embed: Home = "cpu"
    head: BlockPlacement = ON_CPU
    head_slices: int = 1
    prefetch_depth: int = 2

    def __post_init__(self) -> None:
        for name in ("head_slices", "prefetch_depth"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for index, layer in enumerate(self.layers):
            if "gpu" in (layer.attention.weights, layer.mlp.weights) and index not in self.resident:
                raise ValueError(f"layer {index} computes with resident weights but is not resident")

    @property
    def uses_gpu(self) -> bool:
        return "gpu" in (self.embed, self.head.compute) or any(
            "gpu" in (p.attention.compute, p.mlp.compute, p.kv) for p in self.layers
        )


@dataclass(frozen=True)
class Plan:
    """A plan for both phases. `decode` is present even when one token is asked for."""

    prefill: PhasePlan
    decode: PhasePlan

    @property
    def name(self) -> str:
        return f"{self.prefill.strategy}/{self.decode.strategy}"

    @property
    def gpu_layers(self) -> int:
        """M: layers whose weights are resident on the GPU, in the decode phase."""
        return len(self.decode.resident)


@dataclass(frozen=True)
class PhaseEstimate:
    """Predicted time of one phase: seconds of each engine, and which of them binds."""

    strategy: str
    time_s: float
    terms: Mapping[str, float]
    bound: str


@dataclass(frozen=True)
class Times:
    """What a run is predicted to take, and what it is measured to take: contract's TIMES."""

    ttft_s: float
    tpot_s: float | None
    e2e_s: float
    switch_s: float
    h2d_bytes: int
    d2h_bytes: int
    gpu_peak_bytes: int
    cpu_peak_bytes: int
    rss_peak_bytes: int | None = None

    def to_json(self) -> dict[str, Any]:
        out = asdict(self)
        if self.rss_peak_bytes is None:
            del out["rss_peak_bytes"]
        return out


@dataclass(frozen=True)
class Candidate:
    """One plan with its estimate: contract's CANDIDATE."""

    plan: Plan
    prefill: PhaseEstimate
    decode: PhaseEstimate
    times: Times
    fits: bool
    why: str = field(default="", compare=False)

    @property
    def name(self) -> str:
        return self.plan.name

    def to_json(self) -> dict[str, Any]:
        times = self.times.to_json()
        return {
            "name": self.name,
            "prefill": asdict(self.prefill),
            "decode": asdict(self.decode),
            "gpu_layers": self.plan.gpu_layers,
            **times,
            "fits": self.fits,
            "why": self.why,
        }
