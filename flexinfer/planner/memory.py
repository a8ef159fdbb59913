"""Memory of phases, priced for thousands of layouts: one look at the buffers for each kind, then arithmetic.

Among layouts of one kind, one more resident layer or one more layer's KV on the GPU changes the sums by a fixed number
of bytes. What the search settles on is checked against `peak_bytes` itself.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

from flexinfer.plan import Home, Phase, PhasePlan, Plan
from flexinfer.planner.strategies import STRATEGIES, Layout, Strategy
from flexinfer.schedule.buffers import (
    aligned,
    block_buffer_bytes,
    device_bytes,
    kv_layer_bytes,
    phase_buffers,
)
from flexinfer.spec.model_spec import Block, ModelSpec
from flexinfer.spec.workload import Workload
from flexinfer.units import format_size

KIND_WORDS = {
    "weights": "weights",
    "kv": "KV cache",
    "staging": "staging",
    "activation": "activations",
    "workspace": "workspace",
}


class PhaseMemory:
    """Bytes of a phase on each device, by layout."""

    def __init__(self, spec: ModelSpec, workload: Workload) -> None:
        self.spec, self.workload = spec, workload
        blocks: tuple[Block, ...] = ("attention", "mlp")
        self.layer_bytes = sum(aligned(block_buffer_bytes(spec, block)) for block in blocks)
        self.kv_bytes = aligned(kv_layer_bytes(spec, workload))
        self._probe = lru_cache(maxsize=None)(self._measure)

    def bytes(self, strategy: Strategy, phase: Phase, layout: Layout) -> tuple[int, int]:
        """(GPU, CPU). A decode without steps holds nothing."""
        if phase == "decode" and not self.workload.decode_steps:
            return 0, 0
        count = self.spec.num_layers
        resident, gpu_kv = layout.resident, _kv_on_gpu(strategy, layout, count)
        same_kind = Layout(
            resident if resident in (0, count) else 1, count if gpu_kv == count else 0, layout.attend, layout.head
        )
        gpu, cpu = self._probe(strategy, phase, same_kind)
        more_kv = gpu_kv - _kv_on_gpu(strategy, same_kind, count)
        more_layers = resident - same_kind.resident if strategy != "gpu" else 0
        return gpu + more_layers * self.layer_bytes + more_kv * self.kv_bytes, cpu - more_kv * self.kv_bytes

    def _measure(self, strategy: Strategy, phase: Phase, layout: Layout) -> tuple[int, int]:
        phase_plan = STRATEGIES[strategy](self.spec, layout)
        buffers = phase_buffers(self.spec, phase_plan, phase, self.workload)
        return device_bytes(buffers, "gpu"), device_bytes(buffers, "cpu")


def _kv_on_gpu(strategy: Strategy, layout: Layout, count: int) -> int:
    """Layers whose KV a strategy puts on the GPU."""
    return {"cpu": 0, "split": layout.resident, "offload": layout.gpu_kv, "gpu": count}[strategy]


def shortage(spec: ModelSpec, plan: Plan, workload: Workload, peaks: dict[Home, int], limits: dict[Home, int]) -> str:
    """What does not fit, with the terms of its sum; "" when everything does."""
    lines = [
        f"the {device.upper()} needs {format_size(peaks[device])} of {format_size(limits[device])} "
        f"({terms_of(spec, plan, workload, device)})"
        for device in limits
        if peaks[device] > limits[device]
    ]
    return "; ".join(lines)


def terms_of(spec: ModelSpec, plan: Plan, workload: Workload, device: Home) -> str:
    """The sum behind a peak, largest first: of the phase that needs more."""
    phases: list[tuple[PhasePlan, Phase]] = [(plan.prefill, "prefill")]
    if workload.decode_steps:
        phases.append((plan.decode, "decode"))
    sums = [_by_kind(spec, phase_plan, phase, workload, device) for phase_plan, phase in phases]
    larger = max(sums, key=lambda kinds: sum(kinds.values()))
    ordered = sorted(larger.items(), key=lambda item: -item[1])
    return ", ".join(f"{KIND_WORDS[kind]} {format_size(nbytes)}" for kind, nbytes in ordered if nbytes)


def _by_kind(spec: ModelSpec, phase_plan: PhasePlan, phase: Phase, workload: Workload, device: Home) -> Counter[str]:
    kinds: Counter[str] = Counter()
    for buffer in phase_buffers(spec, phase_plan, phase, workload):
        if buffer.device == device:
            kinds[buffer.kind] += aligned(buffer.nbytes)
    return kinds
