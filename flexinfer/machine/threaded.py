"""A machine whose GPU engines are lanes; what a device adds are its hooks, its memory and its copies."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from flexinfer.machine.arena import Arena
from flexinfer.machine.base import BoundOp, Handle, Machine
from flexinfer.machine.lanes import GIVE_UP_S, Failure, Lane, LaneHandle, LaneHooks
from flexinfer.schedule.ops import Engine
from flexinfer.schedule.trace import Span

log = logging.getLogger(__name__)

GPU_ENGINES: tuple[Engine, ...] = ("compute", "h2d", "d2h")


class ThreadedMachine(Machine):
    """Lanes are started on the first submit, and end with `close` or `abort`."""

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
        lane = self._lanes.get(engine) or self._start_lane(engine)
        handle = lane.submit(bound, params, [h for h in after if isinstance(h, LaneHandle)])
        self._last[engine] = handle
        return handle

    def _start_lane(self, engine: Engine) -> Lane:
        """Known before it runs, so that whatever comes in between, `close` ends its thread."""
        lane = self._lanes[engine] = Lane(engine, self.hooks(), self._failure, self._jitter_s, self.record)
        lane.start()
        return lane

    def raise_failure(self) -> None:
        self._failure.raise_if_set()

    def drain(self) -> None:
        for handle in self._last.values():
            handle.wait()
        self._last.clear()
        self._failure.raise_if_set()

    def abort(self) -> None:
        """A new failure state follows, so that the machine can be used again. Broken off, it may be called again."""
        self._failure.stopped = True
        self.close()
        self._last.clear()
        self._failure = Failure()

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.end()
        for lane in self._lanes.values():
            if not lane.join(GIVE_UP_S):
                log.warning("engine %s hangs in an op: its thread is left behind", lane.engine)
        self._lanes.clear()
