"""The emulated machine: a GPU that is not there.

Its memory is a bounded arena in CPU memory, its engines are threads, its link is throttled to a set bandwidth each
way. Unwritten and freed memory is NaN, its tensors refuse to meet CPU tensors, and every op can be delayed by a
random time, with what it transfers being NaN until it arrives: numerics are exact, and a missing wait becomes a wrong
token or an error.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from flexinfer.errors import EngineError
from flexinfer.machine.arena import Arena
from flexinfer.machine.lanes import Failure, LaneHooks
from flexinfer.machine.marked import EmulatedTensor, mark, unmark
from flexinfer.machine.threaded import ThreadedMachine
from flexinfer.plan import Home
from flexinfer.schedule.ops import Engine

POISON = 0xFF
"""All bits set is NaN in float32, bfloat16 and float16, and out of range as an index."""

GLANCE_S = 0.05
"""How often a copy that takes longer looks up whether it is still wanted."""


@dataclass(frozen=True)
class EmulatedConfig:
    """The emulated GPU: memory, link rate each way, its engine's threads, and the largest random delay of an op."""

    gpu_memory_bytes: int
    link_bytes_per_s: float
    compute_threads: int = 1
    jitter_s: float = 0.0


class _Link:
    """One direction of the link: a copy ends no sooner than its bytes would take after the copy before it."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0

    def pass_through(self, started: float, nbytes: int, failure: Failure) -> None:
        """Waits until the copy would have ended, or all is stopped."""
        self._free_at = max(self._free_at, started) + nbytes / self._bytes_per_s
        while (left := self._free_at - time.perf_counter()) > 0:
            if failure.stopped:
                self._free_at = 0.0
            else:
                time.sleep(min(left, GLANCE_S))


def _spoil(tensor: torch.Tensor) -> None:
    tensor.fill_(math.nan if tensor.is_floating_point() else POISON)


class EmulatedMachine(ThreadedMachine):
    """See the module. `throttled` is False while residents load, which is not part of a generation."""

    def __init__(self, config: EmulatedConfig, cpu: Arena, tracing: bool = False) -> None:
        super().__init__(Arena("GPU", config.gpu_memory_bytes), cpu, tracing, config.jitter_s)
        self.config = config
        self.throttled = True
        self._random = random.Random("transfers")
        self._links = {"gpu": _Link(config.link_bytes_per_s), "cpu": _Link(config.link_bytes_per_s)}

    def hooks(self) -> LaneHooks:
        return LaneHooks(self._start, self._before, self._mark, self._synchronize)

    def _start(self, engine: Engine) -> None:
        # Each thread that calls torch has an OpenMP team of its own: copies need none
        torch.set_grad_enabled(False)
        torch.set_num_threads(self.config.compute_threads if engine == "compute" else 1)

    def _before(self, engine: Engine, events: Sequence[Any]) -> None:
        """Nothing: waited ops have ended."""

    def _mark(self, engine: Engine) -> None:
        """Nothing: an op has ended when its call returns."""

    def _synchronize(self, event: Any) -> None:
        """Nothing: there are no events."""

    def empty(self, device: Home, nbytes: int) -> torch.Tensor:
        if device == "cpu":
            return torch.empty(nbytes, dtype=torch.uint8)
        return mark(torch.full((nbytes,), POISON, dtype=torch.uint8))

    def release(self, tensor: torch.Tensor) -> None:
        if isinstance(tensor, EmulatedTensor):
            _spoil(tensor)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        target.copy_(source)

    def append(self, flat_RH: torch.Tensor, rows: torch.Tensor, new_RH: torch.Tensor) -> None:
        flat_RH.index_copy_(0, rows, new_RH)

    def transfer(self, target: torch.Tensor, source: torch.Tensor) -> int:
        to_gpu = isinstance(target, EmulatedTensor)
        if to_gpu == isinstance(source, EmulatedTensor):
            raise EngineError("a transfer goes from one device to the other")
        if target.shape != source.shape or target.dtype != source.dtype:
            raise EngineError(
                f"a transfer of {tuple(source.shape)} {source.dtype} into {tuple(target.shape)} {target.dtype}"
            )
        started = time.perf_counter()
        if self.config.jitter_s:
            # On its way it is neither what was there nor what will be: who reads or writes it now has not waited
            _spoil(unmark(target))
            time.sleep(self._random.uniform(0, self.config.jitter_s))
        unmark(target).copy_(unmark(source))
        if self.throttled:
            self._links["gpu" if to_gpu else "cpu"].pass_through(started, source.nbytes, self._failure)
        return source.nbytes
