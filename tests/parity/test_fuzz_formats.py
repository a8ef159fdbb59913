"""The same tokens from every format in every dtype, and from one seed under every plan, order and jitter."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from flexinfer import FlexInfer
from flexinfer.spec.model_spec import ModelSpec
from flexinfer.weights.names import checkpoint_names

STRATEGIES = ("auto", "cpu", "offload", "split", "gpu")
KINDS = {"float32": Kind.F32, "bfloat16": Kind.BF16, "float16": Kind.F16}


def seeds(few: int, many: int) -> list[Any]:
    return [*range(few), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(few, many))]


def opened(path: Path, **options: Any) -> FlexInfer:
    emulated = {"device": "emulated", "gpu_memory": "64MiB", "link_bandwidth": "50GB/s", "threads": 2}
    return FlexInfer.from_pretrained(path, profile="h100-spr", **emulated, **options)


# -- formats ----------------------------------------------------------------------------------------------------------


def formats(case: Any, dtype: str, folder: Path) -> Iterator[tuple[str, Path]]:
    """(name, path) of one checkpoint in each format that can hold it."""
    yield "safetensors", case.path
    case.model.save_pretrained(folder / "sharded", max_shard_size="20KB")
    yield "sharded safetensors", folder / "sharded"
    state = dict(case.model.state_dict())
    if case.spec.tied_head:
        state.pop("lm_head.weight")
    for shards in (1, 3):
        yield f"bin in {shards}", torch_files(folder / f"bin-{shards}", case.path / "config.json", state, shards)
    if in_gguf(case.spec):
        yield "gguf", gguf_file(folder / "model.gguf", case.spec, case.model.state_dict(), KINDS[dtype])


def torch_files(folder: Path, config: Path, state: dict[str, torch.Tensor], shards: int) -> Path:
    folder.mkdir()
    shutil.copy(config, folder)
    if shards == 1:
        torch.save(state, folder / "pytorch_model.bin")
        return folder
    weight_map = {}
    for part in range(shards):
        file, names = f"pytorch_model-{part + 1:05d}-of-{shards:05d}.bin", list(state)[part::shards]
        torch.save({name: state[name].clone() for name in names}, folder / file)
        weight_map |= dict.fromkeys(names, file)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def in_gguf(spec: ModelSpec) -> bool:
    """Whether GGUF's keys say all that the model needs: one window for all layers, silu, plain scaling."""
    rope = spec.rope
    if spec.family == "opt" or rope is None or spec.activation != "silu" or len(set(spec.windows)) > 1:
        return False
    own = (rope.attention_factor, rope.mscale, rope.beta_fast) != (None, None, 32.0)
    return rope.type in ("default", "linear", "yarn") and not own and (spec.windows[0] is None or not spec.qk_norm)


def gguf_file(path: Path, spec: ModelSpec, state: dict[str, torch.Tensor], kind: Kind) -> Path:
    """As llama.cpp's converter writes it: rows of q and k interleaved in the LLaMA architecture."""
    architecture = "llama" if spec.family in ("llama", "mistral") else spec.family
    writer = gguf.GGUFWriter(path, architecture)
    describe(writer, spec)
    in_state, in_file = checkpoint_names(spec, "hf"), checkpoint_names(spec, "gguf")
    for place, name in in_file.items():
        values = state[in_state[place]].float().numpy()
        part = place[2].split(".")[0]
        if architecture == "llama" and place[1] == "attention" and part in ("q", "k"):
            values = interleaved(values, spec.num_heads if part == "q" else spec.num_kv_heads)
        stored = kind if values.ndim == 2 else Kind.F32
        writer.add_tensor(name, gguf.quants.quantize(np.ascontiguousarray(values), stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def describe(writer: gguf.GGUFWriter, spec: ModelSpec) -> None:
    rope = spec.rope
    assert rope is not None
    writer.add_block_count(spec.num_layers)
    writer.add_context_length(spec.max_positions)
    writer.add_embedding_length(spec.hidden_size)
    writer.add_feed_forward_length(spec.ffn_size)
    writer.add_head_count(spec.num_heads)
    writer.add_head_count_kv(spec.num_kv_heads)
    writer.add_key_length(spec.head_dim)
    writer.add_value_length(spec.head_dim)
    writer.add_layer_norm_rms_eps(spec.norm_eps)
    writer.add_rope_freq_base(rope.theta)
    if rope.type != "default":
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope.type))
        writer.add_rope_scaling_factor(rope.factor)
    if rope.type == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope.original_max_positions or 0)
    if spec.windows[0] is not None:
        writer.add_sliding_window(spec.windows[0])


