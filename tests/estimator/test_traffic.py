"""What crosses the link, counted by hand for the tiny model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flexinfer.estimator.traffic import (
    Traffic,
    edge_traffic,
    held_tokens,
    layer_traffic,
    phase_traffic,
    plan_traffic,
    switch_traffic,
)
from flexinfer.plan import ON_CPU, ON_GPU, STREAMED, LayerPlacement, Phase, PhasePlan, Plan
from flexinfer.schedule.inputs import input_bytes
from flexinfer.spec.model_spec import ModelSpec
from flexinfer.spec.workload import Workload

WORK = Workload(batch=3, prompt_len=10, new_tokens=6)
ATTENTION, MLP, TABLE = (64 * 64 * 2 + 64 * 32 * 2) * 4, 3 * 64 * 128 * 4, 96 * 64 * 4
KV_TOKEN = 2 * 2 * 16 * 4
HIDDEN = 64 * 4

Kinds = dict[str, LayerPlacement]


def test_streamed_weights_cross_once_a_pass(tiny: ModelSpec, placements: Kinds) -> None:
    stream = PhasePlan("offload", (placements["stream"],) * 4)
    got = phase_traffic(tiny, stream, "prefill", WORK)
    up = 4 * (ATTENTION + MLP) + 3 * 10 * HIDDEN + input_bytes(tiny, "prefill", WORK)
    assert got == Traffic(h2d=up, d2h=3 * HIDDEN)  # down: the last positions, to the head on the CPU
    step = 4 * (ATTENTION + MLP) + 3 * HIDDEN + input_bytes(tiny, "decode", WORK)
    assert phase_traffic(tiny, stream, "decode", WORK) == Traffic(h2d=5 * step, d2h=5 * 3 * HIDDEN)


def test_streamed_kv_brings_all_rows_and_takes_back_the_new(tiny: ModelSpec, placements: Kinds) -> None:
    kind = placements["stream_kv"]
    weights = ATTENTION + MLP
    empty = layer_traffic(tiny, kind, "prefill", WORK, 0)
    assert empty == Traffic(h2d=weights, d2h=3 * 10 * KV_TOKEN)
    cached = layer_traffic(tiny, kind, "prefill", replace(WORK, cached_tokens=7), 7)
    assert cached == Traffic(h2d=weights + 3 * 17 * KV_TOKEN, d2h=3 * 10 * KV_TOKEN)
    step = layer_traffic(tiny, kind, "decode", WORK, 12)
    assert step == Traffic(h2d=weights + 3 * 13 * KV_TOKEN, d2h=3 * KV_TOKEN)


def test_streamed_kv_grows_with_every_step(tiny: ModelSpec, placements: Kinds) -> None:
    """Five steps after ten tokens read 11, 12, 13, 14 and 15 rows of each of three sequences."""
    got = phase_traffic(tiny, PhasePlan("offload", (placements["stream_kv"],) * 4), "decode", WORK)
    plain = phase_traffic(tiny, PhasePlan("offload", (placements["stream"],) * 4), "decode", WORK)
    assert got.h2d - plain.h2d == 4 * 3 * (11 + 12 + 13 + 14 + 15) * KV_TOKEN
    assert got.d2h - plain.d2h == 4 * 3 * 5 * KV_TOKEN


def test_delegated_attention_sends_q_k_v_and_gets_the_context(tiny: ModelSpec, placements: Kinds) -> None:
    step = layer_traffic(tiny, placements["delegated"], "decode", WORK, 12)
    assert step == Traffic(h2d=ATTENTION + MLP + 3 * 64 * 4, d2h=3 * (64 + 2 * 32) * 4)


@pytest.mark.parametrize("kind", ["cpu", "gpu", "stream", "stream_kv", "delegated", "mixed"])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_a_phase_is_the_sum_of_its_passes(tiny: ModelSpec, placements: Kinds, kind: str, phase: Phase) -> None:
    plan = PhasePlan("any", (placements[kind],) * 3 + (placements["gpu"],), resident=(0, 1, 2, 3), head=ON_GPU)
    total = Traffic()
    for step in range(1 if phase == "prefill" else WORK.decode_steps):
        total += edge_traffic(tiny, plan, phase, WORK)
        for placement in plan.layers:
            total += layer_traffic(tiny, placement, phase, WORK, held_tokens(phase, WORK, step))
    assert phase_traffic(tiny, plan, phase, WORK) == total


def test_a_split_crosses_once_and_its_head_sends_logits(tiny: ModelSpec, placements: Kinds) -> None:
    layers = (placements["cpu"],) * 2 + (placements["gpu"],) * 2
    split = PhasePlan("split", layers, resident=(2, 3), head=ON_GPU)
    got = edge_traffic(tiny, split, "decode", WORK)
    assert got == Traffic(h2d=3 * HIDDEN + input_bytes(tiny, "decode", WORK), d2h=3 * 96 * 4)
    alternating = PhasePlan("any", (placements["gpu"], placements["cpu"]) * 2, resident=(0, 2))
    crossing = edge_traffic(tiny, alternating, "decode", WORK)
    assert crossing == Traffic(h2d=2 * 3 * HIDDEN + input_bytes(tiny, "decode", WORK), d2h=2 * 3 * HIDDEN)


def test_only_the_last_positions_go_to_a_head_elsewhere(tiny: ModelSpec, placements: Kinds) -> None:
    alone = PhasePlan("any", (placements["cpu"],) * 4, head=STREAMED, head_slices=3)
    got = edge_traffic(tiny, alone, "prefill", WORK)
    assert got == Traffic(h2d=3 * HIDDEN + TABLE + input_bytes(tiny, "prefill", WORK), d2h=3 * 96 * 4)


def test_nothing_crosses_without_a_gpu_or_with_everything_on_it(tiny: ModelSpec, placements: Kinds) -> None:
    cpu = PhasePlan("cpu", (placements["cpu"],) * 4)
    assert plan_traffic(tiny, Plan(cpu, cpu), WORK) == Traffic()
    gpu = PhasePlan("gpu", (placements["gpu"],) * 4, (0, 1, 2, 3), embed="gpu", head=ON_GPU)
    got = edge_traffic(tiny, gpu, "decode", WORK)
    assert got == Traffic(h2d=input_bytes(tiny, "decode", WORK), d2h=3 * 96 * 4)


def test_the_switch_moves_filled_rows_and_loads_what_is_new(tiny: ModelSpec, placements: Kinds) -> None:
    cpu = PhasePlan("cpu", (placements["cpu"],) * 4, resident=(3,))
    split = PhasePlan("split", (placements["cpu"],) * 2 + (placements["gpu"],) * 2, (2, 3), head=ON_GPU)
    up = switch_traffic(tiny, Plan(cpu, split), replace(WORK, cached_tokens=5))
    assert up == Traffic(h2d=2 * 3 * 15 * KV_TOKEN + (ATTENTION + MLP) + TABLE)
    down = switch_traffic(tiny, Plan(split, cpu), WORK)
    assert down == Traffic(d2h=2 * 3 * 10 * KV_TOKEN)
    assert switch_traffic(tiny, Plan(cpu, split), replace(WORK, new_tokens=1)) == Traffic()


def test_a_tied_table_crosses_once(tiny: ModelSpec, placements: Kinds) -> None:
    tied = replace(tiny, tied_head=True)
    layers, all_layers = (placements["gpu"],) * 4, (0, 1, 2, 3)
    split = PhasePlan("split", layers, all_layers, head=ON_CPU)
    gpu = PhasePlan("gpu", layers, all_layers, embed="gpu", head=ON_GPU)
    assert switch_traffic(tied, Plan(split, gpu), WORK).h2d == TABLE
    assert switch_traffic(tiny, Plan(split, gpu), WORK).h2d == 2 * TABLE
