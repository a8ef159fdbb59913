"""Keys of a config.json that change the mathematics in ways that are not implemented: refused by name. No torch.

A key counts only where its value would change something: null passes, and so do its neutral values, and false where
true is not among them. Model families bring new keys all the time, so besides exact names there are fragments that
give the usual suspects away.
"""

from __future__ import annotations

from typing import Any

from flexinfer.spec.config_reader import Config

_POSITIONS = "position encoding"
_SCALING = "scaling"

# key: (what it is, values that change nothing)
_EXACT: dict[str, tuple[str, tuple[Any, ...]]] = {
    "partial_rotary_factor": ("partial rotary embedding", (1,)),
    "rotary_pct": ("partial rotary embedding", (1,)),
    "rotary_percent": ("partial rotary embedding", (1,)),
    "rope_interleaved": (_POSITIONS, ()),
    "rope_interleave": (_POSITIONS, ()),
    "rope_local_base_freq": (_POSITIONS, ()),
    "mrope_section": (_POSITIONS, ()),
    "no_rope_layer_interval": ("layers without rotary embedding", ()),
    "dual_chunk_attention_config": ("dual chunk attention", ()),
    "attention_chunk_size": ("chunked attention", ()),
    "attn_temperature_tuning": ("attention temperature tuning", ()),
    "query_pre_attn_scalar": (_SCALING, ()),
    "attention_scale": (_SCALING, ()),
    "attn_scale": (_SCALING, ()),
    "softmax_scale": (_SCALING, ()),
    "scale_attn_weights": (_SCALING, (True,)),
    "scale_attn_by_inverse_layer_idx": (_SCALING, ()),
    "scale_embedding": (_SCALING, ()),
    "embedding_scale": (_SCALING, (1,)),
    "scale_emb": (_SCALING, (1,)),
    "scale_depth": (_SCALING, ()),
    "logit_scale": (_SCALING, (1,)),
    "logits_scaling": (_SCALING, (1,)),
    "clip_qkv": ("clipped queries, keys and values", ()),
    "clamp_kqv": ("clipped queries, keys and values", ()),
    "parallel_attn": ("attention beside the MLP", ()),
    "parallel_attention": ("attention beside the MLP", ()),
    "use_parallel_residual": ("attention beside the MLP", ()),
    "is_causal": ("attention that is not causal", (True,)),
    "use_bidirectional_attention": ("attention that is not causal", ()),
    "is_encoder_decoder": ("encoder-decoder model", ()),
    "add_cross_attention": ("cross attention", ()),
    "num_kv_shared_layers": ("KV shared between layers", (0,)),
    "kv_lora_rank": ("latent attention", ()),
    "q_lora_rank": ("latent attention", ()),
    "pruned_heads": ("pruned heads", ({}, [])),
}

_FRAGMENTS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "alibi": ("alibi positions", (0,)),
    "softcap": ("soft-capped logits", (0,)),
    "sink": ("attention sinks", (0,)),
    "expert": ("mixture of experts", (0,)),
    "moe_": ("mixture of experts", (0,)),
    "multiplier": (_SCALING, (1,)),
    "output_gate": ("gated attention output", ()),
}

_HARMLESS = ("ffn_dim_multiplier",)  # how an intermediate size was once chosen; the size itself is stated too
_QK_NORM_KEYS = ("qk_norm", "use_qk_norm", "qk_layernorm", "use_qk_layernorm")
_POSITION_TYPES = {"opt": ("absolute", "learned")}


def refuse_unsupported(config: Config, family: str) -> None:
    """Raise ModelError naming the first key that would change the model's output. Family "qwen3" has q/k norm."""
    _refuse_quantized(config)
    for key, value in config.values.items():
        if key in _EXACT:
            _refuse(config, key, value, *_EXACT[key])
        for fragment, (what, neutral) in _FRAGMENTS.items():
            if fragment in key.lower() and key not in _HARMLESS:
                _refuse(config, key, value, what, neutral)
        if key in _QK_NORM_KEYS and family != "qwen3":
            _refuse(config, key, value, "norm of queries and keys in this architecture", ())
    _refuse(
        config,
        "position_embedding_type",
        config.values.get("position_embedding_type"),
        _POSITIONS,
        _POSITION_TYPES.get(family, ("rope", "rotary")),
    )
    used = config.values.get("no_rope_layers") or []
    if not isinstance(used, list) or any(one != 1 for one in used):
        raise config.error(f"no_rope_layers = {used!r} (layers without rotary embedding) is not supported")


def _refuse(config: Config, key: str, value: Any, what: str, neutral: tuple[Any, ...]) -> None:
    off = value is False and not any(each is True for each in neutral)
    if value is None or off or value in neutral:
        return
    raise config.error(f"{key} = {value!r} ({what}) is not supported")


def _refuse_quantized(config: Config) -> None:
    quantization = config.values.get("quantization_config") or config.values.get("compression_config")
    if quantization:
        method = quantization.get("quant_method", "unknown") if isinstance(quantization, dict) else quantization
        raise config.error(
            f"quantization_config ({method}) is not supported; use the unquantized checkpoint or a GGUF file"
        )


def refuse_fixed(config: Config, **fixed: Any) -> None:
    """For keys that an architecture does not look at: anything but the value it has built in is refused by name."""
    for key, value in fixed.items():
        given = config.values.get(key)
        if given is not None and given != value:
            raise config.error(f"{key} = {given!r} is not supported for this architecture")