def has_gguf_twin(config: Any) -> bool:
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    plain = set(rope) <= {"rope_type", "rope_theta", "factor", "original_max_position_embeddings", "type"}
    known = rope.get("rope_type", "default") in ("default", "linear", "yarn")
    return config.model_type == "llama" and config.hidden_act == "silu" and plain and known


@pytest.mark.parametrize("seed", seeds(5, 150))
def test_every_format_and_dtype_gives_the_same_tokens(seed: int, draw_case: Any, tools: Any, tmp_path: Path) -> None:
    """Stored in one dtype, loaded in any: bit for bit the same under one plan, and transformers' tokens in float32."""
    draw = random.Random(seed + 40_000)
    stored = draw.choice(list(KINDS))
    case = draw_case(draw, seed, stored, has_gguf_twin if seed % 2 else bool)
    prompts = tools.draw_prompts(draw, case.spec.vocab_size, 40)[:3]
    paths = dict(formats(case, stored, tmp_path))
    assert seed % 2 == 0 or "gguf" in paths
    strategy = draw.choice(STRATEGIES)
    for dtype in ("auto", "float32", "bfloat16", "float16"):
        tokens = {}
        for name, path in paths.items():
            with opened(path, dtype=dtype, strategy=strategy) as model:
                tokens[name] = model.generate(input_ids=prompts, max_new_tokens=5, ignore_eos=True).token_ids
                assert model.spec.weight_dtype == (stored if dtype == "auto" else dtype)
        assert all(got == tokens["safetensors"] for got in tokens.values()), (dtype, tokens)
        if (stored, dtype) == ("float32", "auto"):
            assert tokens["safetensors"] == [answer.tokens for answer in case.answers(prompts, 5)]


# -- sampling ---------------------------------------------------------------------------------------------------------


class Kept:
    """A streamer that keeps what it is given."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.ended = False

    def put(self, value: torch.Tensor) -> None:
        self.tokens += value.flatten().tolist()

    def end(self) -> None:
        self.ended = True


def drawn_sampling(draw: random.Random) -> dict[str, Any]:
    filters = {"top_k": draw.choice([1, 5, 50]), "top_p": draw.choice([0.3, 0.8]), "repetition_penalty": 1.3}
    chosen = {name: value for name, value in filters.items() if draw.random() < 0.5}
    return {"temperature": draw.choice([0.5, 1.0, 1.7]), "seed": draw.randrange(2**32), **chosen}


@pytest.mark.parametrize("seed", seeds(4, 150))
def test_a_seed_gives_the_same_tokens_under_every_plan_order_and_jitter(
    seed: int, draw_case: Any, tools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(seed + 50_000)
    case = draw_case(draw, seed)
    prompts, sampling = tools.draw_prompts(draw, case.spec.vocab_size), drawn_sampling(draw)
    options = {"max_new_tokens": 6, "ignore_eos": True, **sampling}
    seen = set()
    for jitter_s in ("0", "0.001", "0"):
        monkeypatch.setenv("FLEXINFER_EMULATED_JITTER_S", jitter_s)
        order = draw.sample(prompts, len(prompts))
        with opened(case.path, prefill=draw.choice(STRATEGIES), decode=draw.choice(STRATEGIES)) as model:
            answers = model.generate(input_ids=order, **options).token_ids
            seen.add(str(sorted((prompt, list(ids)) for prompt, ids in zip(order, answers, strict=True))))
            streamed = Kept()
            (alone,) = model.generate(input_ids=[order[0]], streamer=streamed, **options).token_ids
        assert streamed.ended and streamed.tokens == [*order[0], *alone]
        assert order.count(order[0]) > 1 or alone == answers[0]
    assert len(seen) == 1
