"""Built-in configurations: sizes only, no weights, for plan, simulate and compare. No torch.

Each is what the model's own config.json says, in short form, and goes through the same code. Weights count 16 bits.
"""

from __future__ import annotations

from typing import Any

from flexinfer.spec.hf_config import spec_from_config
from flexinfer.spec.model_spec import ModelSpec


def _opt(hidden: int, layers: int, heads: int, **other: Any) -> dict[str, Any]:
    return {
        "model_type": "opt",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "ffn_dim": 4 * hidden,
        "vocab_size": 50272,
        "max_position_embeddings": 2048,
        "dtype": "float16",
        **other,
    }


def _rotary(
    family: str, hidden: int, layers: int, heads: int, kv_heads: int, ffn: int, vocab: int, positions: int, **other: Any
) -> dict[str, Any]:
    return {
        "model_type": family,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": ffn,
        "vocab_size": vocab,
        "max_position_embeddings": positions,
        "rms_norm_eps": 1e-5 if family in ("llama", "mistral") else 1e-6,
        "dtype": "bfloat16",
        **other,
    }


def _llama2(hidden: int, layers: int, heads: int, kv_heads: int, ffn: int) -> dict[str, Any]:
    return _rotary("llama", hidden, layers, heads, kv_heads, ffn, 32000, 4096, dtype="float16")


def _llama3(hidden: int, layers: int, heads: int, kv_heads: int, ffn: int) -> dict[str, Any]:
    ids = {"bos_token_id": 128000, "eos_token_id": 128001}
    return _rotary("llama", hidden, layers, heads, kv_heads, ffn, 128256, 8192, rope_theta=5e5, **ids)


def _qwen25(
    hidden: int, layers: int, heads: int, kv_heads: int, ffn: int, vocab: int, positions: int, tied: bool = False
) -> dict[str, Any]:
    other = {"rope_theta": 1e6, "eos_token_id": 151643, "tie_word_embeddings": tied}
    return _rotary("qwen2", hidden, layers, heads, kv_heads, ffn, vocab, positions, **other)


def _qwen3(hidden: int, layers: int, heads: int, ffn: int, tied: bool = False) -> dict[str, Any]:
    other = {"rope_theta": 1e6, "eos_token_id": 151645, "tie_word_embeddings": tied, "head_dim": 128}
    return _rotary("qwen3", hidden, layers, heads, 8, ffn, 151936, 40960, **other)


_CONFIGS: dict[str, dict[str, Any]] = {
    "opt-125m": _opt(768, 12, 12),
    "opt-350m": _opt(1024, 24, 16, word_embed_proj_dim=512, do_layer_norm_before=False),
    "opt-1.3b": _opt(2048, 24, 32),
    "opt-2.7b": _opt(2560, 32, 32),
    "opt-6.7b": _opt(4096, 32, 32),
    "opt-13b": _opt(5120, 40, 40),
    "opt-30b": _opt(7168, 48, 56),
    "opt-66b": _opt(9216, 64, 72),
    "opt-175b": _opt(12288, 96, 96),
    "llama2-7b": _llama2(4096, 32, 32, 32, 11008),
    "llama2-13b": _llama2(5120, 40, 40, 40, 13824),
    "llama2-70b": _llama2(8192, 80, 64, 8, 28672),
    "llama3-8b": _llama3(4096, 32, 32, 8, 14336),
    "llama3-70b": _llama3(8192, 80, 64, 8, 28672),
    "mistral-7b": _rotary("mistral", 4096, 32, 32, 8, 14336, 32000, 32768, sliding_window=4096),
    "qwen2.5-0.5b": _qwen25(896, 24, 14, 2, 4864, 151936, 32768, tied=True),
    "qwen2.5-1.5b": _qwen25(1536, 28, 12, 2, 8960, 151936, 131072, tied=True),
    "qwen2.5-3b": _qwen25(2048, 36, 16, 2, 11008, 151936, 32768, tied=True),
    "qwen2.5-7b": _qwen25(3584, 28, 28, 4, 18944, 152064, 131072),
    "qwen2.5-14b": _qwen25(5120, 48, 40, 8, 13824, 152064, 131072),
    "qwen2.5-32b": _qwen25(5120, 64, 40, 8, 27648, 152064, 131072),
    "qwen2.5-72b": _qwen25(8192, 80, 64, 8, 29568, 152064, 131072),
    "qwen3-0.6b": _qwen3(1024, 28, 16, 3072, tied=True),
    "qwen3-1.7b": _qwen3(2048, 28, 16, 6144, tied=True),
    "qwen3-4b": _qwen3(2560, 36, 32, 9728, tied=True),
    "qwen3-8b": _qwen3(4096, 36, 32, 12288),
    "qwen3-14b": _qwen3(5120, 40, 40, 17408),
    "qwen3-32b": _qwen3(5120, 64, 64, 25600),
}


def builtin_names() -> list[str]:
    """Names of the built-in configurations, in the order of the families."""
    return list(_CONFIGS)


def builtin_spec(name: str, dtype: str = "auto") -> ModelSpec:
    """The ModelSpec of a built-in name; KeyError for any other."""
    return spec_from_config(_CONFIGS[name], name, f"built-in {name}", dtype)
