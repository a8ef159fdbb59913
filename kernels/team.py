"""Lends the native kernels the threads of torch's own OpenMP runtime; native/pool.h says why."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import torch

from flexinfer.kernels.library import library


def gomp_of_torch(maps: str) -> str | None:
    """The path of torch's libgomp among the mapped files (the text of /proc/self/maps).

    Other packages bring copies of their own: of several, the one that lies with torch is taken, or none.
    """
    paths = {line.split(maxsplit=5)[5] for line in maps.splitlines() if "libgomp" in line}
    home = Path(torch.__file__).parent
    own = {path for path in paths if Path(path).is_relative_to(home) or Path(path).parent == home.parent / "torch.libs"}
    candidates = own or paths
    return candidates.pop() if len(candidates) == 1 else None


@functools.cache
def _borrowed() -> bool:
    lib, maps = library(), Path("/proc/self/maps")
    path = gomp_of_torch(maps.read_text()) if lib and maps.exists() else None
    if lib is None or path is None:
        return False
    start = getattr(ctypes.CDLL(path), "GOMP_parallel", None)
    if start is None:
        return False
    lib.fx_borrow_team(ctypes.cast(start, ctypes.c_void_p))
    return True


def team_size() -> int:
    """Threads of the calling thread's OpenMP team, as torch uses it; 0 where it cannot be borrowed."""
    return torch.get_num_threads() if _borrowed() else 0
