"""The op calls of a device as the engine makes them, and what their operands are called.

Legend: B batch, S new tokens, T capacity, N query heads, K kv heads, H head_dim, M rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from flexinfer import kernels
from flexinfer.calibrate.timing import Clock, Patience
from flexinfer.calibrate.workset import WorkSet


@dataclass(frozen=True)
class Bench:
    """A device under measurement: its op calls, its cold operands and how its calls are timed."""

    work: WorkSet
    clock: Clock
    linear: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    prefill_attention: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
    decode_attention: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
    device: torch.device = torch.device("cpu")

    def activation(self, dtype: torch.dtype, *shape: int) -> torch.Tensor:
        """Small numbers, as hidden states are."""
        return torch.empty(*shape).uniform_(-1, 1).to(dtype).to(self.device)


def _prefill(q_BNSH: torch.Tensor, k_BKTH: torch.Tensor, v_BKTH: torch.Tensor) -> torch.Tensor:
    grouped = q_BNSH.shape[1] != k_BKTH.shape[1]
    return torch.nn.functional.scaled_dot_product_attention(q_BNSH, k_BKTH, v_BKTH, is_causal=True, enable_gqa=grouped)


def cpu_bench(threads: int, work: WorkSet, patience: Patience) -> Bench:
    """The CPU's own op calls; `threads` is torch's number too, which the caller has set."""

    def decode(
        q_BNSH: torch.Tensor, k_BKTH: torch.Tensor, v_BKTH: torch.Tensor, lengths_B: torch.Tensor
    ) -> torch.Tensor:
        scale = q_BNSH.shape[-1] ** -0.5
        return kernels.decode_attention(q_BNSH[:, :, 0], k_BKTH, v_BKTH, lengths_B, scale, threads=threads)

    return Bench(work, Clock(patience=patience), torch.nn.functional.linear, _prefill, decode)


def accelerator_bench(device: torch.device, work: WorkSet) -> Bench:
    """An accelerator's op calls, in bursts with one wait."""
    clock = Clock(wait=lambda: torch.accelerator.synchronize(device), burst=8)

    def decode(
        q_BNSH: torch.Tensor, k_BKTH: torch.Tensor, v_BKTH: torch.Tensor, lengths_B: torch.Tensor
    ) -> torch.Tensor:
        grouped = q_BNSH.shape[1] != k_BKTH.shape[1]
        return torch.nn.functional.scaled_dot_product_attention(q_BNSH, k_BKTH, v_BKTH, enable_gqa=grouped)

    return Bench(work, clock, torch.nn.functional.linear, _prefill, decode, device)
