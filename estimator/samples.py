"""Curves through a profile's samples: seconds for shapes that lie between those that were measured.

All interpolation is linear between logarithms. Medians are made non-decreasing first, so that noise in a calibration
never makes more work look cheaper.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from flexinfer.estimator.profile import AttentionSample, LinearSample


@dataclass(frozen=True)
class Curve:
    """y over x, both positive, x ascending, y non-decreasing. Slope 0 below the first point, `tail` above the last."""

    log_x: tuple[float, ...]
    log_y: tuple[float, ...]
    tail: float

    def at(self, x: float) -> float:
        position = math.log(x)
        if position <= self.log_x[0]:
            return math.exp(self.log_y[0])
        if position >= self.log_x[-1]:
            return math.exp(self.log_y[-1] + self.tail * (position - self.log_x[-1]))
        i = bisect_right(self.log_x, position)
        share = (position - self.log_x[i - 1]) / (self.log_x[i] - self.log_x[i - 1])
        return math.exp(self.log_y[i - 1] + share * (self.log_y[i] - self.log_y[i - 1]))


def curve(points: Iterable[tuple[float, float]], tail: float) -> Curve:
    """Curve through (x, y) points: the mean of equal x, then each y at least its predecessor's."""
    by_x: dict[float, list[float]] = defaultdict(list)
    for x, y in points:
        by_x[x].append(y)
    xs = sorted(by_x)
    ys: list[float] = []
    for x in xs:
        mean = sum(by_x[x]) / len(by_x[x])
        ys.append(max(mean, ys[-1]) if ys else mean)
    return Curve(tuple(map(math.log, xs)), tuple(map(math.log, ys)), tail)


@dataclass(frozen=True)
class LinearCurves:
    """Seconds a weight element over rows, one curve for each size of matrix that was measured."""

    log_elements: tuple[float, ...]
    curves: tuple[Curve, ...]

    def seconds(self, rows: int, elements: int) -> float:
        """Between two measured sizes the rate is interpolated; outside it is the nearest size's."""
        size = math.log(elements)
        if size <= self.log_elements[0]:
            return elements * self.curves[0].at(rows)
        if size >= self.log_elements[-1]:
            return elements * self.curves[-1].at(rows)
        i = bisect_right(self.log_elements, size)
        share = (size - self.log_elements[i - 1]) / (self.log_elements[i] - self.log_elements[i - 1])
        low, high = self.curves[i - 1].at(rows), self.curves[i].at(rows)
        return elements * math.exp((1 - share) * math.log(low) + share * math.log(high))


def linear_curves(samples: Iterable[LinearSample], dtype: str) -> LinearCurves | None:
    """Curves of one dtype, or None where it was not measured. Above the largest row count time grows with the rows."""
    groups: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for sample in samples:
        if sample.dtype == dtype:
            elements = sample.out_features * sample.in_features
            groups[elements].append((sample.rows, sample.median_s / elements))
    if not groups:
        return None
    sizes = sorted(groups)
    return LinearCurves(tuple(map(math.log, sizes)), tuple(curve(groups[size], 1.0) for size in sizes))


def decode_curves(samples: Iterable[AttentionSample], dtype: str, item_bytes: int) -> dict[float, Curve]:
    """Seconds over KV bytes read, by the number of query heads that share a kv head."""
    groups: dict[float, list[tuple[float, float]]] = defaultdict(list)
    for s in samples:
        if s.dtype == dtype:
            kv_bytes = 2 * s.batch * s.kv_heads * s.head_dim * s.context * item_bytes
            groups[s.heads / s.kv_heads].append((kv_bytes, s.median_s))
    return {group: curve(points, 1.0) for group, points in groups.items()}


def prefill_curve(samples: Iterable[AttentionSample], dtype: str) -> Curve | None:
    """Seconds over the (query, key) pairs' FLOPs of one sequence; a batch is that many sequences."""
    points = []
    for s in samples:
        if s.dtype == dtype:
            pairs = s.new * (s.context - s.new) + s.new * (s.new + 1) / 2
            points.append((4.0 * s.heads * s.head_dim * pairs, s.median_s / s.batch))
    return curve(points, 1.0) if points else None
