"""A small model with round numbers, and a machine on which one FLOP, one byte and one call cost what a test says."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flexinfer.estimator.profile import (
    DTYPES,
    OP_CLASSES,
    CpuProfile,
    Efficiency,
    GpuProfile,
    HardwareProfile,
    LinkProfile,
)
from flexinfer.plan import ON_CPU, ON_GPU, STREAMED, LayerPlacement
from flexinfer.spec.model_spec import ModelSpec

Machine = Callable[..., HardwareProfile]


@pytest.fixture(scope="session")
def tiny() -> ModelSpec:
    """4 layers of width 64, 4 query and 2 kv heads of 16, MLP 128, 96 tokens, float32, no norms with weights."""
    return ModelSpec(
        name="tiny", family="llama", hidden_size=64, num_layers=4, num_heads=4, num_kv_heads=2, head_dim=16,
        ffn_size=128, vocab_size=96, max_positions=4096, weight_dtype="float32", activation="silu", gated_mlp=True,
        norm="rms", norm_eps=1e-5, norm_affine=False,
    )  # fmt: skip


@pytest.fixture(scope="session")
def machine() -> Machine:
    """machine(cpu_flops=..., gpu_bytes=..., ...) -> profile; what is not named is so fast that it costs nothing."""

    def make(
        cpu_flops: float = 1e30,
        cpu_bytes: float = 1e30,
        gpu_flops: float = 1e30,
        gpu_bytes: float = 1e30,
        link_bytes: float = 1e30,
        fixed_s: float = 0.0,
        dispatch_s: float = 0.0,
        step_s: float = 0.0,
        copy_s: float = 0.0,
        gpu_memory: int = 10**15,
        cpu_memory: int = 10**15,
    ) -> HardwareProfile:
        share = {op: Efficiency(1.0, 1.0, fixed_s) for op in OP_CLASSES}
        cpu = CpuProfile(
            "cpu", 1, cpu_memory, cpu_bytes, cpu_bytes, dict.fromkeys(DTYPES, cpu_flops), share, dispatch_s, step_s
        )
        gpu = GpuProfile("gpu", gpu_memory, gpu_bytes, dict.fromkeys(DTYPES, gpu_flops), share, dispatch_s)
        link = LinkProfile("link", link_bytes, link_bytes, 1.0, 1.0, copy_s)
        return HardwareProfile("machine", "nominal", cpu, gpu, link)

    return make


CPU = LayerPlacement(ON_CPU, ON_CPU, "cpu", "cpu")
GPU = LayerPlacement(ON_GPU, ON_GPU, "gpu", "gpu")
STREAM = LayerPlacement(STREAMED, STREAMED, "gpu", "gpu")
STREAM_KV = LayerPlacement(STREAMED, STREAMED, "cpu", "gpu")
DELEGATED = LayerPlacement(STREAMED, STREAMED, "cpu", "cpu")
MIXED = LayerPlacement(ON_CPU, STREAMED, "cpu", "cpu")


@pytest.fixture(scope="session")
def placements() -> dict[str, LayerPlacement]:
    """Every kind of layer that a plan can hold, by a short name."""
    return {
        "cpu": CPU,
        "gpu": GPU,
        "stream": STREAM,
        "stream_kv": STREAM_KV,
        "delegated": DELEGATED,
        "mixed": MIXED,
    }
