"""What a plan will take on a machine: hardware profiles, op costs and closed forms. No torch."""

from __future__ import annotations

from flexinfer.estimator.closed_form import estimate
from flexinfer.estimator.emulated import emulated_profile
from flexinfer.estimator.paths import shipped_profiles
from flexinfer.estimator.profile import (
    AttentionSample,
    CpuProfile,
    Efficiency,
    GpuProfile,
    HardwareProfile,
    LinearSample,
    LinkProfile,
    Samples,
)

__all__ = [
    "AttentionSample",
    "CpuProfile",
    "Efficiency",
    "GpuProfile",
    "HardwareProfile",
    "LinearSample",
    "LinkProfile",
    "Samples",
    "emulated_profile",
    "estimate",
    "shipped_profiles",
]
