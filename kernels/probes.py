"""Rooflines of this machine, measured: bytes per second that memory gives and FLOP per second that registers give.

Torch is imported only where the native library is missing and torch has to be measured in its place.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from flexinfer.host import available_threads
from flexinfer.kernels.levels import level
from flexinfer.kernels.library import check_threads, library

_DTYPES = ("float32", "bfloat16", "float16")


def read_bandwidth(threads: int | None = None, nbytes: int = 2**30) -> float:
    """Bytes per second at which `threads` threads (None: all there are) read `nbytes` of memory: a median of passes.

    Allocates and touches that much for the time of the call; below a few times the last-level cache it is the cache
    that is measured. Raises ValueError naming the argument, MemoryError where the memory is not there.
    """
    threads = _checked_threads(threads)
    if nbytes < 1:
        raise ValueError(f"nbytes: got {nbytes}, wanted at least 1")
    lib = library()
    if lib is None:
        return _torch_read_bandwidth(threads, nbytes)
    rate = float(lib.fx_read_bandwidth(nbytes, level(), threads))
    if rate == 0:
        raise MemoryError(f"no memory for a read probe of {nbytes} bytes")
    return rate


def peak_flops(dtype: Any, threads: int | None = None) -> float:
    """FLOP per second of multiply-adds in registers on `threads` threads (None: all there are).

    dtype: float32, bfloat16 or float16, as a torch dtype or its name. float16 is computed in float32, and so is
    bfloat16 where the CPU's own bf16 products are missing or slower. Raises ValueError naming the argument.
    """
    threads = _checked_threads(threads)
    name = str(dtype).removeprefix("torch.")
    if name not in _DTYPES:
        raise ValueError(f"dtype: got {dtype}, wanted {', '.join(_DTYPES)}")
    lib = library()
    if lib is None:
        return _torch_peak_flops(name, threads)
    return float(lib.fx_peak_flops(name == "bfloat16", level(), threads))


def _checked_threads(threads: int | None) -> int:
    threads = available_threads() if threads is None else threads
    check_threads(threads)
    return threads


def _torch_read_bandwidth(threads: int, nbytes: int) -> float:
    import torch

    data = torch.ones(max(1, nbytes // 4))
    return data.nbytes / _median_seconds(data.sum, threads)


def _torch_peak_flops(name: str, threads: int) -> float:
    import torch

    size = 1024
    a, b = torch.ones(2, size, size, dtype=getattr(torch, name))
    return 2 * size**3 / _median_seconds(lambda: a @ b, threads)


def _median_seconds(call: Callable[[], Any], threads: int, repeats: int = 5) -> float:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        samples = []
        for _ in range(repeats + 1):
            start = time.perf_counter()
            call()
            samples.append(time.perf_counter() - start)
    finally:
        torch.set_num_threads(before)
    return statistics.median(samples[1:])
