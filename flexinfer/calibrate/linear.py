"""Matrix products, each with a weight that no cache holds."""

from __future__ import annotations

from collections.abc import Callable

import torch

from flexinfer.calibrate.effort import Effort
from flexinfer.calibrate.ops import Bench
from flexinfer.calibrate.timing import Case, Measurement, measure_all
from flexinfer.estimator.profile import LinearSample

OnCase = Callable[[Case], None]


def linear_case(bench: Bench, dtype: torch.dtype, rows: int, out: int, into: int) -> Case:
    x_MK = bench.activation(dtype, rows, into)
    what = f"{str(dtype).removeprefix('torch.')} {rows} x {into} by {out}"
    return Case(what, lambda: (x_MK, bench.work.cut(dtype, out, into)), bench.ops.linear)


def linear_samples(
    bench: Bench, dtype_name: str, effort: Effort, on_case: OnCase | None = None
) -> list[tuple[LinearSample, Measurement]]:
    """One sample a matrix and row count, smaller ones first: what those took says which larger ones are too slow."""
    dtype: torch.dtype = getattr(torch, dtype_name)
    expected_s: dict[int, float] = {}
    found = []
    for out, into in effort.matrices:
        if not bench.work.fits(dtype, out, into):
            continue
        elements = out * into
        rows = [m for m in effort.rows if expected_s.get(m, 0.0) * elements <= effort.slow_s]
        cases = [linear_case(bench, dtype, m, out, into) for m in rows]
        for m, result in zip(rows, measure_all(cases, effort.case_s, bench.clock, on_case), strict=True):
            expected_s[m] = result.median_s / elements
            found.append((_sample(dtype_name, m, out, into, result), result))
    return found


def _sample(dtype: str, rows: int, out: int, into: int, result: Measurement) -> LinearSample:
    return LinearSample(dtype, rows, out, into, result.median_s, result.spread_s, result.n)
