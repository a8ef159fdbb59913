"""What the executor itself costs: walking a schedule's ops, and what a step does beside them."""

from __future__ import annotations

import torch

from flexinfer.calibrate.ops import Bench
from flexinfer.calibrate.small_ops import after_a_product
from flexinfer.calibrate.timing import Case, measure_all
from flexinfer.engine.sampling import SamplingParams, pick, sequence_keys
from flexinfer.engine.step import StepInputs, StepParams, TokenFeed, fill_inputs
from flexinfer.machine.arena import Arena
from flexinfer.machine.base import BoundOp, BoundSchedule, Player
from flexinfer.machine.torch_machine import CpuMachine
from flexinfer.schedule.inputs import input_bytes, input_fields
from flexinfer.schedule.ops import Op, Schedule
from flexinfer.spec import load_spec
from flexinfer.spec.workload import Workload

OPS = 2
MODEL, CONTEXT = "llama2-7b", 256
HEAD = (4096, 2048)
"""What comes before sampling is the largest product of a step."""


def overheads(bench: Bench, case_s: float) -> tuple[float, float]:
    """(dispatch_s, step_overhead_s) of a profile: what one op, and one step, cost beside the work in them."""
    dispatched, step = measure_all([dispatch_case(bench), step_case(bench)], case_s, bench.clock)
    return dispatched.median_s / OPS, step.median_s


def dispatch_case(bench: Bench) -> Case:
    """Ops of the CPU engine that do nothing."""
    body = tuple(BoundOp(Op("mlp", "cpu", layer=0, block="mlp"), lambda params: 0) for _ in range(OPS))
    schedule = Schedule("decode", Workload(1, 1, 2), (), tuple(bound.op for bound in body))
    player = Player(CpuMachine(Arena("CPU", None)), BoundSchedule(schedule, (), body))
    return after_a_product(bench, torch.float32, "dispatch", player.step, None, None)


def step_case(bench: Bench) -> Case:
    """A decode step of one sequence without its blocks: inputs are filled, a token is chosen greedily."""
    spec, workload = load_spec(MODEL), Workload(1, CONTEXT, 2)
    buffer = torch.empty(input_bytes(spec, "decode", workload), dtype=torch.uint8)
    inputs = StepInputs(buffer, input_fields(spec, "decode", workload))
    params, feed = StepParams((CONTEXT,), (1,), 1, 1), TokenFeed([[1]])
    logits_BV, keys = torch.rand(1, spec.vocab_size), sequence_keys([[1]])

    def step() -> None:
        fill_inputs(inputs, spec, workload.kv_capacity, params, feed)
        pick(logits_BV.float(), SamplingParams(), [], keys, 1)

    return after_a_product(bench, torch.float32, "step", step, matrix=HEAD)
