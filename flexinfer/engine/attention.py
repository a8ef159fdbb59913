"""One layer's attention block over its KV, whole or in the three parts of a delegated one.

A batch is worked through in groups of whole sequences, which bounds the temporaries of a long prefill.

Legend: B batch, S new tokens, T keys, N query heads, K kv heads, H head_dim, D hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch

from flexinfer.cache import Group, KvLayer
from flexinfer.engine.step import StepInputs, StepParams
from flexinfer.machine.base import Machine
from flexinfer.models import FamilyModule
from flexinfer.models.attention import decode_attention, prefill_attention
from flexinfer.models.opset import OpSet
from flexinfer.plan import Home
from flexinfer.schedule.buffers import ATTENTION_TOKENS
from flexinfer.spec.model_spec import ModelSpec


class Exchange(NamedTuple):
    """What crosses the link around a delegated attention, on one device."""

    q_BNSH: torch.Tensor
    k_BKSH: torch.Tensor
    v_BKSH: torch.Tensor
    context_BNSH: torch.Tensor


def sequence_groups(batch: int, new: int) -> Iterator[Group]:
    """Groups of whole sequences of about ATTENTION_TOKENS new tokens."""
    step = max(1, ATTENTION_TOKENS // new)
    for first in range(0, batch, step):
        yield Group(first, min(step, batch - first))


@dataclass(frozen=True)
class AttentionBlock:
    """A layer's attention on one device, for one phase. `reads_cache` is False in a prefill of an empty cache."""

    spec: ModelSpec
    family: FamilyModule
    ops: OpSet
    machine: Machine
    inputs: StepInputs
    device: Home
    window: int | None
    reads_cache: bool

    @property
    def scale(self) -> float:
        return float(self.spec.head_dim**-0.5)

    def whole(
        self, weights: Mapping[str, torch.Tensor], hidden_BSD: torch.Tensor, kv: KvLayer, params: StepParams
    ) -> None:
        """Updates hidden in place and appends to the KV."""
        for group in self._groups():
            hidden = group.of(hidden_BSD)
            q, k, v = self.family.qkv(weights, hidden, self.inputs.rope(group), self.spec, self.ops)
            context = self._attend(q, k, v, kv, group, params)
            self.machine.copy(hidden, self.family.attention_out(weights, hidden, context, self.spec, self.ops))

    def project(self, weights: Mapping[str, torch.Tensor], hidden_BSD: torch.Tensor, exchange: Exchange) -> None:
        """q, k and v into the exchange buffers."""
        for group in self._groups():
            parts = self.family.qkv(weights, group.of(hidden_BSD), self.inputs.rope(group), self.spec, self.ops)
            for target, source in zip(exchange[:3], parts, strict=True):
                self.machine.copy(group.of(target), source)

    def attend_exchange(self, exchange: Exchange, kv: KvLayer, params: StepParams) -> None:
        """Attention over the KV for q, k, v of the exchange buffers; context into its buffer."""
        for group in self._groups():
            q, k, v = (group.of(part) for part in exchange[:3])
            self.machine.copy(group.of(exchange.context_BNSH), self._attend(q, k, v, kv, group, params))

    def finish(self, weights: Mapping[str, torch.Tensor], hidden_BSD: torch.Tensor, exchange: Exchange) -> None:
        """Output projection and residual, from the context that came back."""
        for group in self._groups():
            hidden, context = group.of(hidden_BSD), group.of(exchange.context_BNSH)
            self.machine.copy(hidden, self.family.attention_out(weights, hidden, context, self.spec, self.ops))

    def _groups(self) -> Iterator[Group]:
        return sequence_groups(*self.inputs["tokens"].shape)

    def _attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kv: KvLayer, group: Group, params: StepParams
    ) -> torch.Tensor:
        self._append(k, v, kv, group, params)
        if params.new == 1 and self.reads_cache:
            return self._attend_one(q, kv, group, params)
        mask = self.inputs.mask(self.window)
        scale = self.scale
        if not self.reads_cache:
            mask = None if mask is None else group.of(mask).narrow(2, 0, params.new)
            return prefill_attention(q, k, v, mask, scale, self.ops)
        held = kv.filled(params.end).of(group)
        assert mask is not None
        masked = group.of(mask).narrow(2, 0, params.end)
        return prefill_attention(q, held.k_BKTH, held.v_BKTH, masked, scale, self.ops)

    def _attend_one(self, q_BNSH: torch.Tensor, kv: KvLayer, group: Group, params: StepParams) -> torch.Tensor:
        """Decode. The CPU's op set takes whole buffers and lengths; the GPU's takes a view and, if need be, a mask."""
        lengths_B, scale = group.of(self.inputs["lengths"]), self.scale
        if self.device == "cpu":
            whole = kv.of(group)
            return decode_attention(q_BNSH, whole.k_BKTH, whole.v_BKTH, lengths_B, None, self.window, scale, self.ops)
        mask = self.inputs.mask(self.window)
        if params.uniform:
            first = 0 if self.window is None else max(0, params.end - self.window)
            held, mask = kv.span(first, params.end), None
        else:
            held = kv.filled(params.end)
            mask = None if mask is None else group.of(mask).narrow(2, 0, params.end)
        held = held.of(group)
        return decode_attention(q_BNSH, held.k_BKTH, held.v_BKTH, lengths_B, mask, None, scale, self.ops)

    def _append(self, k: torch.Tensor, v: torch.Tensor, kv: KvLayer, group: Group, params: StepParams) -> None:
        if params.uniform:
            target = kv.span(params.starts[0], params.end).of(group)
            self.machine.copy(target.k_BKTH, k)
            self.machine.copy(target.v_BKTH, v)
            return
        rows = group.of(self.inputs["rows"]).reshape(-1)
        for flat_RH, new in zip(kv.flat, (k, v), strict=True):
            self.machine.append(flat_RH, rows, new.reshape(-1, self.spec.head_dim))
