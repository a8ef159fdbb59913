"""Memory: how fast it is read, and copied."""

from __future__ import annotations

import time

import torch

from flexinfer import kernels
from flexinfer.calibrate.ops import Bench
from flexinfer.calibrate.timing import WAITED_SHARE, Case, measure_all
from flexinfer.host import RunQueue

READ_PROBES = 4
COPY_BYTES = 32 * 2**20


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
