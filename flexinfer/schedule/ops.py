"""The ops of a schedule. No torch: a schedule is data that each machine runs in its own way.

Ops stand in program order. Each engine works through its ops in that order; `after` and `after_previous` name
the ops of other engines that must be done first, in this step and in the step before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flexinfer.plan import Phase
from flexinfer.spec.workload import Workload

Engine = Literal["compute", "h2d", "d2h", "cpu"]
"""compute, h2d and d2h belong to the GPU and its link; cpu is the host, which also fills inputs and samples."""

OpKind = Literal[
    "fill",  # host writes the step's inputs: positions, rope rows, cache rows, masks
    "send_inputs",  # inputs to the GPU
    "embed",
    "send_hidden",  # hidden states across a device change
    "load_weights",  # one block's weights into a staging slot
    "load_kv",  # one layer's KV into a KV staging slot
    "store_kv",  # the step's new rows from a KV staging slot to their home
    "attention",  # a whole attention block on one device
    "qkv",  # the delegated attention, first half: matrices on the GPU
    "send_qkv",
    "attend",  # attention beside its KV on the CPU
    "send_context",
    "attention_out",  # second half, on the GPU
    "mlp",
    "last",  # each sequence's last hidden state
    "send_last",
    "head",  # final norm and the whole LM head
    "head_input",  # a streamed head: final norm and projection
    "load_head",  # one slice of the head into a staging slot
    "head_slice",  # logits of one slice
    "send_logits",
    "sample",
]

LINK_ENGINES: tuple[Engine, ...] = ("h2d", "d2h")


@dataclass(frozen=True)
class Op:
    """One op. `reads` and `writes` are buffers as "device:name"; an op that updates in place lists both.

    slot: the staging slot that the op's weights stand in or go to; kv_slot likewise for KV. part: the slice of a
    streamed head.
    next_step: a load issued in this step for the next one; the last step leaves it out.
    """

    kind: OpKind
    engine: Engine
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    layer: int | None = None
    block: str | None = None
    slot: int | None = None
    kv_slot: int | None = None
    part: int | None = None
    next_step: bool = False
    after: tuple[int, ...] = ()
    after_previous: tuple[int, ...] = ()

    @property
    def label(self) -> str:
        """What traces and errors call the op: layer and block first, as people look for them."""
        where = "" if self.layer is None else f"layer {self.layer} "
        what = "" if self.block is None else f"{self.block} "
        part = "" if self.part is None else f" {self.part}"
        same = self.kind == self.block or self.kind == "attention"
        return f"{where}{what}{part}".strip() if same else f"{where}{what}{self.kind}{part}".strip()

    def touches(self, buffer: str) -> bool:
        return buffer in self.reads or buffer in self.writes


@dataclass(frozen=True)
class Schedule:
    """One phase. The prologue runs once; the body once a step.

    `after` of a body op counts within the body, `after_previous` within the body of the step before; in the first
    step the prologue's ops stand in for the loads that the step before would have issued: `primed` maps a body
    index (of a next_step load) to its prologue index.
    """

    phase: Phase
    workload: Workload
    prologue: tuple[Op, ...]
    body: tuple[Op, ...]

    @property
    def primed(self) -> dict[int, int]:
        loads = [index for index, op in enumerate(self.body) if op.next_step]
        order = {self._key(op): index for index, op in enumerate(self.prologue)}
        return {index: order[self._key(self.body[index])] for index in loads}

    @staticmethod
    def _key(op: Op) -> tuple[object, ...]:
        return (op.kind, op.layer, op.block, op.part)
