"""Mistral: LLaMA with a sliding window, which lives in the masks (spec.windows), not in the blocks."""

from flexinfer.models.attention import attention_out, qkv
from flexinfer.models.embed_head import embed, head_input, head_logits
from flexinfer.models.mlp import mlp

__all__ = ["attention_out", "embed", "head_input", "head_logits", "mlp", "qkv"]
