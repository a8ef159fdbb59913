"""Predicted beside measured. No torch."""

from __future__ import annotations

from collections.abc import Callable

from flexinfer.plan import Times
from flexinfer.report.table import text_table
from flexinfer.units import format_size, format_time

SLOW_TOKEN_S = 1.0
"""A token that takes longer looks like a hang, so it is announced."""

_ROWS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("time to first token", "ttft_s", format_time),
    ("time per output token", "tpot_s", format_time),
    ("switch of phases", "switch_s", format_time),
    ("end to end", "e2e_s", format_time),
    ("host to device", "h2d_bytes", format_size),
    ("device to host", "d2h_bytes", format_size),
    ("GPU peak", "gpu_peak_bytes", format_size),
    ("CPU peak", "cpu_peak_bytes", format_size),
    ("process peak (RSS)", "rss_peak_bytes", format_size),
)


def times_table(predicted: Times, measured: Times) -> str:
    """One row a figure, with measured / predicted; rows that neither side has, or that are 0 on both, are left out."""
    rows = []
    for title, name, shown in _ROWS:
        pair = getattr(predicted, name), getattr(measured, name)
        if any(pair):
            rows.append([title, *("-" if value is None else shown(value) for value in pair), _ratio(*pair)])
    return text_table(["", "predicted", "measured", "ratio"], rows)


def _ratio(predicted: float | None, measured: float | None) -> str:
    """Measured over predicted; "-" where one of them is missing or nothing was predicted."""
    return f"{measured / predicted:.2f}" if predicted and measured is not None else "-"


def eta_warning(predicted: Times, new_tokens: int) -> str | None:
    """A line that says how long it will take, where a token takes so long that it looks like a hang."""
    if predicted.tpot_s is None or predicted.tpot_s <= SLOW_TOKEN_S:
        return None
    return (
        f"about {format_time(predicted.ttft_s)} to the first token, then {format_time(predicted.tpot_s)} a token: "
        f"{format_time(predicted.e2e_s)} for {new_tokens}"
    )
