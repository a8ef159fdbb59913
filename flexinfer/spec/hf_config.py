"""config.json -> ModelSpec: one small function a family. No torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flexinfer.spec.config_reader import Config
from flexinfer.spec.hf_refusals import refuse_fixed, refuse_unsupported
from flexinfer.spec.hf_rope import effective_positions, rope_from_config
from flexinfer.spec.model_spec import DTYPE_BYTES, Activation, Family, ModelSpec

_ACTIVATIONS: dict[str, Activation] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
_ARCHITECTURES: dict[str, Family] = {
    "OPTForCausalLM": "opt",
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}


def spec_from_config(values: Mapping[str, Any], name: str, where: str, dtype: str = "auto") -> ModelSpec:
    """The ModelSpec of a parsed config.json. `where` begins every message, usually the file's path.

    dtype "auto" takes the config's own (`dtype` or `torch_dtype`), or float32 where it names none. Raises ModelError.
    """
    config = Config(values, where)
    family = _family(config)
    refuse_unsupported(config, family)
    common = {"name": name, "family": family, "weight_dtype": stated_dtype(config) if dtype == "auto" else dtype}
    spec = _BUILDERS[family](config, common)
    _check(config, spec)
    return spec


def _family(config: Config) -> Family:
    model_type = config.text("model_type", "")
    named = config.names("architectures") or []
    supported = ", ".join(_ARCHITECTURES)
    if not named:
        for family in _ARCHITECTURES.values():
            if family == model_type:
                return family
        raise config.error(f"model_type {model_type!r} is not supported; supported are {supported}")
    if named[0] not in _ARCHITECTURES or len(named) > 1:
        raise config.error(f"architecture {', '.join(named)} is not supported; supported are {supported}")
    if model_type not in ("", _ARCHITECTURES[named[0]]):
        raise config.error(f"architecture {named[0]} with model_type {model_type!r} is not supported")
    return _ARCHITECTURES[named[0]]


def stated_dtype(config: Config) -> str:
    """The dtype a config names, under its new or its old key; float32 where it names none."""
    key = "dtype" if config.has("dtype") else "torch_dtype"
    dtype = config.text(key, "float32").removeprefix("torch.")
    dtype = "float32" if dtype == "auto" else dtype
    if dtype not in DTYPE_BYTES:
        raise config.error(f"{key} {dtype!r} is not supported; supported are {', '.join(DTYPE_BYTES)}")
    return dtype


def _activation(config: Config, key: str, default: str) -> Activation:
    name = config.text(key, default)
    if name not in _ACTIVATIONS:
        raise config.error(f"activation {name!r} ({key}) is not supported; supported are {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def _sizes(config: Config, ffn_key: str) -> dict[str, Any]:
    return {
        "hidden_size": config.count("hidden_size"),
        "num_layers": config.layers("num_hidden_layers"),
        "num_heads": config.count("num_attention_heads"),
        "ffn_size": config.count(ffn_key),
        "vocab_size": config.count("vocab_size"),
    }


def _bos(config: Config, default: int | None) -> int | None:
    ids = config.token_ids("bos_token_id", default)
    return ids[0] if ids else None


def _even_head_dim(config: Config, sizes: Mapping[str, Any]) -> int:
    hidden, heads = sizes["hidden_size"], sizes["num_heads"]
    if hidden % heads:
        raise config.error(f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}")
    return int(hidden // heads)


# -- families ---------------------------------------------------------------------------------------------------


def _opt(config: Config, common: dict[str, Any]) -> ModelSpec:
    refuse_fixed(config, sliding_window=None, head_dim=None, rope_scaling=None, rope_parameters=None)
    sizes = _sizes(config, "ffn_dim")
    positions = config.count("max_position_embeddings", 2048)
    norm_first = config.flag("do_layer_norm_before", True)
    bias = config.flag("enable_bias", True)
    embed = config.count("word_embed_proj_dim", sizes["hidden_size"])
    return ModelSpec(
        **common,
        **sizes,
        num_kv_heads=sizes["num_heads"],
        head_dim=_even_head_dim(config, sizes),
        max_positions=positions,
        activation=_activation(config, "activation_function", "relu"),
        gated_mlp=False,
        norm="layer",
        norm_eps=1e-5,
        tied_head=config.flag("tie_word_embeddings", True),
        norm_first=norm_first,
        final_norm=norm_first and not config.flag("_remove_final_layer_norm", False),
        norm_affine=config.flag("layer_norm_elementwise_affine", True),
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        learned_positions=positions + 2,  # the table has two rows more than positions: the first two are never used
        position_offset=2,
        embed_size=embed if embed != sizes["hidden_size"] else None,
        eos_token_ids=config.token_ids("eos_token_id", 2),
        bos_token_id=_bos(config, 2),
    )


def _rotary(config: Config, common: dict[str, Any], kv_heads: int, head_dim: int | None, **own: Any) -> ModelSpec:
    """What LLaMA, Mistral, Qwen2 and Qwen3 share: RMS norm first, rotary positions, gated MLP."""
    sizes = _sizes(config, "intermediate_size")
    positions = config.count("max_position_embeddings", own.pop("default_positions"))
    rope = rope_from_config(config, positions)
    return ModelSpec(
        **common,
        **sizes,
        num_kv_heads=kv_heads,
        head_dim=head_dim or _even_head_dim(config, sizes),
        max_positions=effective_positions(rope, positions),
        activation=_activation(config, "hidden_act", "silu"),
        gated_mlp=True,
        norm="rms",
        norm_eps=config.number("rms_norm_eps", 1e-6),
        tied_head=config.flag("tie_word_embeddings", False),
        rope=rope,
        **own,
    )


def _stated_head_dim(config: Config) -> int | None:
    return config.count("head_dim") if config.has("head_dim") else None


def _llama(config: Config, common: dict[str, Any]) -> ModelSpec:
    if config.values.get("use_sliding_window") is not False:
        refuse_fixed(config, sliding_window=None)
    _refuse_layer_types(config, "full_attention")
    bias = config.flag("attention_bias", False)
    return _rotary(
        config,
        common,
        kv_heads=config.count("num_key_value_heads", config.count("num_attention_heads")),
        head_dim=_stated_head_dim(config),
        default_positions=2048,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=config.flag("mlp_bias", False),
        eos_token_ids=config.token_ids("eos_token_id", 2),
        bos_token_id=_bos(config, 1),
    )


def _mistral(config: Config, common: dict[str, Any]) -> ModelSpec:
    refuse_fixed(config, attention_bias=False, mlp_bias=False, use_sliding_window=True)
    # Only an absent key means the default; null means none.
    window = None if config.values.get("sliding_window", 4096) is None else config.count("sliding_window", 4096)
    _refuse_layer_types(config, "full_attention" if window is None else "sliding_attention")
    return _rotary(
        config,
        common,
        kv_heads=config.count("num_key_value_heads"),
        head_dim=_stated_head_dim(config),
        default_positions=131072,
        windows=(window,) * config.layers("num_hidden_layers"),
        eos_token_ids=config.token_ids("eos_token_id", 2),
        bos_token_id=_bos(config, 1),
    )


def _qwen2(config: Config, common: dict[str, Any]) -> ModelSpec:
    refuse_fixed(config, attention_bias=True, mlp_bias=False)
    return _rotary(
        config,
        common,
        kv_heads=config.count("num_key_value_heads"),
        head_dim=_stated_head_dim(config),
        default_positions=32768,
        qkv_bias=True,
        windows=_qwen_windows(config),
        eos_token_ids=config.token_ids("eos_token_id", None),
        bos_token_id=_bos(config, None),
    )


def _qwen3(config: Config, common: dict[str, Any]) -> ModelSpec:
    refuse_fixed(config, mlp_bias=False)
    bias = config.flag("attention_bias", False)
    return _rotary(
        config,
        common,
        kv_heads=config.count("num_key_value_heads"),
        head_dim=config.count("head_dim", 128),
        default_positions=32768,
        qkv_bias=bias,
        out_bias=bias,
        qk_norm=True,
        windows=_qwen_windows(config),
        eos_token_ids=config.token_ids("eos_token_id", None),
        bos_token_id=_bos(config, None),
    )


_BUILDERS: dict[Family, Callable[[Config, dict[str, Any]], ModelSpec]] = {
    "opt": _opt,
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
}


# -- windows and checks -----------------------------------------------------------------------------------------


def _refuse_layer_types(config: Config, uniform: str) -> None:
    kinds = set(config.names("layer_types") or ())
    if kinds - {uniform}:
        raise config.error(f"layer_types with {', '.join(sorted(kinds))} is not supported for this architecture")


def _qwen_windows(config: Config) -> tuple[int | None, ...]:
    """One window a layer: layer_types where given, else the layers from max_window_layers on; off by default."""
    layers = config.layers("num_hidden_layers")
    sliding = config.flag("use_sliding_window", False) and config.has("sliding_window")
    window = config.count("sliding_window") if sliding else None
    kinds = config.names("layer_types")
    if kinds is None:
        first = config.integer("max_window_layers", 28)
        return tuple(window if index >= first else None for index in range(layers))
    if len(kinds) != layers or set(kinds) - {"full_attention", "sliding_attention"}:
        raise config.error(f"layer_types must name full_attention or sliding_attention for each of {layers} layers")
    if window is None and "sliding_attention" in kinds:
        raise config.error("layer_types names sliding_attention but there is no sliding_window in use")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _check(config: Config, spec: ModelSpec) -> None:
    if spec.num_heads % spec.num_kv_heads:
        raise config.error(
            f"num_attention_heads {spec.num_heads} is not a multiple of num_key_value_heads {spec.num_kv_heads}"
        )
    if spec.rope and spec.head_dim % 2:
        raise config.error(f"head_dim {spec.head_dim} is odd; rotary embedding needs pairs")
