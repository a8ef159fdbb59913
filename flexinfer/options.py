"""What a model is loaded with: options, then environment, then defaults, checked once. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flexinfer import settings
from flexinfer.errors import UserError
from flexinfer.host import available_threads
from flexinfer.units import parse_rate, parse_size

EMULATED_GPU_BYTES = 2 * 2**30
EMULATED_LINK_BYTES_PER_S = 8e9


class UnknownKeywordError(UserError, TypeError):
    """A keyword that a call does not take: named, instead of being dropped."""


def refuse_unknown(unknown: Mapping[str, Any], call: str, known: str) -> None:
    """Raises UnknownKeywordError when `unknown` has anything in it."""
    if unknown:
        raise UnknownKeywordError(f"{call} does not take {', '.join(sorted(unknown))}; it takes {known}")


@dataclass(frozen=True)
class LoadOptions:
    """Resolved options. None: as the profile, the device or the checkpoint has it.

    gpu_free_bytes, cpu_free_bytes: what this machine has free, which the sizes beside them do not pass; None where it
    is not looked at. given: options that the caller set explicitly; those that can have no effect are then errors.
    """

    prefill: str = "auto"
    decode: str = "auto"
    gpu_layers: int | None = None
    device: str = "auto"
    gpu_memory_bytes: int | None = None
    cpu_memory_bytes: int | None = None
    link_bytes_per_s: float | None = None
    dtype: str = "auto"
    profile: str | None = None
    threads: int = 1
    jitter_s: float = 0.0
    gpu_free_bytes: int | None = None
    cpu_free_bytes: int | None = None
    given: frozenset[str] = frozenset()

    @classmethod
    def resolve(
        cls,
        *,
        strategy: str | None = None,
        prefill: str | None = None,
        decode: str | None = None,
        gpu_layers: int | None = None,
        device: str | None = None,
        gpu_memory: int | str | None = None,
        cpu_memory: int | str | None = None,
        link_bandwidth: float | str | None = None,
        dtype: str | None = None,
        profile: str | Path | None = None,
        threads: int | None = None,
    ) -> LoadOptions:
        """Options where set (not None), else FLEXINFER_* variables, else defaults. Raises UserError."""
        settings.check_environment()
        values = {
            "gpu_layers": _parsed(settings.parse_layers, gpu_layers),
            "device": _parsed(settings.parse_device, device),
            "gpu_memory": _parsed(parse_size, gpu_memory),
            "cpu_memory": _parsed(parse_size, cpu_memory),
            "link_bandwidth": _parsed(parse_rate, link_bandwidth),
        }
        found = {name: settings.resolve(name.upper(), value) for name, value in values.items()}
        options = cls(
            prefill=_strategy("PREFILL", prefill, strategy),
            decode=_strategy("DECODE", decode, strategy),
            gpu_layers=found["gpu_layers"],
            device=found["device"] or "auto",
            gpu_memory_bytes=found["gpu_memory"],
            cpu_memory_bytes=found["cpu_memory"],
            link_bytes_per_s=found["link_bandwidth"],
            dtype=settings.resolve("DTYPE", _parsed(settings.parse_dtype, dtype), default="auto"),
            profile=settings.resolve("PROFILE", _parsed(settings.parse_path, profile)),
            threads=settings.resolve("THREADS", _parsed(settings.parse_threads, threads)) or available_threads(),
            jitter_s=settings.read("FLEXINFER_EMULATED_JITTER_S") or 0.0,
            given=frozenset(name for name, value in values.items() if value is not None),
        )
        return options if options.device == "auto" else options.on(options.device)

    def on(self, device: str) -> LoadOptions:
        """These options for a device that is known now, with the emulated machine's defaults.

        Raises UserError for an explicit option that this device cannot follow.
        """
        if "link_bandwidth" in self.given and device != "emulated":
            raise UserError(f"link_bandwidth is for the emulated device, and the device is {device}")
        if "gpu_memory" in self.given and device == "cpu":
            raise UserError("gpu_memory is set, but there is no GPU to use; --device emulated stands in for one")
        if device != "emulated":
            return replace(self, device=device, link_bytes_per_s=None)
        return replace(
            self,
            device=device,
            gpu_memory_bytes=self.gpu_memory_bytes or EMULATED_GPU_BYTES,
            link_bytes_per_s=self.link_bytes_per_s or EMULATED_LINK_BYTES_PER_S,
        )


def _parsed(parse: Any, value: Any) -> Any:
    return None if value is None else parse(value)


def _strategy(phase: str, option: str | None, both: str | None) -> str:
    """One phase's strategy: its own option, the one for both, its own variable, the one for both, auto."""
    chosen = option if option is not None else both
    if chosen is not None:
        return settings.parse_strategy(chosen)
    return settings.read(f"FLEXINFER_{phase}") or settings.read("FLEXINFER_STRATEGY") or "auto"
