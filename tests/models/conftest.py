"""Small random models of every family and option, by transformers, beside our spec and weights of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from flexinfer.spec import ModelSpec, load_spec
from flexinfer.weights.names import checkpoint_names

BEFORE_5 = int(transformers.__version__.partition(".")[0]) < 5

SIZES = {
    "vocab_size": 128,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "initializer_range": 0.12,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
ROTARY = {**SIZES, "intermediate_size": 80, "num_key_value_heads": 2}
OPT = {**SIZES, "ffn_dim": 80, "init_std": 0.12, "word_embed_proj_dim": 48}
ORIGINAL = {"original_max_position_embeddings": 16}
YARN = {"rope_type": "yarn", "factor": 8.0, **ORIGINAL}
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **ORIGINAL}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {**ROTARY, "num_key_value_heads": 4}),
    "llama_grouped_tied": ("llama", {**ROTARY, "tie_word_embeddings": True, "rope_theta": 5e5}),
    "llama_biases": ("llama", {**ROTARY, "attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1}),
    "llama_wide_heads": ("llama", {**ROTARY, "head_dim": 20}),
    "llama_gelu": ("llama", {**ROTARY, "hidden_act": "gelu"}),
    "llama_linear": ("llama", {**ROTARY, "rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    "llama_dynamic": (
        "llama",
        {**ROTARY, "max_position_embeddings": 16, "rope_scaling": {"rope_type": "dynamic", "factor": 8.0}},
    ),
    "llama_llama3": ("llama", {**ROTARY, "rope_scaling": LLAMA3}),
    "llama_yarn": ("llama", {**ROTARY, "rope_scaling": YARN}),
    "llama_yarn_factor": ("llama", {**ROTARY, "rope_scaling": {**YARN, "attention_factor": 1.7, "beta_fast": 8.0}}),
    "qwen2_yarn_mscale": ("qwen2", {**ROTARY, "rope_scaling": {**YARN, "mscale": 1.2, "mscale_all_dim": 0.4}}),
    "mistral": ("mistral", {**ROTARY, "sliding_window": None, "head_dim": 16}),
    "mistral_window": ("mistral", {**ROTARY, "sliding_window": 9}),
    "qwen2": ("qwen2", {**ROTARY, "tie_word_embeddings": True}),
    "qwen2_window": (
        "qwen2",
        {**ROTARY, "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", {**ROTARY, "head_dim": 32, "tie_word_embeddings": True}),
    "qwen3_bias": ("qwen3", {**ROTARY, "head_dim": 16, "attention_bias": True}),
    "opt": ("opt", {**OPT, "tie_word_embeddings": True}),
    "opt_post_norm_projected": (
        "opt",
        {**OPT, "word_embed_proj_dim": 24, "do_layer_norm_before": False, "tie_word_embeddings": True},
    ),
    "opt_bare": ("opt", {**OPT, "enable_bias": False, "layer_norm_elementwise_affine": False}),
    "opt_gelu_no_final_norm": ("opt", {**OPT, "activation_function": "gelu", "_remove_final_layer_norm": True}),
}


class Store:
    """Weights of a transformers model, block by block under our names."""

    def __init__(self, spec: ModelSpec, tensors: Mapping[str, torch.Tensor]) -> None:
        names = checkpoint_names(spec, "hf")
        self._blocks: dict[tuple[int | None, str], dict[str, torch.Tensor]] = {key: {} for key in spec.blocks()}
        for (layer, block, canonical), name in names.items():
            self._blocks[layer, block][canonical] = tensors[name].detach().clone()
        if spec.tied_head:
            self._blocks[None, "head"]["out.weight"] = self._blocks[None, "embed"]["tokens.weight"]

    def block(self, layer: int | None, block: str) -> dict[str, torch.Tensor]:
        return self._blocks[layer, block]


@dataclass(frozen=True)
class Tiny:
    """One case: transformers' model, and ours."""

    model: PreTrainedModel
    spec: ModelSpec
    store: Store


def _attend_to_all_before(layer: Any, args: Any, keywords: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """A plain causal mask: transformers before 5 masks by the window in every layer, also those that have none."""
    windowed = keywords["attention_mask"]
    later = torch.arange(windowed.shape[-1]) > keywords["cache_position"].unsqueeze(-1)
    plain = torch.zeros_like(windowed).masked_fill(later, torch.finfo(windowed.dtype).min)
    return args, {**keywords, "attention_mask": plain}


def _build(name: str, folder: Any) -> Tiny:
    family, options = CASES[name]
    torch.manual_seed(7)
    config = AutoConfig.for_model(family, **options)
    config.save_pretrained(folder)
    if BEFORE_5 and (options.get("rope_scaling") or {}).get("rope_type") == "yarn":
        # There the factor is read off the positions, whatever is stated
        scaling = options["rope_scaling"]
        config.max_position_embeddings = int(scaling["factor"] * scaling["original_max_position_embeddings"])
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval().float()
    if BEFORE_5 and "max_window_layers" in options:
        for layer in model.model.layers[: options["max_window_layers"]]:
            layer.register_forward_pre_hook(_attend_to_all_before, with_kwargs=True)
    for parameter in model.parameters():
        if parameter.dim() == 1:  # biases begin as zeros and norms as ones, which would hide a mix-up
            parameter.data += 0.2 * torch.randn_like(parameter)
    model.generation_config.eos_token_id = None
    spec = load_spec(folder)
    return Tiny(model, spec, Store(spec, model.state_dict()))


@pytest.fixture(scope="session")
def build_tiny(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Builds each case once."""
    built: dict[str, Tiny] = {}

    def build(name: str) -> Tiny:
        if name not in built:
            built[name] = _build(name, tmp_path_factory.mktemp(name))
        return built[name]

    return build


@pytest.fixture(params=CASES)
def tiny(request: pytest.FixtureRequest, build_tiny: Any) -> Tiny:
    return build_tiny(request.param)
