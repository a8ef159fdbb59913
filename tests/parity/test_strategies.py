"""The correctness gate: every family under every pair of strategies gives transformers' greedy tokens in fp32.

The batch is uneven, so that each case also shows that a batch gives every sequence what it gets alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import transformers

from flexinfer.engine import Engine
from flexinfer.engine.devices import DeviceConfig
from flexinfer.estimator import HardwareProfile, emulated_profile
from flexinfer.plan import ON_CPU, ON_GPU, STREAMED, LayerPlacement, PhasePlan, Plan
from flexinfer.planner import PlanRequest, search
from flexinfer.spec import load_spec
from flexinfer.spec.model_spec import ModelSpec
from flexinfer.spec.workload import Workload
from flexinfer.weights import WeightStore, load_weights

NEW = 8
PROMPTS = [[5, 17, 200, 31, 8, 99, 45, 11, 77, 3, 150, 61, 9], [42], [7, 7, 123, 54, 290]]
SHARED = {"vocab_size": 331, "max_position_embeddings": 64}
LLAMA = {
    **SHARED,
    "initializer_range": 0.15,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
}
OPT = {**SHARED, "init_std": 0.15, "ffn_dim": 96, "num_hidden_layers": 4, "num_attention_heads": 4}
CONFIGS = {
    "llama": transformers.LlamaConfig(**LLAMA, attention_bias=True),
    "llama-tied": transformers.LlamaConfig(**LLAMA, tie_word_embeddings=True),
    "mistral": transformers.MistralConfig(**LLAMA, sliding_window=6),
    "qwen2": transformers.Qwen2Config(**LLAMA, tie_word_embeddings=True),
    "qwen3": transformers.Qwen3Config(**LLAMA, head_dim=16),
    "opt": transformers.OPTConfig(**OPT, hidden_size=48, word_embed_proj_dim=48),
    "opt-350m-like": transformers.OPTConfig(**OPT, hidden_size=48, word_embed_proj_dim=24, do_layer_norm_before=False),
}


@dataclass
class Case:
    """A family's model on disk, loaded, with transformers' own tokens."""

    path: Path
    spec: ModelSpec
    store: WeightStore
    want: list[list[int]]


def greedy(model: torch.nn.Module, prompt: list[int], new: int) -> list[int]:
    ids = torch.tensor([prompt])
    for _ in range(new):
        ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], 1)
    return ids[0, len(prompt) :].tolist()


@pytest.fixture(scope="module", params=CONFIGS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[request.param]).eval()
    for name, parameter in model.named_parameters():
        if "bias" in name or "norm" in name:
            torch.nn.init.normal_(parameter, mean=1.0 if "weight" in name else 0.0, std=0.1)
    path = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(path)
    with torch.no_grad():
        want = [greedy(model, prompt, NEW) for prompt in PROMPTS]
    spec = load_spec(path, dtype="float32")
    store = load_weights(path, spec)
    yield Case(path, spec, store, want)
    store.close()


def run(case: Case, plan: Plan, workload: Workload, config: DeviceConfig) -> tuple[list[list[int]], object]:
    tokens: list[list[int]] = [[] for _ in PROMPTS]

    def on_tokens(step: int, new: list[int]) -> list[bool]:
        for row, token in zip(tokens, new, strict=True):
            row.append(token)
        return [False] * len(new)

    with Engine(case.spec, case.store, config, threads=2) as engine:
        engine.prepare(plan, workload)
        result = engine.generate(plan, workload, PROMPTS, lambda logits, step: logits.argmax(-1).tolist(), on_tokens)
    return tokens, result.times


def workload() -> Workload:
    return Workload(len(PROMPTS), max(map(len, PROMPTS)), NEW)


def emulated(case: Case, memory: float, jitter_s: float = 0.0) -> DeviceConfig:
    return DeviceConfig("emulated", int(memory), None, 2e9, jitter_s)


@pytest.mark.parametrize("jitter_s", [0.0, 0.001])
@pytest.mark.parametrize("decode", ["cpu", "offload", "split", "gpu"])
@pytest.mark.parametrize("prefill", ["cpu", "offload", "split", "gpu"])
def test_every_pair_gives_transformers_tokens(case: Case, prefill: str, decode: str, jitter_s: float) -> None:
    whole = "gpu" in (prefill, decode)
    budget = case.spec.total_bytes * (8 if whole else 0.8) + (0 if whole else 200_000)
    config = emulated(case, budget, jitter_s)
    profile = emulated_profile(HardwareProfile.load("h100-spr"), 2e9, int(budget), 1, 1)
    request = PlanRequest(prefill=prefill, decode=decode, gpu_memory_bytes=int(budget))
    plan = search(case.spec, workload(), profile, request).chosen
    tokens, times = run(case, plan.plan, workload(), config)
    assert tokens == case.want
    assert times.h2d_bytes == plan.times.h2d_bytes
    assert times.d2h_bytes == plan.times.d2h_bytes
    assert times.gpu_peak_bytes == plan.times.gpu_peak_bytes <= budget
    assert times.cpu_peak_bytes == plan.times.cpu_peak_bytes


MIXED = {
    "kv streams": LayerPlacement(STREAMED, STREAMED, "cpu", "gpu"),
    "attention delegated": LayerPlacement(STREAMED, STREAMED, "cpu", "cpu"),
    "kv on the gpu": LayerPlacement(STREAMED, STREAMED, "gpu", "gpu"),
    "mlp on the cpu": LayerPlacement(ON_GPU, ON_CPU, "gpu", "gpu"),
    "mlp streams": LayerPlacement(ON_CPU, STREAMED, "cpu", "cpu"),
    "resident, kv on the cpu": LayerPlacement(ON_GPU, ON_GPU, "cpu", "gpu"),
    "resident, delegated": LayerPlacement(ON_GPU, ON_GPU, "cpu", "cpu"),
    "cpu": LayerPlacement(ON_CPU, ON_CPU, "cpu", "cpu"),
}


def mixed_phase(name: str, first: LayerPlacement, rest: LayerPlacement, layers: int, head: int) -> PhasePlan:
    placements = (first, *[rest] * (layers - 1))
    resident = tuple(i for i, p in enumerate(placements) if "gpu" in (p.attention.weights, p.mlp.weights))
    placement, slices = ((ON_CPU, 1), (ON_GPU, 1), (STREAMED, 3))[head]
    return PhasePlan(name, placements, resident, head=placement, head_slices=slices)


@pytest.mark.parametrize("head", [0, 1, 2], ids=["head on cpu", "head on gpu", "head streams"])
@pytest.mark.parametrize("name", MIXED)
def test_every_mixture_gives_the_same_tokens(case: Case, name: str, head: int) -> None:
    """Placements that no strategy of today makes, in prefill and decode, with the switch between unlike phases."""
    layers = case.spec.num_layers
    prefill = mixed_phase("a", MIXED[name], MIXED["kv streams"], layers, head)
    decode = mixed_phase("b", MIXED["kv on the gpu"], MIXED[name], layers, (head + 1) % 3)
    config = emulated(case, 64 << 20, jitter_s=0.0005)
    tokens, _ = run(case, Plan(prefill, decode), workload(), config)
    assert tokens == case.want


def test_all_on_the_gpu_embeds_there(case: Case) -> None:
    layers = (LayerPlacement(ON_GPU, ON_GPU, "gpu", "gpu"),) * case.spec.num_layers
    phase = PhasePlan("gpu", layers, tuple(range(case.spec.num_layers)), embed="gpu", head=ON_GPU)
    tokens, _ = run(case, Plan(phase, phase), workload(), emulated(case, 64 << 20))
    assert tokens == case.want


def test_the_cpu_alone(case: Case) -> None:
    layers = (MIXED["cpu"],) * case.spec.num_layers
    phase = PhasePlan("cpu", layers)
    tokens, times = run(case, Plan(phase, phase), workload(), DeviceConfig("cpu"))
    assert tokens == case.want
    assert times.h2d_bytes == times.d2h_bytes == times.gpu_peak_bytes == 0
