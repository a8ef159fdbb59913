"""A machine whose GPU engines are lanes; what a device adds are its hooks, its memory and its copies."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from flexinfer.machine.arena import Arena
from flexinfer.machine.base import BoundOp, Handle, Machine
from flexinfer.machine.lanes import Failure, Lane, LaneHandle, LaneHooks
from flexinfer.schedule.ops import Engine
from flexinfer.schedule.trace import Span

GPU_ENGINES: tuple[Engine, ...] = ("compute", "h2d", "d2h")


class ThreadedMachine(Machine):
    """Lanes are started on the first submit, and end with `close`."""

    def __init__(self, gpu: Arena | None, cpu: Arena, tracing: bool, jitter_s: float = 0.0) -> None:
        super().__init__(gpu, cpu, tracing)
        self._jitter_s = jitter_s
        self._failure = Failure()
        self._lanes: dict[Engine, Lane] = {}
        self._last: dict[Engine, LaneHandle] = {}

    @abstractmethod
    def hooks(self) -> LaneHooks:
        """What the lanes call."""

    def record(self, span: Span) -> None:
        self.traffic[span.engine] += span.nbytes
        if self.tracing:
            self.spans.append(span)

    def submit(self, bound: BoundOp, params: Any, after: Sequence[Handle]) -> Handle:
        self._failure.raise_if_set()
        engine = bound.op.engine
        if engine not in self._lanes:
            self._lanes[engine] = Lane(engine, self.hooks(), self._failure, self._jitter_s, self.record)
        handle = self._lanes[engine].submit(bound, params, [h for h in after if isinstance(h, LaneHandle)])
        self._last[engine] = handle
        return handle

    def raise_failure(self) -> None:
        self._failure.raise_if_set()

    def drain(self) -> None:
        for handle in self._last.values():
            handle.wait()
        self._last.clear()
        self._failure.raise_if_set()

    def abort(self) -> None:
        """A new failure state follows, so that the machine can be used again."""
        self._failure.stopped.set()
        for handle in self._last.values():
            handle.wait_issued()
        self._last.clear()
        self.close()
        self._failure = Failure()

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.close()
        self._lanes.clear()
