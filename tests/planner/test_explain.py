"""What people and programs are told."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from flexinfer.estimator import HardwareProfile
from flexinfer.planner import Choice, PlanRequest, explain, plan_json, search
from flexinfer.spec.model_spec import ModelSpec
from flexinfer.spec.workload import Workload

Model = Callable[[str], ModelSpec]
WORK = Workload(8, 1024, 128)


@pytest.fixture(scope="module")
def asked(model: Model, h100: HardwareProfile) -> tuple[ModelSpec, Choice]:
    spec = model("opt-175b")
    return spec, search(spec, WORK, h100)


def test_a_table_and_a_few_sentences(asked: tuple[ModelSpec, Choice], h100: HardwareProfile) -> None:
    spec, choice = asked
    text = explain(spec, WORK, h100, choice)
    head, table, sentences = text.split("\n\n")
    assert "opt-175b: 96 layers" in head and "h100-spr (nominal)" in head and "link 51.2 GB/s" in head
    rows = table.splitlines()
    assert len(rows) == 1 + len(choice.candidates) and "chosen" in rows[1] and rows[1].startswith(choice.chosen.name)
    assert sum("does not fit" in row for row in rows) == sum(not c.fits for c in choice.candidates)
    assert 4 <= len(sentences.splitlines()) <= 6
    streamed = 96 - choice.chosen.plan.gpu_layers
    assert f"{streamed} of them streaming over the link" in sentences and "binds" in sentences
    assert f"Runner-up {choice.candidates[1].name}" in sentences and "slower than" in sentences
    assert "streaming all weights beats the CPU from" in sentences and "up to batch" in sentences


def test_a_slow_token_is_announced(asked: tuple[ModelSpec, Choice], h100: HardwareProfile) -> None:
    spec, choice = asked
    assert (choice.chosen.times.tpot_s or 0) > 1 and "slow, not stuck" in explain(spec, WORK, h100, choice)


def test_an_idle_gpu_is_explained(model: Model, h100: HardwareProfile) -> None:
    spec = model("opt-66b")
    choice = search(spec, WORK, h100, PlanRequest("offload", "cpu"))
    assert "The GPU idles in decode" in explain(spec, WORK, h100, choice)


def test_without_a_gpu(model: Model, h100: HardwareProfile) -> None:
    spec, alone = model("qwen2.5-0.5b"), replace(h100, gpu=None, link=None)
    text = explain(spec, WORK, alone, search(spec, WORK, alone))
    assert "the CPU computes all 24 layers" in text and "Break-even" not in text


def test_every_loser_has_a_reason(asked: tuple[ModelSpec, Choice]) -> None:
    _, choice = asked
    for candidate in choice.candidates[1:]:
        assert ("does not fit: the " in candidate.why) == (not candidate.fits)
        assert candidate.fits is False or choice.chosen.name in candidate.why
    assert choice.chosen.why.startswith("fastest of")


def test_a_loser_is_told_the_phase_that_costs_it_most(asked: tuple[ModelSpec, Choice]) -> None:
    _, choice = asked
    reasons = {c.name: c.why for c in choice.candidates}
    assert choice.chosen.name == "offload/split"
    assert "its decode takes" in reasons["offload/cpu"] and "its prefill takes" in reasons["cpu/split"]


def test_the_json_has_the_contracts_keys(asked: tuple[ModelSpec, Choice], h100: HardwareProfile) -> None:
    spec, choice = asked
    data = json.loads(json.dumps(plan_json(spec, WORK, h100, choice), allow_nan=False))
    assert data["schema"] == "flexinfer.plan/1"
    assert set(data) == {"schema", "model", "workload", "hardware", "chosen", "candidates", "break_even"}
    assert data["workload"] == {"batch": 8, "prompt_len": 1024, "new_tokens": 128, "cached_tokens": 0}
    assert data["hardware"]["name"] == "h100-spr"
    keys = {
        "name", "prefill", "decode", "gpu_layers", "switch_s", "ttft_s", "tpot_s", "e2e_s", "h2d_bytes", "d2h_bytes",
        "gpu_peak_bytes", "cpu_peak_bytes", "fits", "why",
    }  # fmt: skip
    for candidate in (data["chosen"], *data["candidates"]):
        assert set(candidate) == keys
        for phase in ("prefill", "decode"):
            assert set(candidate[phase]) == {"strategy", "time_s", "terms", "bound"}
            assert set(candidate[phase]["terms"]) == {"compute", "h2d", "d2h", "cpu"}
    times = [c["e2e_s"] for c in data["candidates"] if c["fits"]]
    assert times == sorted(times) and data["chosen"]["e2e_s"] == times[0]
