"""What every machine does: walk a bound schedule in program order and hand each op to its engine.

CPU ops run inline on the walking thread. Ops of the other engines are queued, one lane an engine, and wait there
for the ops that their dependencies name. Machines know ops and tensors, not models: what an op does is a callable
that the engine package bound to it.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flexinfer.errors import EngineError, FlexInferError
from flexinfer.machine.arena import Arena
from flexinfer.schedule.ops import Op, Schedule
from flexinfer.schedule.trace import Span

if TYPE_CHECKING:
    import torch

    from flexinfer.plan import Home

Run = Callable[[Any], int]
"""An op's work: takes the step's parameters, returns the bytes that crossed the link (0 for compute)."""


@dataclass(frozen=True)
class BoundOp:
    """An op and its work."""

    op: Op
    run: Run


@dataclass(frozen=True)
class BoundSchedule:
    """A schedule whose every op has its work: `prologue` and `body` in the schedule's order."""

    schedule: Schedule
    prologue: tuple[BoundOp, ...]
    body: tuple[BoundOp, ...]


class Handle(ABC):
    """A submitted op, for others to wait on."""

    @abstractmethod
    def wait(self) -> None:
        """Blocks the calling thread until the op's results may be used by the host."""


class Machine(ABC):
    """Two devices with a link between them. `gpu` is None on a machine without one.

    Counts what crosses the link (`traffic`, by direction), and keeps a span an op while `tracing`.
    """

    def __init__(self, gpu: Arena | None, cpu: Arena, tracing: bool) -> None:
        self.arenas: dict[Home, Arena | None] = {"gpu": gpu, "cpu": cpu}
        self.traffic: Counter[str] = Counter()
        self.tracing = tracing
        self.spans: list[Span] = []

    # -- memory ---------------------------------------------------------------------------------------------------

    def arena(self, device: Home) -> Arena:
        arena = self.arenas[device]
        if arena is None:
            raise EngineError("this machine has no GPU, and the plan asks for its memory")
        return arena

    @abstractmethod
    def empty(self, device: Home, nbytes: int) -> torch.Tensor:
        """A new uint8 tensor [nbytes] on the device; its content is undefined. The caller reserves it."""

    @abstractmethod
    def release(self, tensor: torch.Tensor) -> None:
        """Called before a buffer's last reference goes; the content is lost."""

    def zero(self, tensor: torch.Tensor) -> None:
        """tensor[...] = 0, done on return: whatever engine touches it next finds zeros."""
        tensor.zero_()

    # -- copies ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """target[...] = source within one device."""

    @abstractmethod
    def append(self, flat_RH: torch.Tensor, rows: torch.Tensor, new_RH: torch.Tensor) -> None:
        """flat[rows] = new within one device: R rows of H elements, `rows` int64 and unique."""

    @abstractmethod
    def transfer(self, target: torch.Tensor, source: torch.Tensor) -> int:
        """A copy over the link, either way; shapes and dtypes equal. Returns its bytes."""

    # -- running --------------------------------------------------------------------------------------------------

    @abstractmethod
    def submit(self, bound: BoundOp, params: Any, after: Sequence[Handle]) -> Handle | None:
        """Queues an op of another engine behind `after`; returns its handle."""

    @abstractmethod
    def drain(self) -> None:
        """Waits until every engine is idle. Raises what an engine raised."""

    @abstractmethod
    def abort(self) -> None:
        """Drops what is queued and waits for what runs; never raises."""

    @abstractmethod
    def close(self) -> None:
        """Ends the engines' threads. Safe to call twice."""

    @abstractmethod
    def raise_failure(self) -> None:
        """Raises what an engine raised, if one did."""

    def run_inline(self, bound: BoundOp, params: Any, after: Sequence[Handle]) -> None:
        """A CPU op, on the calling thread."""
        for handle in after:
            handle.wait()
        self.raise_failure()
        start = time.perf_counter()
        try:
            bound.run(params)
        except FlexInferError:
            raise
        except Exception as error:
            raise EngineError(f"{bound.op.label} failed on the CPU: {describe(error)}") from error
        if self.tracing:
            self.spans.append(Span("cpu", bound.op.label, start, time.perf_counter(), 0))


def describe(error: BaseException) -> str:
    """One line of an exception: its type and the first line of its text."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


class Player:
    """Walks a bound schedule on a machine, a step at a time, carrying the loop's dependencies from step to step."""

    def __init__(self, machine: Machine, bound: BoundSchedule) -> None:
        self.machine = machine
        self.bound = bound
        self._previous: dict[int, Handle] = {}

    def start(self, params: Any) -> None:
        """Runs the prologue: the loads of the first step."""
        handles = self._walk(self.bound.prologue, lambda op: params)
        self._previous = {b: handles[p] for b, p in self.bound.schedule.primed.items() if p in handles}

    def step(self, params: Any, next_params: Any | None) -> None:
        """Runs the body once. next_params is None in the last step, whose loads for a next one are left out."""
        body = self.bound.body
        if next_params is None:
            kept = {i: b for i, b in enumerate(body) if not b.op.next_step}
        else:
            kept = dict(enumerate(body))
        handles: dict[int, Handle] = {}
        for index, bound in kept.items():
            self._one(index, bound, next_params if bound.op.next_step else params, handles)
        self._previous = handles

    def _walk(self, ops: Sequence[BoundOp], params_of: Callable[[Op], Any]) -> dict[int, Handle]:
        handles: dict[int, Handle] = {}
        for index, bound in enumerate(ops):
            self._one(index, bound, params_of(bound.op), handles)
        return handles

    def _one(self, index: int, bound: BoundOp, params: Any, handles: dict[int, Handle]) -> None:
        op = bound.op
        after = [handles[i] for i in op.after if i in handles]
        after += [self._previous[i] for i in op.after_previous if i in self._previous]
        if op.engine == "cpu":
            self.machine.run_inline(bound, params, after)
            return
        handle = self.machine.submit(bound, params, after)
        if handle is not None:
            handles[index] = handle
