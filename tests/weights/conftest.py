"""Tiny random models of every family, as transformers builds them, with the ModelSpec that describes each."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from flexinfer.spec.model_spec import ModelSpec, RopeSpec

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCAB, POSITIONS = 32, 2, 4, 2, 8, 48, 64, 40


@dataclass(frozen=True)
class Tiny:
    """A transformers model and its specification."""

    model: torch.nn.Module
    spec: ModelSpec

    def expected(self, dtype: torch.dtype = torch.float32) -> dict[tuple[int | None, str, str], torch.Tensor]:
        """Every tensor by place, taken from the modules themselves."""
        return {
            place: module_tensor(self.model, self.spec, place).detach().to(dtype)
            for place in ((at, b, t.name) for at, b in self.spec.blocks() for t in self.spec.block_tensors(b))
        }


def module_tensor(model: torch.nn.Module, spec: ModelSpec, place: tuple[int | None, str, str]) -> torch.Tensor:
    """The parameter at a place, by attribute access: an account of the names that shares nothing with names.py."""
    layer, block, name = place
    part, kind = name.split(".")
    decoder = model.model.decoder if spec.family == "opt" else model.model
    in_layer = decoder.layers[layer] if layer is not None else None
    opt = spec.family == "opt"
    modules = {
        ("embed", "tokens"): lambda: decoder.embed_tokens,
        ("embed", "positions"): lambda: decoder.embed_positions,
        ("embed", "project"): lambda: decoder.project_in,
        ("attention", "norm"): lambda: in_layer.self_attn_layer_norm if opt else in_layer.input_layernorm,
        ("attention", "q"): lambda: in_layer.self_attn.q_proj,
        ("attention", "k"): lambda: in_layer.self_attn.k_proj,
        ("attention", "v"): lambda: in_layer.self_attn.v_proj,
        ("attention", "o"): lambda: in_layer.self_attn.out_proj if opt else in_layer.self_attn.o_proj,
        ("attention", "q_norm"): lambda: in_layer.self_attn.q_norm,
        ("attention", "k_norm"): lambda: in_layer.self_attn.k_norm,
        ("mlp", "norm"): lambda: in_layer.final_layer_norm if opt else in_layer.post_attention_layernorm,
        ("mlp", "gate"): lambda: in_layer.mlp.gate_proj,
        ("mlp", "up"): lambda: in_layer.fc1 if opt else in_layer.mlp.up_proj,
        ("mlp", "down"): lambda: in_layer.fc2 if opt else in_layer.mlp.down_proj,
        ("head", "norm"): lambda: decoder.final_layer_norm if opt else decoder.norm,
        ("head", "project"): lambda: decoder.project_out,
        ("head", "out"): lambda: model.lm_head,
    }
    return getattr(modules[block, part](), kind)


def _common() -> dict[str, int]:
    return {
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "vocab_size": VOCAB,
        "max_position_embeddings": POSITIONS,
    }


def _rotary(cls_name: str, **options: object) -> torch.nn.Module:
    import transformers

    config_cls = getattr(transformers, f"{cls_name}Config")
    config = config_cls(**_common(), num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM, intermediate_size=FFN, **options)
    return getattr(transformers, f"{cls_name}ForCausalLM")(config)


def _opt(**options: object) -> torch.nn.Module:
    import transformers

    return transformers.OPTForCausalLM(transformers.OPTConfig(**_common(), ffn_dim=FFN, **options))


ROTARY = ModelSpec(
    name="tiny", family="llama", hidden_size=HIDDEN, num_layers=LAYERS, num_heads=HEADS, num_kv_heads=KV_HEADS,
    head_dim=HEAD_DIM, ffn_size=FFN, vocab_size=VOCAB, max_positions=POSITIONS, weight_dtype="float32",
    activation="silu", gated_mlp=True, norm="rms", norm_eps=1e-6, rope=RopeSpec(),
)  # fmt: skip
OPT = ModelSpec(
    name="tiny", family="opt", hidden_size=HIDDEN, num_layers=LAYERS, num_heads=HEADS, num_kv_heads=HEADS,
    head_dim=HEAD_DIM, ffn_size=FFN, vocab_size=VOCAB, max_positions=POSITIONS, weight_dtype="float32",
    activation="relu", gated_mlp=False, norm="layer", norm_eps=1e-5, tied_head=True, qkv_bias=True, out_bias=True,
    mlp_bias=True, learned_positions=POSITIONS + 2, position_offset=2,
)  # fmt: skip

BUILDERS: dict[str, Callable[[], tuple[torch.nn.Module, ModelSpec]]] = {
    "llama": lambda: (_rotary("Llama"), ROTARY),
    "llama-biased": lambda: (
        _rotary("Llama", attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
        replace(ROTARY, qkv_bias=True, out_bias=True, mlp_bias=True, tied_head=True),
    ),
    "mistral": lambda: (_rotary("Mistral"), replace(ROTARY, family="mistral")),
    "qwen2": lambda: (_rotary("Qwen2"), replace(ROTARY, family="qwen2", qkv_bias=True)),
    "qwen3": lambda: (
        _rotary("Qwen3", tie_word_embeddings=True),
        replace(ROTARY, family="qwen3", qk_norm=True, tied_head=True),
    ),
    "opt": lambda: (_opt(), OPT),
    "opt-untied": lambda: (_opt(tie_word_embeddings=False), replace(OPT, tied_head=False)),
    "opt-350m": lambda: (
        _opt(word_embed_proj_dim=16, do_layer_norm_before=False),
        replace(OPT, norm_first=False, final_norm=False, embed_size=16),
    ),
}


@pytest.fixture(scope="session")
def tiny() -> Callable[[str], Tiny]:
    """tiny(name) -> the model of that name in BUILDERS, with random values everywhere (norms and biases too)."""
    built: dict[str, Tiny] = {}

    def build(name: str) -> Tiny:
        if name not in built:
            torch.manual_seed(len(name))
            model, spec = BUILDERS[name]()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.normal_()
            model.tie_weights()
            built[name] = Tiny(model, spec)
        return built[name]

    return build


@pytest.fixture
def sharded(tiny: Callable[[str], Tiny], tmp_path: Path) -> Path:
    """A folder with the llama model in several safetensors shards."""
    tiny("llama").model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    return tmp_path


def save_torch(state: dict[str, torch.Tensor], folder: Path, shards: int = 1, zipped: bool = True) -> None:
    """pytorch_model.bin, in one file or in `shards` with an index."""
    if shards == 1:
        torch.save(state, folder / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
        return
    weight_map = {}
    for part in range(shards):
        file = f"pytorch_model-{part + 1:05d}-of-{shards:05d}.bin"
        names = list(state)[part::shards]
        torch.save({name: state[name].clone() for name in names}, folder / file)
        weight_map.update(dict.fromkeys(names, file))
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


@pytest.fixture(scope="session")
def torch_saver() -> Callable[..., None]:
    return save_torch
