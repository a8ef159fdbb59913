"""Read the header of a GGUF file: metadata and where each tensor lies. Standard library only, no torch.

The gguf package's own reader makes several numpy arrays for every string of the vocabulary, which takes seconds on a
large one; a plan has to answer sooner. Long arrays (vocabulary, merges) are walked past here, not kept, and every
length is checked against the file before it is used.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from flexinfer.errors import ModelError

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_KEPT_ITEMS = 1024
"""Arrays longer than this are not kept."""
_MAX_DIMS = 8

Result = TypeVar("Result")

F32, F16, BF16 = 0, 1, 30
"""Tensor types that are not quantized; every other number is a block format."""


class GgufTensor(NamedTuple):
    """One tensor: shape as torch has it ([out, in] for matrices), ggml's number of its type, offset in the file."""

    shape: tuple[int, ...]
    type: int
    offset: int


class SkippedArray(NamedTuple):
    """Stands for an array of `items` items that was walked past."""

    items: int


@dataclass(frozen=True)
class GgufHeader:
    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]


class _Damaged(Exception):
    """The header contradicts itself or the file's length."""


class _Cursor:
    """Reads forward through the file, and never past its end."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at, self.end = data, 0, len(data)

    def advance(self, nbytes: int) -> int:
        start, self.at = self.at, self.at + nbytes
        if self.at > self.end:
            raise _Damaged("it ends inside its header")
        return start

    def scalar(self, code: str) -> Any:
        start = self.advance(struct.calcsize(code))
        return struct.unpack_from(code, self.data, start)[0]

    def string(self) -> str:
        length = self.scalar("<Q")
        start = self.advance(length)
        return self.data[start : start + length].decode("utf-8", errors="strict")

    def value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self.array()
        raise _Damaged(f"it has a metadata value of unknown type {kind}")

    def array(self) -> Any:
        kind, count = self.scalar("<I"), self.scalar("<Q")
        if kind not in _SCALARS and kind != _STRING:
            raise _Damaged(f"it has an array with items of unknown type {kind}")
        if count <= _KEPT_ITEMS:
            return [self.value(kind) for _ in range(count)]
        if kind == _STRING:
            for _ in range(count):
                self.advance(self.scalar("<Q"))
        else:
            self.advance(count * struct.calcsize(_SCALARS[kind]))
        return SkippedArray(count)

    def tensor(self) -> tuple[str, GgufTensor]:
        name, dims = self.string(), self.scalar("<I")
        if dims > _MAX_DIMS:
            raise _Damaged(f"tensor {name!r} has {dims} dimensions")
        shape = tuple(self.scalar("<Q") for _ in range(dims))[::-1]
        return name, GgufTensor(shape, self.scalar("<I"), self.scalar("<Q"))


def read_header(path: Path) -> GgufHeader:
    """Metadata and tensors of a GGUF file. Raises ModelError: not GGUF, another version, damaged, unreadable."""
    return _mapped(path, lambda data: _parse(path, _Cursor(data)))


def read_floats(path: Path, tensor: GgufTensor) -> tuple[float, ...]:
    """The values of a small float32 tensor, such as rope_freqs.weight. Raises ModelError."""
    count = tensor.shape[0] if len(tensor.shape) == 1 else 0
    if tensor.type != F32 or not 0 < count <= _KEPT_ITEMS:
        raise ModelError(f"{path}: a tensor of {tensor.shape} in type {tensor.type} instead of a short float32 vector")

    def values(data: mmap.mmap) -> tuple[float, ...]:
        if tensor.offset + 4 * count > len(data):
            raise _Damaged("it ends inside its tensors")
        return struct.unpack_from(f"<{count}f", data, tensor.offset)

    return _mapped(path, values)


def _mapped(path: Path, use: Callable[[mmap.mmap], Result]) -> Result:
    try:
        if path.stat().st_size == 0:
            raise ModelError(f"{path} is empty, not a GGUF file")
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return use(data)
    except (_Damaged, UnicodeDecodeError) as error:
        reason = error if isinstance(error, _Damaged) else "its header has a string that is not UTF-8"
        raise ModelError(f"{path} is a damaged GGUF file: {reason}; fetch it again") from None
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from None


def _parse(path: Path, cursor: _Cursor) -> GgufHeader:
    if cursor.data[:4] != b"GGUF":
        raise ModelError(f"{path} is not a GGUF file: it does not begin with 'GGUF'")
    cursor.advance(4)
    version = cursor.scalar("<I")
    if version not in (2, 3):
        kind = "big-endian files are" if version in (2 << 24, 3 << 24) else f"version {version} is"
        raise ModelError(f"{path}: GGUF {kind} not supported; supported are little-endian versions 2 and 3")
    tensor_count, value_count = cursor.scalar("<Q"), cursor.scalar("<Q")
    metadata: dict[str, Any] = {}
    for _ in range(value_count):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.scalar("<I"))
    tensors = dict(cursor.tensor() for _ in range(tensor_count))
    if len(metadata) != value_count or len(tensors) != tensor_count:
        raise _Damaged("it names a key or a tensor twice")
    return GgufHeader(path, metadata, _absolute(metadata, tensors, cursor.at))


def _absolute(metadata: Mapping[str, Any], tensors: Mapping[str, GgufTensor], header_end: int) -> dict[str, GgufTensor]:
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise _Damaged(f"its alignment is {alignment!r}")
    start = -(-header_end // alignment) * alignment
    return {name: tensor._replace(offset=start + tensor.offset) for name, tensor in tensors.items()}
