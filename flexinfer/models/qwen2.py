"""Qwen2 and Qwen2.5: LLaMA with biases on q, k and v, and a window on the upper layers where the config turns it on."""

from flexinfer.models.attention import attention_out, qkv
from flexinfer.models.embed_head import embed, head_input, head_logits
from flexinfer.models.mlp import mlp

__all__ = ["attention_out", "embed", "head_input", "head_logits", "mlp", "qkv"]
