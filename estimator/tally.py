"""Seconds by engine, as they add up."""

from __future__ import annotations

from collections import defaultdict

from flexinfer.plan import Home

ENGINES = ("compute", "h2d", "d2h", "cpu")
ENGINE: dict[Home, str] = {"gpu": "compute", "cpu": "cpu"}


class Tally:
    """busy: seconds of each engine. arithmetic: the part of "compute" and of "cpu" that is FLOPs, not memory."""

    def __init__(self) -> None:
        self.busy: defaultdict[str, float] = defaultdict(float)
        self.arithmetic: defaultdict[str, float] = defaultdict(float)

    def add(self, engine: str, seconds: float, arithmetic_s: float = 0.0) -> None:
        self.busy[engine] += seconds
        self.arithmetic[engine] += arithmetic_s

    def merge(self, other: Tally, times: float) -> None:
        for engine, seconds in other.busy.items():
            self.add(engine, seconds * times, other.arithmetic[engine] * times)

    def bound(self) -> str:
        """The engine that is busy longest, in plain words."""
        link_s = max(self.busy["h2d"], self.busy["d2h"])
        longest = max(link_s, self.busy["compute"], self.busy["cpu"])
        if longest == 0:
            return "nothing to do"
        if longest == link_s:
            return "link"
        engine, device = ("compute", "GPU") if longest == self.busy["compute"] else ("cpu", "CPU")
        return f"{device} compute" if self.arithmetic[engine] > longest / 2 else f"{device} memory"
