"""What a user asks of the planner, checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from flexinfer.errors import UserError
from flexinfer.estimator import HardwareProfile
from flexinfer.plan import Home
from flexinfer.planner.strategies import STRATEGIES, Strategy
from flexinfer.spec.model_spec import ModelSpec
from flexinfer.units import check_whole, format_size

AUTO = "auto"


@dataclass(frozen=True)
class PlanRequest:
    """Strategies of the phases, resident layers and memory limits; None and "auto" leave it to the planner.

    gpu_free_bytes, cpu_free_bytes: more than that no option gets, where it is known. Raises UserError for a strategy
    that does not exist and for negative numbers.
    """

    prefill: str = AUTO
    decode: str = AUTO
    gpu_layers: int | None = None
    gpu_memory_bytes: int | None = None
    cpu_memory_bytes: int | None = None
    gpu_free_bytes: int | None = None
    cpu_free_bytes: int | None = None

    def __post_init__(self) -> None:
        for phase, strategy in (("prefill", self.prefill), ("decode", self.decode)):
            if strategy != AUTO and strategy not in STRATEGIES:
                known = ", ".join((AUTO, *sorted(STRATEGIES)))
                raise UserError(f"{phase} strategy {strategy!r} is not known; it is one of {known}")
        for name, least in (("gpu_layers", 0), ("gpu_memory_bytes", 1), ("cpu_memory_bytes", 1)):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, check_whole(name, getattr(self, name), least))

    def pairs(self, profile: HardwareProfile) -> list[tuple[Strategy, Strategy]]:
        """The (prefill, decode) strategies to weigh. Raises UserError when the machine has no GPU for them."""
        if profile.gpu is None:
            self._refuse_gpu(profile)
            return [("cpu", "cpu")]
        pairs = [(a, b) for a in self._choices(self.prefill) for b in self._choices(self.decode)]
        if self.gpu_layers:
            # Layers that are asked for on the GPU are there to be used by a phase
            pairs = [pair for pair in pairs if pair != ("cpu", "cpu")]
        if (self.prefill, self.decode) != (AUTO, AUTO):
            return pairs
        # with all layers resident, gpu beside another strategy differs from a split of all layers in name only
        return [pair for pair in pairs if pair.count("gpu") != 1]

    def _choices(self, asked: str) -> Iterator[Strategy]:
        if asked == AUTO:
            yield from STRATEGIES
        else:
            yield cast(Strategy, asked)

    def _refuse_gpu(self, profile: HardwareProfile) -> None:
        for phase, strategy in (("prefill", self.prefill), ("decode", self.decode)):
            if strategy not in (AUTO, "cpu"):
                raise UserError(
                    f"{phase} strategy {strategy} needs a GPU, and {profile.name} has none: use cpu or auto"
                )
        if self.gpu_layers:
            raise UserError(f"gpu_layers is {self.gpu_layers}, and {profile.name} has no GPU: leave it out")

    def limits(self, profile: HardwareProfile) -> dict[Home, int]:
        """Bytes that the plan may use on each device."""
        gpu = 0 if profile.gpu is None else self.gpu_memory_bytes or profile.gpu.memory_bytes
        return {"gpu": gpu, "cpu": self.cpu_memory_bytes or profile.cpu.memory_bytes}

    def check_layers(self, spec: ModelSpec) -> None:
        """Raises UserError for a number of resident layers that the model or the strategies cannot have."""
        if self.gpu_layers is None:
            return
        if self.gpu_layers and self.prefill == self.decode == "cpu":
            raise UserError(
                f"strategy cpu leaves the GPU empty, and gpu_layers asks for {self.gpu_layers}: drop one of the two"
            )
        if self.gpu_layers > spec.num_layers:
            raise UserError(
                f"gpu_layers is {self.gpu_layers}; {spec.name} has {spec.num_layers} layers: ask for at most that"
            )
        if "gpu" in (self.prefill, self.decode) and self.gpu_layers != spec.num_layers:
            raise UserError(
                f"strategy gpu keeps all {spec.num_layers} layers on the GPU, and gpu_layers asks for "
                f"{self.gpu_layers}: drop one of the two"
            )

    def describe(self) -> str:
        """The request as options, for error messages."""
        parts = [f"prefill {self.prefill}", f"decode {self.decode}"]
        parts += [f"gpu-layers {self.gpu_layers}"] if self.gpu_layers is not None else []
        parts += [f"gpu-memory {format_size(self.gpu_memory_bytes)}"] if self.gpu_memory_bytes else []
        return ", ".join(parts)
