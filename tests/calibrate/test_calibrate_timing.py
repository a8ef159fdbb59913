"""What counts as a measurement: budgets, disturbed calls, and passes that disagree."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from flexinfer.calibrate import timing
from flexinfer.calibrate.timing import Case, Clock, Measurement, Patience, Timed, measure_all, pool, summary, timed_runs


class FakeTime:
    """A clock that calls move forward, and a run queue that some of them make longer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, calls: Iterator[tuple[float, float]]) -> None:
        self.now, self.waited, self.calls = 0.0, 0.0, calls
        monkeypatch.setattr(timing.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(timing, "RunQueue", lambda: self)

    def __enter__(self) -> FakeTime:
        return self

    def __exit__(self, *ignored: object) -> None:
        return None

    def seconds(self) -> float:
        return self.waited

    def call(self) -> None:
        seconds, waited = next(self.calls)
        self.now += seconds
        self.waited += waited


def forever(*calls: tuple[float, float]) -> Iterator[tuple[float, float]]:
    while True:
        yield from calls


def case(call: Callable[..., object]) -> Case:
    return Case("case", tuple, call)


def test_runs_fill_the_budget_and_the_first_call_is_not_among_them(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeTime(monkeypatch, iter([(99.0, 0.0)] + [(0.01, 0.0)] * 100))
    times = timed_runs(case(fake.call), 0.055, Clock()).times
    assert times == pytest.approx([0.01] * 6)


def test_slow_calls_get_a_few_runs_and_very_slow_ones_a_single_one(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = FakeTime(monkeypatch, forever((1.0, 0.0)))
    assert len(timed_runs(case(slow.call), 0.5, Clock()).times) == timing.LEAST_RUNS
    very_slow = FakeTime(monkeypatch, forever((9.0, 0.0)))
    assert len(timed_runs(case(very_slow.call), 0.5, Clock()).times) == 1


def test_disturbed_calls_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeTime(monkeypatch, forever((0.5, 0.4), (0.01, 0.0)))
    timed = timed_runs(case(fake.call), 1.0, Clock(patience=Patience(100.0, 100.0)))
    assert timed.times == pytest.approx([0.01] * timing.RUNS_AMONG_OTHERS)
    assert not timed.disturbed


def test_without_patience_the_few_clean_calls_still_count_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeTime(monkeypatch, forever((0.5, 0.4), (0.01, 0.0)))
    timed = timed_runs(case(fake.call), 1.0, Clock(patience=Patience(0.0)))
    assert timed.times == pytest.approx([0.01] * len(timed.times))


def test_calls_that_are_all_disturbed_end_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeTime(monkeypatch, forever((0.5, 0.4), (0.3, 0.2), (0.7, 0.6), (0.9, 0.8)))
    patience = Patience(left_s=2.0, pass_s=2.0)
    (result,) = measure_all([case(fake.call)], 1.0, Clock(patience=patience))
    assert result.median_s == pytest.approx(0.3)
    assert result.noisy
    assert 0 <= patience.left_s < 0.5


def test_long_calls_leave_patience_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeTime(monkeypatch, forever((0.1, 0.05)))
    patience = Patience(left_s=8.0, pass_s=0.15)
    timed_runs(case(fake.call), 0.03, Clock(patience=patience))
    assert patience.left_s == pytest.approx(7.9)


def test_a_burst_is_timed_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeTime(monkeypatch, forever((0.0, 0.0)))
    waits = []

    def wait() -> None:
        waits.append(fake.now)
        fake.now += 0.8

    assert timed_runs(case(fake.call), 1.0, Clock(wait, burst=4)).times[0] == pytest.approx(0.2)


def test_operands_are_made_outside_the_clock() -> None:
    def slow_operands() -> tuple[float]:
        time.sleep(0.02)
        return (1.0,)

    timed = timed_runs(Case("case", slow_operands, lambda x: x), 1e-5, Clock())
    assert timed.median_s < 0.005


def test_summary_is_median_and_quartile_distance() -> None:
    assert summary([5.0, 1.0, 2.0, 3.0, 100.0]) == Measurement(3.0, 3.0, 5)
    assert summary([2.0, 1.0]) == Measurement(1.5, 1.0, 2)


def refuse() -> Timed:
    raise AssertionError("no third pass was needed")


def test_passes_that_agree_are_pooled() -> None:
    assert pool(Timed([1.0, 1.1]), Timed([1.2, 1.2]), refuse) == Measurement(1.15, pytest.approx(0.1), 4)


def test_third_pass_settles_a_disagreement() -> None:
    result = pool(Timed([8.0] * 4), Timed([1.0] * 4), lambda: Timed([1.1] * 4))
    assert result.median_s == pytest.approx(1.05)
    assert not result.noisy


def test_three_passes_that_all_disagree_are_noisy_and_the_fastest_counts() -> None:
    result = pool(Timed([8.0]), Timed([1.0]), lambda: Timed([3.0]))
    assert (result.median_s, result.noisy) == (1.0, True)
