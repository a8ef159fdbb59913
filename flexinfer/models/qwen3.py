"""Qwen3: LLaMA with an RMS norm on each head's query and key before rotation, and a head_dim of its own."""

from flexinfer.models.attention import attention_out, qkv
from flexinfer.models.embed_head import embed, head_input, head_logits
from flexinfer.models.mlp import mlp

__all__ = ["attention_out", "embed", "head_input", "head_logits", "mlp", "qkv"]
