"""Models, prompts and plans drawn from a seed, with transformers' own answers to hold ours against.

Everything follows from a random.Random, so that a failure is repeated by its seed.

Legend: B batch, V vocabulary.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from flexinfer.engine import Engine
from flexinfer.engine.devices import DeviceConfig
from flexinfer.engine.engine import RunResult
from flexinfer.plan import ON_CPU, ON_GPU, STREAMED, LayerPlacement, PhasePlan, Plan
from flexinfer.spec import load_spec
from flexinfer.spec.model_spec import ModelSpec
from flexinfer.spec.workload import Workload
from flexinfer.weights import WeightStore, load_weights

LONGEST, MOST_NEW = 120, 12
REACH = LONGEST + MOST_NEW + 28
PLACES = (ON_CPU, ON_GPU, STREAMED)
Wanted = Callable[[transformers.PretrainedConfig], bool]


# -- models -----------------------------------------------------------------------------------------------------------


def draw_config(draw: random.Random) -> transformers.PretrainedConfig:
    """A small configuration of any family, with every option that a family has."""
    family = draw.choice(["llama", "mistral", "qwen2", "qwen3", "opt"])
    common = {
        "vocab_size": draw.choice([67, 101, 131, 257, 331]),
        "num_hidden_layers": draw.choice([1, 2, 3, 4, 7]),
        "tie_word_embeddings": draw.random() < 0.5,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    options = _opt(draw) if family == "opt" else _rotary(draw, family, common["num_hidden_layers"])
    return transformers.AutoConfig.for_model(family, **common, **options)


def _opt(draw: random.Random) -> dict[str, Any]:
    heads = draw.choice([1, 2, 3, 4])
    hidden = heads * draw.choice([5, 6, 8, 10, 16])
    return {
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "ffn_dim": draw.choice([33, 48, 80]),
        "max_position_embeddings": REACH,
        "word_embed_proj_dim": draw.choice([hidden, hidden, max(4, hidden // 2), hidden + 8]),
        "do_layer_norm_before": draw.random() < 0.6,
        "enable_bias": draw.random() < 0.7,
        "layer_norm_elementwise_affine": draw.random() < 0.7,
        "activation_function": draw.choice(["relu", "gelu"]),
        "_remove_final_layer_norm": draw.random() < 0.2,
    }


def _rotary(draw: random.Random, family: str, layers: int) -> dict[str, Any]:
    kv_heads, head_dim = draw.choice([1, 1, 2, 3]), draw.choice([6, 8, 10, 14, 16, 18, 22, 32])
    heads = kv_heads * draw.choice([1, 2, 3, 4, 5, 8])
    options = {
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "hidden_size": heads * draw.choice([3, 4, 7, 8, head_dim]),
        "intermediate_size": draw.choice([33, 48, 80]),
        "hidden_act": draw.choice(["silu", "silu", "gelu", "gelu_pytorch_tanh"]),
        **_rope(draw),
    }
    window = draw.choice([2, 5, 9, 16, 50, 119, 140])
    if family == "llama":
        return {**options, "attention_bias": draw.random() < 0.5, "mlp_bias": draw.random() < 0.5}
    if family == "mistral":
        return {**options, "sliding_window": draw.choice([None, window, window])}
    slides = draw.random() < 0.6
    first = draw.randint(0, layers)
    options |= {"use_sliding_window": slides, "sliding_window": window if slides else None, "max_window_layers": first}
    return options if family == "qwen2" else {**options, "attention_bias": draw.random() < 0.5}


def _rope(draw: random.Random) -> dict[str, Any]:
    """Every type, with prompts that pass the original window."""
    theta = {"rope_theta": draw.choice([1e4, 5e5, 100.0]), "max_position_embeddings": REACH}
    original = {"original_max_position_embeddings": 16}
    yarn = {"rope_type": "yarn", "factor": 10.0, **original}
    llama3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **original}
    kinds: list[dict[str, Any] | None] = [
        None,
        None,
        {"rope_type": "linear", "factor": 4.0},
        llama3,
        yarn,
        {
            **yarn,
            **draw.choice([{"attention_factor": 1.3}, {"mscale": 1.2, "mscale_all_dim": 0.4}, {"beta_fast": 8.0}]),
        },
        {"rope_type": "dynamic", "factor": 8.0},
    ]
    kind = draw.choice(kinds)
    if kind is not None and kind["rope_type"] == "dynamic":
        theta["max_position_embeddings"] = 20
    return theta if kind is None else {**theta, "rope_scaling": kind}


def random_model(config: transformers.PretrainedConfig, seed: int) -> Any:
    """float32 weights with which logits vary and no option is hidden: neither norms of one nor biases of zero."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval().float()
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn_like(parameter)
            if parameter.dim() == 1:
                parameter.add_(0.15 * noise)
            else:
                parameter.copy_(noise / math.sqrt(parameter.shape[-1]))
    model.tie_weights()
    model.generation_config.eos_token_id = None
    return model


