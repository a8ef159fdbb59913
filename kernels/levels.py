"""The instruction set that kernels run on: what CPU and operating system offer, capped by FLEXINFER_ISA. No torch."""

from __future__ import annotations

import functools
import subprocess
import sys

from flexinfer import settings
from flexinfer.kernels.library import library, library_path

# Each includes the ones before it; the order is that of Isa in native/cpu.h.
LEVELS = settings.ISAS
AMX = LEVELS.index("amx")

# Started without site-packages: it opens one library and runs a few instructions.
_PROBE = "import ctypes, sys; sys.exit(0 if ctypes.CDLL(sys.argv[1]).fx_amx_works() else 1)"


@functools.cache
def amx_works() -> bool:
    """Whether tile instructions run, tried in a process of its own: some virtual machines show flags they lack."""
    command = [sys.executable, "-I", "-S", "-c", _PROBE, str(library_path())]
    try:
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=30).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def level() -> int:
    """The index in LEVELS that kernels run at. Raises UserError for an unknown FLEXINFER_ISA."""
    cap_name = settings.read("FLEXINFER_ISA")
    cap = AMX if cap_name is None else LEVELS.index(cap_name)
    lib = library()
    if lib is None:
        return 0
    offered = min(cap, int(lib.fx_detected_isa()))
    return offered - 1 if offered == AMX and not amx_works() else offered


def isa() -> str:
    """The best instruction set that kernels may use: generic, avx2, avx512, avx512_bf16 (with VNNI) or amx.

    FLEXINFER_ISA lowers it and never raises it. "generic" without the native library. Raises UserError for a value
    that is not known. Decode attention computes in float32 and gains nothing above avx512.
    """
    return LEVELS[level()]
