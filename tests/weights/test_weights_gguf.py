"""GGUF: plain and quantized types, the order of q and k rows, and each way in which a file can be damaged."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flexinfer.errors import ModelError
from flexinfer.spec.model_spec import ModelSpec, RopeSpec
from flexinfer.weights import load_weights
from flexinfer.weights.gguf_index import read_gguf_index
from flexinfer.weights.gguf_reader import half_split_rows
from flexinfer.weights.rope_factors import frequency_factors

NAMES = {
    ("embed", "tokens"): "token_embd",
    ("attention", "norm"): "blk.{}.attn_norm",
    ("attention", "q"): "blk.{}.attn_q",
    ("attention", "k"): "blk.{}.attn_k",
    ("attention", "v"): "blk.{}.attn_v",
    ("attention", "o"): "blk.{}.attn_output",
    ("attention", "q_norm"): "blk.{}.attn_q_norm",
    ("attention", "k_norm"): "blk.{}.attn_k_norm",
    ("mlp", "norm"): "blk.{}.ffn_norm",
    ("mlp", "gate"): "blk.{}.ffn_gate",
    ("mlp", "up"): "blk.{}.ffn_up",
    ("mlp", "down"): "blk.{}.ffn_down",
    ("head", "norm"): "output_norm",
    ("head", "out"): "output",
}
Values = dict[tuple[int | None, str, str], np.ndarray]


def interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """What llama.cpp's converter does to q and k: halves of a head become pairs side by side."""
    shaped = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return shaped.swapaxes(1, 2).reshape(rows.shape)


def write_gguf(file: Path, spec: ModelSpec, values: Values, kind: Kind, extras: dict[str, np.ndarray]) -> Values:
    """Write `values`; returns them as the file's types hold them, in the order of the model."""
    architecture = "llama" if spec.family in ("llama", "mistral") else spec.family
    heads = {"q": spec.num_heads, "k": spec.num_kv_heads}
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_block_count(spec.num_layers)
    writer.add_token_list([f"t{i}" for i in range(spec.vocab_size)])
    held: Values = {}
    for (layer, block, name), value in values.items():
        if spec.tied_head and (block, name) == ("head", "out.weight"):
            continue
        part, suffix = name.split(".")
        permuted = architecture == "llama" and part in heads
        stored = interleaved(value, heads[part]) if permuted else value
        wide = value.ndim == 2 and value.shape[1] % gguf.GGML_QUANT_SIZES[kind][0] == 0
        tensor_kind = kind if wide else Kind.F32
        packed = gguf.quants.quantize(stored, tensor_kind)
        writer.add_tensor(f"{NAMES[block, part].format(layer)}.{suffix}", packed, raw_dtype=tensor_kind)
        held[layer, block, name] = gguf.quants.dequantize(gguf.quants.quantize(value, tensor_kind), tensor_kind)
    for name, extra in extras.items():
        writer.add_tensor(name, extra)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return held


def numpy_values(tiny) -> Values:
    return {place: tensor.numpy() for place, tensor in tiny.expected().items()}


@pytest.fixture
def written(tiny: Callable, tmp_path: Path) -> Callable[..., tuple[Path, ModelSpec, Values]]:
    """written(family, kind) -> file, specification, and what the file holds."""

    def write(family: str, kind: Kind, **extras: np.ndarray) -> tuple[Path, ModelSpec, Values]:
        file, model = tmp_path / "model.gguf", tiny(family)
        file.unlink(missing_ok=True)
        return file, model.spec, write_gguf(file, model.spec, numpy_values(model), kind, extras)

    return write


