"""load_spec: where a model may lie, and the one line that each way of getting it wrong gives."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from flexinfer.errors import ModelError, UserError
from flexinfer.spec import load_spec

Configs = Mapping[str, dict[str, Any]]


def folder(path: Path, values: Any) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(values))
    return path


def refusal(model: str | Path, dtype: str = "auto") -> str:
    with pytest.raises(UserError) as caught:
        load_spec(model, dtype)
    message = str(caught.value)
    assert "\n" not in message and caught.value.exit_code == 2
    return message


def test_folder_as_path_or_text(configs: Configs, tmp_path: Path) -> None:
    path = folder(tmp_path / "tiny", configs["qwen3"])
    assert load_spec(path) == load_spec(str(path)) == load_spec(f"{path}/")
    assert load_spec(path).name == "tiny" and load_spec(path).source == str(path)


def test_folder_in_the_hubs_cache_takes_the_repositorys_name(configs: Configs, tmp_path: Path) -> None:
    path = folder(tmp_path / "models--some-org--some--model" / "snapshots" / "0123abc", configs["llama"])
    assert load_spec(path).name == "some-org/some/model"


def test_current_folder_has_a_name(configs: Configs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder(tmp_path / "here", configs["llama"]))
    assert load_spec(".").name == "here"


@pytest.mark.parametrize(
    ("model", "hints"),
    [
        ("opt-60b", ["opt-66b"]),
        ("Llama3-8B", ["llama3-8b"]),
        ("qwen2.5-7", ["qwen2.5-7b"]),
        ("gpt2", ["neither", "opt-125m"]),
        ("", ["neither"]),
        ("/no/such/folder", ["no folder or file"]),
        ("missing.gguf", ["no folder or file"]),
        ("x\0y", ["neither"]),
        ("x" * 5000, ["neither"]),
    ],
)
def test_unknown_names(model: str, hints: list[str]) -> None:
    message = refusal(model)
    assert all(hint in message for hint in hints)


def test_names_are_not_matched_loosely() -> None:
    assert "did you mean" in refusal("opt-125")


def test_unknown_dtype() -> None:
    assert "float64" in refusal("opt-125m", "float64")


def test_folder_without_a_model(tmp_path: Path) -> None:
    assert "neither a config.json nor a .gguf" in refusal(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    assert "adapter" in refusal(tmp_path)
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    (tmp_path / "b.GGUF").write_bytes(b"GGUF")
    assert "a.gguf, b.GGUF" in refusal(tmp_path)


def test_file_of_another_kind(configs: Configs, tmp_path: Path) -> None:
    path = folder(tmp_path, configs["llama"])
    assert "give its folder" in refusal(path / "config.json")


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"model_type": "llama"', b"\xff\xfe\x00", b"[" * 100_000, b"null", b"[1]"]
)
def test_damaged_config(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    message = refusal(tmp_path)
    assert str(tmp_path / "config.json") in message and "fetch it again" in message


def test_config_that_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    assert "cannot be read" in refusal(tmp_path)


def write_safetensors_header(path: Path, header: Any) -> None:
    raw = json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw)


def test_auto_dtype_is_what_the_file_stores(configs: Configs, tmp_path: Path) -> None:
    path = folder(tmp_path, {**configs["llama"], "torch_dtype": "float32"})
    assert load_spec(path).weight_dtype == "float32"
    header = {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "BF16", "shape": [32, 32], "data_offsets": [0, 2048]},
        "norm": {"dtype": "F32", "shape": [32], "data_offsets": [2048, 2176]},
    }
    write_safetensors_header(path / "model.safetensors", header)
    assert load_spec(path).weight_dtype == "bfloat16"
    assert load_spec(path, "float16").weight_dtype == "float16"


@pytest.mark.parametrize("raw", [b"", b"\x01", b"\xff" * 16, b"\x02\0\0\0\0\0\0\0[]", b"\x02\0\0\0\0\0\0\0{}"])
def test_damaged_weights_leave_the_configs_dtype(configs: Configs, tmp_path: Path, raw: bytes) -> None:
    """Planning goes on; reading the weights says what is wrong with them."""
    path = folder(tmp_path, {**configs["llama"], "torch_dtype": "float16"})
    (path / "model.safetensors").write_bytes(raw)
    assert load_spec(path).weight_dtype == "float16"


def test_spec_needs_no_torch_and_is_fast() -> None:
    code = (
        "import sys, time; start = time.perf_counter(); from flexinfer.spec import load_spec; load_spec('opt-66b');"
        "assert time.perf_counter() - start < 1.5;"
        "heavy = {'torch', 'transformers', 'numpy', 'gguf'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_model_error_is_a_user_error() -> None:
    with pytest.raises(ModelError):
        load_spec("nothing")
