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
from typing import Any, NoReturn

from flexinfer.errors import EngineError, FlexInferError
from flexinfer.machine.base import BoundOp, Handle, describe
from flexinfer.schedule.ops import Engine
from flexinfer.schedule.trace import Span

WATCHDOG_S = 600.0
"""No single op of a sane plan takes longer than this; a wait that does is a lost op."""
LOOK_UP_S = 0.5
"""How often who waits looks up whether there is still anything to wait for."""
GIVE_UP_S = 10.0
"""So long an abort waits for the op that runs. A thread that hangs in one is then left behind; it ends nothing else."""


class Failure:
    """The first exception of any lane, shared by all lanes of a machine."""

    def __init__(self) -> None:
        self.error: FlexInferError | None = None
        # A plain flag: Ctrl-C in the middle of threading.Event's calls leaves its inner lock taken, for ever
        self.stopped = False

    def record(self, label: str, error: BaseException) -> None:
        if self.error is None:
            self.error = error if isinstance(error, FlexInferError) else _named(label, error)
        self.stopped = True

    def raise_if_set(self) -> None:
        if self.error is not None:
            raise self.error


def _named(label: str, error: BaseException) -> EngineError:
    named = EngineError(f"{label} failed: {describe(error)}")
    named.__cause__ = error
    return named


class LaneHandle(Handle):
    """Done once `finish` was called; from then on its lock is free but for instants.

    `event` is the device's own mark, for machines whose ops run on after launch.
    """

    def __init__(self, label: str, synchronize: Callable[[Any], None]) -> None:
        self._lock = _thread.allocate_lock()
        self._lock.acquire()
        self._done = False
        self._synchronize = synchronize
        self.label = label
        self.event: Any = None

    def finish(self, event: Any) -> None:
        self.event = event
        self._done = True
        try:
            self._lock.release()
        except RuntimeError:  # a waiter was broken off at this very moment, and freed it
            return

    def wait_issued(self, failure: Failure | None = None) -> Any:
        """Blocks until the op has run, or has been launched, or until `failure` stops all; returns its event."""
        waited_s = 0.0
        while not self._done and not (failure is not None and failure.stopped):
            if waited_s >= WATCHDOG_S:
                self._lost()
            try:
                self._lock.acquire(timeout=LOOK_UP_S)
            finally:
                # Ctrl-C may come once the lock is taken, and other waiters would then never get it. Freeing it here
                # whoever has it is right: done is done. No call may stand before the release, each lets Ctrl-C in.
                if self._done:
                    try:  # noqa: SIM105  # suppress() would be such a call
                        self._lock.release()
                    except RuntimeError:
                        pass
            waited_s += LOOK_UP_S
        return self.event

    def _lost(self) -> NoReturn:
        faulthandler.dump_traceback(file=sys.stderr)
        raise EngineError(f"{self.label}: nothing moved for {WATCHDOG_S:.0f} s; stacks of all threads are on stderr")

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

    def start(self) -> None:
        self._thread.start()

    def submit(self, bound: BoundOp, params: Any, after: Sequence[LaneHandle]) -> LaneHandle:
        handle = LaneHandle(bound.op.label, self._hooks.synchronize)
        self._queue.put((bound, params, after, handle))
        return handle

    def end(self) -> None:
        """The thread ends after what is queued. Does not wait."""
        self._queue.put(None)

    def join(self, timeout_s: float) -> bool:
        """Waits for the thread; False when it still runs."""
        try:
            self._thread.join(timeout_s)
        except RuntimeError:  # Ctrl-C broke off its start: if it runs at all, it finds the end in its queue
            return True
        return not self._thread.is_alive()

    def _work(self) -> None:
        try:
            self._hooks.start(self.engine)
        except BaseException as error:  # noqa: BLE001 - whatever a lane meets must reach the caller
            self._failure.record(f"engine {self.engine}", error)
        while self._next():
            pass

    def _next(self) -> bool:
        """Runs what is next in the queue; False at the end. Holds on to no op, and so to no buffer, while it waits."""
        item = self._queue.get()
        if item is None:
            return False
        bound, params, after, handle = item
        event = None
        try:
            if not self._failure.stopped:
                event = self._one(bound, params, after)
        except BaseException as error:  # noqa: BLE001 - likewise
            self._failure.record(bound.op.label, error)
        # Its buffers may be released as soon as others know that the op has ended
        del item, bound
        handle.finish(event)
        return True

    def _one(self, bound: BoundOp, params: Any, after: Sequence[LaneHandle]) -> Any:
        events = [handle.wait_issued(self._failure) for handle in after]
        if self._failure.stopped:
            return None
        if self._jitter_s:
            time.sleep(self._random.uniform(0, self._jitter_s))
        self._hooks.before(self.engine, [event for event in events if event is not None])
        start = time.perf_counter()
        nbytes = bound.run(params)
        event = self._hooks.mark(self.engine)
        if self._failure.stopped:  # given up meanwhile: the counts are those of another generation now
            return event
        self._record(Span(self.engine, bound.op.label, start, time.perf_counter(), nbytes))
        return event
