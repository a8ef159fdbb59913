"""Invariants of a schedule: every conflict is ordered, every buffer is known and written before it is read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flexinfer.schedule.depend import conflicts
from flexinfer.schedule.ops import Op, Schedule

GIVEN = ("cpu:tokens",)
"""Written by the host before the first step."""


def check(schedule: Schedule) -> None:
    """Raises ValueError naming the ops when two that conflict are not ordered: decode is looked at over two steps."""
    size = len(schedule.body)
    twice = [*schedule.body, *schedule.body] if schedule.phase == "decode" else [*schedule.body]
    reach = _reachable(twice, size)
    for later in range(len(twice)):
        for earlier in range(later):
            if conflicts(twice[earlier], twice[later]) and earlier not in reach[later]:
                raise ValueError(f"{twice[later].label} may run before {twice[earlier].label} is done")
    _check_defined(schedule)


def _reachable(twice: Sequence[Op], size: int) -> list[set[int]]:
    """For each op the set of ops that are surely done before it starts: engine order and dependencies, closed."""
    before: list[set[int]] = []
    last_of_engine: dict[str, int] = {}
    for index, op in enumerate(twice):
        base = size if index >= size else 0
        direct = {base + i for i in op.after}
        if base:
            direct |= set(op.after_previous)
        if op.engine in last_of_engine:
            direct.add(last_of_engine[op.engine])
        before.append(direct.union(*(before[i] for i in direct)))
        last_of_engine[op.engine] = index
    return before


def _persistent(buffer: str) -> bool:
    """Weights and KV exist before the schedule runs."""
    name = buffer.split(":", 1)[1]
    return name.startswith(("weights", "kv.")) or buffer in GIVEN


def _check_defined(schedule: Schedule) -> None:
    written: set[str] = set()
    for op in (*schedule.prologue, *schedule.body):
        for buffer in op.reads:
            if not _persistent(buffer) and buffer not in written and buffer not in op.writes:
                raise ValueError(f"{op.label} reads {buffer} before anything writes it")
        written.update(op.writes)


def buffer_names(ops: Iterable[Op]) -> set[str]:
    return {buffer for op in ops for buffer in (*op.reads, *op.writes)}
