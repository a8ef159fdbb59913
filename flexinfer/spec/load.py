"""load_spec: a folder, a GGUF file or a built-in name -> ModelSpec. No torch."""

from __future__ import annotations

import os
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from flexinfer.errors import ModelError, UserError
from flexinfer.json_file import read_json_object
from flexinfer.spec.builtin import builtin_names, builtin_spec
from flexinfer.spec.gguf_spec import spec_from_gguf
from flexinfer.spec.hf_config import spec_from_config
from flexinfer.spec.model_spec import DTYPE_BYTES, ModelSpec
from flexinfer.spec.safetensors_dtype import stored_dtype


def load_spec(model: str | Path, dtype: str = "auto") -> ModelSpec:
    """The ModelSpec of a folder with config.json, a .gguf file (or a folder with one), or a built-in name.

    dtype is "auto" (the checkpoint's own; built-in names count 16 bits), "float32", "bfloat16" or "float16". Raises
    ModelError for a model that is missing, damaged or not supported, UserError for another dtype.
    """
    if dtype != "auto" and dtype not in DTYPE_BYTES:
        raise UserError(f"dtype {dtype!r} is not one of auto, {', '.join(DTYPE_BYTES)}")
    text = os.fspath(model)
    if os.path.isdir(text):
        return _from_folder(Path(text), dtype)
    if os.path.isfile(text):
        return spec_from_gguf(_gguf_file(Path(text)), dtype)
    if text in builtin_names():
        return builtin_spec(text, dtype)
    raise _unknown(text)


def _unknown(text: str) -> ModelError:
    near = get_close_matches(text.lower(), builtin_names(), n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(near)}?" if near else f"built-in names are {', '.join(builtin_names())}"
    if os.sep in text or text.endswith(".gguf"):
        return ModelError(f"there is no folder or file {text!r}")
    return ModelError(f"{text!r} is neither a folder, a .gguf file nor a built-in name; {hint}")


def _gguf_file(path: Path) -> Path:
    if path.suffix.lower() != ".gguf":
        raise ModelError(f"{path} is not a .gguf file; for a checkpoint in Hugging Face layout give its folder")
    return path


def _from_folder(folder: Path, dtype: str) -> ModelSpec:
    config_path = folder / "config.json"
    if not config_path.exists():
        return spec_from_gguf(_only_gguf(folder), dtype)
    values = read_json_object(config_path)
    if dtype == "auto":
        dtype = stored_dtype(folder) or "auto"
    return replace(spec_from_config(values, _folder_name(folder), str(config_path), dtype), source=str(folder))


def _only_gguf(folder: Path) -> Path:
    files = sorted(p for p in folder.iterdir() if p.suffix.lower() == ".gguf")
    if len(files) == 1:
        return files[0]
    if files:
        names = ", ".join(file.name for file in files)
        raise ModelError(f"{folder} holds {len(files)} .gguf files; name one of them: {names}")
    if (folder / "adapter_config.json").exists():
        raise ModelError(f"{folder} holds an adapter (adapter_config.json), not a model; merge it into its base model")
    raise ModelError(f"{folder} has neither a config.json nor a .gguf file; give the folder of a checkpoint")


def _folder_name(folder: Path) -> str:
    """The folder's own name; the repository's for a snapshot in the hub's cache, whose folder is a hash."""
    path = folder.absolute()
    if path.parent.name == "snapshots":
        return path.parent.parent.name.removeprefix("models--").replace("--", "/")
    return path.name or path.resolve().name
