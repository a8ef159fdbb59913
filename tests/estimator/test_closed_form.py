"""Estimates of whole plans, by hand arithmetic on machines where only one thing costs anything."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexinfer.estimator import HardwareProfile, emulated_profile, estimate
from flexinfer.estimator.layers import PassCosts
from flexinfer.estimator.passes import Pass
from flexinfer.estimator.traffic import plan_traffic
from flexinfer.plan import ON_GPU, LayerPlacement, PhasePlan, Plan
from flexinfer.schedule.buffers import peak_bytes
from flexinfer.spec.model_spec import ModelSpec
from flexinfer.spec.workload import Workload

WORK = Workload(batch=2, prompt_len=8, new_tokens=5)
ATTENTION, MLP, TABLE = 64 * 64 * 2 + 64 * 32 * 2, 3 * 64 * 128, 96 * 64
PARAMS = 4 * (ATTENTION + MLP) + TABLE

Kinds = dict[str, LayerPlacement]


def phase(name: str, placements: Kinds, *parts: tuple[str, int]) -> PhasePlan:
    layers = tuple(placements[kind] for kind, count in parts for _ in range(count))
    resident = tuple(i for i, placement in enumerate(layers) if placement.attention.weights == "gpu")
    return PhasePlan(name, layers, resident, head=ON_GPU if layers[-1].mlp.weights == "gpu" else PhasePlan("", ()).head)


def both(one: PhasePlan) -> Plan:
    return Plan(one, one)


def test_cpu_only_prefill_is_its_flops(tiny: ModelSpec, placements: Kinds, machine) -> None:
    prefill, _, times = estimate(tiny, both(phase("cpu", placements, ("cpu", 4))), WORK, machine(cpu_flops=1e6))
    pairs = 8 * 9 / 2
    flops = 2 * (16 * 4 * (ATTENTION + MLP) + 2 * TABLE) + 4 * (4 * 64 * pairs) * 2
    assert prefill.time_s == times.ttft_s == pytest.approx(flops / 1e6)
    assert prefill.bound == "CPU compute" and times.h2d_bytes == 0


def test_long_prompts_cost_all_their_rows(tiny: ModelSpec, placements: Kinds, machine) -> None:
    """Blocks work through a batch in groups; every group is counted."""
    work, plan = Workload(3, 5000, 1), both(phase("cpu", placements, ("cpu", 4)))
    flops = 2 * (15_000 * 4 * (ATTENTION + MLP) + 3 * TABLE) + 3 * 4 * (4 * 64 * 5000 * 5001 / 2)
    assert estimate(tiny, plan, work, machine(cpu_flops=1e9))[0].time_s == pytest.approx(flops / 1e9)


def test_the_first_step_waits_for_its_first_loads(tiny: ModelSpec, placements: Kinds, machine) -> None:
    """Later steps find them loaded while the head and sampling ran, which are slow here."""
    profile = machine(link_bytes=1e6, step_s=10.0)
    plan = both(phase("offload", placements, ("stream", 4)))
    times = [estimate(tiny, plan, replace(WORK, new_tokens=n), profile)[1].time_s for n in (2, 3)]
    first_loads_s = (ATTENTION + MLP) * 4 / 1e6
    assert times[0] - (times[1] - times[0]) == pytest.approx(first_loads_s, rel=0.05)


def test_cpu_only_decode_reads_weights_and_the_kv_so_far(tiny: ModelSpec, placements: Kinds, machine) -> None:
    profile = machine(cpu_bytes=1e6)
    _, decode, times = estimate(tiny, both(phase("cpu", placements, ("cpu", 4))), WORK, profile)
    kv = sum(4 * 2 * (8 + step) * 2 * 2 * 16 for step in range(1, 5))
    least = (4 * PARAMS + kv) * 4 / 1e6
    assert least < decode.time_s < 1.5 * least  # activations come on top
    longer = estimate(tiny, both(phase("cpu", placements, ("cpu", 4))), replace(WORK, prompt_len=108), profile)[1]
    more_kv = 4 * 4 * 2 * 100 * 2 * 2 * 16 * 4 / 1e6
    assert longer.time_s - decode.time_s == pytest.approx(more_kv, rel=0.01)  # and a longer mask to fill
    assert decode.bound == "CPU memory" and times.tpot_s == pytest.approx(decode.time_s / 4)


def test_pure_streaming_takes_the_links_time(tiny: ModelSpec, placements: Kinds, machine) -> None:
    profile = machine(link_bytes=1e6)
    prefill, decode, times = estimate(tiny, both(phase("offload", placements, ("stream", 4))), WORK, profile)
    weights = 4 * (ATTENTION + MLP) * 4
    assert prefill.bound == decode.bound == "link"
    assert prefill.time_s == pytest.approx(times.h2d_bytes / 1e6 - decode.terms["h2d"], rel=0.02)
    assert weights / 1e6 < prefill.time_s < 1.15 * weights / 1e6
    assert decode.time_s == pytest.approx(decode.terms["h2d"], rel=0.05)


def test_offload_overlaps_the_link_with_the_gpu(tiny: ModelSpec, placements: Kinds, machine) -> None:
    plan = both(phase("offload", placements, ("stream", 4)))
    alone = {
        name: estimate(tiny, plan, WORK, machine(**{name: rate}))[0].time_s
        for name, rate in (("link_bytes", 1e6), ("gpu_flops", 1e7))
    }
    together = estimate(tiny, plan, WORK, machine(link_bytes=1e6, gpu_flops=1e7))[0].time_s
    assert max(alone.values()) < together < 0.8 * sum(alone.values())


def test_split_adds_its_two_sides(tiny: ModelSpec, placements: Kinds, machine) -> None:
    profile = machine(cpu_flops=1e6, gpu_flops=1e7)
    cpu_s, gpu_s, split_s = (
        estimate(tiny, both(phase("any", placements, *parts)), WORK, profile)[0].time_s
        for parts in ([("cpu", 4)], [("gpu", 4)], [("cpu", 3), ("gpu", 1)])
    )
    head_s = 2 * TABLE * 2 / 1e7
    layers_cpu_s = cpu_s - 2 * TABLE * 2 / 1e6
    assert split_s == pytest.approx(0.75 * layers_cpu_s + 0.25 * (gpu_s - head_s) + head_s)


def test_delegated_attention_runs_on_the_cpu(tiny: ModelSpec, placements: Kinds, machine) -> None:
    plan = both(phase("offload", placements, ("delegated", 4)))
    _, decode, _ = estimate(tiny, plan, WORK, machine(cpu_bytes=1e6, gpu_flops=1e9))
    kv_bytes = sum(4 * 2 * (8 + step) * 2 * 2 * 16 * 4 for step in range(1, 5))
    head_and_rows = estimate(tiny, both(phase("offload", placements, ("stream", 4))), WORK, machine(cpu_bytes=1e6))[1]
    assert decode.terms["cpu"] - head_and_rows.terms["cpu"] == pytest.approx(kv_bytes / 1e6)


def test_switch_is_priced_by_its_bytes(tiny: ModelSpec, placements: Kinds, machine) -> None:
    cpu, split = phase("cpu", placements, ("cpu", 4)), phase("split", placements, ("cpu", 2), ("gpu", 2))
    plan = Plan(replace(cpu, resident=split.resident), split)
    _, _, times = estimate(tiny, plan, WORK, machine(link_bytes=1e6))
    kv, head = 2 * 2 * 8 * 2 * 2 * 16 * 4, TABLE * 4
    assert times.switch_s == pytest.approx((kv + head) / 1e6)
    assert times.e2e_s == pytest.approx(times.ttft_s + times.switch_s + (times.tpot_s or 0) * 4)


def test_one_token_needs_no_decode(tiny: ModelSpec, placements: Kinds, machine) -> None:
    plan = Plan(phase("cpu", placements, ("cpu", 4)), phase("gpu", placements, ("gpu", 4)))
    _, decode, times = estimate(tiny, plan, replace(WORK, new_tokens=1), machine(cpu_bytes=1e6))
    assert times.tpot_s is None and times.switch_s == 0 and decode.time_s == 0 and times.e2e_s == times.ttft_s


def test_new_tokens_not_context_length_drive_prefill(tiny: ModelSpec, placements: Kinds, machine) -> None:
    profile, plan = machine(cpu_flops=1e6), both(phase("cpu", placements, ("cpu", 4)))
    turn = estimate(tiny, plan, Workload(1, 8, 2, cached_tokens=400), profile)[0].time_s
    fresh = estimate(tiny, plan, Workload(1, 408, 2), profile)[0].time_s
    short = estimate(tiny, plan, Workload(1, 8, 2), profile)[0].time_s
    assert short < turn < 0.1 * fresh
    assert turn - short == pytest.approx(4 * (4 * 64 * 8 * 400) / 1e6)


@pytest.mark.parametrize("kind", ["cpu", "gpu", "stream", "stream_kv", "delegated"])
def test_decode_is_integrated_over_its_steps(tiny: ModelSpec, placements: Kinds, machine, kind: str) -> None:
    profile = machine(cpu_bytes=3e6, gpu_bytes=3e7, link_bytes=1e7, cpu_flops=1e7, gpu_flops=1e8, copy_s=1e-5)
    work, one = Workload(4, 50, 201), phase("any", placements, (kind, 4))
    costs = PassCosts(tiny, work, profile)
    steps = [Pass(costs, one, "decode").time(50 + step) for step in range(200)]
    exact = sum(step.steady_s for step in steps) + steps[0].first_s - steps[0].steady_s
    assert estimate(tiny, both(one), work, profile)[1].time_s == pytest.approx(exact, rel=0.01)


def test_layers_with_a_window_stop_growing(tiny: ModelSpec, placements: Kinds, machine) -> None:
    """Two of four layers see 16 tokens at most: their KV reads stay as they are once the context is longer."""
    windowed = replace(tiny, windows=(None, 16, None, 16))
    plan, profile = both(phase("cpu", placements, ("cpu", 4))), machine(cpu_bytes=1e6)
    short, long = (
        [estimate(spec, plan, Workload(1, prompt, 2), profile)[1].time_s for spec in (tiny, windowed)]
        for prompt in (16, 116)
    )
    token_s = 2 * 2 * 2 * 16 * 4 / 1e6  # in two layers; a second mask to fill is what the tolerance is for
    assert long[0] - long[1] == pytest.approx(101 * token_s, abs=token_s)
    assert short[0] - short[1] == pytest.approx(token_s, abs=token_s)


@pytest.mark.parametrize("kind", ["cpu", "gpu", "stream", "stream_kv", "delegated", "mixed"])
def test_bytes_and_peaks_are_those_of_traffic_and_buffers(
    tiny: ModelSpec, placements: Kinds, machine, kind: str
) -> None:
    plan = both(phase("any", placements, (kind, 4)))
    times = estimate(tiny, plan, WORK, machine())[2]
    traffic, peaks = plan_traffic(tiny, plan, WORK), peak_bytes(tiny, plan, WORK)
    assert (times.h2d_bytes, times.d2h_bytes) == (traffic.h2d, traffic.d2h)
    assert (times.gpu_peak_bytes, times.cpu_peak_bytes) == (peaks["gpu"], peaks["cpu"])


KINDS = ("cpu", "gpu", "stream", "stream_kv", "delegated", "mixed")
RATES = ("cpu_flops", "cpu_bytes", "gpu_flops", "gpu_bytes", "link_bytes")


@given(
    kinds=st.lists(
        st.sampled_from(["cpu", "gpu", "stream", "stream_kv", "delegated", "mixed"]), min_size=4, max_size=4
    ),
    rates=st.tuples(*[st.floats(1e5, 1e9)] * 5),
    faster=st.sampled_from(RATES),
    batch=st.integers(1, 9),
    prompt=st.integers(1, 300),
    new=st.integers(2, 60),
)
def test_faster_hardware_never_hurts_and_more_work_never_helps(
    tiny: ModelSpec, placements: Kinds, machine, kinds, rates, faster: str, batch: int, prompt: int, new: int
) -> None:
    plan = both(phase("any", placements, *[(kind, 1) for kind in kinds]))
    machine_rates = dict(zip(RATES, rates, strict=True))
    work = Workload(batch, prompt, new)
    base = estimate(tiny, plan, work, machine(**machine_rates))[2]
    quick = estimate(tiny, plan, work, machine(**{**machine_rates, faster: 2 * machine_rates[faster]}))[2]
    assert quick.ttft_s <= base.ttft_s * 1.000001 and quick.e2e_s <= base.e2e_s * 1.000001
    for more in (
        replace(work, batch=batch + 1),
        replace(work, prompt_len=prompt + 1),
        replace(work, new_tokens=new + 1),
    ):
        assert estimate(tiny, plan, more, machine(**machine_rates))[2].e2e_s >= base.e2e_s * 0.999999


def test_a_gpu_plan_needs_a_gpu(tiny: ModelSpec, placements: Kinds, machine) -> None:
    alone = replace(machine(), gpu=None, link=None)
    with pytest.raises(ValueError, match="no GPU"):
        estimate(tiny, both(phase("gpu", placements, ("gpu", 4))), WORK, alone)
    assert estimate(tiny, both(phase("cpu", placements, ("cpu", 4))), WORK, alone)[2].h2d_bytes == 0


def test_the_emulated_machine_is_the_cpu_twice(machine) -> None:
    real = replace(
        machine(cpu_flops=8e9, cpu_bytes=4e9), cpu=replace(machine(cpu_flops=8e9, cpu_bytes=4e9).cpu, threads=4)
    )
    got: HardwareProfile = emulated_profile(real, 1e9, 10**8, compute_threads=1, cpu_threads=4)
    assert got.gpu is not None and got.link is not None
    assert got.cpu == real.cpu and got.gpu.memory_bytes == 10**8 and got.link.h2d_bytes_per_s == 1e9
    assert got.gpu.peak_flops_per_s["float32"] == 2e9 and got.gpu.memory_bytes_per_s == 2e9
    one = replace(real, cpu_one_thread=replace(real.cpu, threads=1, memory_bytes_per_s=3e9))
    assert emulated_profile(one, 1e9, 10**8, 1, 4).gpu.memory_bytes_per_s == 3e9  # type: ignore[union-attr]
