"""KV that a generation left is used by the next: the same tokens as from scratch, wherever the plans put the cache."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
import transformers

from flexinfer.engine import Engine
from flexinfer.engine.devices import DeviceConfig
from flexinfer.errors import UserError
from flexinfer.plan import ON_CPU, ON_GPU, STREAMED, LayerPlacement, PhasePlan, Plan
from flexinfer.schedule.buffers import peak_bytes
from flexinfer.spec import load_spec
from flexinfer.spec.workload import Workload
from flexinfer.weights import load_weights

LAYERS = {
    "cpu": LayerPlacement(ON_CPU, ON_CPU, "cpu", "cpu"),
    "kv streams": LayerPlacement(STREAMED, STREAMED, "cpu", "gpu"),
    "delegated": LayerPlacement(STREAMED, STREAMED, "cpu", "cpu"),
    "resident": LayerPlacement(ON_GPU, ON_GPU, "gpu", "gpu"),
}
FIRST = [[3, 14, 15, 92, 65, 35], [27, 18, 28, 18, 28, 45]]
MORE = [[9, 8, 7, 6, 5], [71]]


def plan(name: str) -> Plan:
    resident = (0, 1, 2) if name == "resident" else ()
    phase = PhasePlan(name, (LAYERS[name],) * 3, resident)
    return Plan(phase, phase)


@pytest.fixture(scope="module", params=["llama", "mistral"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {
        "vocab_size": 101,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "initializer_range": 0.15,
    }
    config = {
        "llama": transformers.LlamaConfig(**sizes),
        "mistral": transformers.MistralConfig(**sizes, sliding_window=5),
    }
    torch.manual_seed(3)
    path = tmp_path_factory.mktemp(request.param)
    transformers.AutoModelForCausalLM.from_config(config[request.param]).save_pretrained(path)
    return path


def run(engine: Engine, plan: Plan, workload: Workload, prompts: list[list[int]]) -> list[list[int]]:
    tokens: list[list[int]] = [[] for _ in prompts]

    def on_tokens(step: int, new: list[int]) -> list[bool]:
        for row, token in zip(tokens, new, strict=True):
            row.append(token)
        return [False] * len(new)

    engine.prepare(plan, workload)
    engine.generate(plan, workload, prompts, lambda logits, step: logits.argmax(-1).tolist(), on_tokens)
    return tokens


@pytest.mark.parametrize(("first", "second"), list(itertools.product(LAYERS, repeat=2)))
def test_a_second_turn_computes_only_what_is_new(folder: Path, first: str, second: str) -> None:
    spec = load_spec(folder, "float32")
    config = DeviceConfig("emulated", 8 << 20, None, 2e9, jitter_s=0.0005)
    with Engine(spec, load_weights(folder, spec), config, threads=2) as engine:
        answers = run(engine, plan(first), Workload(2, 6, 4), FIRST)
        turns = [[*a, *b, *c] for a, b, c in zip(FIRST, answers, MORE, strict=True)]
        assert engine.held is not None
        cached = engine.held.common_prefix(turns)
        assert cached == 9, "all that was fed: the last token of the answer never was"
        rest = [turn[cached:] for turn in turns]
        got = run(engine, plan(second), Workload(2, max(map(len, rest)), 5, cached), rest)
        want = run(engine, plan("cpu"), Workload(2, max(map(len, turns)), 5), turns)
    assert got == want


def test_a_prefix_ends_where_tokens_differ_and_leaves_one_to_compute(folder: Path) -> None:
    spec = load_spec(folder, "float32")
    with Engine(spec, load_weights(folder, spec), DeviceConfig("cpu"), threads=1) as engine:
        run(engine, plan("cpu"), Workload(1, 6, 1), FIRST[:1])
        held = engine.held
        assert held is not None
        assert held.common_prefix([FIRST[0]]) == 5
        assert held.common_prefix([[*FIRST[0], 1]]) == 6
        assert held.common_prefix([[3, 14, 0, 92]]) == 2
        assert held.common_prefix([[3], [14]]) == 0, "another batch"
        with pytest.raises(UserError, match="cached_tokens"):
            engine.prepare(plan("cpu"), Workload(3, 2, 2, 4))
        run(engine, plan("cpu"), Workload(1, 6, 1), FIRST[:1])
        with pytest.raises(UserError, match="cached_tokens"):
            engine.prepare(plan("cpu"), Workload(1, 2, 2, 7))


def homed(*gpu: int) -> Plan:
    """Three layers on the GPU, with the KV of these there and the rest on the host."""
    layers = tuple(LayerPlacement(ON_GPU, ON_GPU, "gpu" if layer in gpu else "cpu", "gpu") for layer in range(3))
    phase = PhasePlan("homed", layers, (0, 1, 2))
    return Plan(phase, phase)


@pytest.fixture(scope="module")
def kv_heavy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One token's KV is larger than one token's activations, so that nothing else leaves room for a second copy."""
    torch.manual_seed(5)
    path = tmp_path_factory.mktemp("heavy")
    config = transformers.LlamaConfig(
        vocab_size=67, hidden_size=12, intermediate_size=16, num_hidden_layers=3, num_attention_heads=3, head_dim=64,
        max_position_embeddings=256,
    )  # fmt: skip
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(path)
    return path


@pytest.mark.parametrize("second", [(0, 1, 2), (1, 2), (0,), ()], ids=str)
@pytest.mark.parametrize("first", [(0, 1, 2), (1, 2), (0,), ()], ids=str)
def test_carrying_kv_takes_no_more_gpu_memory_than_the_plans(
    kv_heavy: Path, first: tuple[int, ...], second: tuple[int, ...]
) -> None:
    """Short questions with long answers, so that the cache outgrows everything else, at the smallest budget that fits
    each plan. A cache that shrinks, because less is asked for, is carried too."""
    spec = load_spec(kv_heavy, "float32")
    store = load_weights(kv_heavy, spec)
    for news in ((80, 60), (100, 2)):
        steps = [(homed(*first), Workload(1, 2, news[0])), (homed(*second), Workload(1, 3, news[1], news[0] + 1))]
        budget = max(peak_bytes(spec, plan, workload)["gpu"] for plan, workload in steps)
        with Engine(spec, store, DeviceConfig("emulated", budget, None, 1e10), threads=2) as engine:
            (answer,) = run(engine, *steps[0], [[3, 14]])
            turn = [3, 14, *answer, 15, 9]
            got = run(engine, *steps[1], [turn[-3:]])
            assert engine.machine.arena("gpu").peak_bytes <= budget
        with Engine(spec, store, DeviceConfig("cpu"), threads=1) as engine:
            assert got == run(engine, plan("cpu"), Workload(1, len(turn), news[1]), [turn])


def test_a_failure_leaves_the_engine_usable_and_the_cache_empty(folder: Path) -> None:
    spec = load_spec(folder, "float32")
    config = DeviceConfig("emulated", 8 << 20, None, 2e9)
    with Engine(spec, load_weights(folder, spec), config, threads=2) as engine:
        work = plan("kv streams"), Workload(1, 6, 4)
        engine.prepare(*work)
        with pytest.raises(KeyboardInterrupt):
            engine.generate(*work, FIRST[:1], _interrupt, lambda step, new: [False])
        assert engine.held is None
        assert engine.machine.arena("gpu").held_bytes == 0
        again = run(engine, *work, FIRST[:1])
        assert again == run(engine, plan("cpu"), Workload(1, 6, 4), FIRST[:1])


def _interrupt(logits: torch.Tensor, step: int) -> list[int]:
    if step == 2:
        raise KeyboardInterrupt
    return [1]
