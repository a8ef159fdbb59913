"""Models by name, the shipped servers, and ways to change a machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import pytest

from flexinfer.estimator import HardwareProfile
from flexinfer.spec import load_spec
from flexinfer.spec.model_spec import ModelSpec

Change = Callable[..., HardwareProfile]


@pytest.fixture(scope="session")
def model() -> Callable[[str], ModelSpec]:
    """model("opt-66b") -> its spec."""
    return lru_cache(maxsize=None)(load_spec)


@pytest.fixture(scope="session")
def h100() -> HardwareProfile:
    return HardwareProfile.load("h100-spr")


@pytest.fixture(scope="session")
def a100() -> HardwareProfile:
    return HardwareProfile.load("a100-icl")


@pytest.fixture(scope="session")
def small() -> ModelSpec:
    """6 layers, 2.2 MB of float32: made by hand so that budgets can be counted in layers."""
    return ModelSpec(
        name="small", family="llama", hidden_size=128, num_layers=6, num_heads=4, num_kv_heads=2, head_dim=32,
        ffn_size=256, vocab_size=512, max_positions=2048, weight_dtype="float32", activation="silu", gated_mlp=True,
        norm="rms", norm_eps=1e-5,
    )  # fmt: skip


@pytest.fixture(scope="session")
def change() -> Change:
    """change(profile, link=2.0, cpu_memory_rate=0.5, ...) -> the profile with those rates multiplied."""

    def changed(
        profile: HardwareProfile,
        link: float = 1.0,
        cpu_bytes: float = 1.0,
        cpu_flops: float = 1.0,
        gpu_flops: float = 1.0,
    ) -> HardwareProfile:
        assert profile.gpu is not None and profile.link is not None
        cpu = replace(
            profile.cpu,
            memory_bytes_per_s=profile.cpu.memory_bytes_per_s * cpu_bytes,
            peak_flops_per_s={d: p * cpu_flops for d, p in profile.cpu.peak_flops_per_s.items()},
        )
        gpu = replace(profile.gpu, peak_flops_per_s={d: p * gpu_flops for d, p in profile.gpu.peak_flops_per_s.items()})
        rates = (profile.link.h2d_bytes_per_s * link, profile.link.d2h_bytes_per_s * link)
        link_profile = replace(profile.link, h2d_bytes_per_s=rates[0], d2h_bytes_per_s=rates[1])
        return replace(profile, cpu=cpu, gpu=gpu, link=link_profile)

    return changed
