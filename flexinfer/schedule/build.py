"""PhasePlan -> Schedule: the ops of one step, in program order, with staging slots and prefetch.

The builder knows no strategy: it walks the layers once and lets each placement decide. What streams (blocks and
head slices in one pool of slots, KV in another) takes the slots of its pool in turn; a load is issued right after
the last use of its slot, so that loads run ahead of compute. In decode the first loads of a step are issued in
the step before.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from flexinfer.plan import BlockPlacement, Home, LayerPlacement, Phase, PhasePlan
from flexinfer.schedule.buffers import KV_STAGES
from flexinfer.schedule.depend import loop_with_dependencies, with_dependencies
from flexinfer.schedule.ops import Engine, Op, Schedule
from flexinfer.spec.workload import Workload

COMPUTE: dict[Home, Engine] = {"gpu": "compute", "cpu": "cpu"}
SEND: dict[Home, Engine] = {"gpu": "h2d", "cpu": "d2h"}
"""The engine that brings something to a device."""


def build(phase_plan: PhasePlan, phase: Phase, workload: Workload) -> Schedule:
    """The schedule of one phase; prefill is a body that runs once, with no prologue."""
    steps = _Steps(phase_plan, phase, workload)
    steps.emit()
    if phase == "prefill":
        return Schedule(phase, workload, (), with_dependencies(sum(steps.with_loads(loop=False), [])))
    return Schedule(phase, workload, *loop_with_dependencies(*steps.with_loads(loop=True)))


@dataclass
class _Pool:
    """Staging slots taken in turn. `last_use` is the index of the op after which an item's slot is free again."""

    slots: int
    loads: list[Op | None] = field(default_factory=list)
    last_use: list[int] = field(default_factory=list)

    def next_slot(self) -> int:
        return len(self.loads) % self.slots

    def take(self, load: Op | None, last_use: int) -> None:
        self.loads.append(load)
        self.last_use.append(last_use)

    def previous_use(self, item: int) -> int | None:
        """Last use of the item's slot earlier in the same step."""
        return self.last_use[item - self.slots] if item >= self.slots else None

    def final_use(self, item: int) -> int:
        """Last use in a step of the slot that the item takes first."""
        return self.last_use[max(range(item, len(self.loads), self.slots))]


