"""Where each tensor of a GGUF file lies and how it is packed, its extent checked against the file. No torch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from flexinfer.errors import ModelError
from flexinfer.spec.gguf_header import GgufTensor, read_header
from flexinfer.weights.entry import TensorEntry, check_start, damaged


def read_gguf_index(file: Path) -> tuple[str, dict[str, TensorEntry]]:
    """(architecture, every tensor by name). Raises ModelError: damaged, truncated, or of a type nobody here knows."""
    nbytes = check_start(file)
    header = read_header(file)
    entries = {name: _entry(file, name, tensor) for name, tensor in header.tensors.items()}
    _check_extents(file, entries.values(), nbytes)
    return str(header.metadata.get("general.architecture")), entries


def _entry(file: Path, name: str, tensor: GgufTensor) -> TensorEntry:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        dtype = GGMLQuantizationType(tensor.type)
    except ValueError:
        text = f"{name} in {file} has GGML type {tensor.type}, which the installed gguf package does not know"
        raise ModelError(f"{text}; update gguf, or use a file of another quantization") from None
    block_values, block_bytes = GGML_QUANT_SIZES[dtype]
    if not tensor.shape or tensor.shape[-1] % block_values:
        raise damaged(
            file, f"has a corrupt header: {name} has shape {list(tensor.shape)}, not blocks of {block_values}"
        )
    nbytes = math.prod(tensor.shape) // block_values * block_bytes
    return TensorEntry(name, file, dtype.name, tensor.shape, tensor.offset, nbytes)


def _check_extents(file: Path, entries: Iterable[TensorEntry], nbytes: int) -> None:
    """Tensors do not overlap, and the last ends within the file."""
    end, last = 0, None
    for entry in sorted(entries, key=lambda e: e.offset):
        if entry.offset < end:
            raise damaged(file, f"has a corrupt header: {entry.name} and {last} overlap")
        end, last = entry.offset + entry.nbytes, entry.name
    if end > nbytes:
        raise damaged(file, f"is truncated: {nbytes} bytes of {end}")
