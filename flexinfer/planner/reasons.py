"""Why a plan won or lost, and what it does, in words."""

from __future__ import annotations

from collections.abc import Sequence

from flexinfer.plan import Candidate, PhasePlan
from flexinfer.spec.model_spec import ModelSpec
from flexinfer.units import format_time

ALIKE = 1.001
"""Plans whose times differ by less than a tenth of a percent are called equally fast."""


def describe(spec: ModelSpec, phase_plan: PhasePlan) -> str:
    """What runs where, in one clause."""
    count = spec.num_layers
    on_gpu = sum(p.mlp.compute == "gpu" for p in phase_plan.layers)
    streamed = sum(p.mlp.streamed for p in phase_plan.layers)
    if on_gpu == 0:
        return f"the CPU computes all {count} layers"
    if on_gpu < count:
        return f"the last {on_gpu} of {count} layers compute on the GPU and the other {count - on_gpu} on the CPU"
    if streamed == count:
        return f"all {count} layers compute on the GPU, their weights streaming over the link"
    if streamed:
        resident = count - streamed
        return f"all {count} layers compute on the GPU, {streamed} of them streaming over the link, {resident} resident"
    return f"all {count} layers are resident and compute on the GPU"


def describe_kv(phase_plan: PhasePlan) -> str:
    """Where the KV of layers that compute on the GPU lies, if not simply beside them."""
    streamed = sum(p.kv_streamed for p in phase_plan.layers)
    delegated = sum(p.delegated for p in phase_plan.layers)
    if streamed:
        return f"; the KV of {streamed} layers lies on the host and streams"
    if delegated:
        return f"; the KV of {delegated} layers lies on the host, where the CPU attends over it"
    return ""


def binding(candidate: Candidate, phase: str) -> str:
    """The engine that binds a phase, as a clause."""
    bound = candidate.prefill.bound if phase == "prefill" else candidate.decode.bound
    return "there is nothing to do" if bound == "nothing to do" else f"{bound} binds"


def winner_reason(spec: ModelSpec, chosen: Candidate, others: Sequence[Candidate]) -> str:
    """One line: what the plan does in each phase, and over how many it won."""
    prefill = f"prefill: {describe(spec, chosen.plan.prefill)} ({binding(chosen, 'prefill')})"
    decode = f"decode: {describe(spec, chosen.plan.decode)} ({binding(chosen, 'decode')})"
    fitting = 1 + sum(c.fits for c in others)
    rank = f"fastest of {fitting} that fit" if fitting > 1 else "the only one that fits" if others else "as asked for"
    return f"{rank}; {prefill}; {decode}"


def loser_reason(candidate: Candidate, chosen: Candidate) -> str:
    """One line: how much slower, and the phase that costs it most."""
    slower_s = candidate.times.e2e_s - chosen.times.e2e_s
    if candidate.times.e2e_s <= chosen.times.e2e_s * ALIKE:
        return f"no faster than {chosen.name}, which is kept as the simpler or first of equals"
    losses = {
        "prefill": candidate.prefill.time_s - chosen.prefill.time_s,
        "switch": candidate.times.switch_s - chosen.times.switch_s,
        "decode": candidate.decode.time_s - chosen.decode.time_s,
    }
    worst = max(losses, key=lambda phase: losses[phase])
    return f"{format_time(slower_s)} slower than {chosen.name}: {_loss(worst, candidate, chosen)}"


def _loss(worst: str, candidate: Candidate, chosen: Candidate) -> str:
    if worst == "switch":
        return f"moving KV and weights between the phases takes {format_time(candidate.times.switch_s)}"
    if worst == "prefill":
        ours, theirs, unit = candidate.prefill.time_s, chosen.prefill.time_s, ""
    else:
        ours, theirs, unit = candidate.times.tpot_s or 0.0, chosen.times.tpot_s or 0.0, " a token"
    return f"its {worst} takes {format_time(ours)}{unit} against {format_time(theirs)} ({binding(candidate, worst)})"
