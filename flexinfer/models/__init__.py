"""The forward pass: pure functions on tensors, one file a family, shared parts once.

A family's module has embed, qkv, attention_out, mlp, head_input and head_logits; attention over keys and values, which
all share, is in attention.py. No function looks at a tensor's device or makes a tensor from nothing: tables, masks and
indices come in as arguments, from rope_rows and causal_mask.
"""

from __future__ import annotations

from flexinfer.models import llama, mistral, opt, qwen2, qwen3
from flexinfer.models.family import FamilyModule
from flexinfer.spec.model_spec import Family, ModelSpec

__all__ = ["FamilyModule", "family_of"]

_FAMILIES: dict[Family, FamilyModule] = {
    "llama": llama,
    "mistral": mistral,
    "opt": opt,
    "qwen2": qwen2,
    "qwen3": qwen3,
}


def family_of(spec: ModelSpec) -> FamilyModule:
    """The module of a model's family."""
    return _FAMILIES[spec.family]
