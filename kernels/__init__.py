"""CPU kernels in C++ behind plain functions on torch tensors, with torch kernels where the library could not be built.

`isa`, `native` and the probes need no torch; it is imported with the first name that does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flexinfer.kernels.levels import isa
from flexinfer.kernels.library import native
from flexinfer.kernels.probes import peak_flops, read_bandwidth

if TYPE_CHECKING:
    from flexinfer.kernels.attention import decode_attention as decode_attention

# No version attribute: transformers takes a module of this name that has one for an unrelated package.
__all__ = ["decode_attention", "isa", "native", "peak_flops", "read_bandwidth"]


def __getattr__(name: str) -> Any:
    if name == "decode_attention":
        from flexinfer.kernels.attention import decode_attention

        return decode_attention
    raise AttributeError(f"module 'flexinfer.kernels' has no attribute {name!r}")
