"""Every way in which a checkpoint can be wrong gives one line of its own, and names the tensor or file."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from flexinfer.errors import ModelError
from flexinfer.spec.model_spec import ModelSpec
from flexinfer.weights import load_weights
from flexinfer.weights.index import index_checkpoint
from flexinfer.weights.safetensors_header import read_safetensors_header

Q1 = "model.layers.1.self_attn.q_proj.weight"


def refusal(folder: Path, spec: ModelSpec) -> str:
    """The one line that loading `folder` ends with."""
    with pytest.raises(ModelError) as caught:
        load_weights(folder, spec)
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.fixture
def spec(tiny: Callable) -> ModelSpec:
    return tiny("llama").spec


@pytest.fixture
def single(tiny: Callable, tmp_path: Path) -> Path:
    tiny("llama").model.save_pretrained(tmp_path)
    return tmp_path


def edited(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> Path:
    """Rewrite the single safetensors file after `change` to its tensors."""
    state = load_file(folder / "model.safetensors")
    state = {name: value.clone() for name, value in state.items()}
    change(state)
    save_file(state, folder / "model.safetensors")
    return folder


def shard_of(folder: Path, tensor: str) -> Path:
    return folder / json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"][tensor]


# -- files ----------------------------------------------------------------------------------------------------------


def test_a_missing_shard_is_named(sharded: Path, spec: ModelSpec) -> None:
    shard = shard_of(sharded, Q1)
    shard.unlink()
    text = refusal(sharded, spec)
    assert f"shard {shard.name} is missing" in text and "fetch that file again" in text


def test_a_truncated_shard_is_named_with_its_bytes(sharded: Path, spec: ModelSpec) -> None:
    shard = shard_of(sharded, Q1)
    size = shard.stat().st_size
    os.truncate(shard, size - 4)
    assert f"{shard.name} is truncated: {size - 4} bytes of {size}" in refusal(sharded, spec)


def test_a_file_that_is_too_long(single: Path, spec: ModelSpec) -> None:
    with (single / "model.safetensors").open("ab") as stream:
        stream.write(b"12345")
    assert "5 bytes longer than its header says" in refusal(single, spec)


def test_an_empty_file_a_pointer_and_a_directory(single: Path, spec: ModelSpec) -> None:
    file = single / "model.safetensors"
    file.write_bytes(b"")
    assert "is empty" in refusal(single, spec)
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n")
    assert "git lfs pull" in refusal(single, spec)
    file.write_bytes(b"abc")
    assert "corrupt header" in refusal(single, spec)
    file.unlink()
    file.mkdir()
    assert "is not a file" in refusal(single, spec)


def test_a_shard_that_is_a_directory(sharded: Path, spec: ModelSpec) -> None:
    shard = shard_of(sharded, Q1)
    shard.unlink()
    shard.mkdir()
    assert f"{shard.name} is not a file" in refusal(sharded, spec)


def test_nothing_to_load(tmp_path: Path, spec: ModelSpec) -> None:
    assert "does not exist" in refusal(tmp_path / "none", spec)
    assert "holds no weights" in refusal(tmp_path, spec)
    (tmp_path / "notes.txt").write_text("x")
    assert "not a .gguf file" in refusal(tmp_path / "notes.txt", spec)


def test_shards_without_their_index(sharded: Path, spec: ModelSpec) -> None:
    (sharded / "model.safetensors.index.json").unlink()
    assert "no model.safetensors.index.json" in refusal(sharded, spec)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"weight_map": {}}', '{"weight_map": 3}', "\x00\xff"])
def test_an_index_that_is_no_index(sharded: Path, spec: ModelSpec, text: str) -> None:
    (sharded / "model.safetensors.index.json").write_text(text)
    assert "model.safetensors.index.json" in refusal(sharded, spec)


def test_an_index_that_is_a_directory(sharded: Path, spec: ModelSpec) -> None:
    (sharded / "model.safetensors.index.json").unlink()
    (sharded / "model.safetensors.index.json").mkdir()
    assert "model.safetensors.index.json is not a file" in refusal(sharded, spec)


@pytest.mark.parametrize("shard", ["../model.safetensors", "/etc/passwd", "", "..", "a\0b", 7])
def test_an_index_that_points_elsewhere(sharded: Path, spec: ModelSpec, shard: object) -> None:
    index_file = sharded / "model.safetensors.index.json"
    index_file.write_text(json.dumps({"weight_map": {Q1: shard}}))
    assert "is not a file name" in refusal(sharded, spec)


# -- stale indexes --------------------------------------------------------------------------------------------------


def rewrite_map(folder: Path, change: Callable[[dict[str, str]], object]) -> None:
    index_file = folder / "model.safetensors.index.json"
    index = json.loads(index_file.read_text())
    change(index["weight_map"])
    index_file.write_text(json.dumps(index))


def test_an_index_that_lists_a_tensor_nobody_holds(sharded: Path, spec: ModelSpec) -> None:
    name = shard_of(sharded, Q1).name
    rewrite_map(sharded, lambda m: m.update({"model.layers.9.mlp.up_proj.weight": name}))
    text = refusal(sharded, spec)
    assert "stale" in text and "model.layers.9.mlp.up_proj.weight" in text and name in text


def test_an_index_that_lists_a_tensor_in_another_shard(sharded: Path, spec: ModelSpec) -> None:
    holder = shard_of(sharded, Q1).name
    other = next(f.name for f in sorted(sharded.glob("*.safetensors")) if f.name != holder)
    rewrite_map(sharded, lambda m: m.update({Q1: other}))
    text = refusal(sharded, spec)
    assert "stale" in text and f"but {holder} holds it" in text


def test_an_index_that_leaves_a_tensor_out(sharded: Path, spec: ModelSpec) -> None:
    rewrite_map(sharded, lambda m: m.pop(Q1))
    text = refusal(sharded, spec)
    assert "stale" in text and f"holds {Q1}, which it does not list" in text


def test_a_tensor_in_two_shards(sharded: Path, spec: ModelSpec) -> None:
    holder = shard_of(sharded, Q1)
    other = next(f for f in sorted(sharded.glob("*.safetensors")) if f != holder)
    save_file({**load_file(other), Q1: load_file(holder)[Q1]}, other)
    text = refusal(sharded, spec)
    assert Q1 in text and holder.name in text and other.name in text and "both" in text


# -- tensors --------------------------------------------------------------------------------------------------------


def test_a_missing_tensor(single: Path, spec: ModelSpec) -> None:
    edited(single, lambda s: (s.pop(Q1), s.pop("model.norm.weight")))
    text = refusal(single, spec)
    assert f"{Q1} and 1 more" in text and "missing" in text


def test_a_missing_head_says_that_it_may_be_tied(single: Path, spec: ModelSpec) -> None:
    edited(single, lambda s: s.pop("lm_head.weight"))
    assert "tie_word_embeddings" in refusal(single, spec)


@pytest.mark.parametrize("name", ["model.layers.2.mlp.up_proj.weight", "model.layers.0.self_attn.q_proj.bias"])
def test_an_unexpected_tensor(single: Path, spec: ModelSpec, name: str) -> None:
    edited(single, lambda s: s.update({name: torch.zeros(32)}))
    text = refusal(single, spec)
    assert f"{name} in model.safetensors" in text and "not part of" in text


def test_a_wrong_shape(single: Path, spec: ModelSpec) -> None:
    edited(single, lambda s: s.update({Q1: s[Q1][:8].clone()}))
    text = refusal(single, spec)
    assert Q1 in text and "[8, 32]" in text and "[32, 32]" in text


@pytest.mark.parametrize("dtype,name", [(torch.int8, "I8"), (torch.float8_e4m3fn, "F8_E4M3")])
def test_a_type_that_is_not_read(single: Path, spec: ModelSpec, dtype: torch.dtype, name: str) -> None:
    edited(single, lambda s: s.update({Q1: s[Q1].to(dtype)}))
    text = refusal(single, spec)
    assert Q1 in text and f"stored as {name}" in text


@pytest.mark.parametrize("value,word", [(float("nan"), "NaN"), (float("inf"), "infinity"), (-float("inf"), "infinity")])
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("wanted", ["float32", "bfloat16"])
def test_nan_and_infinity(
    single: Path, spec: ModelSpec, value: float, word: str, stored: torch.dtype, wanted: str
) -> None:
    def spoil(state: dict[str, torch.Tensor]) -> None:
        state[Q1][5, 7] = value
        state[Q1] = state[Q1].to(stored)

    edited(single, spoil)
    text = refusal(single, replace(spec, weight_dtype=wanted))
    assert f"{Q1} in model.safetensors holds {word} at [5, 7]" in text


@pytest.mark.parametrize("at", [0, 1, 31, 32, 1000, 4095])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_the_scan_finds_one_nan_anywhere(at: int, dtype: torch.dtype) -> None:
    from flexinfer.weights.entry import TensorEntry
    from flexinfer.weights.values import keep

    tensor = torch.zeros(64, 64, dtype=dtype)
    entry = TensorEntry("t", Path("f"), "F32", (64, 64), 0, tensor.nbytes)
    assert keep(tensor, entry) is tensor
    tensor.view(-1)[at] = float("nan")
    with pytest.raises(ModelError, match=rf"NaN at \[{at // 64}, {at % 64}\]"):
        keep(tensor, entry)


def test_a_value_too_large_for_float16(single: Path, spec: ModelSpec) -> None:
    edited(single, lambda s: s[Q1].__setitem__((0, 0), 1e5))
    text = refusal(single, replace(spec, weight_dtype="float16"))
    assert Q1 in text and "1e+05" in text and "bfloat16" in text


def test_a_tied_head_stored_with_other_values(tiny: Callable, tmp_path: Path) -> None:
    model = tiny("qwen3")
    state = {name: value.clone() for name, value in model.model.state_dict().items()}
    state["lm_head.weight"][3, 3] += 1
    save_file(state, tmp_path / "model.safetensors")
    text = refusal(tmp_path, model.spec)
    assert "lm_head.weight" in text and "tie_word_embeddings" in text
    save_file({**state, "lm_head.weight": state["lm_head.weight"][:9].clone()}, tmp_path / "model.safetensors")
    assert "lm_head.weight" in refusal(tmp_path, model.spec)


def test_faults_are_found_before_any_value_is_read(
    single: Path, spec: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flexinfer.weights import safetensors_reader

    def fail(*args: object) -> None:
        raise AssertionError("a value was read")

    monkeypatch.setattr(safetensors_reader.SafetensorsReader, "read", fail)
    edited(single, lambda s: s.pop(Q1))
    assert "missing" in refusal(single, spec)


# -- safetensors headers --------------------------------------------------------------------------------------------


def write_header(file: Path, header: object, data: bytes = b"") -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data)


ONE = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    "header,word",
    [
        (b"not json", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        ([1], "not a JSON object"),
        ({"a": 3}, "a has no description"),
        ({"a": {**ONE, "shape": "x"}}, "no valid shape"),
        ({"a": {**ONE, "shape": [-2]}}, "no valid shape"),
        ({"a": {**ONE, "shape": [True]}}, "no valid shape"),
        ({"a": {**ONE, "data_offsets": [0]}}, "no valid shape"),
        ({"a": {**ONE, "data_offsets": [8, 0]}}, "takes -8 bytes"),
        ({"a": {**ONE, "dtype": None}}, "type None"),
        ({"a": {**ONE, "shape": [3]}}, "takes 8 bytes"),
        ({"a": ONE, "b": ONE}, "does not begin where"),
        ({"a": {**ONE, "data_offsets": [4, 12]}}, "does not begin where"),
        (b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{}}', "listed twice"),
        (b"[" * 5000, "not JSON"),
    ],
)
def test_corrupt_headers(tmp_path: Path, header: object, word: str) -> None:
    write_header(tmp_path / "model.safetensors", header, b"12345678")
    with pytest.raises(ModelError, match="corrupt header") as caught:
        read_safetensors_header(tmp_path / "model.safetensors")
    assert word in str(caught.value) and "fetch that file again" in str(caught.value)


def test_a_header_longer_than_the_file(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(struct.pack("<Q", 2**62) + b"{}")
    with pytest.raises(ModelError, match="corrupt header, or is truncated"):
        read_safetensors_header(file)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_flipped_header_bytes_are_refused_or_harmless(tiny: Callable, tmp_path: Path, data: st.DataObject) -> None:
    """Any one byte of the header changed: refused with a ModelError, or loaded whole (a space, the metadata)."""
    file = tmp_path / "model.safetensors"
    if not (tmp_path / "good").exists():
        tiny("llama").model.save_pretrained(tmp_path)
        file.rename(tmp_path / "good")
    good = bytearray((tmp_path / "good").read_bytes())
    header_end = 8 + int.from_bytes(good[:8], "little")
    good[data.draw(st.integers(0, header_end - 1))] = data.draw(st.integers(0, 255))
    file.write_bytes(good)
    try:
        store = load_weights(tmp_path, tiny("llama").spec)
    except ModelError as error:
        assert "\n" not in str(error)
    else:
        assert store.nbytes == tiny("llama").spec.total_bytes


# -- PyTorch files --------------------------------------------------------------------------------------------------


class Evil:
    """Runs a command where it is unpickled without care."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {self.mark}",)


