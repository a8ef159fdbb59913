"""Schedules of every kind of placement are complete and ordered, and no dependency is there for nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexinfer.plan import ON_CPU, ON_GPU, STREAMED, Home, LayerPlacement, Phase, PhasePlan, Plan
from flexinfer.schedule.buffers import device_bytes, head_slice, head_slice_rows, peak_bytes, phase_buffers
from flexinfer.schedule.build import build
from flexinfer.schedule.check import buffer_names, check
from flexinfer.spec.model_spec import ModelSpec, RopeSpec
from flexinfer.spec.workload import Workload

PLACEMENTS = (
    LayerPlacement(ON_CPU, ON_CPU, "cpu", "cpu"),
    LayerPlacement(ON_GPU, ON_GPU, "gpu", "gpu"),
    LayerPlacement(STREAMED, STREAMED, "gpu", "gpu"),
    LayerPlacement(STREAMED, STREAMED, "cpu", "gpu"),
    LayerPlacement(STREAMED, STREAMED, "cpu", "cpu"),
    LayerPlacement(ON_GPU, ON_CPU, "gpu", "gpu"),
    LayerPlacement(ON_CPU, STREAMED, "cpu", "cpu"),
)
HEADS = ((ON_CPU, 1), (ON_GPU, 1), (STREAMED, 3))


def phase_plan(layers: list[LayerPlacement], head: int, depth: int, embed: Home = "cpu") -> PhasePlan:
    placement, slices = HEADS[head]
    resident = tuple(i for i, p in enumerate(layers) if "gpu" in (p.attention.weights, p.mlp.weights))
    return PhasePlan("test", tuple(layers), resident, embed, placement, slices, depth)


plans = st.builds(
    phase_plan,
    st.lists(st.sampled_from(PLACEMENTS), min_size=1, max_size=6),
    st.integers(0, 2),
    st.integers(1, 4),
    st.sampled_from(["cpu", "gpu"]),
)
phases: st.SearchStrategy[Phase] = st.sampled_from(["prefill", "decode"])


def spec_of(layers: int) -> ModelSpec:
    return ModelSpec(
        "t", "llama", 64, layers, 4, 2, 16, 128, 100, 128, "float32", "silu", True, "rms", 1e-5, rope=RopeSpec()
    )


@settings(deadline=None, max_examples=80)
@given(plans, phases, st.sampled_from([0, 3]))
def test_every_conflict_is_ordered(plan: PhasePlan, phase: Phase, cached: int) -> None:
    check(build(plan, phase, Workload(2, 5, 4, cached)))


@settings(deadline=None, max_examples=80)
@given(plans, phases)
def test_every_buffer_that_ops_touch_is_in_the_plan_s_list(plan: PhasePlan, phase: Phase) -> None:
    workload = Workload(2, 5, 4)
    listed = {f"{b.device}:{b.name}" for b in phase_buffers(spec_of(len(plan.layers)), plan, phase, workload)}
    schedule = build(plan, phase, workload)
    for name in buffer_names([*schedule.prologue, *schedule.body]):
        device, buffer = name.split(":")
        assert name in listed or (device == "cpu" and buffer.startswith("weights")) or name == "cpu:tokens", name


@settings(deadline=None, max_examples=40)
@given(plans)
def test_each_streamed_block_is_loaded_once_a_step(plan: PhasePlan) -> None:
    schedule = build(plan, "decode", Workload(2, 5, 4))
    loads = [(op.layer, op.block) for op in schedule.body if op.kind == "load_weights"]
    wanted = [(i, b) for i, p in enumerate(plan.layers) for b in ("attention", "mlp") if getattr(p, b).streamed]
    assert sorted(loads, key=str) == sorted(wanted, key=str)
    assert len(schedule.primed) == len(schedule.prologue)


def test_a_load_for_the_next_layer_is_issued_before_this_layer_computes() -> None:
    plan = phase_plan([PLACEMENTS[2]] * 4, 0, 2)
    body = build(plan, "prefill", Workload(1, 5, 4)).body
    order = [(op.kind, op.layer, op.block) for op in body]
    assert order.index(("load_weights", 1, "attention")) < order.index(("mlp", 0, "mlp"))


def test_dropping_a_dependency_is_noticed() -> None:
    """The check has teeth: a dependency that is not implied by the others is missed when it is removed."""
    schedule = build(phase_plan([PLACEMENTS[3], PLACEMENTS[4], PLACEMENTS[0]], 2, 2), "prefill", Workload(2, 5, 4))
    edges = noticed = 0
    for index, op in enumerate(schedule.body):
        for dependency in op.after:
            edges += 1
            fewer = replace(op, after=tuple(i for i in op.after if i != dependency))
            body = (*schedule.body[:index], fewer, *schedule.body[index + 1 :])
            try:
                check(replace(schedule, body=body))
            except ValueError:
                noticed += 1
    assert noticed >= 0.7 * edges, f"{noticed} of {edges}"


def test_peak_grows_with_batch_and_length() -> None:
    spec = spec_of(2)
    plan = phase_plan([PLACEMENTS[2], PLACEMENTS[1]], 1, 2)
    sizes = [
        device_bytes(phase_buffers(spec, plan, "prefill", Workload(batch, length, 4)), "gpu")
        for batch, length in ((1, 8), (2, 8), (2, 64), (4, 64))
    ]
    assert sizes == sorted(sizes) and sizes[0] < sizes[-1]


def test_one_token_needs_the_memory_of_prefill_alone() -> None:
    spec, small, large = spec_of(2), phase_plan([PLACEMENTS[0]] * 2, 0, 2), phase_plan([PLACEMENTS[1]] * 2, 1, 2)
    assert peak_bytes(spec, Plan(small, large), Workload(1, 8, 1))["gpu"] == 0
    assert peak_bytes(spec, Plan(small, large), Workload(1, 8, 2))["gpu"] > 0


@given(st.integers(1, 400), st.integers(1, 500))
def test_slices_of_a_head_cover_it_once(vocab: int, slices: int) -> None:
    spec = replace(spec_of(1), vocab_size=vocab)
    parts = [head_slice(spec, slices, part) for part in range(slices)]
    assert [row for first, count in parts for row in range(first, first + count)] == list(range(vocab))
    assert max(count for _, count in parts) <= head_slice_rows(spec, slices)


@pytest.mark.parametrize("name", ["head_slices", "prefetch_depth"])
def test_counts_of_a_plan_are_at_least_one(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        PhasePlan("test", (PLACEMENTS[0],), **{name: 0})


def test_a_layer_on_the_gpu_must_be_resident() -> None:
    with pytest.raises(ValueError, match="not resident"):
        PhasePlan("test", (PLACEMENTS[1],))
