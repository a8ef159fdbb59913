"""The small ops between matrix products: norms, rotations, activations.

In a step they run after a product that has streamed megabytes through the caches, and find neither their code nor
torch's dispatch there: an element-wise product takes 1.3 us in a loop of its own, and 7 us in a model. So each is
timed after a cold matrix product. They are counted as the cost functions count them: so many calls, so many bytes.

Legend: B batch, N heads, S rows, H head dim.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from flexinfer.calibrate.ops import Bench
from flexinfer.calibrate.timing import Call, Case, Measurement, measure_all
from flexinfer.estimator.blocks import NORM_OPS, ROPE_OPS
from flexinfer.models.rope import RopeRows, rotate

HEADS, HEAD_DIM = 16, 64
WIDTH = HEADS * HEAD_DIM
FEW_ROWS, MANY_ROWS = 1, 256
EVICTING = (2048, 2048)
"""About what a small model's layer reads between two runs of the same small op, and more than a core's own caches."""


@dataclass(frozen=True)
class SmallOps:
    """One call of one row, and the bytes a second (each read and each write counted) of many rows."""

    fixed_s: float
    bytes_per_s: float


@dataclass(frozen=True)
class Group:
    """Consecutive small ops on `rows` rows: `calls` as the cost functions count them, each over [rows, WIDTH]."""

    rows: int
    calls: int
    case: Case

    def nbytes(self, dtype: torch.dtype) -> int:
        return 2 * self.calls * self.rows * WIDTH * dtype.itemsize


def after_a_product(
    bench: Bench,
    dtype: torch.dtype,
    what: str,
    call: Call,
    *arguments: Any,
    matrix: tuple[int, int] = EVICTING,
) -> Case:
    """A case whose every call follows a product with a cold weight [out, in]."""
    x_MK = bench.activation(dtype, 1, matrix[1])

    def prepare() -> tuple[Any, ...]:
        bench.ops.linear(x_MK, bench.work.cut(dtype, *matrix))
        return arguments

    return Case(what, prepare, call)


def groups(bench: Bench, dtype: torch.dtype, rows: int) -> Iterator[Group]:
    """A norm, a rotation, and a gated activation with its product and sum."""
    x, weight = bench.activation(dtype, rows, WIDTH), bench.activation(dtype, WIDTH)
    heads_BNSH = bench.activation(dtype, 1, HEADS, rows, HEAD_DIM)
    turns = RopeRows(*(bench.activation(torch.float32, 1, rows, HEAD_DIM) for _ in range(2)))

    def gate() -> torch.Tensor:
        return bench.ops.activation("silu", x).mul_(x).add_(x)

    norm = after_a_product(bench, dtype, "norm", bench.ops.rms_norm, x, weight, 1e-5)
    yield Group(rows, NORM_OPS["rms"], norm)
    yield Group(rows, ROPE_OPS // 2, after_a_product(bench, dtype, "rotation", rotate, heads_BNSH, turns))
    yield Group(rows, 3, after_a_product(bench, dtype, "activation", gate))


def small_ops(bench: Bench, dtypes: Sequence[str], case_s: float) -> SmallOps:
    """Means over the groups and dtypes, weighted as the cost functions weigh them: by calls, and by bytes."""
    calls, fixed_s, moved, moving_s = 0, 0.0, 0, 0.0
    for name in dtypes:
        dtype: torch.dtype = getattr(torch, name)
        few, many = (list(groups(bench, dtype, rows)) for rows in (FEW_ROWS, MANY_ROWS))
        results = measure_all([g.case for g in (*few, *many)], case_s, bench.clock)
        pairs = zip(few, many, results[: len(few)], results[len(few) :], strict=True)
        for small, large, one, whole in pairs:
            calls += small.calls
            fixed_s += one.median_s
            moved += large.nbytes(dtype) - small.nbytes(dtype)
            moving_s += _growth(one, whole)
    return SmallOps(fixed_s / calls, moved / moving_s)


def _growth(few: Measurement, many: Measurement) -> float:
    """Seconds that the rows added: at least half of what many take, whatever noise says of the few."""
    return max(many.median_s - few.median_s, many.median_s / 2)
