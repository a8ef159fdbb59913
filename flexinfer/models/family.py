"""What a family's module offers: the type that mypy checks the modules against.

Legend: B batch, S tokens a sequence, N query heads, K kv heads, H head dim, D model dim, E embedding width,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

from flexinfer.models.opset import OpSet
from flexinfer.models.rope import RopeRows
from flexinfer.spec.model_spec import ModelSpec

Weights = Mapping[str, torch.Tensor]


class FamilyModule(Protocol):
    """Weights go by the canonical names of ModelSpec.block_tensors, a block's at a time."""

    def embed(
        self, weights: Weights, tokens_BS: torch.Tensor, positions_BS: torch.Tensor, spec: ModelSpec, ops: OpSet
    ) -> torch.Tensor:
        """Hidden [B, S, D] of int64 tokens at int64 positions."""

    def qkv(
        self, weights: Weights, hidden_BSD: torch.Tensor, rope: RopeRows | None, spec: ModelSpec, ops: OpSet
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q [B, N, S, H], k and v [B, K, S, H], contiguous, ready for attention and for the cache."""

    def attention_out(
        self, weights: Weights, hidden_BSD: torch.Tensor, context_BNSH: torch.Tensor, spec: ModelSpec, ops: OpSet
    ) -> torch.Tensor:
        """Hidden after the attention block: a new tensor [B, S, D]."""

    def mlp(self, weights: Weights, hidden_BSD: torch.Tensor, spec: ModelSpec, ops: OpSet) -> torch.Tensor:
        """Hidden after the MLP block: written into hidden_BSD, which is returned."""

    def head_input(self, weights: Weights, hidden_BD: torch.Tensor, spec: ModelSpec, ops: OpSet) -> torch.Tensor:
        """[B, E]: what the output matrix multiplies."""

    def head_logits(self, weights_out_VE: torch.Tensor, head_input_BE: torch.Tensor, ops: OpSet) -> torch.Tensor:
        """Logits [B, V] over the given rows of the output matrix."""
