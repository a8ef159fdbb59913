"""GGUF metadata -> ModelSpec. Architectures llama (which Mistral and SmolLM files name too), qwen2, qwen3. No torch.

Metadata keys of an architecture are a closed vocabulary: each is either read, or listed with the values that change
nothing, or refused by name.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from flexinfer.spec.config_reader import Config
from flexinfer.spec.gguf_header import BF16, F16, F32, GgufHeader, read_floats, read_header
from flexinfer.spec.hf_rope import effective_positions
from flexinfer.spec.model_spec import Family, ModelSpec, RopeSpec

_FAMILIES: dict[str, Family] = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
_DTYPES = {F32: "float32", F16: "float16", BF16: "bfloat16"}
_QUANTIZED_DTYPE = "bfloat16"  # what blocks are dequantized to

_READ = [
    "vocab_size",
    "context_length",
    "embedding_length",
    "block_count",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
]
# Values that change nothing; None stands for any value.
_NEUTRAL: dict[str, tuple[Any, ...] | None] = {
    "tensor_data_layout": None,
    "rope.scaling.finetuned": None,
    "attention.layer_norm_epsilon": None,
    "attention.causal": (True,),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "use_parallel_residual": (False,),
    "pooling_type": (0,),
    "logit_scale": (0, 1),
    "residual_scale": (0, 1),
    "embedding_scale": (0, 1),
    "attention.scale": (0,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attn_logit_softcapping": (0,),
    "final_logit_softcapping": (0,),
    "rope.scaling.yarn_ext_factor": (1,),
    "rope.scaling.yarn_attn_factor": (1,),
    "rope.scaling.yarn_log_multiplier": (0,),
    "nextn_predict_layers": (0,),
}


def spec_from_gguf(path: Path, dtype: str = "auto") -> ModelSpec:
    """The ModelSpec of a GGUF file. Raises ModelError.

    dtype "auto" is the one that the matrices have, bfloat16 for quantized ones.
    """
    header = read_header(path)
    general = Config(header.metadata, str(path))
    arch = general.text("general.architecture")
    _refuse_kinds(general, arch)
    values = {key[len(arch) + 1 :]: value for key, value in header.metadata.items() if key.startswith(f"{arch}.")}
    own = Config(values, f"{path}: {arch}")
    _refuse_keys(own)
    spec = _spec(header, own, _FAMILIES[arch], _weight_dtype(header) if dtype == "auto" else dtype)
    _check(own, spec)
    return spec


def _refuse_kinds(general: Config, arch: str) -> None:
    if arch not in _FAMILIES:
        raise general.error(f"GGUF architecture {arch!r} is not supported; supported are {', '.join(_FAMILIES)}")
    kind = general.text("general.type", "model")
    if kind != "model":
        raise general.error(f"the file holds a {kind}, not a model")
    if general.integer("split.count", 1) > 1:
        raise general.error("the model is split over several GGUF files; merge them (llama-gguf-split --merge) first")


def _refuse_keys(own: Config) -> None:
    for key, value in own.values.items():
        neutral = _NEUTRAL.get(key, ())
        if key in _READ or neutral is None or value in neutral:
            continue
        raise own.error(f"{key} = {value!r} is not supported")


def _spec(header: GgufHeader, own: Config, family: Family, dtype: str) -> ModelSpec:
    hidden, heads = own.count("embedding_length"), own.count("attention.head_count")
    head_dim = own.count("attention.key_length", hidden // heads)
    context = own.count("context_length")
    layers = own.layers("block_count")
    rope = _rope(header, own, context, head_dim)
    window = own.count("attention.sliding_window") if own.values.get("attention.sliding_window") else None
    tensors = header.tensors
    return ModelSpec(
        name=header.path.stem,
        family="mistral" if family == "llama" and window else family,
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=own.count("attention.head_count_kv", heads),
        head_dim=head_dim,
        ffn_size=own.count("feed_forward_length"),
        vocab_size=_vocab_size(header, own, hidden),
        max_positions=effective_positions(rope, context),
        weight_dtype=dtype,
        activation="silu",
        gated_mlp=True,
        norm="rms",
        norm_eps=own.number("attention.layer_norm_rms_epsilon"),
        tied_head="output.weight" not in tensors,
        qkv_bias="blk.0.attn_q.bias" in tensors,
        out_bias="blk.0.attn_output.bias" in tensors,
        mlp_bias="blk.0.ffn_down.bias" in tensors,
        qk_norm="blk.0.attn_q_norm.weight" in tensors,
        rope=rope,
        windows=(window,) * layers,
        eos_token_ids=_token_ids(header, "eos", "eot", "eom"),  # end of text, of turn, of message
        bos_token_id=next(iter(_token_ids(header, "bos")), None),
        source=str(header.path),
    )


def _token_ids(header: GgufHeader, *kinds: str) -> tuple[int, ...]:
    config = Config(header.metadata, str(header.path))
    found = [config.token_ids(f"tokenizer.ggml.{kind}_token_id", None) for kind in kinds]
    return tuple(dict.fromkeys(token for ids in found for token in ids))


def _vocab_size(header: GgufHeader, own: Config, hidden: int) -> int:
    table = header.tensors.get("token_embd.weight")
    if table is None or len(table.shape) != 2 or table.shape[1] != hidden:
        raise own.error(f"token_embd.weight of width {hidden} is missing")
    stated = own.count("vocab_size", table.shape[0])
    if stated != table.shape[0]:
        raise own.error(f"vocab_size is {stated} but token_embd.weight has {table.shape[0]} rows")
    return stated


def _rope(header: GgufHeader, own: Config, context: int, head_dim: int) -> RopeSpec:
    theta = own.number("rope.freq_base", 10000.0)
    scaled = own.has("rope.scaling.factor") or own.has("rope.scale_linear")
    kind = own.text("rope.scaling.type", "linear" if scaled else "none")
    factors = _freq_factors(header, own, head_dim)
    if factors and kind != "none":
        raise own.error(f"rope_freqs.weight together with rope scaling {kind!r} is not supported")
    if kind == "none":
        return RopeSpec(theta=theta, freq_factors=factors)
    factor = own.number("rope.scaling.factor", own.number("rope.scale_linear", 1.0))
    key = "rope.scaling.original_context_length"
    original = own.count(key) if own.has(key) else None
    attn_factor = own.number("rope.scaling.attn_factor", 1.0)
    if kind == "linear" and attn_factor == 1:
        return RopeSpec("linear", theta, factor, original)
    if kind != "yarn":
        raise own.error(f"rope scaling {kind!r} is not supported; supported are none, linear and yarn")
    return RopeSpec(
        "yarn",
        theta,
        factor,
        original or context,
        beta_fast=own.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=own.number("rope.scaling.yarn_beta_slow", 1.0),
        # The file's factor comes on top of the one that follows from the scaling.
        attention_factor=None if attn_factor == 1 else attn_factor * (1 + 0.1 * math.log(max(factor, 1.0))),
    )


def _freq_factors(header: GgufHeader, own: Config, head_dim: int) -> tuple[float, ...]:
    """Divisors of the frequencies: how the file of a llama3-scaled model states its scaling."""
    tensor = header.tensors.get("rope_freqs.weight")
    if tensor is None:
        return ()
    factors = read_floats(header.path, tensor)
    if len(factors) != head_dim // 2 or not all(math.isfinite(f) and f > 0 for f in factors):
        raise own.error(f"rope_freqs.weight must hold {head_dim // 2} positive numbers")
    return factors


def _weight_dtype(header: GgufHeader) -> str:
    """The widest plain type among the matrices; any quantized one makes it bfloat16."""
    types = {t.type for t in header.tensors.values() if len(t.shape) > 1}
    if types - set(_DTYPES):
        return _QUANTIZED_DTYPE
    return next((_DTYPES[kind] for kind in (F32, BF16, F16) if kind in types), _QUANTIZED_DTYPE)


def _check(own: Config, spec: ModelSpec) -> None:
    value_length = own.count("attention.value_length", spec.head_dim)
    if value_length != spec.head_dim:
        raise own.error(f"attention.value_length {value_length} unlike key_length {spec.head_dim} is not supported")
    rotated = own.count("rope.dimension_count", spec.head_dim)
    if rotated != spec.head_dim or spec.head_dim % 2:
        raise own.error(f"rope.dimension_count {rotated} of head_dim {spec.head_dim} (partial rotary) is not supported")
    if spec.num_heads % spec.num_kv_heads:
        raise own.error(f"attention.head_count {spec.num_heads} is not a multiple of head_count_kv {spec.num_kv_heads}")
