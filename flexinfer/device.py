"""Which device a run is on, and how much memory it may take there. Importing this imports no torch."""

from __future__ import annotations

from dataclasses import replace

from flexinfer.errors import DoesNotFitError
from flexinfer.options import LoadOptions
from flexinfer.units import format_size

LIBRARY_BYTES = 512 << 20
"""GPU memory left to the libraries' own workspaces and to what the allocator rounds up: the plan counts neither."""


def on_this_machine(options: LoadOptions) -> LoadOptions:
    """The device that is meant, and of a GPU the free memory, less LIBRARY_BYTES, where nobody set another size.

    Raises UserError for a device that is not there, DoesNotFitError for more memory than is free on it.
    """
    import torch

    if options.device == "auto":
        options = options.on("cuda" if torch.cuda.is_available() else "cpu")
    if options.device in ("cpu", "emulated"):
        return options
    from flexinfer.engine.devices import accelerator_device

    device = accelerator_device(options.device)
    free = torch.get_device_module(device).mem_get_info(device)[0]
    wanted = options.gpu_memory_bytes
    if wanted is not None and wanted > free:
        raise DoesNotFitError(
            f"GPU memory: {format_size(wanted)} is asked for and {options.device} has {format_size(free)} free; "
            f"ask for less, or leave it out"
        )
    return replace(options, gpu_memory_bytes=wanted or max(1, free - LIBRARY_BYTES), gpu_free_bytes=free)


def within(options: LoadOptions, limit_bytes: int) -> LoadOptions:
    """CPU memory: the option's, and no more than this process can have."""
    memory = max(1, min(options.cpu_memory_bytes or limit_bytes, limit_bytes))
    return replace(options, cpu_memory_bytes=memory, cpu_free_bytes=limit_bytes)
