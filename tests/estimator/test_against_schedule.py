"""The clocks of a pass against the schedule itself: every op of the executor's schedule, run one by one in time.

The closed form knows layers and runs; this knows ops, engines and the dependencies that the schedule's builder gave
them. If the builder orders its loads in another way, the two part, and this test says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from flexinfer.estimator.layers import PassCosts, layer_kinds
from flexinfer.estimator.passes import Pass, pass_edges
from flexinfer.estimator.pipeline import LayerTimes
from flexinfer.estimator.tally import Tally
from flexinfer.plan import ON_CPU, ON_GPU, STREAMED, BlockPlacement, Home, LayerPlacement, Phase, PhasePlan
from flexinfer.schedule.build import build
from flexinfer.schedule.ops import Op
from flexinfer.spec.model_spec import ModelSpec
from flexinfer.spec.workload import Workload

Kinds = dict[str, LayerPlacement]
Seconds = Callable[[Op], float]
HELD = 40
STEPS = 6


def op_seconds(costs: PassCosts, phase_plan: PhasePlan, phase: Phase) -> Seconds:
    """Seconds of each op, from the same prices as the closed form's."""
    edges = pass_edges(costs, phase_plan, phase, Tally())
    layers: list[LayerTimes] = []
    for kind, count in layer_kinds(costs.spec, phase_plan):
        layers += [costs.layer(kind, phase, HELD if phase == "decode" else 0).times] * count
    step = {
        "fill": 0.0, "send_inputs": edges.inputs_s, "embed": edges.embed_s, "last": 0.0, "head": edges.head_s,
        "head_input": 0.0, "head_slice": edges.head_s, "load_head": edges.load_s, "send_logits": edges.logits_s,
        "sample": edges.host_s, "send_last": edges.last_up_s + edges.last_down_s,
    }  # fmt: skip

    def seconds(op: Op) -> float:
        if op.kind in step:
            return step[op.kind]
        assert op.layer is not None
        t = layers[op.layer]
        hidden = t.enter_up_s + t.enter_down_s or t.between_up_s + t.between_down_s
        loads = t.load_attention_s if op.block == "attention" else t.load_mlp_s
        return {
            "send_hidden": hidden, "load_weights": loads, "load_kv": t.load_kv_s, "store_kv": t.store_kv_s,
            "attention": t.attention_s, "qkv": t.attention_s, "send_qkv": t.send_qkv_s, "attend": t.attend_s,
            "send_context": t.context_s, "attention_out": t.output_s, "mlp": t.mlp_s,
        }[op.kind]  # fmt: skip

    return seconds


def simulate(phase_plan: PhasePlan, phase: Phase, workload: Workload, seconds: Seconds, steps: int) -> list[float]:
    """When each step's last op ends. CPU ops run on the thread that issues the others, so what follows waits."""
    schedule = build(phase_plan, phase, workload)
    engines = {"compute": 0.0, "h2d": 0.0, "d2h": 0.0, "cpu": 0.0}

    def play(ops: Sequence[Op], previous: dict[int, float]) -> dict[int, float]:
        ends: dict[int, float] = {}
        for index, op in enumerate(ops):
            waits = [ends[i] for i in op.after] + [previous[i] for i in op.after_previous if i in previous]
            start = max([engines[op.engine], engines["cpu"], *waits])
            ends[index] = engines[op.engine] = start + seconds(op)
        return ends

    first = play(schedule.prologue, {})
    previous = {body: first[index] for body, index in schedule.primed.items()}
    marks = []
    for _ in range(steps):
        previous = play(schedule.body, previous)
        marks.append(engines["cpu"])
    return marks


PLANS = {
    "cpu": (("cpu", 20),),
    "offload": (("stream", 20),),
    "offload, some resident": (("stream", 11), ("gpu", 9)),
    "offload, KV streams": (("stream_kv", 20),),
    "offload, some KV streams": (("stream_kv", 9), ("stream", 11)),
    "offload, attention beside its KV": (("delegated", 20),),
    "offload, half delegated": (("delegated", 10), ("stream", 10)),
    "split": (("cpu", 11), ("gpu", 9)),
    "gpu": (("gpu", 20),),
}
MACHINES = {
    "link-bound": {"link_bytes": 1e7},
    "compute-bound": {"link_bytes": 1e9, "gpu_flops": 3e8},
    "balanced": {"link_bytes": 2e7, "gpu_flops": 2e9, "gpu_bytes": 1e8},
    "slow CPU": {"link_bytes": 3e7, "gpu_flops": 2e9, "cpu_bytes": 1e7},
}


def phase_plan_of(tiny: ModelSpec, placements: Kinds, name: str, head: BlockPlacement) -> PhasePlan:
    layers = tuple(placements[kind] for kind, count in PLANS[name] for _ in range(count))
    resident = tuple(i for i, placement in enumerate(layers) if placement.attention.weights == "gpu")
    embed: Home = "gpu" if name == "gpu" else "cpu"
    return PhasePlan(name, layers, resident, embed, head, head_slices=3 if head.streamed else 1)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("head", [ON_CPU, ON_GPU, STREAMED], ids=["cpu head", "gpu head", "streamed head"])
@pytest.mark.parametrize("rates", list(MACHINES))
@pytest.mark.parametrize("name", list(PLANS))
def test_the_closed_form_is_the_schedule_in_time(
    tiny: ModelSpec, placements: Kinds, machine, name: str, rates: str, head: BlockPlacement, phase: Phase
) -> None:
    spec = replace(tiny, num_layers=20, windows=())
    work = Workload(4, 40, 50)
    profile = machine(**MACHINES[rates], step_s=2e-4, dispatch_s=1e-6, copy_s=1e-6)
    phase_plan = phase_plan_of(spec, placements, name, head)
    costs = PassCosts(spec, work, profile)
    got = Pass(costs, phase_plan, phase).time(HELD if phase == "decode" else 0)
    seconds = op_seconds(costs, phase_plan, phase)
    marks = simulate(phase_plan, phase, work, seconds, 1 if phase == "prefill" else STEPS)
    assert got.first_s == pytest.approx(marks[0], rel=0.01)
    if phase == "decode":
        assert got.steady_s == pytest.approx(marks[-1] - marks[-2], rel=0.01)
