"""Timing one op: operands laid out before the clock starts, medians with their spread, disturbed calls left out.

Noise has one sign: another process only ever slows a call. Beside a busy one a two-thread product takes 50 times as
long, call after call, since each waits for a thread that is not running; medians and spreads do not show it. The
kernel does: it counts how long our threads were ready and not running. Calls during which they waited do not count,
and while there is patience they cost no budget. With two other busy processes on two cores 4 calls in 10 are clean.

What other guests of a physical machine do shows there least, so a case is also measured in passes that lie seconds
apart: two that agree are pooled, and where they do not a third is made, of which the faster pair that agrees counts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from flexinfer.host import RunQueue

AGREEMENT = 0.25
"""Medians of two passes further apart than this share of the smaller are a sign of a noisy machine."""
LEAST_RUNS = 3
MOST_RUNS = 40
RUNS_AMONG_OTHERS = 7
"""Undisturbed calls are enough where others are at work, so that time remains for other cases."""
OVERDRAFT = 4
"""A case may take this many times its budget to reach LEAST_RUNS; slower ones end with fewer."""
WAITED_SHARE = 0.05
"""A call during which our threads waited for a CPU longer than this share of it was disturbed."""

Call = Callable[..., object]
Prepare = Callable[[], tuple[Any, ...]]


@dataclass(frozen=True)
class Case:
    """One thing to time. `prepare` makes the arguments of one call, outside the clock."""

    what: str
    prepare: Prepare
    call: Call


@dataclass(frozen=True)
class Measurement:
    """Seconds of one call: median, the distance between the quartiles, and how many were timed."""

    median_s: float
    spread_s: float
    n: int
    noisy: bool = False


@dataclass
class Patience:
    """Seconds that disturbed calls may take beside the budgets, over all cases that share this object.

    pass_s: what one pass may take of them. Calls longer than a scheduler's turn are never free of others on a busy
    machine, and would use up what short ones need.
    """

    left_s: float = 8.0
    pass_s: float = 0.15

    def spend(self, seconds: float, spent_in_pass_s: float) -> bool:
        """Whether a disturbed call goes on the patience's account; False when that is used up."""
        if spent_in_pass_s + seconds > self.pass_s or seconds > self.left_s:
            return False
        self.left_s -= seconds
        return True


@dataclass(frozen=True)
class Clock:
    """How calls are timed: `burst` at a time with one `wait` at the end, so that an asynchronous device stays busy."""

    wait: Callable[[], object] = lambda: None
    burst: int = 1
    patience: Patience = field(default_factory=Patience)


@dataclass
class Timed:
    """Seconds of single calls of one pass; `disturbed` when there were not enough without others on the CPU."""

    times: list[float]
    disturbed: bool = False

    @property
    def median_s(self) -> float:
        return statistics.median(self.times)


def timed_runs(case: Case, budget_s: float, clock: Clock) -> Timed:
    """One pass, within the budget but for what LEAST_RUNS needs; the first call is not counted."""
    case.call(*case.prepare())
    clock.wait()
    clean: list[float] = []
    disturbed: list[float] = []
    begin, lost_s = time.perf_counter(), 0.0
    with RunQueue() as queue:
        while not _enough(clean, disturbed, time.perf_counter() - begin - lost_s, budget_s):
            elapsed_s, waited_s = _one_burst(case, clock, queue)
            if waited_s <= WAITED_SHARE * elapsed_s:
                clean.append(elapsed_s / clock.burst)
                continue
            disturbed.append(elapsed_s / clock.burst)
            if clock.patience.spend(elapsed_s, lost_s):
                lost_s += elapsed_s
    if clean:
        return Timed(clean, disturbed=len(clean) < LEAST_RUNS and bool(disturbed))
    # The least disturbed ones come nearest.
    return Timed(sorted(disturbed)[: max(1, len(disturbed) // 4)], disturbed=True)


def _enough(clean: list[float], disturbed: list[float], spent_s: float, budget_s: float) -> bool:
    runs = len(clean) + len(disturbed)
    if len(clean) >= (RUNS_AMONG_OTHERS if disturbed else MOST_RUNS):
        return True
    return runs > 0 and spent_s > budget_s * (1 if runs >= LEAST_RUNS else OVERDRAFT)


def _one_burst(case: Case, clock: Clock, queue: RunQueue) -> tuple[float, float]:
    """Seconds of one burst of calls, and seconds that our threads waited for a CPU meanwhile."""
    operands = [case.prepare() for _ in range(clock.burst)]
    waited_s, start = queue.seconds(), time.perf_counter()
    for arguments in operands:
        case.call(*arguments)
    clock.wait()
    elapsed_s = time.perf_counter() - start
    return elapsed_s, queue.seconds() - waited_s


def summary(times: Sequence[float], noisy: bool = False) -> Measurement:
    """Median and quartile distance; with fewer than four times, the distance of the extremes."""
    ordered = sorted(times)
    count = len(ordered)
    low, high = (count // 4, count - 1 - count // 4) if count >= 4 else (0, count - 1)
    return Measurement(statistics.median(ordered), ordered[high] - ordered[low], count, noisy)


def agree(first: Timed, second: Timed) -> bool:
    low, high = sorted((first.median_s, second.median_s))
    return high - low <= AGREEMENT * low


def pool(first: Timed, second: Timed, again: Callable[[], Timed]) -> Measurement:
    """One figure from two passes, and from a third one made by `again` when they disagree."""
    if not agree(first, second):
        first, second, _ = sorted((first, second, again()), key=lambda timed: timed.median_s)
    if agree(first, second):
        return summary([*first.times, *second.times], first.disturbed or second.disturbed)
    return summary(first.times, noisy=True)


def measure_all(
    cases: Sequence[Case], budget_s: float, clock: Clock | None = None, on_case: Callable[[Case], None] | None = None
) -> list[Measurement]:
    """Measures each case within about `budget_s` seconds, in two passes over the whole list, in the order given."""
    clock = clock or Clock()
    passes: list[list[Timed]] = []
    for _ in range(2):
        timed = []
        for case in cases:
            if on_case:
                on_case(case)
            timed.append(timed_runs(case, budget_s / 2, clock))
        passes.append(timed)
    return [
        pool(first, second, partial(timed_runs, case, budget_s / 2, clock))
        for case, first, second in zip(cases, *passes, strict=True)
    ]
