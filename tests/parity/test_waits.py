"""Every wait of a schedule is there for something: without it, what is computed changes.

Dependencies are taken out one at a time. Either the others still order every conflict, which schedule.check tells, or
the op that is no longer waited for is held up, what is loaded or sent is NaN on its way, and the logits must change.

Waits for host ops cannot be seen so: the walking thread runs those before it queues anything later.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

import flexinfer.engine.engine as engine_module
from flexinfer.engine import Engine
from flexinfer.errors import EngineError
from flexinfer.machine.base import BoundOp
from flexinfer.plan import ON_CPU, ON_GPU, STREAMED, LayerPlacement, Phase, PhasePlan, Plan
from flexinfer.schedule.build import build
from flexinfer.schedule.check import check
from flexinfer.schedule.ops import Op, Schedule
from flexinfer.spec.workload import Workload

PROMPTS, NEW = [[5, 9, 11, 7], [6, 30]], 4
HOLD_UPS_S = (0.01, 0.1, 0.4)
"""Tried in turn until the logits change: on a busy machine a short one may pass unnoticed."""


@dataclass(frozen=True)
class Wait:
    """One dependency: that of op `index` of a part of the schedule on op `on`."""

    part: str
    index: int
    kind: str
    on: int

    def ops(self, schedule: Schedule) -> tuple[Op, Op]:
        """(the op that is waited for, the op that waits)"""
        source = schedule.body if self.kind == "after_previous" else getattr(schedule, self.part)
        return source[self.on], getattr(schedule, self.part)[self.index]

    def taken_from(self, schedule: Schedule) -> Schedule:
        ops = list(getattr(schedule, self.part))
        op = ops[self.index]
        fewer = tuple(on for on in getattr(op, self.kind) if on != self.on)
        ops[self.index] = replace(op, **{self.kind: fewer})
        return replace(schedule, **{self.part: tuple(ops)})


def waits(schedule: Schedule) -> Iterator[Wait]:
    for part in ("prologue", "body"):
        for index, op in enumerate(getattr(schedule, part)):
            for kind in ("after", "after_previous"):
                yield from (Wait(part, index, kind, on) for on in getattr(op, kind))


def ordered(schedule: Schedule) -> bool:
    try:
        check(schedule)
    except ValueError:
        return False
    return True


class Hold:
    """A machine's submit that holds ops up: `late` before it runs, and `long`, if it is a transfer, on its way."""

    def __init__(self, engine: Engine, late: Op, long: Op | None, seconds: float) -> None:
        self.engine, self.late, self.long, self.seconds = engine, name(late), long and name(long), seconds
        self.submit = engine.machine.submit

    def __call__(self, bound: BoundOp, params: Any, after: Any) -> Any:
        if params is None:
            return self.submit(bound, params, after)
        return self.submit(BoundOp(bound.op, lambda inner: self._run(bound, inner)), params, after)

    def _run(self, bound: BoundOp, params: Any) -> int:
        if name(bound.op) == self.late:
            time.sleep(self.seconds)
        if bound.op.kind.startswith(("load", "send")):
            for buffer in bound.op.writes:
                self.engine.memory.tensor(*buffer.split(":")).fill_(255)  # type: ignore[arg-type]  # all bits: NaN
            if name(bound.op) == self.long:
                time.sleep(2 * self.seconds)
        return bound.run(params)


def name(op: Op) -> tuple[object, ...]:
    """The same for an op of the body and its twin in the prologue."""
    return (op.kind, op.engine, op.layer, op.block, op.part)