def refusal(file: Path, spec: ModelSpec) -> str:
    with pytest.raises(ModelError) as caught:
        load_weights(file, spec)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("family", ["llama", "llama-biased", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("kind", [Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1], ids=lambda k: k.name)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_type_comes_back(written: Callable, family: str, kind: Kind, dtype: str) -> None:
    file, spec, held = written(family, kind)
    spec = replace(spec, weight_dtype=dtype)
    store = load_weights(file, spec)
    for (layer, block, name), values in held.items():
        got = store.block(layer, block)[name]
        assert torch.equal(got, torch.from_numpy(values).to(got.dtype)), (layer, block, name)
    assert store.nbytes == spec.total_bytes


def test_a_folder_with_one_gguf_file(written: Callable) -> None:
    file, spec, _ = written("llama", Kind.F32)
    assert load_weights(file.parent, spec).nbytes == spec.total_bytes
    (file.parent / "other.gguf").write_bytes(file.read_bytes())
    assert "holds 2 .gguf files" in refusal(file.parent, spec)


def test_kept_tensors_are_views_of_the_file(written: Callable) -> None:
    file, spec, _ = written("qwen2", Kind.F32)
    store = load_weights(file, spec)
    line = next(line for line in Path("/proc/self/maps").read_text().splitlines() if str(file) in line)
    first, last = (int(part, 16) for part in line.split()[0].split("-"))
    assert first <= store.block(1, "mlp")["up.weight"].data_ptr() < last


def test_half_split_undoes_interleaving() -> None:
    rows = torch.arange(24.0).view(12, 2)
    paired = torch.from_numpy(interleaved(rows.numpy(), 3))
    assert paired[:4, 0].tolist() == [0.0, 4.0, 2.0, 6.0]  # rows 0 and 2 of the first head, then 1 and 3
    assert torch.equal(half_split_rows(paired, 3), rows)


# -- K-quants: the package reads them and does not write them, so blocks are drawn ----------------------------------

SCALES_AT = {Kind.Q2_K: (80, 84), Kind.Q3_K: (108, 110), Kind.Q4_K: (0, 4), Kind.Q5_K: (0, 4), Kind.Q6_K: (208, 210)}
"""Bytes of a block that are float16 scales: drawn as numbers, the rest as bytes."""

WIDE = ModelSpec(
    name="wide", family="llama", hidden_size=256, num_layers=1, num_heads=4, num_kv_heads=2, head_dim=64,
    ffn_size=512, vocab_size=48, max_positions=32, weight_dtype="bfloat16", activation="silu", gated_mlp=True,
    norm="rms", norm_eps=1e-6, rope=RopeSpec(),
)  # fmt: skip


def drawn_blocks(kind: Kind, rows: int, width: int, rng: np.random.Generator) -> np.ndarray:
    values, nbytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (rows * width // values, nbytes), dtype=np.uint8)
    first, last = SCALES_AT[kind]
    scales = rng.uniform(-0.01, 0.01, (len(blocks), (last - first) // 2)).astype(np.float16)
    blocks[:, first:last] = scales.view(np.uint8)
    return blocks.reshape(rows, -1)


@pytest.mark.parametrize("kind", SCALES_AT, ids=lambda k: k.name)
def test_k_quants(tmp_path: Path, kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    from flexinfer.weights import gguf_reader

    monkeypatch.setattr(gguf_reader, "EXPANDED_BYTES", 7 * 256 * 4)
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(tmp_path / "k.gguf", "llama")
    expected = {}
    for layer, block in WIDE.blocks():
        for tensor in WIDE.block_tensors(block):
            part, suffix = tensor.name.split(".")
            name = f"{NAMES[block, part].format(layer)}.{suffix}"
            if len(tensor.shape) == 1:
                values = rng.normal(size=tensor.shape).astype(np.float32)
                writer.add_tensor(name, values)
            else:
                packed = drawn_blocks(kind, *tensor.shape, rng)
                writer.add_tensor(name, packed, raw_dtype=kind)
                values = gguf.quants.dequantize(packed, kind)
                heads = {"q": WIDE.num_heads, "k": WIDE.num_kv_heads}.get(part)
                if heads:
                    values = values.reshape(heads, 32, 2, -1).swapaxes(1, 2).reshape(values.shape)
            expected[layer, block, tensor.name] = values
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    store = load_weights(tmp_path / "k.gguf", WIDE)
    for (layer, block, name), values in expected.items():
        assert torch.equal(store.block(layer, block)[name], torch.from_numpy(values).bfloat16()), (layer, block, name)


def test_a_type_without_a_dequantizer(tmp_path: Path, written: Callable) -> None:
    file, spec, _ = written("llama", Kind.Q8_0)
    data = file.read_bytes()
    name = b"blk.1.ffn_gate.weight"
    at = data.index(name) + len(name) + 4 + 2 * 8
    assert data[at] == Kind.Q8_0
    file.write_bytes(data[:at] + bytes([Kind.Q8_1]) + data[at + 1 :])
    assert "Q8_1" in refusal(file, spec) or "overlap" in refusal(file, spec)
    file.write_bytes(data[:at] + bytes([99]) + data[at + 1 :])
    assert "GGML type 99" in refusal(file, spec)


# -- rotary factors -------------------------------------------------------------------------------------------------


def test_rope_factors_that_agree_with_the_specification(written: Callable) -> None:
    rope = RopeSpec(type="llama3", theta=100.0, factor=8.0, original_max_positions=32)
    factors = np.array(frequency_factors(rope, 8), dtype=np.float32)
    assert factors[0] == 1 and factors[-1] == 8
    file, spec, _ = written("llama", Kind.F32, **{"rope_freqs.weight": factors})
    assert load_weights(file, replace(spec, rope=rope)).nbytes == spec.total_bytes
    assert "rope_freqs.weight" in refusal(file, spec)
    file, spec, _ = written("llama", Kind.F32, **{"rope_freqs.weight": np.ones(4, dtype=np.float32)})
    assert load_weights(file, spec).nbytes == spec.total_bytes


def test_frequency_factors_are_those_of_transformers() -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling = {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    config = LlamaConfig(hidden_size=256, num_attention_heads=2, rope_theta=500000.0, rope_scaling=scaling)
    wanted, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    rope = RopeSpec(type="llama3", theta=500000.0, factor=8.0, original_max_positions=8192)
    plain = torch.tensor([500000.0 ** (-2 * i / 128) for i in range(64)])
    torch.testing.assert_close(plain / torch.tensor(frequency_factors(rope, 128)), wanted, rtol=1e-5, atol=0)


# -- damage ---------------------------------------------------------------------------------------------------------


def test_missing_unexpected_and_misshapen_tensors(tiny: Callable, tmp_path: Path) -> None:
    model = tiny("qwen2")
    values = numpy_values(model)
    file = tmp_path / "m.gguf"
    write_gguf(file, model.spec, {p: v for p, v in values.items() if p[2] != "down.weight"}, Kind.F32, {})
    assert "blk.0.ffn_down.weight and 1 more" in refusal(file, model.spec)
    write_gguf(file, model.spec, values, Kind.F32, {"blk.0.ssm.weight": np.zeros(3, dtype=np.float32)})
    assert "blk.0.ssm.weight" in refusal(file, model.spec)
    write_gguf(file, model.spec, {**values, (0, "mlp", "up.weight"): np.zeros((48, 64), np.float32)}, Kind.F32, {})
    assert "[48, 64] where tiny has [48, 32]" in refusal(file, model.spec)


def test_nan_in_a_scale(tiny: Callable, tmp_path: Path) -> None:
    model = tiny("llama")
    values = numpy_values(model)
    file = tmp_path / "m.gguf"
    write_gguf(file, model.spec, values, Kind.Q8_0, {})
    entry = read_gguf_index(file)[1]["blk.1.attn_v.weight"]
    data = bytearray(file.read_bytes())
    data[entry.offset + 34 : entry.offset + 36] = np.float16("nan").tobytes()
    file.write_bytes(data)
    assert "blk.1.attn_v.weight in m.gguf holds NaN at [1, 0]" in refusal(file, model.spec)


@pytest.mark.parametrize(
    "size,word", [(0, "is empty"), (3, "not a GGUF"), (90, "ends inside its header"), (-100, "truncated: ")]
)
def test_truncated_files(written: Callable, size: int, word: str) -> None:
    file, spec, _ = written("llama", Kind.F32)
    os.truncate(file, size if size >= 0 else file.stat().st_size + size)
    assert word in refusal(file, spec)


def test_files_that_are_something_else(written: Callable) -> None:
    file, spec, _ = written("llama", Kind.F32)
    data = file.read_bytes()
    file.write_bytes(b"GGML" + data[4:])
    assert "not a GGUF file" in refusal(file, spec)
    file.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n")
    assert "git lfs pull" in refusal(file, spec)


def test_the_header_agrees_with_the_package(written: Callable) -> None:
    file, _, _ = written("llama", Kind.Q4_1)
    (architecture, ours), theirs = read_gguf_index(file), gguf.GGUFReader(file)
    assert architecture == "llama"
    assert [(e.name, e.dtype, e.offset, e.nbytes, list(e.shape)) for e in ours.values()] == [
        (t.name, t.tensor_type.name, t.data_offset, t.n_bytes, t.shape.tolist()[::-1]) for t in theirs.tensors
    ]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_flipped_header_bytes_are_refused_or_harmless(written: Callable, tmp_path: Path, data: st.DataObject) -> None:
    good_file = tmp_path / "good"
    if not good_file.exists():
        file, _, _ = written("llama", Kind.Q8_0)
        file.rename(good_file)
    good = bytearray(good_file.read_bytes())
    header_end = min(e.offset for e in read_gguf_index(good_file)[1].values())
    for _ in range(data.draw(st.integers(1, 3))):
        good[data.draw(st.integers(0, header_end - 1))] = data.draw(st.integers(0, 255))
    (tmp_path / "bad.gguf").write_bytes(good)
    try:
        _, entries = read_gguf_index(tmp_path / "bad.gguf")
    except ModelError as error:
        assert "\n" not in str(error)
    else:
        assert all(e.offset + e.nbytes <= len(good) for e in entries.values())
