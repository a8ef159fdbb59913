"""The search: every pair of strategies with its best residency, those that fit in front, the fastest first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from flexinfer.estimator import HardwareProfile
from flexinfer.estimator.closed_form import total_times
from flexinfer.plan import Candidate, Home
from flexinfer.planner.break_even import break_even
from flexinfer.planner.memory import shortage
from flexinfer.planner.reasons import loser_reason, winner_reason
from flexinfer.planner.refusal import refusal
from flexinfer.planner.request import PlanRequest
from flexinfer.planner.space import Option, Pair, Space
from flexinfer.planner.strategies import STRATEGIES
from flexinfer.spec.model_spec import ModelSpec
from flexinfer.spec.workload import Workload

ORDER = list(STRATEGIES)


@dataclass(frozen=True)
class Choice:
    """The plan to run, and everything that it was weighed against, in the order of preference."""

    chosen: Candidate
    candidates: tuple[Candidate, ...]
    break_even: Mapping[str, int | None]


def search(spec: ModelSpec, workload: Workload, profile: HardwareProfile, request: PlanRequest | None = None) -> Choice:
    """The fastest plan that fits, with the best of every other pair of strategies beside it.

    The same question always has the same answer. Raises UserError for a request that the model or the machine cannot
    have, DoesNotFitError (with the sums and the nearest request that fits) when nothing fits.
    """
    request = request or PlanRequest()
    request.check_layers(spec)
    space = Space(spec, workload, profile, request.limits(profile))
    found = [c for pair in request.pairs(profile) if (c := pair_candidate(space, pair, request.gpu_layers)) is not None]
    ranked = sorted(found, key=_preference)
    if not ranked or not ranked[0].fits:
        raise refusal(spec, workload, profile, request, ranked)
    chosen = replace(ranked[0], why=winner_reason(spec, ranked[0], ranked[1:]))
    losers = (c if not c.fits else replace(c, why=loser_reason(c, chosen)) for c in ranked[1:])
    return Choice(chosen, (chosen, *losers), break_even(spec, workload, profile))


def _preference(candidate: Candidate) -> tuple[object, ...]:
    """Fitting, fast, then the simpler: one strategy for both phases, fewer residents."""
    prefill, decode = candidate.prefill.strategy, candidate.decode.strategy
    rank = (ORDER.index(prefill), ORDER.index(decode))  # type: ignore[arg-type]
    return (not candidate.fits, candidate.times.e2e_s, prefill != decode, candidate.plan.gpu_layers, rank)


def pair_candidate(space: Space, pair: Pair, asked: int | None) -> Candidate | None:
    """A pair's best plan; if none fits, its smallest, with what is missing; None if the pair cannot have `asked`."""
    counts = space.resident_counts(pair, asked)
    if not counts:
        return None
    for variants in (space.variants(pair), space.fallbacks(pair)):
        options = [o for v in variants if (o := space.best(v, counts)) is not None]
        for option in sorted(options, key=lambda o: o.e2e_s):
            candidate = _candidate(space, option)
            if candidate.fits:
                return candidate
    variant = min(space.all_variants(pair), key=lambda v: space.excess_bytes(v, counts[0]))
    return _candidate(space, space.option(variant, counts[0]))


def _candidate(space: Space, option: Option) -> Candidate:
    plan = space.plan(option.variant, option.prefill_layout, option.decode_layout)
    first, second = option.variant.pair
    prefill = space.phase_time(first, "prefill", option.prefill_layout)
    decode = space.phase_time(second, "decode", option.decode_layout)
    times = total_times(space.costs, plan, prefill, decode)
    peaks: dict[Home, int] = {"gpu": times.gpu_peak_bytes, "cpu": times.cpu_peak_bytes}
    missing = shortage(space.spec, plan, space.workload, peaks, space.limits)
    return Candidate(plan, prefill, decode, times, not missing, f"does not fit: {missing}" if missing else "")
