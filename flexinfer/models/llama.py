"""LLaMA 1 to 3.2 and SmolLM: RMS norm first, rotary positions, grouped queries, gated MLP, biases where the spec says.

The plain form of the shared parts; the other rotary families differ from it by what their specs say.
"""

from flexinfer.models.attention import attention_out, qkv
from flexinfer.models.embed_head import embed, head_input, head_logits
from flexinfer.models.mlp import mlp

__all__ = ["attention_out", "embed", "head_input", "head_logits", "mlp", "qkv"]
