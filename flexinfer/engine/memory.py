"""Buffers as tensors: what a plan lists is allocated by name from the machine's arenas, kept while a phase needs it."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from flexinfer.errors import DoesNotFitError
from flexinfer.machine.base import Machine
from flexinfer.plan import Home
from flexinfer.schedule.buffers import Buffer
from flexinfer.units import format_size


class Memory:
    """Named uint8 tensors on both devices.

    Three kinds of buffer are accounted without a tensor of their own: the CPU's weights (the store's), the CPU
    embedding and head inside them, and workspaces, which the ops' temporaries take from torch's allocator.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._tensors: dict[tuple[Home, str], torch.Tensor] = {}
        self._held: dict[tuple[Home, str], int] = {}

    def __contains__(self, key: tuple[Home, str]) -> bool:
        return key in self._held

    def tensor(self, device: Home, name: str) -> torch.Tensor:
        return self._tensors[device, name]

    def keep_only(self, buffers: Iterable[Buffer]) -> None:
        """Releases everything that is not in the list, or that is there in another size."""
        wanted = {(b.device, b.name): b.nbytes for b in buffers}
        for key, nbytes in list(self._held.items()):
            if wanted.get(key) != nbytes:
                self.release(key)

    def allocate(self, buffers: Iterable[Buffer]) -> list[Buffer]:
        """Reserves and allocates what is not there yet; returns those. Raises DoesNotFitError, keeping what it has."""
        new = [b for b in buffers if (b.device, b.name) not in self._held]
        for buffer in new:
            self._machine.arena(buffer.device).reserve(buffer.name, buffer.nbytes)
            self._held[buffer.device, buffer.name] = buffer.nbytes
            if not _accounted_only(buffer):
                self._tensors[buffer.device, buffer.name] = self._empty(buffer)
        return new

    def _empty(self, buffer: Buffer) -> torch.Tensor:
        try:
            return self._machine.empty(buffer.device, buffer.nbytes)
        except (RuntimeError, MemoryError) as error:
            self.release((buffer.device, buffer.name))
            size = format_size(buffer.nbytes)
            raise DoesNotFitError(
                f"the {buffer.device.upper()} has no {size} left for {buffer.name}: free memory there, or lower "
                f"--{buffer.device}-memory so that the plan asks for less"
            ) from error

    def release(self, key: tuple[Home, str]) -> None:
        tensor = self._tensors.pop(key, None)
        if tensor is not None:
            self._machine.release(tensor)
        del self._held[key]
        self._machine.arena(key[0]).release(key[1])

    def rename(self, key: tuple[Home, str], to: str) -> None:
        """The same buffer under another name."""
        self._machine.arena(key[0]).rename(key[1], to)
        self._held[key[0], to] = self._held.pop(key)
        if key in self._tensors:
            self._tensors[key[0], to] = self._tensors.pop(key)

    def clear(self) -> None:
        """Releases everything, in whatever state an exception left the books."""
        while self._tensors:
            self._machine.release(self._tensors.popitem()[1])
        self._held.clear()
        for arena in self._machine.arenas.values():
            if arena is not None:
                arena.clear()


def _accounted_only(buffer: Buffer) -> bool:
    return buffer.kind == "workspace" or (buffer.device == "cpu" and buffer.kind == "weights")