@dataclass(frozen=True)
class Reference:
    """transformers' greedy continuation of one prompt alone."""

    tokens: list[int]
    logits_SV: torch.Tensor


@dataclass(frozen=True)
class Case:
    """One drawn model: ours, and transformers' of the same weights."""

    model: Any
    spec: ModelSpec
    store: WeightStore
    path: Path

    def answer(self, prompt: Sequence[int], new: int) -> Reference:
        """Without a cache but for dynamic rotary scaling, where keys keep the angle they were written with."""
        dynamic = self.spec.rope is not None and self.spec.rope.type == "dynamic"
        with torch.no_grad():
            self.model(torch.tensor([[1, 2, 3]]))  # its dynamic frequencies stay until a short input comes
            out = self.model.generate(
                torch.tensor([list(prompt)]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
                max_new_tokens=new,
                do_sample=False,
                use_cache=dynamic,
                output_logits=True,
                return_dict_in_generate=True,
            )
        return Reference(out.sequences[0, len(prompt) :].tolist(), torch.cat(out.logits).float())

    def answers(self, prompts: Sequence[Sequence[int]], new: int) -> list[Reference]:
        return [self.answer(prompt, new) for prompt in prompts]


@pytest.fixture
def draw_case(tmp_path: Path) -> Iterator[Callable[..., Case]]:
    """draw_case(random, seed, dtype, wanted) -> a model, saved, and loaded by us and by transformers."""
    stores: list[WeightStore] = []

    def build(draw: random.Random, seed: int, dtype: str = "float32", wanted: Wanted = bool) -> Case:
        config = draw_config(draw)
        while not wanted(config):
            config = draw_config(draw)
        path = tmp_path / f"model-{len(stores)}"
        random_model(config, seed).to(getattr(torch, dtype)).save_pretrained(path)
        # Loaded again: a model that is narrowed has rotary frequencies that are narrowed with it
        model = transformers.AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager", torch_dtype=dtype)
        model.generation_config.eos_token_id = None
        spec = load_spec(path)
        stores.append(load_weights(path, spec))
        return Case(model.eval(), spec, stores[-1], path)

    yield build
    for store in stores:
        store.close()


# -- prompts and plans ------------------------------------------------------------------------------------------------


def draw_prompts(draw: random.Random, vocab: int, longest: int = LONGEST) -> list[list[int]]:
    """One to six prompts: uneven, all of one length, or with one of a single token among them."""
    lengths = [draw.randint(1, longest) for _ in range(draw.randint(1, 6))]
    kind = draw.choice(["uneven", "equal", "one token", "short"])
    if kind == "equal":
        lengths = [draw.choice([1, 2, 17, longest])] * len(lengths)
    elif kind == "one token":
        lengths[draw.randrange(len(lengths))] = 1
    elif kind == "short":
        lengths = [min(length, 12) for length in lengths]
    return [[draw.randrange(3, vocab) for _ in range(length)] for length in lengths]


def draw_layer(draw: random.Random) -> LayerPlacement:
    attention, mlp = draw.choice(PLACES), draw.choice(PLACES)
    if attention.compute == "cpu":
        return LayerPlacement(attention, mlp, "cpu", "cpu")
    return LayerPlacement(attention, mlp, *draw.choice([("gpu", "gpu"), ("cpu", "gpu"), ("cpu", "cpu")]))


def draw_phase(draw: random.Random, spec: ModelSpec) -> PhasePlan:
    layers = tuple(draw_layer(draw) for _ in range(spec.num_layers))
    resident = {i for i, p in enumerate(layers) if "gpu" in (p.attention.weights, p.mlp.weights)}
    resident |= {i for i in range(spec.num_layers) if draw.random() < 0.15}
    head = draw.choice(PLACES)
    slices = draw.choice([1, 2, 3, 5, 7, spec.vocab_size // 3 + 1, spec.vocab_size]) if head.streamed else 1
    embed = draw.choice(["cpu", "cpu", "gpu"])
    return PhasePlan("drawn", layers, tuple(sorted(resident)), embed, head, slices, draw.choice([1, 2, 2, 3, 4, 5]))


def draw_plan(draw: random.Random, spec: ModelSpec) -> Plan:
    """Placements that mostly no strategy makes."""
    return Plan(draw_phase(draw, spec), draw_phase(draw, spec))


# -- running ----------------------------------------------------------------------------------------------------------


def shape(prompts: Sequence[Sequence[int]], new: int, cached: int = 0) -> Workload:
    return Workload(len(prompts), max(map(len, prompts)) - cached, new, cached)


def emulated(gpu_bytes: int, jitter_s: float = 0.0) -> DeviceConfig:
    return DeviceConfig("emulated", gpu_bytes, None, 1e10, jitter_s)


def forced_run(
    engine: Engine,
    plan: Plan,
    workload: Workload,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Reference],
    stop_after: int | None = None,
) -> tuple[torch.Tensor, RunResult]:
    """Feeds the reference's tokens whatever comes out, so that every step is compared: logits [steps, B, V].

    stop_after: the step after which all sequences are finished.
    """
    seen: list[torch.Tensor] = []

    def pick(logits_BV: torch.Tensor, step: int) -> list[int]:
        seen.append(logits_BV.clone())
        return [answer.tokens[step] for answer in answers]

    engine.prepare(plan, workload)
    new = [prompt[workload.cached_tokens :] for prompt in prompts]
    result = engine.generate(plan, workload, new, pick, lambda step, tokens: [step == stop_after] * len(tokens))
    return torch.stack(seen), result


def assert_alike(logits: torch.Tensor, answers: Sequence[Reference], tolerance: float = 1e-4) -> None:
    """Logits [steps, B, V] as transformers' of each prompt alone, and with them the greedy token of each step."""
    for index, answer in enumerate(answers):
        got, want = logits[:, index], answer.logits_SV[: len(logits)]
        worst = (got - want).abs().amax(-1)
        assert (worst <= tolerance).all(), f"sequence {index}: logits differ by {worst.tolist()}"
        top2 = want.topk(2).values
        clear = top2[:, 0] - top2[:, 1] > 2 * tolerance
        assert got.argmax(-1)[clear].tolist() == want.argmax(-1)[clear].tolist()


class Tools:
    """What the tests of this folder use; a namespace, since test files cannot import one another."""

    draw_prompts = staticmethod(draw_prompts)
    draw_plan = staticmethod(draw_plan)
    shape = staticmethod(shape)
    emulated = staticmethod(emulated)
    forced_run = staticmethod(forced_run)
    assert_alike = staticmethod(assert_alike)


@pytest.fixture(scope="session")
def tools() -> type[Tools]:
    return Tools
