"""Measured rooflines: plausible, and the same call where torch has to be measured."""

from __future__ import annotations

import pytest
import torch

from flexinfer import kernels
from flexinfer.kernels import probes


@pytest.fixture(params=["native", "torch"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    kind: str = request.param
    if kind == "torch":
        monkeypatch.setattr(probes, "library", lambda: None)
    return kind


@pytest.mark.usefixtures("kind")
def test_read_bandwidth_is_plausible() -> None:
    assert 1e8 < kernels.read_bandwidth(threads=1, nbytes=(32 << 20) + 3) < 1e13
    assert 1e8 < kernels.read_bandwidth(nbytes=16 << 20) < 1e13


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize("dtype", [torch.float32, "float32", torch.bfloat16, "float16"])
def test_peak_flops_is_plausible(dtype: torch.dtype | str) -> None:
    assert 1e8 < kernels.peak_flops(dtype, threads=1) < 1e15


def test_a_lower_level_has_a_lower_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEXINFER_ISA", "generic")
    generic = kernels.peak_flops("float32", threads=1)
    monkeypatch.delenv("FLEXINFER_ISA")
    if kernels.isa() == "generic":
        pytest.skip("this CPU has no wider vectors")
    assert kernels.peak_flops("float32", threads=1) > 1.5 * generic


def test_torch_threads_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "library", lambda: None)
    before = torch.get_num_threads()
    kernels.read_bandwidth(threads=before + 1, nbytes=1 << 20)
    assert torch.get_num_threads() == before


def test_memory_that_is_not_there_is_an_error() -> None:
    if not kernels.native():
        pytest.skip("the native library was not built: no C++ compiler")
    with pytest.raises(MemoryError, match="no memory for a read probe"):
        kernels.read_bandwidth(nbytes=1 << 60)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kernels.read_bandwidth(threads=0), "threads: got 0"),
        (lambda: kernels.read_bandwidth(nbytes=0), "nbytes: got 0"),
        (lambda: kernels.peak_flops(torch.int8), "dtype: got torch.int8, wanted float32, bfloat16, float16"),
        (lambda: kernels.peak_flops("float32", threads=-1), "threads: got -1"),
    ],
)
def test_wrong_arguments_are_named(call: object, message: str) -> None:
    assert callable(call)
    with pytest.raises(ValueError, match=message):
        call()
