"""Which file holds which tensor: dtype, shape and place of each, from headers alone. No tensor data is read.

A folder is searched in this order: model.safetensors, its sharded form, pytorch_model.bin, its sharded form, and a
single .gguf file. An index file is held against the headers of the shards that it names, so that a stale one, a
missing shard and a shard of another model are told apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from flexinfer.errors import ModelError
from flexinfer.json_file import read_json_object
from flexinfer.weights.entry import TensorEntry, plural

Format = Literal["safetensors", "torch", "gguf"]
HeaderReader = Callable[[Path], Mapping[str, TensorEntry]]

_SINGLE: dict[Format, str] = {"safetensors": "model.safetensors", "torch": "pytorch_model.bin"}


@dataclass(frozen=True)
class CheckpointIndex:
    """Every tensor of a checkpoint by its name in the file. `architecture` is a GGUF file's own word for it."""

    path: Path
    format: Format
    entries: Mapping[str, TensorEntry]
    architecture: str | None = None


def index_checkpoint(path: Path) -> CheckpointIndex:
    """Index a folder or a .gguf file. Raises ModelError: nothing there, missing or damaged file, stale index."""
    format, files = weight_files(path)
    if format == "gguf":
        from flexinfer.weights.gguf_index import read_gguf_index

        architecture, entries = read_gguf_index(files[0])
        return CheckpointIndex(path, format, entries, architecture)
    read = _header_reader(format)
    index_file = path / f"{_SINGLE[format]}.index.json"
    if files[0].name == _SINGLE[format]:
        return CheckpointIndex(path, format, read(files[0]))
    return CheckpointIndex(path, format, _merge(index_file, _weight_map(index_file), read))


def weight_files(path: Path) -> tuple[Format, tuple[Path, ...]]:
    """Format and files of the weights under `path`; every one of them exists. Raises ModelError."""
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ModelError(f"{path} is not a .gguf file; give the folder that holds config.json and the weights")
        return "gguf", (path,)
    if not path.is_dir():
        raise ModelError(f"{path} does not exist; check the path")
    for format, name in _SINGLE.items():
        if (path / name).exists():
            return format, (_checked_file(path / name),)
        index_file = path / f"{name}.index.json"
        if index_file.exists():
            return format, _shards(index_file)
    return "gguf", (_only_gguf(path),)


def _only_gguf(folder: Path) -> Path:
    found = sorted(file for file in folder.iterdir() if file.suffix.lower() == ".gguf")
    if len(found) > 1:
        raise ModelError(
            f"{folder} holds {len(found)} .gguf files; name one of them: {', '.join(f.name for f in found)}"
        )
    if found:
        return _checked_file(found[0])
    parts = sorted(folder.glob("*-of-*.safetensors")) + sorted(folder.glob("*-of-*.bin"))
    if parts:
        kind = "model.safetensors" if parts[0].suffix == ".safetensors" else "pytorch_model.bin"
        raise ModelError(
            f"{folder} holds {parts[0].name} but no {kind}.index.json; fetch that file and any missing shard"
        )
    raise ModelError(
        f"{folder} holds no weights; looked for model.safetensors, pytorch_model.bin, their .index.json, one .gguf file"
    )


def _checked_file(file: Path) -> Path:
    if not file.is_file():
        raise ModelError(f"{file} is not a file; fetch it again")
    return file


def _shards(index_file: Path) -> tuple[Path, ...]:
    weight_map = _weight_map(index_file)
    names = sorted(set(weight_map.values()))
    for name in names:
        if not (index_file.parent / name).exists():
            held = [tensor for tensor, shard in weight_map.items() if shard == name]
            what = f"shard {name} is missing from {index_file.parent}"
            raise ModelError(f"{what} (it holds {held[0]}{plural(len(held) - 1)}); fetch that file again")
    return tuple(_checked_file(index_file.parent / name) for name in names)


def _weight_map(index_file: Path) -> dict[str, str]:
    _checked_file(index_file)
    weight_map = read_json_object(index_file).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{index_file} has no weight_map of tensors to files; fetch it again")
    for tensor, shard in weight_map.items():
        if not isinstance(shard, str) or Path(shard).name != shard or "\0" in shard or not shard.strip("."):
            raise ModelError(f"{index_file} maps {tensor} to {shard!r}, which is not a file name; fetch it again")
    return weight_map


def _header_reader(format: Format) -> HeaderReader:
    if format == "safetensors":
        from flexinfer.weights.safetensors_header import read_safetensors_header

        return read_safetensors_header
    from flexinfer.weights.torch_bin import read_torch_header

    return read_torch_header


def _merge(index_file: Path, weight_map: Mapping[str, str], read: HeaderReader) -> dict[str, TensorEntry]:
    """Entries of all shards, held against the index both ways."""
    merged: dict[str, TensorEntry] = {}
    for shard in sorted(set(weight_map.values())):
        for tensor, entry in read(index_file.parent / shard).items():
            if tensor in merged:
                both = f"{merged[tensor].file.name} and {shard}"
                raise ModelError(
                    f"{tensor} is in both {both} of {index_file.parent}; fetch both again, from one revision"
                )
            merged[tensor] = entry
    _check_index(index_file, weight_map, merged)
    return merged


def _check_index(index_file: Path, weight_map: Mapping[str, str], merged: Mapping[str, TensorEntry]) -> None:
    for tensor, shard in weight_map.items():
        if tensor not in merged:
            raise _stale(index_file, f"it lists {tensor} in {shard}, which does not hold it", shard)
        if merged[tensor].file.name != shard:
            raise _stale(index_file, f"it lists {tensor} in {shard}, but {merged[tensor].file.name} holds it", shard)
    unlisted = _first(tensor for tensor in merged if tensor not in weight_map)
    if unlisted is not None:
        shard = merged[unlisted].file.name
        raise _stale(index_file, f"{shard} holds {unlisted}, which it does not list", shard)


def _first(names: Iterable[str]) -> str | None:
    return next(iter(names), None)


def _stale(index_file: Path, what: str, shard: str) -> ModelError:
    return ModelError(f"{index_file} is stale: {what}; fetch the index and {shard} again, from one revision")
