"""Attention over keys and values against a plain one written out here; masks; what is copied and what may be NaN.

Legend: B batch, S new tokens, T keys, N query heads, K kv heads, H head dim.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flexinfer.models import attention
from flexinfer.models.attention import causal_mask, decode_attention, prefill_attention
from flexinfer.models.opset import CpuOps, TorchOps

OPS, SCALE = TorchOps(), 0.3


def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask_BST: torch.Tensor) -> torch.Tensor:
    """Attention as it is defined, with expanded kv heads."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = (q @ k.transpose(2, 3) * SCALE).masked_fill(~mask_BST.unsqueeze(1), float("-inf"))
    return scores.softmax(-1) @ v


def draw(batch: int, heads: int, kv_heads: int, new: int, keys: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return (
        torch.randn(batch, heads, new, 16),
        torch.randn(batch, kv_heads, keys, 16),
        torch.randn(batch, kv_heads, keys, 16),
    )


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2), (5, 1)])
def test_prefill_without_a_mask_is_causal(heads: int, kv_heads: int) -> None:
    q, k, v = draw(2, heads, kv_heads, 7, 7)
    want = plain(q, k, v, causal_mask(torch.zeros(2, dtype=torch.int64), 7, 7, None))
    torch.testing.assert_close(prefill_attention(q, k, v, None, SCALE, OPS), want, atol=1e-5, rtol=0)


@pytest.mark.parametrize("cells", [2**20, 24])
def test_prefill_over_a_longer_cache_with_uneven_starts(monkeypatch: pytest.MonkeyPatch, cells: int) -> None:
    """Cached tokens and a window; with 24 cells a piece, queries go two at a time."""
    monkeypatch.setattr(attention, "MASKED_CELLS", cells)
    ops = Recorded()
    q, k, v = draw(2, 6, 2, 5, 16)
    k, v = k.narrow(2, 0, 12), v.narrow(2, 0, 12)  # as a cache is handed out: less than its capacity
    for window in (None, 4):
        mask_BST = causal_mask(torch.tensor([7, 2]), 5, 12, window)
        got = prefill_attention(q, k, v, mask_BST, SCALE, ops)
        torch.testing.assert_close(got, plain(q, k, v, mask_BST), atol=1e-5, rtol=0)
    assert 0 < max(mask.numel() for mask in ops.masks if mask is not None) <= cells


class Recorded(TorchOps):
    """Keeps what attention was called with."""

    def __init__(self) -> None:
        self.storages: set[int] = set()
        self.masks: list[torch.Tensor | None] = []

    def scaled_dot_product_attention(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any, causal: bool, scale: float
    ) -> torch.Tensor:
        self.storages |= {k.untyped_storage().data_ptr(), v.untyped_storage().data_ptr()}
        self.masks.append(mask)
        return super().scaled_dot_product_attention(q, k, v, mask, causal, scale)


def test_keys_and_values_are_not_copied() -> None:
    ops = Recorded()
    q, k, v = draw(2, 6, 2, 5, 16)
    cut = [x.narrow(2, 0, 5) for x in (k, v)]
    prefill_attention(q, *cut, None, SCALE, ops)
    prefill_attention(q, *cut, causal_mask(torch.zeros(2, dtype=torch.int64), 5, 5, 3), SCALE, ops)
    decode_attention(q[:, :, :1], *cut, torch.tensor([5, 5]), None, None, SCALE, ops)
    assert ops.storages == {k.untyped_storage().data_ptr(), v.untyped_storage().data_ptr()}


@pytest.mark.parametrize("window", [None, 3])
def test_decode_by_mask_and_by_length_agree_with_the_definition(window: int | None) -> None:
    q, k, v = draw(3, 6, 2, 1, 12)
    lengths_B = torch.tensor([12, 1, 7], dtype=torch.int32)
    mask_BST = causal_mask(lengths_B - 1, 1, 12, window)
    want = plain(q, k, v, mask_BST)
    by_mask = decode_attention(q, k, v, lengths_B, mask_BST, None, SCALE, OPS)
    by_length = decode_attention(q, k, v, lengths_B, None, window, SCALE, CpuOps(threads=1))
    torch.testing.assert_close(by_mask, want, atol=1e-5, rtol=0)
    torch.testing.assert_close(by_length, want, atol=1e-5, rtol=0)


def test_decode_by_length_never_sees_what_is_not_filled() -> None:
    q, k, v = draw(3, 6, 2, 1, 12)
    lengths_B = torch.tensor([12, 1, 7], dtype=torch.int32)
    want = decode_attention(q, k, v, lengths_B, None, None, SCALE, CpuOps())
    for b, length in enumerate(lengths_B.tolist()):
        k[b, :, length:] = float("nan")
        v[b, :, length:] = float("inf")
    assert torch.equal(decode_attention(q, k, v, lengths_B, None, None, SCALE, CpuOps()), want)


def test_decode_by_mask_refuses_a_window_without_a_mask() -> None:
    q, k, v = draw(1, 2, 1, 1, 4)
    with pytest.raises(ValueError, match="mask"):
        decode_attention(q, k, v, torch.tensor([4]), None, 2, SCALE, OPS)


def test_causal_mask_by_hand() -> None:
    mask_BST = causal_mask(torch.tensor([0, 2]), 2, 5, 2)
    rows = [["10000", "11000"], ["01100", "00110"]]
    assert [["".join(str(int(c)) for c in row) for row in one] for one in mask_BST] == rows
    assert causal_mask(torch.tensor([0, 2]), 2, 5, None)[1].int().tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]]
