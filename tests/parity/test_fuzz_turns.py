"""One engine, many generations: other shapes, other plans, KV taken over, early ends and failures between them.

Whatever came before, a generation gives what a fresh engine gives, and never leaves the memory that its plans name.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from flexinfer.engine import Engine
from flexinfer.errors import EngineError
from flexinfer.estimator.traffic import plan_traffic
from flexinfer.machine.base import BoundOp
from flexinfer.plan import Plan
from flexinfer.schedule.buffers import peak_bytes
from flexinfer.spec.workload import Workload


class Broken(Exception):
    """What an op of a failing generation raises."""


@dataclass(frozen=True)
class Turn:
    """One generation: whole prompts, what transformers says to each alone, and how it ends.

    stop_after: the step that finishes all sequences. breaks_at: the number of the queued op that raises.
    """

    prompts: list[list[int]]
    answers: list[Any]
    workload: Workload
    plan: Plan
    stop_after: int | None
    breaks_at: int | None

    @property
    def fed(self) -> list[tuple[int, ...]]:
        """The tokens whose KV a turn leaves."""
        steps = self.workload.new_tokens - 1 if self.stop_after is None else self.stop_after
        return [(*p, *a.tokens[:steps]) for p, a in zip(self.prompts, self.answers, strict=True)]


def drawn_turn(draw: random.Random, case: Any, tools: Any, before: Turn | None) -> Turn:
    new = draw.choice([1, 2, 3, 6])
    held = [] if before is None or before.breaks_at is not None or draw.random() < 0.3 else before.fed
    prompts, cached = continued(draw, held, case.spec.vocab_size)
    if not prompts or max(map(len, prompts)) > 140:
        prompts, cached = tools.draw_prompts(draw, case.spec.vocab_size, 60), 0
    return Turn(
        prompts,
        case.answers(prompts, new),
        tools.shape(prompts, new, cached),
        tools.draw_plan(draw, case.spec),
        stop_after=draw.randrange(new) if draw.random() < 0.3 else None,
        breaks_at=draw.randint(1, 40) if draw.random() < 0.2 else None,
    )


def continued(draw: random.Random, held: Sequence[tuple[int, ...]], vocab: int) -> tuple[list[list[int]], int]:
    """What was said, sometimes all but its end, and something more; and how many tokens all have in the cache."""
    kept = [row[: max(1, len(row) - draw.choice([0, 0, 0, 1, 3]))] for row in held]
    prompts = [[*row, *(draw.randrange(3, vocab) for _ in range(draw.choice([1, 1, 2, 20])))] for row in kept]
    return prompts, min(map(len, kept), default=0)


def run_turn(engine: Engine, turn: Turn, tools: Any, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether it ran to its end; what it gave is compared."""
    arguments = (engine, turn.plan, turn.workload, turn.prompts, turn.answers, turn.stop_after)
    if turn.breaks_at is not None:
        with monkeypatch.context() as patched:
            patched.setattr(engine.machine, "submit", Breaking(engine.machine.submit, turn.breaks_at))
            try:
                tools.forced_run(*arguments)
            except EngineError as error:
                assert "Broken" in str(error)
                return False
            return True
    logits, result = tools.forced_run(*arguments)
    tools.assert_alike(logits, turn.answers)
    peaks, traffic = (f(engine.spec, turn.plan, turn.workload) for f in (peak_bytes, plan_traffic))
    ended = turn.stop_after in (None, turn.workload.new_tokens - 1)
    measured = (result.times.gpu_peak_bytes, result.times.cpu_peak_bytes)
    assert measured == (peaks["gpu"], peaks["cpu"]) if ended else measured <= (peaks["gpu"], peaks["cpu"])
    assert not ended or (result.times.h2d_bytes, result.times.d2h_bytes) == (traffic.h2d, traffic.d2h)
    assert engine.held is not None and list(engine.held.tokens) == turn.fed
    return True


class Breaking:
    """A machine's submit whose n-th op raises when it runs."""

    def __init__(self, submit: Any, number: int) -> None:
        self.submit, self.left = submit, number

    def __call__(self, bound: BoundOp, params: Any, after: Any) -> Any:
        self.left -= 1
        return self.submit(bound if self.left else BoundOp(bound.op, self._raise), params, after)

    @staticmethod
    def _raise(params: Any) -> int:
        raise Broken


def seeds(few: int, many: int) -> list[Any]:
    return [*range(few), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(few, many))]


@pytest.mark.parametrize("seed", seeds(6, 250))
def test_what_came_before_changes_nothing(
    seed: int, draw_case: Any, tools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(seed + 30_000)
    case = draw_case(draw, seed, wanted=keys_stay_valid)
    turns: list[Turn] = []
    for _ in range(6):
        turns.append(drawn_turn(draw, case, tools, turns[-1] if turns else None))
    budget = max(peak_bytes(case.spec, turn.plan, turn.workload)["gpu"] for turn in turns)
    with Engine(case.spec, case.store, tools.emulated(budget, draw.choice([0, 0.0005])), threads=2) as engine:
        for turn in turns:
            if not run_turn(engine, turn, tools, monkeypatch):
                assert engine.held is None
                assert all(arena.held_bytes == 0 for arena in engine.machine.arenas.values() if arena)


def keys_stay_valid(config: Any) -> bool:
    """Dynamic rotary scaling turns keys by the length at the time: a longer prompt has others."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    return bool(rope.get("rope_type") != "dynamic")
