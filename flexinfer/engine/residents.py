"""Weights that stay in GPU memory, and KV that changes home: the loads and moves around the phases."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import cast

import torch

from flexinfer.cache import KvLayer
from flexinfer.engine.bind import resident_views
from flexinfer.engine.memory import Memory
from flexinfer.machine.base import BoundOp, Machine
from flexinfer.plan import Home
from flexinfer.schedule.buffers import Buffer
from flexinfer.schedule.ops import Op
from flexinfer.spec.model_spec import Block, ModelSpec
from flexinfer.weights import WeightStore


def resident_loads(
    buffers: Iterable[Buffer], spec: ModelSpec, store: WeightStore, memory: Memory, machine: Machine
) -> Iterator[BoundOp]:
    """One h2d op for each new GPU weight buffer, which fills it from the CPU's copy."""
    for buffer in buffers:
        if buffer.device == "gpu" and buffer.kind == "weights":
            parts = buffer.name.split(".")
            layer = int(parts[1]) if len(parts) == 3 else None
            block = cast(Block, parts[-1].removesuffix("_norm"))
            targets = resident_views(memory, spec, buffer.name)
            if buffer.name == "weights.embed" and spec.tied_head and ("gpu", "weights.head") in memory:
                targets.pop("tokens.weight")
            yield _load(layer, block, targets, store.block(layer, block), machine)


def _load(
    layer: int | None, block: Block, targets: dict[str, torch.Tensor], source: dict[str, torch.Tensor], machine: Machine
) -> BoundOp:
    def run(params: object) -> int:
        return sum(machine.transfer(view, source[name]) for name, view in targets.items())

    return BoundOp(Op("load_weights", "h2d", layer=layer, block=block), run)


def kv_move(layer: int, to: Home, target: KvLayer, source: KvLayer, tokens: int, machine: Machine) -> BoundOp:
    """One layer's filled KV rows from one device to the other."""

    def run(params: object) -> int:
        pairs = zip(target.filled(tokens), source.filled(tokens), strict=True)
        return sum(machine.transfer(a, b) for a, b in pairs)

    return BoundOp(
        Op("load_kv" if to == "gpu" else "store_kv", "h2d" if to == "gpu" else "d2h", layer=layer, block="kv"), run
    )


def run_all(ops: Iterable[BoundOp], machine: Machine) -> None:
    """Queues the ops and waits for them."""
    for bound in ops:
        machine.submit(bound, None, ())
    machine.drain()
