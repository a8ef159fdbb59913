"""Finds and opens the library that CMake built, and declares its C functions (native/api.h). No torch."""

from __future__ import annotations

import ctypes
import functools
import logging
import sys
from pathlib import Path

log = logging.getLogger(__name__)

MAX_THREADS = 1024  # more is a mistake, and OpenMP's runtime crashes on numbers that are far too large
NAME = "libflexinfer_kernels.so"
ABI = 1  # kAbi of native/api.h

_I32, _I64, _F32, _PTR = ctypes.c_int32, ctypes.c_int64, ctypes.c_float, ctypes.c_void_p
_SIGNATURES = {
    "fx_detected_isa": (_I32, []),
    "fx_amx_works": (_I32, []),
    "fx_borrow_team": (None, [_PTR]),
    "fx_decode_attention": (
        _I32,
        [_PTR, _I32, _PTR, _PTR, _I32, _PTR, _PTR, _PTR, *[_I64] * 5, _F32, _I64, _F32, *[_I32] * 3],
    ),
    "fx_read_bandwidth": (ctypes.c_double, [_I64, _I32, _I32]),
    "fx_peak_flops": (ctypes.c_double, [_I32, _I32, _I32]),
}


def library_path() -> Path | None:
    """Where the library lies; in an editable install that is not beside this file."""
    folders = sys.modules[__package__].__path__ if __package__ else []
    return next((path for folder in folders if (path := Path(folder) / NAME).is_file()), None)


def _open(path: Path) -> ctypes.CDLL:
    # CDLL, unlike PyDLL, lets other Python threads run during a call.
    opened = ctypes.CDLL(str(path))
    found = int(opened.fx_abi())
    if found != ABI:
        raise OSError(f"it was built from other sources (version {found}, wanted {ABI})")
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(opened, name)
        function.restype, function.argtypes = result, arguments
    return opened


@functools.cache
def library() -> ctypes.CDLL | None:
    """The opened library, or None where torch kernels have to do, which is logged once."""
    path = library_path()
    try:
        if path is None:
            raise OSError("it was not built, for want of a C++ compiler that could")
        return _open(path)
    except OSError as error:
        log.warning(
            "running on torch's kernels, which are slower: the native library is not usable, %s. "
            "Install g++ or clang++, then flexinfer again.",
            error,
        )
        return None


def native() -> bool:
    """Whether the C++ kernels run; otherwise torch's do."""
    return library() is not None


def check_threads(threads: int) -> None:
    """Raises ValueError for a number of threads that no call can mean."""
    if not 1 <= threads <= MAX_THREADS:
        raise ValueError(f"threads: got {threads}, wanted 1 to {MAX_THREADS}")
