"""The estimate of a plan: both phases, the switch between them, and what crosses the link.

Prefill is one pass. Decode is integrated over its steps: a pass is priced at two of them, chosen so that the sum over
all is exact for times that grow linearly with the context, and close where the engine that binds changes on the way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from flexinfer.estimator.layers import PassCosts
from flexinfer.estimator.passes import Pass
from flexinfer.estimator.profile import HardwareProfile
from flexinfer.estimator.tally import ENGINES, Tally
from flexinfer.estimator.traffic import held_tokens, plan_traffic, switch_traffic
from flexinfer.plan import Phase, PhaseEstimate, PhasePlan, Plan, Times
from flexinfer.schedule.buffers import kv_moves, peak_bytes
from flexinfer.spec.model_spec import ModelSpec
from flexinfer.spec.workload import Workload


def estimate(
    spec: ModelSpec, plan: Plan, workload: Workload, profile: HardwareProfile
) -> tuple[PhaseEstimate, PhaseEstimate, Times]:
    """(prefill, decode, both together) of a plan on a machine.

    Raises ValueError for a plan that uses a GPU which the profile has not.
    """
    costs = PassCosts(spec, workload, profile)
    prefill = phase_estimate(costs, plan.prefill, "prefill")
    decode = phase_estimate(costs, plan.decode, "decode")
    return prefill, decode, total_times(costs, plan, prefill, decode)


def total_times(costs: PassCosts, plan: Plan, prefill: PhaseEstimate, decode: PhaseEstimate) -> Times:
    """TTFT, TPOT, the switch, link bytes and memory peaks of a plan whose phases are priced already."""
    spec, workload = costs.spec, costs.workload
    switch_s = switch_seconds(costs, plan)
    traffic = plan_traffic(spec, plan, workload)
    peaks = peak_bytes(spec, plan, workload)
    steps = workload.decode_steps
    return Times(
        ttft_s=prefill.time_s,
        tpot_s=decode.time_s / steps if steps else None,
        e2e_s=prefill.time_s + switch_s + decode.time_s,
        switch_s=switch_s,
        h2d_bytes=traffic.h2d,
        d2h_bytes=traffic.d2h,
        gpu_peak_bytes=peaks["gpu"],
        cpu_peak_bytes=peaks["cpu"],
    )


def switch_seconds(costs: PassCosts, plan: Plan) -> float:
    """Moving KV and loading what only decode has resident. What goes down makes room for what comes up."""
    traffic = switch_traffic(costs.spec, plan, costs.workload)
    if not traffic.h2d and not traffic.d2h:
        return 0.0
    copies = 2 * len(kv_moves(plan))
    return costs.link.d2h(traffic.d2h, copies) + costs.link.h2d(traffic.h2d, copies)


def phase_estimate(costs: PassCosts, phase_plan: PhasePlan, phase: Phase) -> PhaseEstimate:
    """One phase: seconds, the busy seconds of each engine, and which of them binds. Decode is all its steps."""
    step = Pass(costs, phase_plan, phase)
    time_s, total = 0.0, Tally()
    start = held_tokens(phase, costs.workload)
    passes = 1 if phase == "prefill" else costs.workload.decode_steps
    for number, (held, weight) in enumerate(_nodes(start, passes)):
        one = step.time(held)
        fill_s = one.first_s - one.steady_s if number == 0 else 0.0
        time_s += weight * one.steady_s + fill_s
        total.merge(one.tally, weight)
    terms = {engine: total.busy[engine] for engine in ENGINES}
    return PhaseEstimate(phase_plan.strategy, time_s, terms, total.bound())


def _nodes(start: int, passes: int) -> Iterable[tuple[int, float]]:
    """(held tokens, weight) at which passes are priced; the weights add up to the number of passes.

    More than two are replaced by the two nodes one standard deviation of the steps on either side of their mean.
    """
    if passes <= 2:
        return [(start + step, 1.0) for step in range(passes)]
    middle = (passes - 1) / 2
    low = round(middle - math.sqrt((passes * passes - 1) / 12))
    return [(start + low, passes / 2), (start + passes - 1 - low, passes / 2)]
