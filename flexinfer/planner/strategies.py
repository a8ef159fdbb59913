"""Strategies: small functions that fill a PhasePlan. What a strategy means is written here and nowhere else.

Residents and KV on the GPU are always the last layers, so that one number says which: a split then crosses the link
once a pass, and a change of strategy at the switch moves as little KV as it can.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from flexinfer.plan import ON_CPU, ON_GPU, STREAMED, BlockPlacement, Home, LayerPlacement, PhasePlan
from flexinfer.schedule.buffers import head_slices_for
from flexinfer.spec.model_spec import ModelSpec

Strategy = Literal["cpu", "offload", "split", "gpu"]
HeadChoice = Literal["resident", "streamed", "cpu"]

CPU_LAYER = LayerPlacement(ON_CPU, ON_CPU, kv="cpu", attend="cpu")
GPU_LAYER = LayerPlacement(ON_GPU, ON_GPU, kv="gpu", attend="gpu")


def _gpu_computed(weights: BlockPlacement, kv: Home, attend: Home) -> LayerPlacement:
    return LayerPlacement(weights, weights, kv=kv, attend="gpu" if kv == "gpu" else attend)


_OFFLOADED: dict[tuple[bool, Home, Home], LayerPlacement] = {
    (resident, kv, attend): _gpu_computed(ON_GPU if resident else STREAMED, kv, attend)
    for resident in (False, True)
    for kv in ("cpu", "gpu")
    for attend in ("cpu", "gpu")
}
"""Layers that compute on the GPU, by (weights resident, home of the KV, where KV on the host is attended)."""


@dataclass(frozen=True)
class Layout:
    """The numbers behind a phase.

    resident: M, the last layers that have a copy on the GPU, in both phases. gpu_kv: the last layers whose KV offload
    keeps on the GPU. attend: where offload attends over KV on the host. head: where the head goes if the last layer
    computes on the GPU; streaming it is only for offload.
    """

    resident: int
    gpu_kv: int
    attend: Home = "gpu"
    head: HeadChoice = "cpu"


def _residents(spec: ModelSpec, layout: Layout) -> tuple[int, ...]:
    return tuple(range(spec.num_layers - layout.resident, spec.num_layers))


def cpu(spec: ModelSpec, layout: Layout) -> PhasePlan:
    """Everything on the CPU; residents, if the other phase has some, lie unused."""
    return PhasePlan("cpu", (CPU_LAYER,) * spec.num_layers, _residents(spec, layout))


def split(spec: ModelSpec, layout: Layout) -> PhasePlan:
    """The last M layers, their weights and KV on the GPU, the rest on the CPU."""
    layers = (CPU_LAYER,) * (spec.num_layers - layout.resident) + (GPU_LAYER,) * layout.resident
    head = ON_GPU if layout.head == "resident" and layout.resident else ON_CPU
    return PhasePlan("split", layers, _residents(spec, layout), head=head)


def offload(spec: ModelSpec, layout: Layout) -> PhasePlan:
    """All layers compute on the GPU; what is not resident streams. KV beyond `gpu_kv` layers lies on the host."""
    count = spec.num_layers
    streamed, on_host = count - layout.resident, count - layout.gpu_kv
    layers = tuple(
        _OFFLOADED[layer >= streamed, "gpu" if layer >= on_host else "cpu", layout.attend] for layer in range(count)
    )
    head = {"resident": ON_GPU, "streamed": STREAMED, "cpu": ON_CPU}[layout.head]
    slices = head_slices_for(spec) if head.streamed else 1
    return PhasePlan("offload", layers, _residents(spec, layout), head=head, head_slices=slices)


def gpu(spec: ModelSpec, layout: Layout) -> PhasePlan:
    """The whole model resident, embedding and head with it."""
    layers = (GPU_LAYER,) * spec.num_layers
    return PhasePlan("gpu", layers, tuple(range(spec.num_layers)), embed="gpu", head=ON_GPU)


STRATEGIES: dict[Strategy, Callable[[ModelSpec, Layout], PhasePlan]] = {
    "gpu": gpu,
    "cpu": cpu,
    "split": split,
    "offload": offload,
}
"""In the order in which equal times are decided: the simpler first."""
