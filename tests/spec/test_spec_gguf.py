"""GGUF headers -> ModelSpec: what is read, what is refused by name, and that damage never gives more than one line."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexinfer.errors import ModelError
from flexinfer.spec import RopeSpec, load_spec
from flexinfer.spec.gguf_header import SkippedArray, read_header

WriteGguf = Callable[..., Path]


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        load_spec(path)
    message = str(caught.value)
    assert "\n" not in message and str(path) in message
    return message


def test_sizes_and_ids(write_gguf: WriteGguf) -> None:
    ids = {"tokenizer.ggml.eos_token_id": 3, "tokenizer.ggml.eot_token_id": 4, "tokenizer.ggml.bos_token_id": 1}
    spec = load_spec(write_gguf(metadata=ids))
    assert (spec.hidden_size, spec.num_layers, spec.num_heads, spec.num_kv_heads) == (32, 2, 4, 2)
    assert (spec.head_dim, spec.ffn_size, spec.vocab_size, spec.max_positions) == (8, 48, 10, 64)
    assert spec.family == "llama" and spec.name == "model" and spec.rope == RopeSpec(theta=5e5)
    assert not spec.tied_head and not spec.qkv_bias and not spec.qk_norm
    assert spec.eos_token_ids == (3, 4) and spec.bos_token_id == 1
    assert spec.norm_eps == pytest.approx(1e-5) and spec.weight_dtype == "float16"


def test_folder_with_one_file(write_gguf: WriteGguf) -> None:
    path = write_gguf()
    assert load_spec(path.parent) == load_spec(path)


def test_tied_head_biases_and_norms_by_their_tensors(write_gguf: WriteGguf) -> None:
    tensors = {
        "output.weight": None,
        "blk.0.attn_q.bias": np.zeros(32, dtype=np.float32),
        "blk.0.attn_q_norm.weight": np.zeros(8, dtype=np.float32),
    }
    spec = load_spec(write_gguf("qwen3", tensors=tensors))
    assert spec.tied_head and spec.qkv_bias and spec.qk_norm and spec.family == "qwen3"


def test_head_dim_of_its_own_and_one_kv_head_each(write_gguf: WriteGguf) -> None:
    changes = {"attention.key_length": 16, "attention.value_length": 16, "rope.dimension_count": 16}
    spec = load_spec(write_gguf("qwen2", {**changes, "attention.head_count_kv": None}))
    assert spec.head_dim == 16 and spec.num_kv_heads == 4 and spec.q_size == 64


def test_window_makes_a_mistral(write_gguf: WriteGguf) -> None:
    spec = load_spec(write_gguf(metadata={"attention.sliding_window": 16}))
    assert spec.family == "mistral" and spec.windows == (16, 16)


@pytest.mark.parametrize(
    ("metadata", "rope", "positions"),
    [
        ({"rope.scaling.type": "none"}, RopeSpec(theta=5e5), 64),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, RopeSpec("linear", 5e5, 4.0), 256),
        ({"rope.scaling.factor": 4.0}, RopeSpec("linear", 5e5, 4.0), 256),
        ({"rope.scale_linear": 2.0}, RopeSpec("linear", 5e5, 2.0), 128),
        (
            {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": 32,
                "rope.scaling.yarn_beta_fast": 16.0,
            },
            RopeSpec("yarn", 5e5, 4.0, 32, beta_fast=16.0),
            128,
        ),
    ],
)
def test_rope_scaling(write_gguf: WriteGguf, metadata: dict[str, Any], rope: RopeSpec, positions: int) -> None:
    spec = load_spec(write_gguf("qwen2", metadata))
    assert spec.rope == rope and spec.max_positions == positions


def test_frequency_factors_are_kept(write_gguf: WriteGguf) -> None:
    factors = np.array([1.0, 1.5, 4.0, 8.0], dtype=np.float32)
    spec = load_spec(write_gguf(tensors={"rope_freqs.weight": factors}))
    assert spec.rope == RopeSpec(theta=5e5, freq_factors=(1.0, 1.5, 4.0, 8.0))


@pytest.mark.parametrize(
    "factors",
    [
        np.ones(3, dtype=np.float32),
        np.ones(4, dtype=np.float16),
        np.zeros(4, dtype=np.float32),
        np.full(4, np.nan, dtype=np.float32),
        np.ones((2, 2), dtype=np.float32),
    ],
)
def test_frequency_factors_that_make_no_sense(write_gguf: WriteGguf, factors: np.ndarray) -> None:
    refusal(write_gguf(tensors={"rope_freqs.weight": factors}))


@pytest.mark.parametrize(
    ("dtypes", "want"),
    [
        ((np.float32, np.float32), "float32"),
        ((np.float16, np.float16), "float16"),
        ((np.float16, np.float32), "float32"),
    ],
)
def test_dtype_of_plain_matrices(write_gguf: WriteGguf, dtypes: tuple[Any, Any], want: str) -> None:
    one, other = dtypes
    tensors = {
        "token_embd.weight": np.zeros((10, 32), dtype=one),
        "output.weight": np.zeros((10, 32), dtype=one),
        "blk.0.attn_q.weight": np.zeros((32, 32), dtype=other),
    }
    assert load_spec(write_gguf(tensors=tensors)).weight_dtype == want
    assert load_spec(write_gguf(tensors=tensors), "bfloat16").weight_dtype == "bfloat16"


@pytest.mark.parametrize(
    ("arch", "metadata", "named"),
    [
        ("gemma2", {}, "gemma2"),
        ("phi3", {}, "phi3"),
        ("mistral3", {}, "mistral3"),
        ("llama", {"general.type": "adapter"}, "adapter"),
        ("llama", {"split.count": 3}, "merge"),
        ("llama", {"expert_count": 8}, "expert_count"),
        ("llama", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ("llama", {"logit_scale": 0.5}, "logit_scale"),
        ("llama", {"attention.scale": 0.1}, "attention.scale"),
        ("llama", {"attention.max_alibi_bias": 8.0}, "attention.max_alibi_bias"),
        ("qwen2", {"attention.causal": False}, "attention.causal"),
        ("llama", {"rope.scaling.type": "longrope", "rope.scaling.factor": 2.0}, "longrope"),
        ("llama", {"rope.scaling.yarn_log_multiplier": 0.1}, "yarn_log_multiplier"),
        ("llama", {"rope.dimension_sections": [1, 1, 2, 0]}, "rope.dimension_sections"),
        ("llama", {"rope.dimension_count": 4}, "rope.dimension_count"),
        ("llama", {"attention.value_length": 4}, "attention.value_length"),
        ("llama", {"attention.head_count_kv": 3}, "attention.head_count"),
        ("llama", {"attention.head_count_kv": [2, 2]}, "attention.head_count_kv"),
        ("llama", {"feed_forward_length": [48, 48]}, "feed_forward_length"),
        ("llama", {"embedding_length": None}, "embedding_length"),
        ("llama", {"embedding_length": 64}, "token_embd.weight"),
        ("llama", {"vocab_size": 11}, "vocab_size"),
        ("llama", {"something.new": 1}, "something.new"),
    ],
)
def test_refused_by_name(write_gguf: WriteGguf, arch: str, metadata: dict[str, Any], named: str) -> None:
    assert named in refusal(write_gguf(arch, metadata))


def test_a_key_with_a_line_break_is_quoted_in_one_line(write_gguf: WriteGguf) -> None:
    assert "some?thing" in refusal(write_gguf(metadata={"some\nthing": 1}))


def test_neutral_values_pass(write_gguf: WriteGguf) -> None:
    neutral = {
        "tensor_data_layout": "Meta AI original pth",
        "expert_count": 0,
        "logit_scale": 0.0,
        "attention.causal": True,
        "rope.scaling.finetuned": False,
    }
    assert load_spec(write_gguf(metadata=neutral)) == load_spec(write_gguf())


def test_not_gguf(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    for content, hint in ((b"", "empty"), (b"PK\x03\x04zip", "not a GGUF file"), (b"GGUF", "damaged")):
        path.write_bytes(content)
        assert hint in refusal(path)
    path.write_bytes(b"GGUF\x01\0\0\0" + bytes(16))
    assert "version 1" in refusal(path)
    path.write_bytes(b"GGUF\0\0\0\x03" + bytes(16))
    assert "big-endian" in refusal(path)


def test_impossible_counts_do_not_hang(tmp_path: Path) -> None:
    """An array of 2**60 bytes, of strings, of items of unknown type: refused at once, without memory."""
    path, start = tmp_path / "x.gguf", time.perf_counter()
    for kind in (0, 8, 9, 77):
        key = (3).to_bytes(8, "little") + b"key" + (9).to_bytes(4, "little")
        array = kind.to_bytes(4, "little") + (2**60).to_bytes(8, "little")
        path.write_bytes(b"GGUF\x03\0\0\0" + bytes(8) + (1).to_bytes(8, "little") + key + array)
        assert "damaged" in refusal(path)
    assert time.perf_counter() - start < 5


@pytest.fixture(scope="session")
def good_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    import gguf

    path = tmp_path_factory.mktemp("gguf") / "good.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_array("tokenizer.ggml.tokens", ["<s>", "a", "b"])
    writer.add_block_count(2)
    writer.add_rope_dimension_count(8)
    writer.add_tensor("token_embd.weight", np.zeros((10, 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


@given(data=st.data())
def test_damage_gives_one_line_whatever_it_hits(
    good_bytes: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Cut anywhere, or with bytes changed anywhere in the header."""
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    content = bytearray(good_bytes[: data.draw(st.integers(0, len(good_bytes)))])
    for at in data.draw(st.lists(st.integers(0, 320), max_size=3)):
        if at < len(content):
            content[at] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(content))
    with pytest.raises(ModelError) as caught:  # even whole it lacks most sizes
        load_spec(path)
    assert "\n" not in str(caught.value)


