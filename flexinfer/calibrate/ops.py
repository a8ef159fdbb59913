"""The op calls of a device as the engine makes them, and what their operands are called.

Legend: B batch, S new tokens, T capacity, N query heads, K kv heads, H head_dim, M rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from flexinfer.calibrate.timing import Clock, Patience
from flexinfer.calibrate.workset import WorkSet
from flexinfer.models.attention import decode_attention, prefill_attention
from flexinfer.models.opset import CpuOps, OpSet, TorchOps

BURST = 8
"""Calls of an accelerator between two waits."""


@dataclass(frozen=True)
class Bench:
    """A device under measurement: its op set, its cold operands and how its calls are timed."""

    work: WorkSet
    clock: Clock
    ops: OpSet
    device: torch.device = torch.device("cpu")

    def activation(self, dtype: torch.dtype, *shape: int) -> torch.Tensor:
        """Small numbers, as hidden states are."""
        return torch.empty(*shape).uniform_(-1, 1).to(dtype).to(self.device)

    def prefill_attention(self, q_BNSH: torch.Tensor, k_BKTH: torch.Tensor, v_BKTH: torch.Tensor) -> torch.Tensor:
        return prefill_attention(q_BNSH, k_BKTH, v_BKTH, None, q_BNSH.shape[-1] ** -0.5, self.ops)

    def decode_attention(
        self, q_BNSH: torch.Tensor, k_BKTH: torch.Tensor, v_BKTH: torch.Tensor, lengths_B: torch.Tensor
    ) -> torch.Tensor:
        return decode_attention(q_BNSH, k_BKTH, v_BKTH, lengths_B, None, None, q_BNSH.shape[-1] ** -0.5, self.ops)


def cpu_bench(threads: int, work: WorkSet, patience: Patience) -> Bench:
    """The CPU's; `threads` is torch's number too, which the caller has set."""
    return Bench(work, Clock(patience=patience), CpuOps(threads=threads))


def accelerator_bench(device: torch.device, work: WorkSet) -> Bench:
    """An accelerator's, in bursts with one wait."""
    return Bench(work, Clock(wait=lambda: torch.accelerator.synchronize(device), burst=BURST), TorchOps(), device)
