"""What is not supported is refused by name: each key that would change the model's output and is not implemented."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexinfer.errors import ModelError
from flexinfer.spec.hf_config import spec_from_config

Configs = Mapping[str, dict[str, Any]]
ROPE = {"rope_type": "yarn", "factor": 2.0}

REFUSED: list[tuple[str, str, Any]] = [
    ("llama", "architectures", ["LlamaForSequenceClassification"]),
    ("llama", "architectures", ["MixtralForCausalLM"]),
    ("llama", "architectures", ["MistralForCausalLM"]),  # contradicts model_type
    ("llama", "hidden_act", "relu2"),
    ("opt", "activation_function", "quick_gelu"),
    ("llama", "quantization_config", {"quant_method": "gptq", "bits": 4}),
    ("qwen2", "compression_config", {"quant_method": "compressed-tensors"}),
    ("llama", "rope_scaling", {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}),
    ("llama", "rope_scaling", {"type": "su"}),
    ("llama", "rope_parameters", {"full_attention": {"rope_type": "default"}}),
    ("llama", "rope_scaling", {"type": "default", "mrope_section": [1, 1, 2]}),
    ("llama", "rope_scaling", {**ROPE, "partial_rotary_factor": 0.5}),
    ("llama", "rope_scaling", {**ROPE, "attn_factor": 1.5}),
    ("llama", "rope_scaling", {"type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 32}),
    ("llama", "rope_scaling", {"type": "dynamic", "factor": 2.0, "alpha": 1000}),
    ("llama", "partial_rotary_factor", 0.5),
    ("llama", "rotary_pct", 0.25),
    ("llama", "sliding_window", 16),
    ("opt", "sliding_window", 16),
    ("llama", "layer_types", ["full_attention", "sliding_attention", "full_attention"]),
    ("llama", "layer_types", ["chunked_attention"] * 3),
    ("mistral", "layer_types", ["sliding_attention"] * 3),
    ("mistral", "attention_bias", True),
    ("qwen2", "attention_bias", False),
    ("qwen2", "dual_chunk_attention_config", {"chunk_size": 32}),
    ("llama", "attn_logit_softcapping", 50.0),
    ("llama", "final_logit_softcapping", 30.0),
    ("llama", "query_pre_attn_scalar", 256),
    ("llama", "attention_multiplier", 0.0078125),
    ("llama", "residual_multiplier", 0.22),
    ("llama", "embedding_multiplier", 12.0),
    ("llama", "logits_scaling", 8.0),
    ("llama", "logit_scale", 0.0625),
    ("llama", "scale_emb", 12),
    ("llama", "attention_sinks", True),
    ("qwen3", "add_swa_attention_sink_bias", True),
    ("mistral", "num_local_experts", 8),
    ("qwen3", "num_experts", 128),
    ("qwen3", "moe_intermediate_size", 768),
    ("llama", "alibi", True),
    ("llama", "alibi_bias_max", 8),
    ("llama", "position_embedding_type", "alibi"),
    ("llama", "position_embedding_type", "absolute"),
    ("llama", "no_rope_layers", [1, 1, 0]),
    ("llama", "use_qk_norm", True),
    ("llama", "clip_qkv", 8.0),
    ("llama", "use_parallel_residual", True),
    ("qwen2", "is_causal", False),
    ("qwen2", "use_bidirectional_attention", True),
    ("opt", "is_encoder_decoder", True),
    ("qwen3", "headwise_attn_output_gate", True),
    ("llama", "attention_chunk_size", 8192),
    ("llama", "kv_lora_rank", 512),
    ("llama", "num_kv_shared_layers", 2),
    ("opt", "rope_scaling", ROPE),
]


@pytest.mark.parametrize(("family", "key", "value"), REFUSED)
def test_refused_by_name(configs: Configs, family: str, key: str, value: Any) -> None:
    with pytest.raises(ModelError) as caught:
        spec_from_config({**configs[family], key: value}, "tiny", "/models/x/config.json")
    message = str(caught.value)
    assert "\n" not in message and message.startswith("/models/x/config.json")
    named = [key.replace("architectures", "architecture").replace("compression", "quantization")]
    if isinstance(value, dict):
        named += [*value, *(str(v) for v in value.values())]
    assert any(name in message for name in named), message


NEUTRAL = {
    "partial_rotary_factor": 1.0,
    "quantization_config": None,
    "attn_logit_softcapping": None,
    "num_local_experts": 0,
    "logit_scale": 1.0,
    "residual_multiplier": 1.0,
    "ffn_dim_multiplier": 1.3,
    "alibi": False,
    "is_causal": True,
    "is_encoder_decoder": False,
    "add_cross_attention": False,
    "pruned_heads": {},
    "no_rope_layers": [1, 1, 1],
    "position_embedding_type": "rope",
    "sliding_window": None,
    "use_cache": True,
    "attention_dropout": 0.1,
    "pretraining_tp": 2,
    "transformers_version": "4.31.0",
    "torch_dtype": "float16",
    "auto_map": {},
    "initializer_range": 0.02,
}


def test_neutral_values_pass(configs: Configs) -> None:
    """Old files carry dozens of such keys; none of these changes anything."""
    plain = spec_from_config({**configs["llama"], "torch_dtype": "float16"}, "tiny", "x")
    assert spec_from_config({**configs["llama"], **NEUTRAL}, "tiny", "x") == plain


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", None),
        ("hidden_size", 0),
        ("hidden_size", -32),
        ("hidden_size", "32"),
        ("hidden_size", 32.5),
        ("hidden_size", True),
        ("hidden_size", 30),
        ("num_key_value_heads", 3),
        ("num_hidden_layers", []),
        ("head_dim", 7),
        ("rms_norm_eps", 0.0),
        ("rms_norm_eps", float("nan")),
        ("rope_theta", -1.0),
        ("tie_word_embeddings", "yes"),
        ("eos_token_id", "2"),
        ("eos_token_id", [1, -1]),
        ("rope_scaling", "yarn"),
        ("rope_scaling", {"type": "linear"}),
        ("rope_scaling", {"rope_type": "llama3", "factor": 8.0}),
        ("architectures", "LlamaForCausalLM"),
        ("model_type", 3),
        ("torch_dtype", 16),
    ],
)
def test_missing_and_malformed_values_are_named(configs: Configs, key: str, value: Any) -> None:
    with pytest.raises(ModelError) as caught:
        spec_from_config({**configs["llama"], key: value}, "tiny", "x/config.json")
    assert "\n" not in str(caught.value) and str(caught.value).startswith("x/config.json: ")


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=4,
)
ALL_KEYS = {key for _, key, _ in REFUSED} | set(NEUTRAL) | {"rope_theta", "head_dim", "eos_token_id", "bos_token_id"}


@given(data=st.data(), family=st.sampled_from(["opt", "llama", "mistral", "qwen2", "qwen3"]))
def test_any_value_of_any_key_gives_a_spec_or_one_clear_line(
    configs: Configs, data: st.DataObject, family: str
) -> None:
    base = configs[family]
    key = data.draw(st.sampled_from(sorted({*base, *ALL_KEYS})))
    values = {**base, key: data.draw(JSON_VALUES)}
    try:
        spec = spec_from_config(values, "tiny", "x/config.json")
    except ModelError as error:
        assert "\n" not in str(error)
    else:
        assert spec.total_params > 0
