"""Dependencies from buffers: who must wait for whom, derived from what each op reads and writes.

An op waits for the last writer of what it reads, and for the last writer and every later reader of what it
writes. Ops of one engine run in order, so only ops of other engines are named, and of those the latest of each
engine. A loop body is laid out twice: what the second copy needs of the first is `after_previous`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flexinfer.schedule.ops import Engine, Op


def conflicts(earlier: Op, later: Op) -> bool:
    """Whether the two may not run at the same time: one writes what the other touches."""
    return any(later.touches(b) for b in earlier.writes) or any(earlier.touches(b) for b in later.writes)


def with_dependencies(ops: Sequence[Op]) -> tuple[Op, ...]:
    """A straight line of ops with `after` filled in."""
    return tuple(replace(op, after=_needed(ops, index)) for index, op in enumerate(ops))


def loop_with_dependencies(prologue: Sequence[Op], body: Sequence[Op]) -> tuple[tuple[Op, ...], tuple[Op, ...]]:
    """A prologue and a loop body with `after` and `after_previous` filled in."""
    size = len(body)
    twice = [*body, *body]
    linked = []
    for index, op in enumerate(body):
        needed = _needed(twice, size + index)
        same = tuple(i - size for i in needed if i >= size)
        linked.append(replace(op, after=same, after_previous=tuple(i for i in needed if i < size)))
    return with_dependencies(prologue), tuple(linked)


def _needed(ops: Sequence[Op], index: int) -> tuple[int, ...]:
    """Indices of the latest op of each other engine that ops[index] must wait for."""
    op = ops[index]
    latest: dict[Engine, int] = {}
    for buffer in dict.fromkeys((*op.reads, *op.writes)):
        for earlier in _conflicting(ops, index, buffer, writes=buffer in op.writes):
            engine = ops[earlier].engine
            if engine != op.engine:
                latest[engine] = max(latest.get(engine, earlier), earlier)
    return tuple(sorted(latest.values()))


def _conflicting(ops: Sequence[Op], index: int, buffer: str, writes: bool) -> list[int]:
    """Back from ops[index] to the last writer of `buffer`: that writer, and the readers since if we write."""
    found = []
    for earlier in range(index - 1, -1, -1):
        if buffer in ops[earlier].writes:
            found.append(earlier)
            break
        if writes and buffer in ops[earlier].reads:
            found.append(earlier)
    return found
