"""What the torch machine asks of a device: memory, streams, events and copies. One small class a kind of device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch

from flexinfer.schedule.ops import Engine


class DeviceAdapter(ABC):
    """The calls are made from the engine's own thread, except `empty`, `pinned` and the synchronize calls."""

    pinned_stage_bytes = 16 << 20

    @abstractmethod
    def empty(self, nbytes: int) -> torch.Tensor:
        """A uint8 tensor [nbytes] in device memory."""

    @abstractmethod
    def pinned(self, nbytes: int) -> torch.Tensor:
        """A uint8 tensor [nbytes] in page-locked host memory."""

    @abstractmethod
    def is_pinned(self, tensor: torch.Tensor) -> bool: ...

    @abstractmethod
    def owns(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor lies in device memory."""

    @abstractmethod
    def enter(self, engine: Engine) -> None:
        """Makes the engine's stream current on the calling thread, for the thread's life."""

    @abstractmethod
    def wait_events(self, engine: Engine, events: Sequence[Any]) -> None:
        """The engine's stream waits for the events; the host does not."""

    @abstractmethod
    def record_event(self, engine: Engine) -> Any:
        """An event after everything launched on the engine's stream so far."""

    @abstractmethod
    def timed_event(self, engine: Engine) -> Any:
        """Like record_event, for elapsed_s."""

    @abstractmethod
    def elapsed_s(self, start: Any, end: Any) -> float:
        """Seconds between two timed events that have both passed."""

    @abstractmethod
    def synchronize_event(self, event: Any) -> None:
        """The host waits for an event; None means there is nothing to wait for."""

    @abstractmethod
    def synchronize(self) -> None:
        """The host waits for every stream of the device."""

    @abstractmethod
    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Queues target[...] = source on the current stream."""


class AcceleratorAdapter(DeviceAdapter):
    """Any torch device with streams, by torch's device-generic API. Not run on hardware yet."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._streams: dict[Engine, torch.Stream] = {
            engine: torch.Stream(device=device) for engine in ("compute", "h2d", "d2h")
        }

    def empty(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, device=self.device)

    def pinned(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.is_pinned()

    def owns(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == self.device.type

    def enter(self, engine: Engine) -> None:
        torch.set_grad_enabled(False)
        torch.accelerator.set_device_index(self.device.index or 0)
        torch.accelerator.set_stream(self._streams[engine])

    def wait_events(self, engine: Engine, events: Sequence[Any]) -> None:
        for event in events:
            self._streams[engine].wait_event(event)

    def record_event(self, engine: Engine) -> torch.Event:
        event = torch.Event(device=self.device)
        event.record(self._streams[engine])
        return event

    def timed_event(self, engine: Engine) -> torch.Event:
        event = torch.Event(device=self.device, enable_timing=True)
        event.record(self._streams[engine])
        return event

    def elapsed_s(self, start: torch.Event, end: torch.Event) -> float:
        return start.elapsed_time(end) / 1e3

    def synchronize_event(self, event: Any) -> None:
        if event is not None:
            event.synchronize()

    def synchronize(self) -> None:
        torch.accelerator.synchronize(self.device)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        target.copy_(source, non_blocking=True)