class _Steps:
    """Emits the ops of one step without their loads, which `with_loads` puts in place."""

    def __init__(self, phase_plan: PhasePlan, phase: Phase, workload: Workload) -> None:
        self.plan = phase_plan
        self.reads_cache = phase == "decode" or workload.cached_tokens > 0
        self.ops: list[Op] = []
        self.weights = _Pool(phase_plan.prefetch_depth)
        self.kv = _Pool(KV_STAGES)
        self.hidden: Home = phase_plan.embed

    def with_loads(self, loop: bool) -> tuple[list[Op], list[Op]]:
        """(loads before the first step, body in which every other load follows the previous use of its slot)."""
        before: list[Op] = []
        behind: dict[int, list[Op]] = {}
        for pool in (self.weights, self.kv):
            for item, load in enumerate(pool.loads):
                if load is None:
                    continue
                use = pool.previous_use(item)
                if use is not None:
                    behind.setdefault(use, []).append(load)
                    continue
                before.append(load)
                if loop:
                    behind.setdefault(pool.final_use(item), []).append(replace(load, next_step=True))
        body = [op for index, step in enumerate(self.ops) for op in (step, *behind.get(index, []))]
        return before, body

    def emit(self) -> None:
        self._add(Op("fill", "cpu", ("cpu:tokens",), ("cpu:inputs",)))
        if self.plan.uses_gpu:
            self._add(Op("send_inputs", "h2d", ("cpu:inputs",), ("gpu:inputs",), block="inputs"))
        home = self.plan.embed
        reads = (f"{home}:inputs", f"{home}:weights.embed")
        self._add(Op("embed", COMPUTE[home], reads, (f"{home}:hidden",), block="embed"))
        for layer, placement in enumerate(self.plan.layers):
            self._attention(layer, placement)
            self._mlp(layer, placement)
        self._head(self.plan.head)
        self._add(Op("sample", "cpu", ("cpu:logits",), ("cpu:tokens",)))

    def _add(self, op: Op) -> int:
        self.ops.append(op)
        return len(self.ops) - 1

    def _move_hidden(self, to: Home, layer: int) -> None:
        if self.hidden != to:
            op = Op("send_hidden", SEND[to], (f"{self.hidden}:hidden",), (f"{to}:hidden",), layer, "hidden")
            self._add(op)
            self.hidden = to

    def _weights(self, layer: int, block: str, placement: BlockPlacement) -> tuple[str, int | None, Op | None]:
        """Where the block's weights are read from; their staging slot and load when they stream."""
        name = f"weights.{layer}.{block}"
        if not placement.streamed:
            return f"{placement.compute}:{name}", None, None
        slot = self.weights.next_slot()
        stage = f"gpu:stage.{slot}"
        return stage, slot, Op("load_weights", "h2d", (f"cpu:{name}",), (stage,), layer, block, slot)

    def _attention(self, layer: int, placement: LayerPlacement) -> None:
        self._move_hidden(placement.attention.compute, layer)
        weights, slot, load = self._weights(layer, "attention", placement.attention)
        if placement.delegated:
            last_use = self._delegated_attention(layer, weights, slot)
        else:
            last_use = self._whole_attention(layer, placement, weights, slot)
        if slot is not None:
            self.weights.take(load, last_use)

    def _whole_attention(self, layer: int, placement: LayerPlacement, weights: str, slot: int | None) -> int:
        home = placement.attention.compute
        kv = f"{placement.kv}:kv.{layer}"
        kv_slot = self.kv.next_slot() if placement.kv_streamed else None
        stage = kv if kv_slot is None else f"gpu:kv_stage.{kv_slot}"
        held = (f"{home}:hidden", stage)
        op = Op("attention", COMPUTE[home], (f"{home}:inputs", weights, *held), held, layer, "attention", slot, kv_slot)
        use = self._add(op)
        if kv_slot is not None:
            load = Op("load_kv", "h2d", (kv,), (stage,), layer, "kv", kv_slot=kv_slot) if self.reads_cache else None
            stored = self._add(Op("store_kv", "d2h", (stage,), (kv,), layer, "kv", kv_slot=kv_slot))
            self.kv.take(load, stored)
        return use

    def _delegated_attention(self, layer: int, weights: str, slot: int | None) -> int:
        gpu_qkv, cpu_qkv = ("gpu:q", "gpu:k", "gpu:v"), ("cpu:q", "cpu:k", "cpu:v")
        kv, block = f"cpu:kv.{layer}", "attention"
        self._add(Op("qkv", "compute", ("gpu:inputs", weights, "gpu:hidden"), gpu_qkv, layer, block, slot))
        self._add(Op("send_qkv", "d2h", gpu_qkv, cpu_qkv, layer, block))
        self._add(Op("attend", "cpu", ("cpu:inputs", *cpu_qkv, kv), (kv, "cpu:context"), layer, block))
        self._add(Op("send_context", "h2d", ("cpu:context",), ("gpu:context",), layer, block))
        reads = (weights, "gpu:context", "gpu:hidden")
        return self._add(Op("attention_out", "compute", reads, ("gpu:hidden",), layer, block, slot))

    def _mlp(self, layer: int, placement: LayerPlacement) -> None:
        home = placement.mlp.compute
        self._move_hidden(home, layer)
        weights, slot, load = self._weights(layer, "mlp", placement.mlp)
        hidden = f"{home}:hidden"
        use = self._add(Op("mlp", COMPUTE[home], (weights, hidden), (hidden,), layer, "mlp", slot))
        if slot is not None:
            self.weights.take(load, use)

    def _head(self, placement: BlockPlacement) -> None:
        here, home = self.hidden, placement.compute
        self._add(Op("last", COMPUTE[here], (f"{here}:inputs", f"{here}:hidden"), (f"{here}:last",), block="head"))
        if here != home:
            self._add(Op("send_last", SEND[home], (f"{here}:last",), (f"{home}:last",), block="head"))
        if placement.streamed:
            self._streamed_head()
        else:
            reads = (f"{home}:last", f"{home}:weights.head")
            self._add(Op("head", COMPUTE[home], reads, (f"{home}:logits",), block="head"))
        if home == "gpu":
            self._add(Op("send_logits", "d2h", ("gpu:logits",), ("cpu:logits",), block="logits"))

    def _streamed_head(self) -> None:
        reads = ("gpu:last", "gpu:weights.head_norm")
        self._add(Op("head_input", "compute", reads, ("gpu:head_input",), block="head"))
        for part in range(self.plan.head_slices):
            slot = self.weights.next_slot()
            stage = f"gpu:stage.{slot}"
            load = Op("load_head", "h2d", ("cpu:weights.head",), (stage,), None, "head", slot, part=part)
            reads = ("gpu:head_input", stage)
            use = self._add(Op("head_slice", "compute", reads, ("gpu:logits",), None, "head", slot, part=part))
            self.weights.take(load, use)
