"""Matrix products are right on this machine: a tiny check of each dtype, once a process.

Builds of torch without oneDNN have returned wrong bfloat16 products on some CPUs; text made with them looks like a
bad model. Shapes are those that take different paths: one row, a few, many, and sizes that are no multiple of a tile.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from flexinfer.errors import EngineError

SHAPES = ((1, 257, 63), (7, 96, 160), (48, 512, 33))
TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 4e-3}
"""Allowed error over the largest output: rounding of inputs is exact here, so only sums and the output round."""


def relative_error(dtype: torch.dtype, rows: int, into: int, out: int, device: torch.device) -> float:
    """The largest error of x @ weight.T over the largest output, against float64 on the CPU."""
    generator = torch.Generator().manual_seed(rows)
    x_MK, weight_NK = (torch.randn(n, into, generator=generator).to(dtype) for n in (rows, out))
    exact = x_MK.double() @ weight_NK.double().T
    got = torch.nn.functional.linear(x_MK.to(device), weight_NK.to(device)).cpu().double()
    error = (got - exact).abs().max() / exact.abs().max()
    return float(error) if torch.isfinite(got).all() else float("inf")


@lru_cache(maxsize=16)
def check_products(dtype_name: str, device: str = "cpu") -> None:
    """Raises EngineError when matrix products of this dtype are wrong; a passed check is not made twice."""
    dtype, allowed = getattr(torch, dtype_name), TOLERANCE[dtype_name]
    errors = [relative_error(dtype, *shape, torch.device(device)) for shape in SHAPES]
    if max(errors) > allowed:
        raise EngineError(
            f"{dtype_name} matrix products are wrong on {device} with this torch ({torch.__version__}): relative error "
            f"{max(errors):.2g}, allowed {allowed:.2g}; use another --dtype, or a torch build with oneDNN"
        )
