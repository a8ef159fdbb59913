"""What is said when nothing fits: the device, the terms of the sum, and the nearest requests that do fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from flexinfer.errors import DoesNotFitError
from flexinfer.estimator import HardwareProfile
from flexinfer.plan import Candidate
from flexinfer.planner.request import AUTO, PlanRequest
from flexinfer.planner.space import Pair, Space
from flexinfer.spec.model_spec import ModelSpec
from flexinfer.spec.workload import Workload
from flexinfer.units import format_size


def refusal(
    spec: ModelSpec,
    workload: Workload,
    profile: HardwareProfile,
    request: PlanRequest,
    candidates: Sequence[Candidate],
) -> DoesNotFitError:
    """The error for a request of which no candidate fits; the one that misses least speaks for all."""
    limits = request.limits(profile)

    def missing(candidate: Candidate) -> int:
        times = candidate.times
        return max(0, times.gpu_peak_bytes - limits["gpu"]) + max(0, times.cpu_peak_bytes - limits["cpu"])

    nearest = min(candidates, key=missing)
    advice = ", or ".join(_advice(spec, workload, profile, request))
    what = f"{spec.name}, batch {workload.batch}, {workload.prompt_len} + {workload.new_tokens} tokens"
    return DoesNotFitError(f"{what}, {nearest.name} {nearest.why}; what would fit: {advice}")


def first_fit(
    spec: ModelSpec, workload: Workload, profile: HardwareProfile, request: PlanRequest
) -> tuple[Pair, int] | None:
    """The first pair of strategies, and the most resident layers, that fit; None if nothing does."""
    space = Space(spec, workload, profile, request.limits(profile))
    for pair in request.pairs(profile):
        counts = space.resident_counts(pair, request.gpu_layers)
        for resident in reversed(counts):
            if any(space.fits(variant, resident) for variant in space.all_variants(pair)):
                return pair, resident
    return None


def _advice(spec: ModelSpec, workload: Workload, profile: HardwareProfile, request: PlanRequest) -> Iterator[str]:
    """Requests that fit, each changed in as little as possible."""
    free = replace(request, prefill=AUTO, decode=AUTO, gpu_layers=None)
    settings = list(_other_settings(spec, workload, profile, request))
    batch = _largest_batch(spec, workload, profile, request)
    if batch:
        settings.append(f"a batch of {batch}")
    elif not settings and (batch := _largest_batch(spec, workload, profile, free)):
        settings.append(f"a batch of {batch} with strategies and layers left to the planner")
    yield from settings
    yield from _more_memory(spec, workload, profile, request)


def _other_settings(
    spec: ModelSpec, workload: Workload, profile: HardwareProfile, request: PlanRequest
) -> Iterator[str]:
    """Fewer layers with the same strategies, other strategies with the same layers."""
    if request.gpu_layers is not None:
        fewer = first_fit(spec, workload, profile, replace(request, gpu_layers=None))
        if fewer is not None and fewer[1] < request.gpu_layers:
            yield f"--gpu-layers {fewer[1]}"
    if (request.prefill, request.decode) != (AUTO, AUTO):
        other = first_fit(spec, workload, profile, replace(request, prefill=AUTO, decode=AUTO))
        if other is not None:
            yield _options(other[0])


def _largest_batch(spec: ModelSpec, workload: Workload, profile: HardwareProfile, request: PlanRequest) -> int:
    return _largest(workload.batch, lambda n: _fits(spec, replace(workload, batch=n), profile, request))


def _fits(spec: ModelSpec, workload: Workload, profile: HardwareProfile, request: PlanRequest) -> bool:
    return first_fit(spec, workload, profile, request) is not None


def _options(pair: Pair) -> str:
    return f"--strategy {pair[0]}" if pair[0] == pair[1] else f"--prefill {pair[0]} --decode {pair[1]}"


def _largest(below: int, holds: Callable[[int], bool]) -> int:
    """The largest number below `below` for which it holds, 0 if there is none; what holds for n holds below n."""
    low, high = 0, below
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _more_memory(spec: ModelSpec, workload: Workload, profile: HardwareProfile, request: PlanRequest) -> Iterator[str]:
    """The memory that the leanest plan of the request takes, on each device that is short of it."""
    space = Space(spec, workload, profile, request.limits(profile))
    leanest = min(
        (
            (space.excess_bytes(variant, resident), space.needs(variant, resident))
            for pair in request.pairs(profile)
            for resident in space.resident_counts(pair, request.gpu_layers)[:1]
            for variant in space.all_variants(pair)
        ),
        key=lambda found: found[0],
    )[1]
    short = {device: leanest[device] for device, limit in space.limits.items() if leanest[device] > limit}
    free = {"gpu": request.gpu_free_bytes, "cpu": request.cpu_free_bytes}
    lacking = [d for d, nbytes in short.items() if (limit := free[d]) is not None and nbytes > limit]
    if lacking:  # no option helps
        yield " and ".join(
            f"{_mib(short[d])} of {d.upper()} memory ({format_size(free[d] or 0)} are free)" for d in lacking
        )
    elif short:
        yield " and ".join(f"--{device}-memory {_mib(nbytes)}" for device, nbytes in short.items())


def _mib(nbytes: int) -> str:
    return f"{math.ceil(nbytes / 2**20)}MiB"
