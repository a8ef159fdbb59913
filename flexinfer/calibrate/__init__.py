"""Measures what this machine can do, and keeps it. Importing this package does not import torch."""

from __future__ import annotations

from typing import Any

from flexinfer.calibrate.store import (
    OnProgress,
    cache_folder,
    cached_profile,
    check_threads,
    kept_path,
    named_profile,
    peek_profile,
)
from flexinfer.estimator import HardwareProfile

__all__ = [
    "OnProgress",
    "cache_folder",
    "cached_profile",
    "check_products",
    "check_threads",
    "doctor_report",
    "doctor_text",
    "kept_path",
    "named_profile",
    "peek_profile",
    "quick_profile",
]


def quick_profile(threads: int, on_progress: OnProgress | None = None) -> HardwareProfile:
    """Measures this machine with so many CPU threads in about 10 seconds; see `flexinfer.calibrate.quick`."""
    from flexinfer.calibrate.quick import quick_profile as measure

    return measure(threads, on_progress)


def check_products(dtype_name: str, device: str = "cpu") -> None:
    """Raises EngineError when matrix products of this dtype come out wrong; see `flexinfer.calibrate.selfcheck`."""
    from flexinfer.calibrate.selfcheck import check_products as check

    check(dtype_name, device)


def doctor_report() -> dict[str, dict[str, Any]]:
    """What was detected, what really runs, what is missing; see `flexinfer.calibrate.doctor`."""
    from flexinfer.calibrate.doctor import doctor_report as report

    return report()


def doctor_text(report: dict[str, dict[str, Any]]) -> str:
    """The report as text for people."""
    from flexinfer.calibrate.doctor import doctor_text as text

    return text(report)
