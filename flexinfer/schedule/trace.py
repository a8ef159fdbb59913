"""Spans of ops, and their Chrome trace form (chrome://tracing, Perfetto)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from flexinfer.schedule.ops import Engine

ROWS: tuple[Engine, ...] = ("cpu", "compute", "h2d", "d2h")


@dataclass(frozen=True)
class Span:
    """One op as it ran: engine, label, start and end in seconds of one clock, bytes over the link."""

    engine: Engine
    label: str
    start_s: float
    end_s: float
    nbytes: int


def chrome_events(spans: Iterable[Span]) -> list[dict[str, Any]]:
    """Complete events, one row an engine, times in microseconds from the first span."""
    spans = sorted(spans, key=lambda span: span.start_s)
    origin = spans[0].start_s if spans else 0.0
    names = [
        {"ph": "M", "pid": 0, "tid": row, "name": "thread_name", "args": {"name": engine}}
        for row, engine in enumerate(ROWS)
    ]
    events = [
        {
            "ph": "X",
            "pid": 0,
            "tid": ROWS.index(span.engine),
            "cat": span.engine,
            "name": span.label,
            "ts": (span.start_s - origin) * 1e6,
            "dur": (span.end_s - span.start_s) * 1e6,
            "args": {"bytes": span.nbytes},
        }
        for span in spans
    ]
    return [*names, *events]


def trace_document(spans: Iterable[Span]) -> dict[str, Any]:
    """Chrome's object form."""
    return {"traceEvents": chrome_events(spans), "displayTimeUnit": "ms"}