def test_long_arrays_are_walked_past(write_gguf: WriteGguf) -> None:
    many = [f"token {i}" for i in range(3000)]
    header = read_header(write_gguf(metadata={"tokenizer.ggml.tokens": many, "tokenizer.ggml.scores": [0.5] * 3000}))
    assert header.metadata["tokenizer.ggml.tokens"] == SkippedArray(3000)
    assert header.metadata["llama.block_count"] == 2


def test_offsets_and_shapes_are_those_of_the_gguf_package(write_gguf: WriteGguf) -> None:
    from gguf import GGUFReader

    path = write_gguf(tensors={"rope_freqs.weight": np.ones(4, dtype=np.float32)})
    ours, theirs = read_header(path).tensors, GGUFReader(path).tensors
    assert {t.name for t in theirs} == set(ours)
    for tensor in theirs:
        assert ours[tensor.name] == (tuple(tensor.shape.tolist())[::-1], int(tensor.tensor_type), tensor.data_offset)


def test_real_file(demo_model: Path) -> None:
    start = time.perf_counter()
    spec = load_spec(demo_model)
    assert time.perf_counter() - start < 1.0, "the header of a real vocabulary is read within a plan's second"
    assert (spec.num_layers, spec.num_heads, spec.num_kv_heads, spec.head_dim) == (30, 9, 3, 64)
    assert spec.total_params == 134_515_008 and spec.tied_head and spec.weight_dtype == "bfloat16"
    assert spec.rope == RopeSpec(theta=100000.0) and spec.max_positions == 8192