@pytest.mark.parametrize("zipped", [True, False])
def test_an_evil_pickle_is_refused_and_not_run(tmp_path: Path, spec: ModelSpec, zipped: bool) -> None:
    mark = tmp_path / "was-run"
    torch.save({"a": Evil(mark)}, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    text = refusal(tmp_path, spec)
    assert "posix.system" in text and "safetensors" in text
    assert not mark.exists()


@pytest.mark.parametrize(
    "content", [torch.zeros(2), {"state_dict": {"a": torch.zeros(2)}}, {"a": 3}, {1: torch.zeros(2)}]
)
def test_a_pickle_that_is_no_state_dict(tmp_path: Path, spec: ModelSpec, content: object) -> None:
    torch.save(content, tmp_path / "pytorch_model.bin")
    assert "pytorch_model.bin" in refusal(tmp_path, spec)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("part", [0.0, 0.001, 0.1, 0.5, 0.99])
def test_truncated_torch_files(
    tiny: Callable, torch_saver: Callable, tmp_path: Path, spec: ModelSpec, zipped: bool, part: float
) -> None:
    torch_saver(tiny("llama").model.state_dict(), tmp_path, 1, zipped)
    file = tmp_path / "pytorch_model.bin"
    os.truncate(file, int(file.stat().st_size * part))
    text = refusal(tmp_path, spec)
    assert "pytorch_model.bin" in text and "fetch that file again" in text


def test_a_web_page_saved_as_weights(tmp_path: Path, spec: ModelSpec) -> None:
    (tmp_path / "pytorch_model.bin").write_text("<!doctype html><html>Not found</html>")
    assert "not a PyTorch checkpoint" in refusal(tmp_path, spec)


def test_a_missing_torch_shard(tiny: Callable, torch_saver: Callable, tmp_path: Path, spec: ModelSpec) -> None:
    torch_saver(tiny("llama").model.state_dict(), tmp_path, 3)
    (tmp_path / "pytorch_model-00002-of-00003.bin").unlink()
    assert "shard pytorch_model-00002-of-00003.bin is missing" in refusal(tmp_path, spec)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_changed_bytes_of_a_pickle_are_refused_or_loaded(tmp_path: Path, data: st.DataObject) -> None:
    """Bytes of the pickle itself: whatever the unpickler makes of them, the index gives entries or one line."""
    file = tmp_path / "pytorch_model.bin"
    if not (tmp_path / "good").exists():
        torch.save({"a": torch.zeros(3), "b": torch.ones(2)}, tmp_path / "good", _use_new_zipfile_serialization=False)
    good = bytearray((tmp_path / "good").read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    file.write_bytes(good)
    try:
        index_checkpoint(tmp_path)
    except ModelError as error:
        assert "\n" not in str(error)
