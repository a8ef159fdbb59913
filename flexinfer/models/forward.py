"""The whole model on one device, without a cache: every position's logits. For tests and perplexity, not for serving.

Legend: B batch, S tokens a sequence, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

from flexinfer.models import family_of
from flexinfer.models.attention import causal_mask, prefill_attention
from flexinfer.models.opset import OpSet
from flexinfer.models.rope import rope_rows
from flexinfer.spec.model_spec import Block, ModelSpec


class Weighted(Protocol):
    """Anything that holds a model's weights block by block, such as WeightStore."""

    def block(self, layer: int | None, block: Block) -> Mapping[str, torch.Tensor]: ...


def full_forward(spec: ModelSpec, store: Weighted, token_ids_BS: torch.Tensor, ops: OpSet) -> torch.Tensor:
    """Logits [B, S, V] of int64 tokens on the CPU, sequences of one length, or padded on the right."""
    family = family_of(spec)
    batch, new = token_ids_BS.shape
    starts_B, positions_BS = torch.zeros(batch, dtype=torch.int64), torch.arange(new).expand(batch, new)
    rope = rope_rows(spec, positions_BS, starts_B + new) if spec.rope else None
    masks = {w: causal_mask(starts_B, new, new, w) if w is not None and w < new else None for w in set(spec.windows)}
    hidden_BSD = family.embed(store.block(None, "embed"), token_ids_BS, positions_BS, spec, ops)
    for layer, window in enumerate(spec.windows):
        attention = store.block(layer, "attention")
        q, k, v = family.qkv(attention, hidden_BSD, rope, spec, ops)
        context_BNSH = prefill_attention(q, k, v, masks[window], spec.head_dim**-0.5, ops)
        hidden_BSD = family.attention_out(attention, hidden_BSD, context_BNSH, spec, ops)
        hidden_BSD = family.mlp(store.block(layer, "mlp"), hidden_BSD, spec, ops)
    head = store.block(None, "head")
    return family.head_logits(head["out.weight"], family.head_input(head, hidden_BSD, spec, ops), ops)
