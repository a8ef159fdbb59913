"""pytorch_model.bin: pickled tensors, read with weights_only and mapped. Anything but plain tensors is refused."""

from __future__ import annotations

import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any, Literal

import torch

from flexinfer.errors import ModelError
from flexinfer.host import file_system
from flexinfer.weights.entry import TensorEntry, check_start, damaged
from flexinfer.weights.values import STORED, convert, keep, split

_NAMES = {dtype: name for name, dtype in STORED.items()}
_DAMAGE = (
    RuntimeError,
    EOFError,
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    AssertionError,
    struct.error,
)
"""What the unpickler raises, beside UnpicklingError, when bytes of the file have changed."""


def read_torch_header(file: Path) -> dict[str, TensorEntry]:
    """Every tensor of the file, its type and shape. Files from before torch 1.6 are read whole. Raises ModelError."""
    check_start(file)
    entries = {}
    for order, (name, tensor) in enumerate(_load(file, "meta").items()):
        dtype = _NAMES.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))
        entries[name] = TensorEntry(name, file, dtype, tuple(tensor.shape), order, tensor.numel() * tensor.itemsize)
    return entries


def _load(file: Path, device: Literal["cpu", "meta"]) -> dict[str, torch.Tensor]:
    # files from before torch 1.6 cannot be mapped; over a network a whole read is faster than page faults
    mapped = zipfile.is_zipfile(file) and not (device == "cpu" and file_system(file).network)
    try:
        state = torch.load(file, map_location=device, weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:
        raise _refused(file, str(error)) from None
    except _DAMAGE:
        raise damaged(file, "is truncated or not a PyTorch checkpoint") from None
    return _plain_tensors(file, state)


def _refused(file: Path, text: str) -> ModelError:
    """torch names what a pickle asks for as "GLOBAL module.name" when it was not plain tensors."""
    _, asked, rest = text.partition("GLOBAL ")
    if not asked:
        return damaged(file, "is not a PyTorch checkpoint, or is damaged")
    what = rest.split()[0]
    return ModelError(
        f"{file} holds {what}, not only plain tensors, and could run code; use a safetensors copy of the model"
    )


def _plain_tensors(file: Path, state: Any) -> dict[str, torch.Tensor]:
    if not isinstance(state, dict):
        raise ModelError(
            f"{file} holds a {type(state).__name__}, not a dictionary of tensors; use a safetensors copy of the model"
        )
    for name, value in state.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            raise ModelError(
                f"{file}: {name!r} is a {type(value).__name__}, not a plain tensor; save the state_dict alone"
            )
    return {name: value.detach() for name, value in state.items()}


class TorchReader:
    """Values of one file. Tensors of the wanted type are views of the mapping; others are converted in pieces."""

    def __init__(self, file: Path) -> None:
        self._state = _load(file, "cpu")

    def read(self, entry: TensorEntry, dtype: torch.dtype) -> torch.Tensor:
        """The tensor in `dtype`, contiguous, scanned. Raises ModelError for NaN, infinity and overflow."""
        tensor = self._state.pop(entry.name).contiguous()
        return keep(tensor, entry) if tensor.dtype == dtype else convert(split(tensor.view(-1)), entry, dtype)

    def release(self, entry: TensorEntry) -> None:
        """Pages go with the last tensor of the file."""

    def close(self) -> None:
        self._state.clear()
