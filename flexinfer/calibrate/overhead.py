"""What the executor itself costs: walking a schedule's ops, and what a step does beside them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from flexinfer.engine.sampling import SamplingParams, pick, sequence_keys
from flexinfer.engine.step import StepInputs, StepParams, TokenFeed, fill_inputs
from flexinfer.machine.arena import Arena
from flexinfer.machine.base import BoundOp, BoundSchedule, Player
from flexinfer.machine.torch_machine import CpuMachine
from flexinfer.schedule.inputs import input_bytes, input_fields
from flexinfer.schedule.ops import Op, Schedule
from flexinfer.spec import load_spec
from flexinfer.spec.workload import Workload

OPS = 64
STEPS = 25
MODEL, CONTEXT = "llama2-7b", 256


def dispatch_seconds() -> float:
    """One op of the CPU engine that does nothing: the executor's own time."""
    body = tuple(BoundOp(Op("mlp", "cpu", layer=0, block="mlp"), lambda params: 0) for _ in range(OPS))
    schedule = Schedule("decode", Workload(1, 1, 2), (), tuple(bound.op for bound in body))
    player = Player(CpuMachine(Arena("CPU", None)), BoundSchedule(schedule, (), body))
    return _median_seconds(lambda: player.step(None, None)) / OPS


def step_seconds() -> float:
    """What a decode step of one sequence does beside its blocks: inputs are filled, a token is chosen greedily."""
    spec, workload = load_spec(MODEL), Workload(1, CONTEXT, 2)
    buffer = torch.empty(input_bytes(spec, "decode", workload), dtype=torch.uint8)
    inputs = StepInputs(buffer, input_fields(spec, "decode", workload))
    params, feed = StepParams((CONTEXT,), (1,), 1, 1), TokenFeed([[1]])
    logits_BV, keys = torch.rand(1, spec.vocab_size), sequence_keys([[1]])

    def step() -> None:
        fill_inputs(inputs, spec, workload.kv_capacity, params, feed)
        pick(logits_BV.float(), SamplingParams(), [], keys, 1)

    return _median_seconds(step)


def _median_seconds(call: Callable[[], object]) -> float:
    times = []
    for _ in range(STEPS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)
