"""The operations that the models are written in. A machine passes the set of the device that computes.

Legend: B batch, S query length, T key length, N query heads, K kv heads, G query heads a kv head, H head dim,
V vocabulary, E embedding width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from flexinfer import kernels
from flexinfer.spec.model_spec import Activation


class OpSet(ABC):
    """Pure operations: each returns a new tensor, changes no argument, and accumulates in float32 or better.

    All tensors of a call lie on the set's device; a mix raises RuntimeError.
    """

    @abstractmethod
    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """x [..., in] times weight [out, in] transposed, plus bias [out]: [..., out]."""

    @abstractmethod
    def embedding(self, tokens_BS: torch.Tensor, table_VE: torch.Tensor) -> torch.Tensor:
        """Rows of the table: [B, S, E]."""

    @abstractmethod
    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Root-mean-square norm over the last dimension."""

    @abstractmethod
    def layer_norm(
        self, x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
    ) -> torch.Tensor:
        """Mean and variance norm over the last dimension; weight and bias None: no affine part."""

    @abstractmethod
    def activation(self, name: Activation, x: torch.Tensor) -> torch.Tensor:
        """relu, gelu (exact), gelu_tanh or silu, element by element."""

    @abstractmethod
    def scaled_dot_product_attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        causal: bool,
        scale: float,
    ) -> torch.Tensor:
        """Attention over [batch, heads, rows, H]; mask broadcasts to [batch, heads, S, T], True = attend."""

    @abstractmethod
    def decode_attention(
        self,
        q_BNH: torch.Tensor,
        k_BKTH: torch.Tensor,
        v_BKTH: torch.Tensor,
        lengths_B: torch.Tensor,
        mask_BST: torch.Tensor | None,
        window: int | None,
        scale: float,
    ) -> torch.Tensor:
        """One new token a sequence, over the keys that its length (int32, the new token counted) and window allow.

        A set goes by lengths and window, or by the mask; see each. Returns [B, N, H].
        """


class TorchOps(OpSet):
    """Torch's own operations, on any device torch has."""

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return F.linear(x, weight, bias)

    def embedding(self, tokens_BS: torch.Tensor, table_VE: torch.Tensor) -> torch.Tensor:
        return F.embedding(tokens_BS, table_VE)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return F.rms_norm(x, weight.shape, weight, eps)

    def layer_norm(
        self, x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
    ) -> torch.Tensor:
        return F.layer_norm(x, x.shape[-1:], weight, bias, eps)

    def activation(self, name: Activation, x: torch.Tensor) -> torch.Tensor:
        if name == "silu":
            return F.silu(x)
        if name == "relu":
            return F.relu(x)
        return F.gelu(x, approximate="tanh" if name == "gelu_tanh" else "none")

    def scaled_dot_product_attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        causal: bool,
        scale: float,
    ) -> torch.Tensor:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal, scale=scale)

    def decode_attention(
        self,
        q_BNH: torch.Tensor,
        k_BKTH: torch.Tensor,
        v_BKTH: torch.Tensor,
        lengths_B: torch.Tensor,
        mask_BST: torch.Tensor | None,
        window: int | None,
        scale: float,
    ) -> torch.Tensor:
        """Goes by the mask [B, 1, T]; without one every key is attended. Masked keys and values must be finite.

        The query heads of a kv head become the rows of one product, so that keys and values are read once, uncopied.
        """
        if mask_BST is None and window is not None:
            raise ValueError("a window needs a mask here")
        batch, kv_heads, _, head_dim = k_BKTH.shape
        q_BKGH = q_BNH.reshape(batch, kv_heads, -1, head_dim)
        mask = None if mask_BST is None else mask_BST.unsqueeze(1)
        out_BKGH = self.scaled_dot_product_attention(q_BKGH, k_BKTH, v_BKTH, mask, False, scale)
        return out_BKGH.reshape(q_BNH.shape)


@dataclass(frozen=True)
class CpuOps(TorchOps):
    """The CPU's: attention of a decode step by the kernel, which reads no key or value beyond a sequence's length."""

    threads: int | None = None

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """One row of bfloat16 goes through torch's matrix-vector product: 1.4 times as fast as its linear.

        Two threads of a Xeon with AMX, weights cold, GB/s of weights, linear and mv: bfloat16 8192 x 2048 20 and 27,
        1536 x 576 16 and 23; float32 28 and 29; float16 14 and 8.
        """
        if weight.dtype != torch.bfloat16 or x.numel() != weight.shape[1]:
            return super().linear(x, weight, bias)
        row = x.reshape(-1)
        out = torch.mv(weight, row) if bias is None else torch.addmv(bias, weight, row)
        return out.view(*x.shape[:-1], -1)

    def decode_attention(
        self,
        q_BNH: torch.Tensor,
        k_BKTH: torch.Tensor,
        v_BKTH: torch.Tensor,
        lengths_B: torch.Tensor,
        mask_BST: torch.Tensor | None,
        window: int | None,
        scale: float,
    ) -> torch.Tensor:
        """Goes by lengths and window; a mask is not looked at. Rows beyond a sequence's length may hold anything."""
        return kernels.decode_attention(q_BNH, k_BKTH, v_BKTH, lengths_B, scale, window=window, threads=self.threads)
