"""The search: fastest that fits, never beaten by a simple strategy, and moved the right way by prices."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from flexinfer.errors import DoesNotFitError, UserError
from flexinfer.estimator import HardwareProfile, estimate
from flexinfer.plan import Plan
from flexinfer.planner import Choice, PlanRequest, search
from flexinfer.planner.break_even import break_even
from flexinfer.planner.space import Option, Space, Variant
from flexinfer.planner.strategies import STRATEGIES, Layout, cpu, offload
from flexinfer.schedule.buffers import kv_layer_bytes
from flexinfer.spec.model_spec import ModelSpec
from flexinfer.spec.workload import Workload
from flexinfer.units import parse_size

Model = Callable[[str], ModelSpec]
GRID = [("opt-30b", 1, 128), ("opt-30b", 16, 1024), ("llama3-70b", 16, 128), ("llama3-70b", 1, 1024)]


def check_invariants(choice: Choice) -> None:
    """What holds for every choice."""
    fitting = [c for c in choice.candidates if c.fits]
    assert choice.chosen == choice.candidates[0] == fitting[0]
    assert choice.chosen.times.e2e_s == min(c.times.e2e_s for c in fitting)
    assert list(choice.candidates[: len(fitting)]) == fitting, "those that do not fit come last"
    assert all(c.why for c in choice.candidates)
    assert len({c.name for c in choice.candidates}) == len(choice.candidates)


@pytest.mark.parametrize(("name", "batch", "prompt"), GRID)
@pytest.mark.parametrize("server", ["a100", "h100"])
def test_no_fixed_strategy_beats_the_choice(
    request: pytest.FixtureRequest, model: Model, server: str, name: str, batch: int, prompt: int
) -> None:
    profile: HardwareProfile = request.getfixturevalue(server)
    spec, work = model(name), Workload(batch, prompt, 128)
    choice = search(spec, work, profile)
    check_invariants(choice)
    for strategy in ("cpu", "offload", "split"):
        fixed = search(spec, work, profile, PlanRequest(strategy, strategy)).chosen
        assert choice.chosen.times.e2e_s <= fixed.times.e2e_s


def test_the_estimate_of_the_choice_is_the_estimators(model: Model, h100: HardwareProfile) -> None:
    spec, work = model("opt-66b"), Workload(8, 700, 100)
    for candidate in search(spec, work, h100).candidates:
        assert (candidate.prefill, candidate.decode, candidate.times) == estimate(spec, candidate.plan, work, h100)


def test_the_same_question_gets_the_same_plan(model: Model, h100: HardwareProfile) -> None:
    spec, work = model("opt-66b"), Workload(1, 512, 128)
    choice = search(spec, work, h100)
    assert search(spec, work, h100) == choice
    assert len(choice.candidates) == 10


def test_a_large_model_is_planned_within_a_second(model: Model, h100: HardwareProfile) -> None:
    spec, work = model("opt-175b"), Workload(8, 1024, 128)
    start = time.process_time()
    choice = search(spec, work, h100)
    assert time.process_time() - start < 1.0, "about 0.2 s on a quiet core"
    check_invariants(choice)


def test_the_acceptance_cases_fit_and_refuse(model: Model, a100: HardwareProfile) -> None:
    chosen = search(model("opt-66b"), Workload(8, 1024, 128), a100).chosen
    assert chosen.times.gpu_peak_bytes <= 40e9 and chosen.times.cpu_peak_bytes <= 256e9
    with pytest.raises(DoesNotFitError, match="the CPU needs 32") as caught:
        search(model("opt-175b"), Workload(1, 128, 8), a100)
    assert caught.value.exit_code == 3 and "weights" in str(caught.value)


def test_residents_are_shared_by_both_phases(model: Model, h100: HardwareProfile) -> None:
    for candidate in search(model("opt-66b"), Workload(4, 512, 128), h100).candidates:
        assert candidate.plan.prefill.resident == candidate.plan.decode.resident
        count = candidate.plan.gpu_layers
        assert candidate.plan.decode.resident == tuple(range(64 - count, 64))


def test_prefill_homes_kv_where_decode_wants_it(model: Model, h100: HardwareProfile) -> None:
    spec, work = model("opt-66b"), Workload(4, 2048, 128)
    for decode in ("cpu", "split", "offload"):
        chosen = search(spec, work, h100, PlanRequest("offload", decode)).chosen
        assert [p.kv for p in chosen.plan.prefill.layers] == [p.kv for p in chosen.plan.decode.layers]
        assert chosen.times.switch_s == 0


def test_decode_at_batch_one_does_not_stream(model: Model, h100: HardwareProfile, a100: HardwareProfile) -> None:
    for name in ("opt-66b", "llama2-70b"):
        for profile in (h100, a100):
            chosen = search(model(name), Workload(1, 512, 128), profile).chosen
            assert not any(p.mlp.streamed for p in chosen.plan.decode.layers)
            assert any(p.mlp.weights == "gpu" for p in chosen.plan.decode.layers), "spare GPU memory is filled"


def test_new_tokens_not_context_length_choose_the_prefill(model: Model, h100: HardwareProfile) -> None:
    """34 new tokens on 1400 cached are few tokens; 1434 new ones are many."""
    spec = model("opt-66b")
    turn = search(spec, Workload(1, 34, 64, cached_tokens=1400), h100).chosen
    fresh = search(spec, Workload(1, 1434, 64), h100).chosen
    assert turn.prefill.strategy != "offload" and fresh.prefill.strategy == "offload"
    assert turn.times.ttft_s < 0.5 * fresh.times.ttft_s


def test_the_crossover_moves_with_the_links_bandwidth(model: Model, h100: HardwareProfile, change) -> None:
    spec, work = model("opt-66b"), Workload(1, 512, 128)
    tokens = [break_even(spec, work, change(h100, link=factor))["prefill_tokens"] for factor in (0.5, 1, 2, 4)]
    batches = [break_even(spec, work, change(h100, link=factor))["decode_batch"] for factor in (0.5, 1, 2, 4)]
    assert all(a > b for a, b in zip(tokens, tokens[1:], strict=False)), tokens
    assert all(a > b for a, b in zip(batches, batches[1:], strict=False)), batches
    slow_cpu = break_even(spec, work, change(h100, cpu_flops=0.1))["prefill_tokens"]
    assert slow_cpu < tokens[1]


def test_break_even_is_where_the_times_cross(model: Model, h100: HardwareProfile) -> None:
    spec, work = model("llama2-13b"), Workload(2, 512, 2)
    crossing = break_even(spec, work, h100)
    tokens, batch = crossing["prefill_tokens"], crossing["decode_batch"]
    assert tokens is not None and tokens > 1 and batch is not None and batch > 1

    def times(moved: Workload, phase: int) -> tuple[float, float]:
        alone = cpu(spec, Layout(0, 0))
        layouts = [Layout(0, 0), Layout(0, 0, "cpu"), Layout(0, spec.num_layers)][: 1 if phase == 0 else 3]
        streamed = (offload(spec, layout) for layout in layouts)
        return (
            estimate(spec, Plan(alone, alone), moved, h100)[phase].time_s,
            min(estimate(spec, Plan(plan, plan), moved, h100)[phase].time_s for plan in streamed),
        )

    before, after = (times(replace(work, prompt_len=n), 0) for n in (tokens - 1, tokens))
    assert before[0] < before[1] and after[0] >= after[1]
    before, after = (times(replace(work, batch=n), 1) for n in (batch, batch + 1))
    assert before[0] < before[1] and after[0] >= after[1]


class Valley(Space):
    """A space in which the time has one minimum, at a given M."""

    at = 0

    def option(self, variant: Variant, resident: int) -> Option:
        return replace(super().option(variant, resident), e2e_s=abs(resident - self.at))


@pytest.mark.parametrize("at", [0, 1, 13, 29, 30, 31, 32])
def test_the_best_number_of_layers_is_found_between_the_grids_points(
    model: Model, h100: HardwareProfile, at: int
) -> None:
    spec = model("llama2-7b")
    space = Valley(spec, Workload(1, 64, 8), h100, PlanRequest().limits(h100))
    space.at = at
    (variant, *_) = space.variants(("offload", "offload"))
    best = space.best(variant, range(33))
    assert best is not None and best.decode_layout.resident == at


def test_as_much_kv_stays_on_the_gpu_as_fits(model: Model, h100: HardwareProfile) -> None:
    spec, work = model("opt-30b"), Workload(16, 3500, 300)
    chosen = search(spec, work, h100, PlanRequest("offload", "offload", gpu_layers=0)).chosen
    held = sum(p.kv == "gpu" for p in chosen.plan.decode.layers)
    assert 0 < held < spec.num_layers
    assert chosen.times.gpu_peak_bytes <= 80e9 < chosen.times.gpu_peak_bytes + kv_layer_bytes(spec, work)


def test_a_split_has_layers_on_both_sides_even_where_it_does_not_pay(small: ModelSpec, h100: HardwareProfile) -> None:
    """A tiny model is faster on the CPU alone, and split is still split."""
    choice = search(small, Workload(1, 16, 4), h100)
    assert choice.chosen.name == "cpu/cpu"
    assert all(c.plan.gpu_layers >= 1 for c in choice.candidates if "split" in c.name)


def test_changing_a_price_changes_the_choice(model: Model, h100: HardwareProfile, change) -> None:
    spec, work = model("opt-66b"), Workload(4, 512, 128)
    assert search(spec, work, h100).chosen.decode.strategy == "split"
    fast_link = search(spec, work, change(h100, link=100)).chosen
    assert fast_link.name == "offload/offload"
    slow_link = search(spec, work, change(h100, link=0.001, cpu_flops=10)).chosen
    assert not any(p.mlp.streamed for p in slow_link.plan.prefill.layers)


def test_more_of_anything_never_makes_the_best_slower(model: Model, h100: HardwareProfile, change) -> None:
    spec, work = model("llama2-13b"), Workload(4, 512, 64)
    base = search(spec, work, h100).chosen.times.e2e_s
    for what in ("link", "cpu_bytes", "gpu_flops"):
        assert search(spec, work, change(h100, **{what: 1.5})).chosen.times.e2e_s <= base * 1.0001
    limits = [2, 8, 16, 40]
    times = [search(spec, work, h100, PlanRequest(gpu_memory_bytes=size * 10**9)).chosen.times.e2e_s for size in limits]
    assert all(a >= b * 0.9999 for a, b in zip(times, times[1:], strict=False)), times


# -- requests -----------------------------------------------------------------------------------------------------


def test_an_explicit_number_of_layers_wins(model: Model, h100: HardwareProfile) -> None:
    spec, work = model("opt-66b"), Workload(1, 512, 128)
    for layers in (0, 7, 30):
        choice = search(spec, work, h100, PlanRequest(gpu_layers=layers))
        assert {c.plan.gpu_layers for c in choice.candidates} == {layers}
    pure = search(spec, work, h100, PlanRequest("offload", "offload", gpu_layers=0)).chosen
    assert all(p.mlp.streamed for p in pure.plan.decode.layers)


def test_layers_that_do_not_fit_are_refused_with_what_does(model: Model, h100: HardwareProfile) -> None:
    spec, work = model("opt-66b"), Workload(1, 512, 128)
    with pytest.raises(DoesNotFitError, match="--gpu-layers") as caught:
        search(spec, work, h100, PlanRequest("split", "split", gpu_layers=60))
    message = str(caught.value)
    assert "\n" not in message and "the GPU needs" in message and "KV cache" in message
    fits = int(message.split("--gpu-layers ")[1].split(",")[0])
    assert search(spec, work, h100, PlanRequest("split", "split", gpu_layers=fits)).chosen.fits
    with pytest.raises(DoesNotFitError):
        search(spec, work, h100, PlanRequest("split", "split", gpu_layers=fits + 1))


def test_a_strategy_that_does_not_fit_names_memory_and_others(small: ModelSpec, h100: HardwareProfile) -> None:
    work = Workload(2, 64, 16)
    with pytest.raises(DoesNotFitError, match="--gpu-memory") as caught:
        search(small, work, h100, PlanRequest("gpu", "gpu", gpu_memory_bytes=2**20))
    message = str(caught.value)
    assert "--strategy" in message or "--prefill" in message
    size = parse_size(message.split("--gpu-memory ")[1].split()[0])
    assert search(small, work, h100, PlanRequest("gpu", "gpu", gpu_memory_bytes=size)).chosen.fits


def test_a_smaller_batch_is_offered_where_it_fits(model: Model, h100: HardwareProfile) -> None:
    with pytest.raises(DoesNotFitError, match="a batch of") as caught:
        search(model("opt-66b"), Workload(300, 1024, 128), h100, PlanRequest("cpu", "cpu"))
    batch = int(str(caught.value).split("a batch of ")[1].split(",")[0])
    assert search(model("opt-66b"), Workload(batch, 1024, 128), h100, PlanRequest("cpu", "cpu")).chosen.fits


def test_two_things_too_many_are_answered_together(model: Model, h100: HardwareProfile) -> None:
    """Too many layers and too large a batch: neither alone helps."""
    with pytest.raises(DoesNotFitError, match="left to the planner") as caught:
        search(model("opt-66b"), Workload(400, 1024, 64), h100, PlanRequest(gpu_layers=50))
    batch = int(str(caught.value).split("a batch of ")[1].split()[0])
    assert search(model("opt-66b"), Workload(batch, 1024, 64), h100).chosen.fits


def test_tiny_budgets_plan_or_refuse_cleanly(small: ModelSpec, h100: HardwareProfile, change) -> None:
    """On a machine whose CPU is so slow that every byte of GPU memory is worth using."""
    work, slow = Workload(2, 64, 16), change(h100, cpu_bytes=1e-3, cpu_flops=1e-3)
    seen = set()
    for kib in (1, 64, 256, 512, 1024, 1536, 2048, 4096, 8192):
        choice = search(small, work, slow, PlanRequest(gpu_memory_bytes=kib * 1024))
        check_invariants(choice)
        assert choice.chosen.times.gpu_peak_bytes <= kib * 1024
        seen.add(choice.chosen.plan.gpu_layers)
    assert len(seen) > 2
    with pytest.raises(DoesNotFitError, match="the CPU needs"):
        search(small, work, h100, PlanRequest(cpu_memory_bytes=2**20))


def test_offload_is_not_refused_for_its_kv(model: Model, h100: HardwareProfile) -> None:
    """KV of 83 GB on a card of 80: it goes to the host."""
    chosen = search(model("opt-30b"), Workload(16, 3500, 300), h100, PlanRequest("offload", "offload")).chosen
    assert chosen.fits and any(p.kv == "cpu" for p in chosen.plan.decode.layers)


def test_without_a_gpu_only_the_cpu_is_planned(small: ModelSpec, h100: HardwareProfile) -> None:
    alone = replace(h100, gpu=None, link=None)
    choice = search(small, Workload(1, 16, 4), alone)
    assert [c.name for c in choice.candidates] == ["cpu/cpu"] and choice.chosen.why
    assert choice.break_even == {"prefill_tokens": None, "decode_batch": None}
    for request in (PlanRequest(decode="offload"), PlanRequest(prefill="gpu"), PlanRequest(gpu_layers=2)):
        with pytest.raises(UserError, match="GPU"):
            search(small, Workload(1, 16, 4), alone, request)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"prefill": "warp"}, "auto, cpu, gpu, offload, split"),
        ({"decode": "CPU"}, "'CPU'"),
        ({"gpu_layers": -1}, "gpu_layers is -1"),
        ({"gpu_memory_bytes": 0}, "gpu_memory_bytes is 0"),
    ],
)
def test_requests_are_checked(arguments: dict[str, object], says: str) -> None:
    with pytest.raises(UserError, match=says):
        PlanRequest(**arguments)  # type: ignore[arg-type]


def test_layers_that_cannot_be(small: ModelSpec, h100: HardwareProfile) -> None:
    with pytest.raises(UserError, match="small has 6 layers"):
        search(small, Workload(1, 16, 4), h100, PlanRequest(gpu_layers=7))
    with pytest.raises(UserError, match="drop one of the two"):
        search(small, Workload(1, 16, 4), h100, PlanRequest("gpu", "cpu", gpu_layers=2))
    assert search(small, Workload(1, 16, 4), h100, PlanRequest("gpu", "gpu", gpu_layers=6)).chosen.fits


def test_one_token_is_planned_for_prefill_alone(model: Model, h100: HardwareProfile) -> None:
    chosen = search(model("opt-66b"), Workload(1, 512, 1), h100).chosen
    assert chosen.times.tpot_s is None and chosen.times.e2e_s == chosen.times.ttft_s
    assert chosen.prefill.strategy == chosen.decode.strategy, "of equals, one strategy for both"


def test_one_token_is_not_refused_for_a_decode_that_never_comes(small: ModelSpec, h100: HardwareProfile) -> None:
    """The residents fit; the KV and activations of a split's decode would not."""
    request = PlanRequest("cpu", "split", gpu_layers=6, gpu_memory_bytes=4 * 2**20)
    work = Workload(64, 64, 1)
    assert search(small, work, h100, request).chosen.times.gpu_peak_bytes <= 4 * 2**20
    with pytest.raises(DoesNotFitError):
        search(small, replace(work, new_tokens=2), h100, request)


def test_a_lopsided_model_plans(small: ModelSpec, h100: HardwareProfile) -> None:
    """A vocabulary that dwarfs the layers, and one layer only."""
    for spec in (replace(small, vocab_size=400_000), replace(small, num_layers=1, windows=())):
        for kib in (512, 16 * 1024, 1024 * 1024):
            check_invariants(search(spec, Workload(1, 16, 8), h100, PlanRequest(gpu_memory_bytes=kib * 1024)))


def test_all_strategies_are_offered() -> None:
    assert set(STRATEGIES) == {"cpu", "offload", "split", "gpu"}
