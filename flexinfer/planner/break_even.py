"""Where the better device changes: prompt lengths for prefill, batches for decode."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from flexinfer.estimator import HardwareProfile
from flexinfer.estimator.closed_form import phase_estimate
from flexinfer.estimator.layers import PassCosts
from flexinfer.plan import Home
from flexinfer.planner.strategies import Layout, cpu, offload
from flexinfer.spec.model_spec import ModelSpec
from flexinfer.spec.workload import Workload

MOST_BATCH = 4096


def break_even(spec: ModelSpec, workload: Workload, profile: HardwareProfile) -> Mapping[str, int | None]:
    """prefill_tokens: new tokens a sequence from which streaming all weights beats the CPU, at this batch.

    decode_batch: the largest batch (of those up to 4096) at which the CPU beats streaming all weights in decode, after
    this prompt. None where that never happens, or where there is no GPU. Memory is left out of it.
    """
    if profile.gpu is None:
        return {"prefill_tokens": None, "decode_batch": None}
    longest = max(1, spec.max_positions - workload.cached_tokens)
    prefill = _first(longest, lambda tokens: not _cpu_prefills(spec, replace(workload, prompt_len=tokens), profile))
    loses = _first(MOST_BATCH, lambda batch: not _cpu_decodes(spec, _one_step(workload, batch), profile))
    decode = MOST_BATCH if loses is None else loses - 1
    return {"prefill_tokens": prefill, "decode_batch": decode or None}


def _one_step(workload: Workload, batch: int) -> Workload:
    return replace(workload, batch=batch, new_tokens=2)


def _first(most: int, holds: Callable[[int], bool]) -> int | None:
    """The first of 1..most for which it holds, which it then does for all after; None if for none."""
    if not holds(most):
        return None
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _cpu_prefills(spec: ModelSpec, workload: Workload, profile: HardwareProfile) -> bool:
    """Whether the CPU is the faster in prefill."""
    costs = PassCosts(spec, workload, profile)
    streamed = phase_estimate(costs, offload(spec, Layout(0, 0)), "prefill")
    return phase_estimate(costs, cpu(spec, Layout(0, 0)), "prefill").time_s < streamed.time_s


def _cpu_decodes(spec: ModelSpec, workload: Workload, profile: HardwareProfile) -> bool:
    """Whether the CPU is the faster in decode, wherever streaming has its KV."""
    costs = PassCosts(spec, workload, profile)
    homes: tuple[Home, ...] = ("cpu", "gpu")
    layouts = [Layout(0, 0, attend) for attend in homes] + [Layout(0, spec.num_layers)]
    streamed = min(phase_estimate(costs, offload(spec, layout), "decode").time_s for layout in layouts)
    return phase_estimate(costs, cpu(spec, Layout(0, 0)), "decode").time_s < streamed
