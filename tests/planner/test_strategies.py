"""What the strategies mean: who computes, what streams, where KV lies, and that every weight has its place."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexinfer.estimator.traffic import gpu_copies, table_bytes
from flexinfer.plan import ON_CPU, ON_GPU, STREAMED, Plan
from flexinfer.planner.memory import PhaseMemory
from flexinfer.planner.strategies import STRATEGIES, HeadChoice, Layout, Strategy
from flexinfer.schedule.buffers import (
    aligned,
    block_buffer_bytes,
    device_bytes,
    head_slice_rows,
    peak_bytes,
    phase_buffers,
)
from flexinfer.spec.model_spec import ModelSpec
from flexinfer.spec.workload import Workload

Model = Callable[[str], ModelSpec]
WORK = Workload(3, 40, 20)


def test_cpu_leaves_residents_unused(small: ModelSpec) -> None:
    plan = STRATEGIES["cpu"](small, Layout(2, 0))
    assert not plan.uses_gpu and plan.resident == (4, 5) and plan.head == ON_CPU and plan.embed == "cpu"
    assert {(p.attention.compute, p.kv, p.attend) for p in plan.layers} == {("cpu", "cpu", "cpu")}


def test_split_keeps_its_last_layers_with_their_kv(small: ModelSpec) -> None:
    plan = STRATEGIES["split"](small, Layout(2, 0, head="resident"))
    assert [p.mlp.compute for p in plan.layers] == ["cpu"] * 4 + ["gpu"] * 2
    assert [p.kv for p in plan.layers] == ["cpu"] * 4 + ["gpu"] * 2
    assert plan.head == ON_GPU and plan.embed == "cpu" and not any(p.mlp.streamed for p in plan.layers)
    assert STRATEGIES["split"](small, Layout(0, 0, head="resident")).head == ON_CPU


def test_offload_computes_all_on_the_gpu_and_streams_what_is_not_resident(small: ModelSpec) -> None:
    plan = STRATEGIES["offload"](small, Layout(2, 3, attend="cpu", head="streamed"))
    assert {p.mlp.compute for p in plan.layers} == {"gpu"}
    assert [p.mlp.streamed for p in plan.layers] == [True] * 4 + [False] * 2
    assert [p.kv for p in plan.layers] == ["cpu"] * 3 + ["gpu"] * 3
    assert [p.delegated for p in plan.layers] == [True] * 3 + [False] * 3
    assert plan.head == STREAMED
    streaming = STRATEGIES["offload"](small, Layout(0, 0, attend="gpu"))
    assert all(p.kv_streamed for p in streaming.layers)


def test_a_streamed_heads_slices_are_no_larger_than_a_blocks_buffer(model: Model) -> None:
    for name in ("opt-66b", "llama3-8b", "qwen2.5-0.5b"):
        spec = model(name)
        plan = STRATEGIES["offload"](spec, Layout(0, 0, head="streamed"))
        rows = head_slice_rows(spec, plan.head_slices)
        room = max(block_buffer_bytes(spec, "attention"), block_buffer_bytes(spec, "mlp"))
        assert aligned(rows * spec.embedding_size * spec.dtype_bytes) <= room


def test_gpu_holds_everything(small: ModelSpec) -> None:
    plan = STRATEGIES["gpu"](small, Layout(6, 6))
    assert plan.embed == "gpu" and plan.head == ON_GPU and plan.resident == tuple(range(6))
    assert all(p.mlp == ON_GPU and p.kv == "gpu" for p in plan.layers)


STRATEGY = st.sampled_from(["cpu", "split", "offload", "gpu"])
HOME = st.sampled_from(["gpu", "cpu"])
HEAD = st.sampled_from(["resident", "streamed", "cpu"])


@given(
    strategy=STRATEGY,
    resident=st.integers(0, 6),
    kv=st.integers(0, 6),
    head=HEAD,
    attend=HOME,
)
def test_every_weight_is_computed_from_one_place(
    small: ModelSpec, strategy: Strategy, resident: int, kv: int, head: HeadChoice, attend
) -> None:
    """Bytes computed from GPU copies, from streamed ones and from the CPU's add up to the checkpoint's."""
    plan = STRATEGIES[strategy](small, Layout(resident, kv, attend, head))
    placed = {"gpu": 0, "streamed": 0, "cpu": 0}
    for layer in plan.layers:
        for block, placement in (("attention", layer.attention), ("mlp", layer.mlp)):
            place = "streamed" if placement.streamed else placement.compute
            placed[place] += small.block_bytes(block)
    placed["streamed" if plan.head.streamed else plan.head.compute] += small.block_bytes("head")
    placed[plan.embed] += small.block_bytes("embed")
    assert sum(placed.values()) == small.total_bytes
    copies = gpu_copies(small, plan)
    unused = len(plan.resident) * small.layer_bytes if strategy == "cpu" else 0
    norm = small.block_bytes("head") - table_bytes(small) if plan.head.streamed else 0
    assert sum(copies.values()) == placed["gpu"] + unused + norm


@given(
    strategy=STRATEGY, resident=st.integers(0, 6), kv=st.integers(0, 6), head=HEAD, attend=HOME,
    phase=st.sampled_from(["prefill", "decode"]),
)  # fmt: skip
def test_memory_by_arithmetic_is_the_sum_over_buffers(
    small: ModelSpec, strategy: Strategy, resident: int, kv: int, head: HeadChoice, attend, phase
) -> None:
    if strategy == "gpu":
        resident = 6
    layout = Layout(resident, kv, attend, head)
    buffers = phase_buffers(small, STRATEGIES[strategy](small, layout), phase, WORK)
    want = (device_bytes(buffers, "gpu"), device_bytes(buffers, "cpu"))
    assert PhaseMemory(small, WORK).bytes(strategy, phase, layout) == want


@pytest.mark.parametrize("pair", [("offload", "offload"), ("split", "split"), ("offload", "split"), ("cpu", "split")])
def test_peaks_grow_with_the_resident_layers(small: ModelSpec, pair: tuple[Strategy, Strategy]) -> None:
    def peak(resident: int) -> int:
        kv = resident if pair[1] == "split" else 0
        layout = Layout(resident, kv)
        phases = [STRATEGIES[strategy](small, layout) for strategy in pair]
        return peak_bytes(small, Plan(*phases), WORK)["gpu"]

    peaks = [peak(resident) for resident in range(1, 6)]
    steps = {b - a for a, b in zip(peaks, peaks[1:], strict=False)}
    assert all(step > 0 for step in steps) and len(steps) == 1
