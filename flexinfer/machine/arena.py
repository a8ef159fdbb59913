"""Arena: every byte of one device's memory, reserved by name against a hard limit."""

from __future__ import annotations

from flexinfer.errors import DoesNotFitError, EngineError
from flexinfer.schedule.buffers import aligned
from flexinfer.units import format_size


class Arena:
    """Accounts for named reservations; sizes are rounded up to the alignment that plans count with.

    Raises DoesNotFitError when the limit would be passed, EngineError on a name reserved or released twice.
    """

    def __init__(self, device: str, limit_bytes: int | None) -> None:
        self.device = device
        self.limit_bytes = limit_bytes
        self.peak_bytes = 0
        self._held: dict[str, int] = {}

    @property
    def held_bytes(self) -> int:
        return sum(self._held.values())

    def has_room(self, nbytes: int) -> bool:
        """Whether so much can be reserved now."""
        return self.limit_bytes is None or self.held_bytes + aligned(nbytes) <= self.limit_bytes

    def reserve(self, name: str, nbytes: int) -> None:
        if name in self._held:
            raise EngineError(f"{self.device} memory: {name} is reserved already")
        if not self.has_room(nbytes):
            raise DoesNotFitError(
                f"{self.device} memory: {name} needs {format_size(nbytes)} on top of {format_size(self.held_bytes)}, "
                f"and the limit is {format_size(self.limit_bytes or 0)}"
            )
        self._held[name] = aligned(nbytes)
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)

    def release(self, name: str) -> None:
        if name not in self._held:
            raise EngineError(f"{self.device} memory: {name} is released but was not held")
        del self._held[name]

    def rename(self, name: str, to: str) -> None:
        """The same reservation under another name."""
        if name not in self._held or to in self._held:
            raise EngineError(f"{self.device} memory: {name} cannot be renamed to {to}")
        self._held[to] = self._held.pop(name)

    def clear(self) -> None:
        """Releases every reservation."""
        self._held.clear()

    def reset_peak(self) -> None:
        self.peak_bytes = self.held_bytes
