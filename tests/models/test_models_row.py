"""One row on the CPU takes a way of its own for bfloat16, and gives what the general way gives."""

from __future__ import annotations

import pytest
import torch

from flexinfer.models.opset import CpuOps, TorchOps


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1, 1, 129), (1, 129), (2, 1, 129), (1, 3, 129)])
@pytest.mark.parametrize("biased", [False, True])
def test_a_row_equals_the_general_product(dtype: torch.dtype, shape: tuple[int, ...], biased: bool) -> None:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(shape, generator=generator).to(dtype)
    weight = torch.randn(35, 129, generator=generator).to(dtype)
    bias = torch.randn(35, generator=generator).to(dtype) if biased else None
    got = CpuOps().linear(x, weight, bias)
    want = TorchOps().linear(x.double(), weight.double(), None if bias is None else bias.double())
    assert got.shape == (*shape[:-1], 35) and got.dtype == dtype and got.is_contiguous()
    torch.testing.assert_close(got.double(), want, rtol=2e-2, atol={2: 0.15, 4: 1e-4}[dtype.itemsize])


def test_one_row_of_bfloat16_is_a_matrix_vector_product(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    monkeypatch.setattr(torch, "mv", lambda weight, row: called.append(row.shape) or weight @ row)
    x, weight = torch.ones(1, 1, 8, dtype=torch.bfloat16), torch.ones(3, 8, dtype=torch.bfloat16)
    CpuOps().linear(x, weight)
    CpuOps().linear(x.expand(2, 1, 8), weight)
    CpuOps().linear(x.float(), weight.float())
    assert called == [torch.Size([8])]
