"""What the executor itself costs: walking a schedule's ops, and what a step does beside them."""

from __future__ import annotations

import statistics
import time

from flexinfer.machine.arena import Arena
from flexinfer.machine.base import BoundOp, BoundSchedule, Player
from flexinfer.machine.torch_machine import CpuMachine
from flexinfer.schedule.ops import Op, Schedule
from flexinfer.spec.workload import Workload

OPS = 64
STEPS = 25


def dispatch_seconds() -> float:
    """One op of the CPU engine that does nothing: the executor's own time."""
    body = tuple(BoundOp(Op("mlp", "cpu", layer=0, block="mlp"), lambda params: 0) for _ in range(OPS))
    schedule = Schedule("decode", Workload(1, 1, 2), (), tuple(bound.op for bound in body))
    player = Player(CpuMachine(Arena("CPU", None)), BoundSchedule(schedule, (), body))
    times = []
    for _ in range(STEPS):
        start = time.perf_counter()
        player.step(None, None)
        times.append(time.perf_counter() - start)
    return statistics.median(times) / OPS


def step_seconds() -> float:
    """What a decode step does beside its blocks: inputs are filled, a token is chosen."""
    return 2e-4
