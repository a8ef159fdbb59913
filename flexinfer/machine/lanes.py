"""Lanes: one thread an engine, working through its queue in order.

A lane waits for the ops that an op depends on, runs it, and marks it done. The first exception stops all lanes of
the machine: what is queued behind it is dropped, and the walking thread raises it with the op's name. Waits are
bounded by a watchdog, so that a lost op ends as an error with every thread's stack instead of a hang.
"""

from __future__ import annotations

import _thread
import faulthandler
import queue
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from flexinfer.errors import EngineError, FlexInferError
from flexinfer.machine.base import BoundOp, Handle, describe
from flexinfer.schedule.ops import Engine
from flexinfer.schedule.trace import Span

WATCHDOG_S = 600.0
"""No single op of a sane plan takes longer than this; a wait that does is a lost op."""


class Failure:
    """The first exception of any lane, shared by all lanes of a machine."""

    def __init__(self) -> None:
        self.error: FlexInferError | None = None
        self.stopped = threading.Event()

    def record(self, label: str, error: BaseException) -> None:
        if self.error is None:
            self.error = error if isinstance(error, FlexInferError) else _named(label, error)
        self.stopped.set()

    def raise_if_set(self) -> None:
        if self.error is not None:
            raise self.error


def _named(label: str, error: BaseException) -> EngineError:
    named = EngineError(f"{label} failed: {describe(error)}")
    named.__cause__ = error
    return named


class LaneHandle(Handle):
    """Done when its lock is free. `event` is the device's own mark, for machines whose ops run on after launch."""

    def __init__(self, label: str, synchronize: Callable[[Any], None]) -> None:
        self._lock = _thread.allocate_lock()
        self._lock.acquire()
        self._synchronize = synchronize
        self.label = label
        self.event: Any = None

    def finish(self, event: Any) -> None:
        self.event = event
        self._lock.release()

    def wait_issued(self) -> Any:
        """Blocks until the op has run, or has been launched; returns its event."""
        if not self._lock.acquire(timeout=WATCHDOG_S):
            faulthandler.dump_traceback(file=sys.stderr)
            raise EngineError(
                f"{self.label}: nothing moved for {WATCHDOG_S:.0f} s; stacks of all threads are on stderr"
            )
        self._lock.release()
        return self.event

    def wait(self) -> None:
        event = self.wait_issued()
        if event is not None:
            self._synchronize(event)


@dataclass(frozen=True)
class LaneHooks:
    """What a machine adds to its lanes.

    start: called once on the lane's thread. before: makes the op wait for others' events. mark: the event that
    stands for the op's end, or None when it has ended on return. synchronize: the host waits for an event.
    """

    start: Callable[[Engine], None]
    before: Callable[[Engine, Sequence[Any]], None]
    mark: Callable[[Engine], Any]
    synchronize: Callable[[Any], None]


class Lane:
    """One engine's thread and queue."""

    def __init__(self, engine: Engine, hooks: LaneHooks, failure: Failure, jitter_s: float, record: Any) -> None:
        self.engine = engine
        self._hooks = hooks
        self._failure = failure
        self._jitter_s = jitter_s
        self._random = random.Random(engine)
        self._record = record
        self._queue: queue.SimpleQueue[tuple[BoundOp, Any, Sequence[LaneHandle], LaneHandle] | None] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._work, name=f"flexinfer-{engine}", daemon=True)
        self._thread.start()

    def submit(self, bound: BoundOp, params: Any, after: Sequence[LaneHandle]) -> LaneHandle:
        handle = LaneHandle(bound.op.label, self._hooks.synchronize)
        self._queue.put((bound, params, after, handle))
        return handle

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        try:
            self._hooks.start(self.engine)
        except BaseException as error:  # noqa: BLE001 - whatever a lane meets must reach the caller
            self._failure.record(f"engine {self.engine}", error)
        while (item := self._queue.get()) is not None:
            bound, params, after, handle = item
            event = None
            try:
                if not self._failure.stopped.is_set():
                    event = self._one(bound, params, after)
            except BaseException as error:  # noqa: BLE001 - likewise
                self._failure.record(bound.op.label, error)
            finally:
                handle.finish(event)

    def _one(self, bound: BoundOp, params: Any, after: Sequence[LaneHandle]) -> Any:
        events = [handle.wait_issued() for handle in after]
        if self._failure.stopped.is_set():
            return None
        if self._jitter_s:
            time.sleep(self._random.uniform(0, self._jitter_s))
        self._hooks.before(self.engine, [event for event in events if event is not None])
        start = time.perf_counter()
        nbytes = bound.run(params)
        event = self._hooks.mark(self.engine)
        self._record(Span(self.engine, bound.op.label, start, time.perf_counter(), nbytes))
        return event
