"""KV of one layer, as views into its buffer.

K and V are [batch, kv head, token, head_dim], so that a step appends one row per (sequence, kv head) and copies
nothing else, and attention reads one contiguous run. The same layout serves both devices: a move is a plain copy.

Legend: B batch, K kv heads, T capacity in tokens, H head_dim, S new tokens, R = B * K * T rows.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from flexinfer.cache.views import Group, typed_view
from flexinfer.schedule.buffers import aligned


class KvLayer(NamedTuple):
    """Views of one buffer."""

    k_BKTH: torch.Tensor
    v_BKTH: torch.Tensor

    @property
    def flat(self) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V as [R, H]: row (b * K + k) * T + t is token t of sequence b and head k."""
        head_dim = self.k_BKTH.shape[-1]
        return self.k_BKTH.view(-1, head_dim), self.v_BKTH.view(-1, head_dim)

    def filled(self, tokens: int) -> KvLayer:
        """The first `tokens` tokens of every sequence, as views."""
        return self.span(0, tokens)

    def span(self, first: int, end: int) -> KvLayer:
        """Tokens first <= t < end of every sequence, as views."""
        return KvLayer(self.k_BKTH.narrow(2, first, end - first), self.v_BKTH.narrow(2, first, end - first))

    def of(self, group: Group) -> KvLayer:
        """A group's sequences, as views."""
        return KvLayer(group.of(self.k_BKTH), group.of(self.v_BKTH))


def kv_layer(buffer: torch.Tensor, shape_BKTH: tuple[int, int, int, int], dtype: torch.dtype) -> KvLayer:
    """Views of a uint8 buffer of schedule.buffers.kv_layer_bytes: K first, then V, each aligned."""
    start_of_v = aligned(math.prod(shape_BKTH) * dtype.itemsize)
    return KvLayer(typed_view(buffer, 0, shape_BKTH, dtype), typed_view(buffer, start_of_v, shape_BKTH, dtype))
