"""KV from one generation to the next: rows that stay valid are carried into the new plan's buffers, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from flexinfer.cache import kv_layer
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
    """Leaves each layer's KV in a buffer of the new capacity at its new home, with the cached rows in place."""
    shape = (workload.batch, spec.num_kv_heads, workload.kv_capacity, spec.head_dim)
    old_shape = (workload.batch, spec.num_kv_heads, held.workload.kv_capacity, spec.head_dim)
    dtype: torch.dtype = getattr(torch, spec.weight_dtype)
    for layer, placement in enumerate(phase_plan.layers):
        name, old_home = f"kv.{layer}", held.homes[layer]
        if placement.kv == old_home and workload.kv_capacity == held.workload.kv_capacity:
            continue
        memory.rename((old_home, name), f"old_{name}")
        memory.allocate([Buffer(name, placement.kv, "kv", kv_layer_bytes(spec, workload))])
        source = kv_layer(memory.tensor(old_home, f"old_{name}"), old_shape, dtype)
        target = kv_layer(memory.tensor(placement.kv, name), shape, dtype)
        target.zero()
        if placement.kv == old_home:
            for to, rows in zip(
                target.filled(workload.cached_tokens), source.filled(workload.cached_tokens), strict=True
            ):
                machine.copy(to, rows)
            machine.drain()
        else:
            run_all([kv_move(layer, placement.kv, target, source, workload.cached_tokens, machine)], machine)
        memory.release((old_home, f"old_{name}"))
