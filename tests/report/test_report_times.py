"""Predicted beside measured, as text."""

from __future__ import annotations

from flexinfer.plan import Times
from flexinfer.report import eta_warning, text_table, times_table

PREDICTED = Times(0.5, 0.1, 1.4, 0.0, 2**20, 0, 2**30, 2**31)
MEASURED = Times(1.0, 0.05, 1.45, 0.0, 2**20, 0, 2**29, 2**31, rss_peak_bytes=2**32)


def test_columns_line_up():
    assert text_table(["a", "bb"], [["long", "1"], ["x", "222"]]).splitlines() == [
        "a      bb",
        "long    1",
        "x     222",
    ]


def test_each_figure_has_its_ratio():
    rows = {line[:21].strip(): line[21:].split() for line in times_table(PREDICTED, MEASURED).splitlines()}
    assert rows["time to first token"] == ["500.0", "ms", "1.00", "s", "2.00"]
    assert rows["time per output token"][-1] == "0.50" and rows["GPU peak"][-1] == "0.50"
    assert rows["process peak (RSS)"] == ["-", "4.0", "GiB", "-"]
    assert "device to host" not in rows and "switch of phases" not in rows, "what is 0 on both sides is left out"


def test_one_token_has_no_time_per_token():
    one = Times(0.5, None, 0.5, 0.0, 0, 0, 0, 1)
    assert "per output token" not in times_table(one, one)
    assert eta_warning(one, 1) is None


def test_slow_tokens_are_announced():
    assert eta_warning(PREDICTED, 9) is None
    slow = Times(30.0, 12.0, 1530.0, 0.0, 0, 0, 0, 1)
    assert eta_warning(slow, 126) == "about 30.00 s to the first token, then 12.00 s a token: 25 min 30 s for 126"
