"""From a device's name to a machine, and the thread budgets of its engines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flexinfer.errors import UserError
from flexinfer.machine.arena import Arena
from flexinfer.machine.base import Machine

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class ThreadBudget:
    """Threads of the CPU engine and of an emulated compute engine: disjoint where there are two cores or more."""

    cpu: int
    compute: int

    @classmethod
    def split(cls, threads: int, device: str) -> ThreadBudget:
        if device != "emulated" or threads < 2:
            return cls(threads, 1)
        return cls(threads - threads // 2, threads // 2)


@dataclass(frozen=True)
class DeviceConfig:
    """What the engine runs on. Sizes None: as much as the device has; link only for the emulated machine."""

    device: str
    gpu_memory_bytes: int | None = None
    cpu_memory_bytes: int | None = None
    link_bytes_per_s: float | None = None
    jitter_s: float = 0.0
    tracing: bool = False


def make_machine(config: DeviceConfig, budget: ThreadBudget) -> Machine:
    """Raises UserError for a device that is not there."""
    from flexinfer.machine.torch_machine import CpuMachine

    cpu = Arena("CPU", config.cpu_memory_bytes)
    if config.device == "cpu":
        return CpuMachine(cpu, config.tracing)
    if config.device == "emulated":
        return _emulated(config, budget, cpu)
    return _accelerator(config, cpu)


def _emulated(config: DeviceConfig, budget: ThreadBudget, cpu: Arena) -> Machine:
    from flexinfer.machine.emulated import EmulatedConfig, EmulatedMachine

    if config.gpu_memory_bytes is None or config.link_bytes_per_s is None:
        raise UserError("the emulated device needs a GPU memory size and a link bandwidth")
    emulated = EmulatedConfig(config.gpu_memory_bytes, config.link_bytes_per_s, budget.compute, config.jitter_s)
    return EmulatedMachine(emulated, cpu, config.tracing)


def _accelerator(config: DeviceConfig, cpu: Arena) -> Machine:
    import torch

    from flexinfer.machine.adapter import AcceleratorAdapter
    from flexinfer.machine.torch_machine import TorchMachine

    device = accelerator_device(config.device)
    limit = config.gpu_memory_bytes
    if limit is None:
        limit = torch.get_device_module(device).mem_get_info(device)[0]
    return TorchMachine(AcceleratorAdapter(device), limit, cpu, config.tracing)


def accelerator_device(name: str) -> torch.device:
    """The torch device of this name. Raises UserError when torch sees no such device."""
    import torch

    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(
            f"device {name!r} is not known: use auto, cpu, cuda, cuda:1, emulated or a torch device"
        ) from None
    present = torch.accelerator.current_accelerator()
    if present is None or present.type != device.type:
        raise UserError(f"device {name!r}: torch sees no such device here; use --device cpu or emulated")
    if (device.index or 0) >= torch.accelerator.device_count():
        raise UserError(f"device {name!r}: torch sees {torch.accelerator.device_count()} of this type")
    return device
