"""A small config.json of each family, and a way to write a GGUF file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

_ROTARY = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "opt": {
        "vocab_size": 100,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "ffn_dim": 48,
        "max_position_embeddings": 64,
        "architectures": ["OPTForCausalLM"],
        "model_type": "opt",
    },
    "llama": {**_ROTARY, "architectures": ["LlamaForCausalLM"], "model_type": "llama"},
    "mistral": {**_ROTARY, "architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": None},
    "qwen2": {**_ROTARY, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
    "qwen3": {**_ROTARY, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 16},
}

GGUF_SIZES: dict[str, Any] = {
    "embedding_length": 32,
    "block_count": 2,
    "feed_forward_length": 48,
    "context_length": 64,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 5e5,
    "rope.dimension_count": 8,
    "vocab_size": 10,
}


@pytest.fixture(scope="session")
def configs() -> Mapping[str, dict[str, Any]]:
    return CONFIGS


WriteGguf = Callable[..., Path]


@pytest.fixture
def write_gguf(tmp_path: Path) -> WriteGguf:
    """write(arch, metadata=changes to GGUF_SIZES or whole keys, tensors=extra ones): None drops a key or tensor."""
    import gguf

    def write(
        arch: str = "llama",
        metadata: Mapping[str, Any] | None = None,
        tensors: Mapping[str, np.ndarray | None] | None = None,
        name: str = "model.gguf",
    ) -> Path:
        writer = gguf.GGUFWriter(tmp_path / name, arch)
        values = {f"{arch}.{key}": value for key, value in GGUF_SIZES.items()}
        for key, value in (metadata or {}).items():
            values[key if key.startswith(("general.", "tokenizer.", "split.")) else f"{arch}.{key}"] = value
        for key, value in values.items():
            _add(writer, key, value)
        arrays: dict[str, np.ndarray | None] = {
            "token_embd.weight": np.zeros((10, 32), dtype=np.float16),
            "output.weight": np.zeros((10, 32), dtype=np.float16),
            "output_norm.weight": np.zeros(32, dtype=np.float32),
            "blk.0.attn_q.weight": np.zeros((32, 32), dtype=np.float16),
            **(tensors or {}),
        }
        for key, array in arrays.items():
            if array is not None:
                writer.add_tensor(key, array)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return tmp_path / name

    return write


def _add(writer: Any, key: str, value: Any) -> None:
    adders = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    if isinstance(value, list):
        writer.add_array(key, value)
    elif value is not None:
        adders[type(value)](key, value)
