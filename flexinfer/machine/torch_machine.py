"""The torch machine: the CPU alone, or a CPU with a device that has streams.

Each engine of the GPU has a thread that launches and a stream that runs. An op's stream waits for the events of the
ops it depends on; the host waits for an event only before a CPU op that needs it. Weights go through a ring of
pinned staging buffers: the launching thread fills one while the copy engine empties another.

The streams, events and copies are the adapter's, so that tests can record them; the CUDA adapter has not run on
hardware yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import torch

from flexinfer.errors import EngineError
from flexinfer.machine.adapter import DeviceAdapter
from flexinfer.machine.arena import Arena
from flexinfer.machine.base import BoundOp, Handle, Machine
from flexinfer.machine.lanes import LaneHooks
from flexinfer.machine.threaded import ThreadedMachine
from flexinfer.plan import Home
from flexinfer.schedule.ops import Engine
from flexinfer.schedule.trace import Span

PINNED_STAGES = 2
STAGED_BYTES = 1 << 20
"""Copies from unpinned memory that are larger than this go through the pinned ring."""


class CpuMachine(Machine):
    """The CPU alone: every op runs inline."""

    def __init__(self, cpu: Arena, tracing: bool = False) -> None:
        super().__init__(None, cpu, tracing)

    def empty(self, device: Home, nbytes: int) -> torch.Tensor:
        self.arena(device)
        return torch.empty(nbytes, dtype=torch.uint8)

    def release(self, tensor: torch.Tensor) -> None:
        """Nothing: the memory goes with its last reference."""

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        target.copy_(source)

    def append(self, flat_RH: torch.Tensor, rows: torch.Tensor, new_RH: torch.Tensor) -> None:
        flat_RH.index_copy_(0, rows, new_RH)

    def transfer(self, target: torch.Tensor, source: torch.Tensor) -> int:
        raise EngineError("this machine has no GPU to copy to or from")

    def submit(self, bound: BoundOp, params: Any, after: Sequence[Handle]) -> Handle | None:
        raise EngineError(f"{bound.op.label} is placed on a GPU engine, and this machine has none")

    def raise_failure(self) -> None:
        """CPU ops raise where they run."""

    def drain(self) -> None:
        """Nothing is ever queued."""

    def abort(self) -> None:
        """Nothing is ever queued."""

    def close(self) -> None:
        """No threads."""


class TorchMachine(ThreadedMachine):
    """A CPU and one device with streams, through its adapter."""

    def __init__(self, adapter: DeviceAdapter, gpu_memory_bytes: int, cpu: Arena, tracing: bool = False) -> None:
        super().__init__(Arena("GPU", gpu_memory_bytes), cpu, tracing)
        self.adapter = adapter
        self._pinned: deque[tuple[torch.Tensor, Any]] = deque()
        self._origin: tuple[Any, float] | None = None
        self._started: dict[Engine, Any] = {}
        self._timed: list[tuple[Span, Any, Any]] = []

    def hooks(self) -> LaneHooks:
        adapter = self.adapter
        return LaneHooks(adapter.enter, self._before, adapter.record_event, adapter.synchronize_event)

    def _before(self, engine: Engine, events: Sequence[Any]) -> None:
        self.adapter.wait_events(engine, events)
        if self.tracing:
            self._started[engine] = self.adapter.timed_event(engine)

    def record(self, span: Span) -> None:
        """On a stream an op's host times are those of its launch: its span comes from events, once they have passed."""
        self.traffic[span.engine] += span.nbytes
        if self.tracing:
            end = self.adapter.timed_event(span.engine)
            self._timed.append((span, self._started[span.engine], end))

    def _time_spans(self) -> None:
        """Spans of the ops that have ended, on the host's clock: events are placed by their distance to an origin."""
        for span, start, end in self._timed:
            event, host_s = self._origin or (start, span.start_s)
            self._origin = (event, host_s)
            begin_s = host_s + self.adapter.elapsed_s(event, start)
            length_s = self.adapter.elapsed_s(start, end)
            self.spans.append(Span(span.engine, span.label, begin_s, begin_s + length_s, span.nbytes))
        self._timed.clear()

    def empty(self, device: Home, nbytes: int) -> torch.Tensor:
        return self.adapter.empty(nbytes) if device == "gpu" else torch.empty(nbytes, dtype=torch.uint8)

    def release(self, tensor: torch.Tensor) -> None:
        if self.adapter.owns(tensor):
            self.adapter.synchronize()

    def zero(self, tensor: torch.Tensor) -> None:
        super().zero(tensor)
        if self.adapter.owns(tensor):
            # Queued on this thread's stream, which the engines' streams do not wait for
            self.adapter.synchronize()

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self.adapter.copy(target, source)

    def append(self, flat_RH: torch.Tensor, rows: torch.Tensor, new_RH: torch.Tensor) -> None:
        flat_RH.index_copy_(0, rows, new_RH)

    def transfer(self, target: torch.Tensor, source: torch.Tensor) -> int:
        staged = self.adapter.owns(target) and source.nbytes > STAGED_BYTES and not self.adapter.is_pinned(source)
        if staged:
            self._staged(target, source)
        else:
            self.adapter.copy(target, source)
        return source.nbytes

    def _staged(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Through the pinned ring, piece by piece: a piece waits until its buffer's last copy has ended."""
        flat_to, flat_from = target.view(-1), source.view(-1)
        step = self.adapter.pinned_stage_bytes // source.element_size()
        for start in range(0, flat_from.numel(), step):
            count = min(step, flat_from.numel() - start)
            pinned = self._next_pinned().view(source.dtype).narrow(0, 0, count)
            pinned.copy_(flat_from.narrow(0, start, count))
            self.adapter.copy(flat_to.narrow(0, start, count), pinned)
            self._pinned[-1] = (self._pinned[-1][0], self.adapter.record_event("h2d"))

    def _next_pinned(self) -> torch.Tensor:
        if len(self._pinned) < PINNED_STAGES:
            self._pinned.append((self.adapter.pinned(self.adapter.pinned_stage_bytes), None))
        else:
            self._pinned.rotate(-1)
            self.adapter.synchronize_event(self._pinned[-1][1])
        return self._pinned[-1][0]

    def drain(self) -> None:
        super().drain()
        self.adapter.synchronize()
        self._time_spans()

    def close(self) -> None:
        super().close()
        self._pinned.clear()
