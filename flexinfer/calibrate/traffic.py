"""Memory and small ops: copies, and an element-wise op on few rows and on many."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

import torch

from flexinfer import kernels
from flexinfer.calibrate.ops import Bench
from flexinfer.calibrate.timing import WAITED_SHARE, Case, measure_all
from flexinfer.host import RunQueue

READ_PROBES = 4
COPY_BYTES = 32 * 2**20
WIDTH = 2048
FEW_ROWS, MANY_ROWS = 1, 512


@dataclass(frozen=True)
class SmallOps:
    """What one element-wise call takes on one row, and the bytes a second that one of many rows moves."""

    fixed_s: float
    bytes_per_s: float


def read_rate(threads: int, nbytes: int) -> float:
    """Bytes read a second: the first of a few probes that nobody disturbed, else the best."""
    rates = []
    for _ in range(READ_PROBES):
        with RunQueue() as queue:
            start = time.perf_counter()
            rates.append(kernels.read_bandwidth(threads=threads, nbytes=nbytes))
            if queue.seconds() <= WAITED_SHARE * (time.perf_counter() - start):
                return rates[-1]
    return max(rates)


def copy_rate(bench: Bench, case_s: float) -> float:
    """Bytes copied a second, from cold memory into memory that is already mapped."""
    nbytes = min(COPY_BYTES, bench.work.nbytes // 4)
    target = torch.empty(nbytes, dtype=torch.uint8, device=bench.device)
    case = Case("copy", lambda: (bench.work.cut(torch.uint8, nbytes),), target.copy_)
    (result,) = measure_all([case], case_s, bench.clock)
    return nbytes / result.median_s


def small_ops(bench: Bench, dtype: torch.dtype, case_s: float) -> SmallOps:
    """A product with a vector, as norms and rotations are made of: one read and one write counted a number."""
    weight = bench.activation(dtype, WIDTH)
    inputs = [bench.activation(dtype, rows, WIDTH) for rows in (FEW_ROWS, MANY_ROWS)]
    cases = [Case(f"product of {len(x)} rows", partial(tuple, (x, weight)), torch.mul) for x in inputs]
    few, many = measure_all(cases, case_s, bench.clock)
    moved = 2 * (MANY_ROWS - FEW_ROWS) * WIDTH * dtype.itemsize
    return SmallOps(few.median_s, moved / max(many.median_s - few.median_s, 1e-7))
