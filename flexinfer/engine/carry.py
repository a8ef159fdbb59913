"""KV from one generation to the next: rows that stay valid are carried into the new plan's buffers, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from flexinfer.cache import KvLayer, kv_layer
from flexinfer.engine.memory import Memory
from flexinfer.engine.residents import kv_move, run_all
from flexinfer.machine.base import Machine
from flexinfer.plan import Home, PhasePlan
from flexinfer.schedule.buffers import Buffer, kv_layer_bytes
from flexinfer.spec.model_spec import ModelSpec
from flexinfer.spec.workload import Workload


@dataclass(frozen=True)
class HeldKv:
    """What the cache holds after a generation: where each layer's KV lies, in what shape, and for which tokens.

    tokens: per sequence the ids whose rows are written, in order.
    """

    workload: Workload
    homes: tuple[Home, ...]
    tokens: tuple[tuple[int, ...], ...]

    def covers(self, workload: Workload) -> bool:
        """Whether the rows of its cached tokens are there, for each of its sequences."""
        return len(self.tokens) == workload.batch and min(map(len, self.tokens)) >= workload.cached_tokens

    def common_prefix(self, prompts: Sequence[Sequence[int]]) -> int:
        """Leading tokens that every prompt shares with its sequence; at least one token of each is left to compute."""
        if len(prompts) != len(self.tokens):
            return 0
        return min(_common(held, prompt) for held, prompt in zip(self.tokens, prompts, strict=True))

    def buffers(self, spec: ModelSpec) -> list[Buffer]:
        nbytes = kv_layer_bytes(spec, self.workload)
        return [Buffer(f"kv.{layer}", home, "kv", nbytes) for layer, home in enumerate(self.homes)]


def _common(held: Sequence[int], prompt: Sequence[int]) -> int:
    for index, (a, b) in enumerate(zip(held, prompt[:-1], strict=False)):
        if a != b:
            return index
    return min(len(held), len(prompt) - 1)


def carry_kv(
    held: HeldKv, phase_plan: PhasePlan, workload: Workload, spec: ModelSpec, memory: Memory, machine: Machine
) -> None:
    """Leaves each layer's KV in a buffer of the new capacity at its new home, with the cached rows in place.

    Layers that leave the GPU go first, and those that come to it last: it never holds more than the old KV or the new.
    """
    carrier = _Carrier(held, workload, spec, memory, machine)
    moves = [(layer, held.homes[layer], placement.kv) for layer, placement in enumerate(phase_plan.layers)]
    for layer, old, new in sorted(moves, key=lambda move: (move[2] == "gpu") - (move[1] == "gpu")):
        if old != new or workload.kv_capacity != held.workload.kv_capacity:
            carrier.carry(layer, old, new)


@dataclass(frozen=True)
class _Carrier:
    """Moves one layer's cached rows at a time from a buffer of the old shape to one of the new."""

    held: HeldKv
    workload: Workload
    spec: ModelSpec
    memory: Memory
    machine: Machine

    def carry(self, layer: int, old: Home, new: Home) -> None:
        name, aside = f"kv.{layer}", f"old_kv.{layer}"
        nbytes = kv_layer_bytes(self.spec, self.workload)
        self.memory.rename((old, name), aside)
        if old == new == "gpu" and not self.machine.arena("gpu").has_room(nbytes):
            # Not both at once, then: by way of the host
            self.memory.allocate([Buffer(aside, "cpu", "kv", kv_layer_bytes(self.spec, self.held.workload))])
            self._move(layer, ("cpu", aside), ("gpu", aside))
            self.memory.release(("gpu", aside))
            old = "cpu"
        self.memory.allocate([Buffer(name, new, "kv", nbytes)])
        self.machine.zero(self.memory.tensor(new, name))
        self._move(layer, (new, name), (old, aside))
        self.memory.release((old, aside))

    def _move(self, layer: int, to: tuple[Home, str], source: tuple[Home, str]) -> None:
        target, rows = self._view(*to), self._view(*source)
        if to[0] != source[0]:
            run_all([kv_move(layer, to[0], target, rows, self.workload.cached_tokens, self.machine)], self.machine)
            return
        cached = self.workload.cached_tokens
        for a, b in zip(target.filled(cached), rows.filled(cached), strict=True):
            self.machine.copy(a, b)
        self.machine.drain()

    def _view(self, device: Home, name: str) -> KvLayer:
        workload = self.held.workload if name.startswith("old_") else self.workload
        shape = (workload.batch, self.spec.num_kv_heads, workload.kv_capacity, self.spec.head_dim)
        return kv_layer(self.memory.tensor(device, name), shape, getattr(torch, self.spec.weight_dtype))