class Run:
    """Runs of one case and plan, with any schedule in the place of one phase's."""

    def __init__(self, case: Any, plan: Plan, tools: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.case, self.plan, self.tools, self.monkeypatch = case, plan, tools, monkeypatch
        self.workload = tools.shape(PROMPTS, NEW)
        self.answers = case.answers(PROMPTS, NEW)
        self.want = self.logits(None, None)

    def logits(self, schedule: Schedule | None, hold: tuple[Op, Op | None, float] | None) -> torch.Tensor | None:
        """None when a run without a wait fails, as one that reads NaN for an index may."""

        def built(phase_plan: PhasePlan, phase: Phase, workload: Workload) -> Schedule:
            return schedule if schedule and phase == schedule.phase else build(phase_plan, phase, workload)

        with self.monkeypatch.context() as patched:
            patched.setattr(engine_module, "build", built)
            with Engine(self.case.spec, self.case.store, self.tools.emulated(1 << 28), threads=2) as engine:
                if hold is not None:
                    patched.setattr(engine.machine, "submit", Hold(engine, *hold))
                try:
                    return self.tools.forced_run(engine, self.plan, self.workload, PROMPTS, self.answers)[0]
                except EngineError:
                    assert schedule is not None
                    return None

    def notices(self, schedule: Schedule, wait: Wait) -> bool:
        on, op = wait.ops(schedule)
        fewer = wait.taken_from(schedule)
        for seconds in HOLD_UPS_S:
            for long in (None, op):
                got = self.logits(fewer, (on, long, seconds))
                if got is None or not torch.equal(got, self.want):
                    return True
        return False


def assert_each_is_noticed(run: Run, most: int) -> int:
    """Takes out each wait that is not implied by others, or so many of a phase's evenly; returns how many."""
    found = 0
    for phase, phase_plan in (("prefill", run.plan.prefill), ("decode", run.plan.decode)):
        schedule = build(phase_plan, phase, run.workload)  # type: ignore[arg-type]  # str to the checker, Phase to us
        needed = [w for w in waits(schedule) if not ordered(w.taken_from(schedule))]
        seen = [w for w in needed if w.ops(schedule)[0].engine != "cpu"]
        for wait in seen[:: -(-len(seen) // most) or 1]:
            on, op = wait.ops(schedule)
            if wait is seen[0]:
                assert torch.equal(run.logits(schedule, (on, op, HOLD_UPS_S[0])), run.want), "the hold-up alone"
            assert run.notices(schedule, wait), f"{phase}: {op.label} ({op.engine}) need not wait for {on.label}"
            found += 1
    return found


def phase(layers: tuple[LayerPlacement, ...], **options: Any) -> PhasePlan:
    resident = tuple(i for i, p in enumerate(layers) if "gpu" in (p.attention.weights, p.mlp.weights))
    return PhasePlan("test", layers, resident, **options)


KV_STREAMS = LayerPlacement(STREAMED, STREAMED, "cpu", "gpu")
DELEGATED = LayerPlacement(ON_GPU, STREAMED, "cpu", "cpu")
MLP_STREAMS = LayerPlacement(ON_CPU, STREAMED, "cpu", "cpu")
PLANS = {
    "kv streams, head in slices": Plan(
        phase((KV_STREAMS, DELEGATED, KV_STREAMS), head=STREAMED, head_slices=3),
        phase((KV_STREAMS, KV_STREAMS, DELEGATED), head=STREAMED, head_slices=2, prefetch_depth=3),
    ),
    "devices alternate": Plan(
        phase((MLP_STREAMS, KV_STREAMS, MLP_STREAMS), prefetch_depth=1, embed="gpu"),
        phase((KV_STREAMS, MLP_STREAMS, KV_STREAMS), head=ON_GPU, prefetch_depth=1),
    ),
}


@pytest.mark.parametrize("plan", PLANS)
def test_what_is_not_waited_for_changes_the_result(
    plan: str, draw_case: Any, tools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = draw_case(random.Random(1), 1, wanted=lambda c: c.model_type == "llama" and c.num_hidden_layers == 3)
    assert assert_each_is_noticed(Run(case, PLANS[plan], tools, monkeypatch), most=16) > 16


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_no_wait_of_any_plan_is_idle(seed: int, draw_case: Any, tools: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed + 60_000)
    case = draw_case(draw, seed, wanted=lambda c: c.num_hidden_layers <= 3)
    assert_each_is_noticed(Run(case, tools.draw_plan(draw, case.spec), tools, monkeypatch), most=60)
