"""Load a checkpoint: index it, account for every tensor, then read them file by file in the order in which they lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Protocol

import torch

from flexinfer.errors import ModelError
from flexinfer.spec.model_spec import ModelSpec
from flexinfer.weights.check import Bindings, bind
from flexinfer.weights.entry import TensorEntry
from flexinfer.weights.index import CheckpointIndex, index_checkpoint
from flexinfer.weights.names import ROPE_FACTORS, Place, interleaved_heads
from flexinfer.weights.rope_factors import factors_agree
from flexinfer.weights.store import WeightStore

Progress = Callable[[int, int, str], None]
"""Called with bytes done, bytes in all, and the name of the file that is read."""


class Reader(Protocol):
    """Values of one file of a checkpoint."""

    def read(self, entry: TensorEntry, dtype: torch.dtype) -> torch.Tensor:
        """The tensor in `dtype`, contiguous and scanned; a view of the file where nothing had to change.

        Raises ModelError for NaN, infinity and values that `dtype` cannot hold.
        """

    def release(self, entry: TensorEntry) -> None:
        """Give back the memory of a tensor that was read and is no longer needed."""

    def close(self) -> None:
        """Close the file; tensors that were read stay valid."""


def check_weights(path: Path, spec: ModelSpec) -> None:
    """Reads headers alone. Raises ModelError: damaged files; tensors that are missing, unexpected or misshapen."""
    bind(index_checkpoint(path), spec)


def load_weights(path: Path, spec: ModelSpec, progress: Progress | None = None) -> WeightStore:
    """Every tensor of `spec` from the folder or .gguf file `path`.

    Memory stays within the model's own bytes and one file of the checkpoint. Raises ModelError: before any value is
    read, for files and tensors that are missing, damaged, unexpected or misshapen; while reading, for NaN and infinity.
    """
    index = index_checkpoint(path)
    bindings = bind(index, spec)
    tensors: dict[Place, torch.Tensor] = {}
    done, total = 0, bindings.stored_bytes
    dtype = getattr(torch, spec.weight_dtype)
    for file, places in _by_file(bindings):
        with closing(_open(index, spec, file)) as reader:
            for place in places:
                entry = bindings.entries[place]
                tensors[place] = reader.read(entry, dtype)
                done += entry.nbytes
                if progress is not None:
                    progress(done, total, file.name)
    _check_tied_copy(index, spec, bindings, tensors)
    _check_rope_factors(index, spec)
    return WeightStore(spec, tensors)


def _by_file(bindings: Bindings) -> Iterator[tuple[Path, list[Place]]]:
    """Files in order, each with its places by offset, so that the disk is read forwards."""
    places: dict[Path, list[Place]] = {}
    for place, entry in bindings.entries.items():
        places.setdefault(entry.file, []).append(place)
    for file in sorted(places):
        yield file, sorted(places[file], key=lambda place: bindings.entries[place].offset)


def _open(index: CheckpointIndex, spec: ModelSpec, file: Path) -> Reader:
    if index.format == "safetensors":
        from flexinfer.weights.safetensors_reader import SafetensorsReader

        return SafetensorsReader(file)
    if index.format == "torch":
        from flexinfer.weights.torch_bin import TorchReader

        return TorchReader(file)
    from flexinfer.weights.gguf_reader import GgufReader

    return GgufReader(file, interleaved_heads(spec, index.architecture))


def _check_tied_copy(
    index: CheckpointIndex, spec: ModelSpec, bindings: Bindings, tensors: Mapping[Place, torch.Tensor]
) -> None:
    entry = bindings.tied_copy
    if entry is None:
        return
    embedding = tensors[None, "embed", "tokens.weight"]
    same = entry.shape == tuple(embedding.shape)
    if same:
        with closing(_open(index, spec, entry.file)) as reader:
            same = torch.equal(reader.read(entry, embedding.dtype), embedding)
            reader.release(entry)
    if not same:
        raise ModelError(
            f"{entry.where} differs from the embedding that the configuration ties it to; "
            "set tie_word_embeddings to false in config.json, or fetch the weights again"
        )


def _check_rope_factors(index: CheckpointIndex, spec: ModelSpec) -> None:
    entry = index.entries.get(ROPE_FACTORS) if index.format == "gguf" else None
    if entry is None or spec.rope is None:
        return
    with closing(_open(index, spec, entry.file)) as reader:
        stored = reader.read(entry, torch.float32).tolist()
    if not factors_agree(stored, spec.rope, spec.head_dim):
        raise ModelError(
            f"{entry.where} carries rotary frequency factors that the model's rope settings ({spec.rope.type}) "
            "do not have; use the model's safetensors files"
        )
