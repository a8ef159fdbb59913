"""config.json -> ModelSpec for every family, in the spelling of transformers 4 and of transformers 5."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from flexinfer.errors import ModelError
from flexinfer.spec import ModelSpec, RopeSpec
from flexinfer.spec.hf_config import spec_from_config

Configs = Mapping[str, dict[str, Any]]


def spec_of(values: Mapping[str, Any], **changes: Any) -> ModelSpec:
    return spec_from_config({**values, **changes}, "tiny", "config.json")


def names(spec: ModelSpec, block: Any) -> set[str]:
    return {t.name for t in spec.block_tensors(block)}


def test_opt_as_published(configs: Configs) -> None:
    spec = spec_of(configs["opt"])
    assert (spec.norm, spec.activation, spec.gated_mlp, spec.norm_eps) == ("layer", "relu", False, 1e-5)
    assert spec.tied_head and spec.norm_first and spec.final_norm and spec.norm_affine
    assert spec.qkv_bias and spec.out_bias and spec.mlp_bias and spec.rope is None
    assert (spec.learned_positions, spec.position_offset, spec.max_positions) == (66, 2, 64)
    assert spec.num_kv_heads == 4 and spec.head_dim == 8
    assert spec.eos_token_ids == (2,) and spec.bos_token_id == 2


def test_opt_350m_norms_last_and_projects(configs: Configs) -> None:
    spec = spec_of(configs["opt"], word_embed_proj_dim=16, do_layer_norm_before=False)
    assert not spec.norm_first and not spec.final_norm and spec.embedding_size == 16
    assert names(spec, "embed") == {"tokens.weight", "positions.weight", "project.weight"}
    assert names(spec, "head") == {"project.weight", "out.weight"}


def test_opt_without_biases_affine_or_final_norm(configs: Configs) -> None:
    spec = spec_of(configs["opt"], enable_bias=False, layer_norm_elementwise_affine=False)
    assert names(spec, "attention") == {"q.weight", "k.weight", "v.weight", "o.weight"}
    assert names(spec, "mlp") == {"up.weight", "down.weight"}
    assert not spec_of(configs["opt"], _remove_final_layer_norm=True).final_norm
    assert spec_of(configs["opt"], activation_function="gelu").activation == "gelu"


def test_llama_defaults_of_old_configs(configs: Configs) -> None:
    """LLaMA 1 files name neither kv heads nor theta, and tie nothing."""
    old = {k: v for k, v in configs["llama"].items() if k != "num_key_value_heads"}
    spec = spec_of(old)
    assert spec.num_kv_heads == 4 and spec.head_dim == 8 and not spec.tied_head
    assert spec.rope == RopeSpec(theta=10000.0) and spec.weight_dtype == "float32"
    assert spec.eos_token_ids == (2,) and spec.bos_token_id == 1
    assert spec.windows == (None, None, None)


def test_llama_options(configs: Configs) -> None:
    spec = spec_of(configs["llama"], attention_bias=True, mlp_bias=True, head_dim=12, tie_word_embeddings=True)
    assert spec.qkv_bias and spec.out_bias and spec.mlp_bias and spec.tied_head
    assert spec.head_dim == 12 and spec.q_size == 48
    assert spec_of(configs["llama"], eos_token_id=[5, 7]).eos_token_ids == (5, 7)
    assert spec_of(configs["llama"], eos_token_id=None).eos_token_ids == ()
    assert spec_of(configs["llama"], hidden_act="gelu_pytorch_tanh").activation == "gelu_tanh"


def test_mistral_windows(configs: Configs) -> None:
    assert spec_of(configs["mistral"], sliding_window=16).windows == (16, 16, 16)
    assert spec_of(configs["mistral"]).windows == (None, None, None)
    absent = {k: v for k, v in configs["mistral"].items() if k != "sliding_window"}
    assert spec_of(absent).windows == (4096, 4096, 4096)


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_qwen_windows(configs: Configs, family: str) -> None:
    base = configs[family]
    assert spec_of(base, sliding_window=16, max_window_layers=1).windows == (None,) * 3, "off unless turned on"
    on = {"use_sliding_window": True, "sliding_window": 16}
    assert spec_of(base, **on, max_window_layers=1).windows == (None, 16, 16)
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    assert spec_of(base, **on, layer_types=kinds).windows == (16, None, 16)
    assert spec_of(base, layer_types=["full_attention"] * 3).windows == (None,) * 3
    with pytest.raises(ModelError, match="sliding_window"):
        spec_of(base, layer_types=kinds)
    with pytest.raises(ModelError, match="layer_types"):
        spec_of(base, layer_types=["full_attention"])


def test_qwen2_has_biases_on_q_k_v_alone(configs: Configs) -> None:
    spec = spec_of(configs["qwen2"])
    assert {n for n in names(spec, "attention") if "bias" in n} == {"q.bias", "k.bias", "v.bias"}
    assert spec.eos_token_ids == () and spec.bos_token_id is None


def test_qwen3_has_norms_of_q_and_k(configs: Configs) -> None:
    spec = spec_of(configs["qwen3"])
    assert spec.qk_norm and spec.head_dim == 16 and not spec.qkv_bias
    assert {"q_norm.weight", "k_norm.weight"} <= names(spec, "attention")
    assert spec_of(configs["qwen3"], head_dim=None).head_dim == 128
    biased = spec_of(configs["qwen3"], attention_bias=True)
    assert biased.qkv_bias and biased.out_bias


def test_dtype_under_either_key(configs: Configs) -> None:
    base = configs["llama"]
    assert spec_of(base, torch_dtype="bfloat16").weight_dtype == "bfloat16"
    assert spec_of(base, dtype="float16").weight_dtype == "float16"
    assert spec_of(base, dtype="torch.float16").weight_dtype == "float16"
    assert spec_from_config({**base, "dtype": "float16"}, "x", "x", dtype="float32").weight_dtype == "float32"
    with pytest.raises(ModelError, match="float8_e4m3fn"):
        spec_of(base, torch_dtype="float8_e4m3fn")


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
YARN = {"factor": 4.0, "original_max_position_embeddings": 32}
# rope_scaling, the RopeSpec it means, positions that prompt and new tokens may reach (64 stated)
SCALINGS: list[tuple[dict[str, Any] | None, RopeSpec, int]] = [
    (None, RopeSpec(theta=5e5), 64),
    ({"rope_type": "default"}, RopeSpec(theta=5e5), 64),
    ({"type": "linear", "factor": 4.0}, RopeSpec("linear", 5e5, 4.0), 256),
    (
        {"type": "linear", "factor": 4, "original_max_position_embeddings": 16},
        RopeSpec("linear", 5e5, 4.0, 16),
        64,
    ),
    ({"type": "dynamic", "factor": 2.0}, RopeSpec("dynamic", 5e5, 2.0, 64), 128),
    (
        {"rope_type": "llama3", **LLAMA3},
        RopeSpec("llama3", 5e5, 8.0, 32, low_freq_factor=1.0, high_freq_factor=4.0),
        64,
    ),
    ({"type": "yarn", **YARN}, RopeSpec("yarn", 5e5, 4.0, 32), 128),
    ({"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 16}, RopeSpec("yarn", 5e5, 2.0, 16), 64),
    ({"type": "yarn", "factor": 4.0}, RopeSpec("yarn", 5e5, 4.0, 64), 256),
    ({"type": "yarn", "original_max_position_embeddings": 16}, RopeSpec("yarn", 5e5, 4.0, 16), 64),
    (
        {"rope_type": "yarn", **YARN, "beta_fast": 8, "beta_slow": 2, "attention_factor": 1.2, "truncate": False},
        RopeSpec("yarn", 5e5, 4.0, 32, beta_fast=8.0, beta_slow=2.0, attention_factor=1.2, truncate=False),
        128,
    ),
    (
        {"rope_type": "yarn", **YARN, "mscale": 1.0, "mscale_all_dim": 0.7},
        RopeSpec("yarn", 5e5, 4.0, 32, mscale=1.0, mscale_all_dim=0.7),
        128,
    ),
]


@pytest.mark.parametrize(("scaling", "want", "positions"), SCALINGS)
def test_rope_in_both_spellings(
    configs: Configs, scaling: dict[str, Any] | None, want: RopeSpec, positions: int
) -> None:
    old = spec_of(configs["llama"], rope_theta=5e5, rope_scaling=scaling)
    new = spec_of(configs["llama"], rope_parameters={"rope_theta": 5e5, **(scaling or {})})
    assert old.rope == new.rope == want
    assert old.max_positions == new.max_positions == positions


def test_original_window_beside_the_scaling_wins(configs: Configs) -> None:
    """As transformers has it, for files that state it in both places."""
    spec = spec_of(configs["llama"], rope_scaling={"type": "yarn", **YARN}, original_max_position_embeddings=48)
    assert spec.rope == RopeSpec("yarn", 10000.0, 4.0, 48) and spec.max_positions == 192


def test_what_transformers_saves_reads_back(configs: Configs, tmp_path: Any) -> None:
    """Its own files, whatever its version spells them like."""
    from transformers import AutoConfig

    from flexinfer.spec import load_spec

    for family, values in configs.items():
        if family != "opt":
            values = {**values, "rope_scaling": {"rope_type": "yarn", **YARN}, "rope_theta": 5e5}
        AutoConfig.for_model(**values).save_pretrained(tmp_path / family)
        spec = load_spec(tmp_path / family)
        assert spec.family == family and spec.name == family and spec.source == str(tmp_path / family)
        assert spec.rope == (None if family == "opt" else RopeSpec("yarn", 5e5, 4.0, 32))
