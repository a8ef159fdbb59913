"""Step inputs: the small tensors that every layer of a step shares, packed so that one copy sends them all.

Legend: B batch, S new tokens, T KV capacity, K kv heads, H head_dim.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from flexinfer.plan import Phase
from flexinfer.spec.model_spec import ModelSpec
from flexinfer.spec.workload import Workload

ALIGN = 64
FieldType = Literal["int64", "int32", "float32", "bool"]
ITEM_BYTES: dict[FieldType, int] = {"int64": 8, "int32": 4, "float32": 4, "bool": 1}


@dataclass(frozen=True)
class Field:
    """One tensor inside the packed inputs."""

    name: str
    dtype: FieldType
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        return ITEM_BYTES[self.dtype] * math.prod(self.shape)


def input_fields(spec: ModelSpec, phase: Phase, workload: Workload) -> tuple[Field, ...]:
    """tokens, positions [B,S]; rows [B,K,S] into the flat cache; lengths, last [B]; cos, sin [B,S,H]; masks [B,S,T]."""
    fields: list[Field] = []
    offset = 0
    for name, dtype, shape in _shapes(spec, phase, workload):
        fields.append(Field(name, dtype, shape, offset))
        offset += -(-fields[-1].nbytes // ALIGN) * ALIGN
    return tuple(fields)


def input_bytes(spec: ModelSpec, phase: Phase, workload: Workload) -> int:
    """Bytes of the packed inputs: what one send_inputs moves."""
    last = input_fields(spec, phase, workload)[-1]
    return last.offset + -(-last.nbytes // ALIGN) * ALIGN


def mask_windows(spec: ModelSpec, phase: Phase, workload: Workload) -> tuple[int | None, ...]:
    """The windows that need a mask in this phase, None standing for full attention.

    Prefill without cached tokens is plainly causal, unless a window is shorter than the prompt. Decode masks
    what lies beyond each sequence's length.
    """
    windows = tuple(dict.fromkeys(spec.windows))
    if phase == "decode" or workload.cached_tokens:
        return windows
    return tuple(w for w in windows if w is not None and w < workload.prompt_len)


def _shapes(spec: ModelSpec, phase: Phase, workload: Workload) -> Iterator[tuple[str, FieldType, tuple[int, ...]]]:
    batch = workload.batch
    new = workload.prompt_len if phase == "prefill" else 1
    yield "tokens", "int64", (batch, new)
    yield "positions", "int64", (batch, new)
    yield "rows", "int64", (batch, spec.num_kv_heads, new)
    yield "lengths", "int32", (batch,)
    yield "last", "int64", (batch,)
    if spec.rope:
        yield "cos", "float32", (batch, new, spec.head_dim)
        yield "sin", "float32", (batch, new, spec.head_dim)
    for window in mask_windows(spec, phase, workload):
        yield mask_name(window), "bool", (batch, new, workload.kv_capacity)


def mask_name(window: int | None) -> str:
    return "mask" if window is None else f"mask.{window}"
