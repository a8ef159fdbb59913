"""From a model, a request and a machine to the chosen plan: what `plan` prints and what a run follows. No torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flexinfer.errors import ProfileError, UserError
from flexinfer.estimator import HardwareProfile, emulated_profile, estimate
from flexinfer.options import LoadOptions
from flexinfer.plan import Candidate, PhaseEstimate, Plan, Times
from flexinfer.planner import Choice, PlanRequest, explain, plan_json, search
from flexinfer.spec import ModelSpec, Workload


class ChosenPlan:
    """The plan that the planner chose, with the fields of contract's CANDIDATE, and the ones it weighed."""

    def __init__(self, spec: ModelSpec, workload: Workload, profile: HardwareProfile, choice: Choice) -> None:
        self.spec, self.workload, self.profile, self.choice = spec, workload, profile, choice

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """Every plan that was weighed, by time, those that do not fit last."""
        return self.choice.candidates

    @property
    def plan(self) -> Plan:
        return self.choice.chosen.plan

    @property
    def predicted(self) -> Times:
        return self.choice.chosen.times

    @property
    def name(self) -> str:
        return self.choice.chosen.name

    @property
    def prefill(self) -> PhaseEstimate:
        return self.choice.chosen.prefill

    @property
    def decode(self) -> PhaseEstimate:
        return self.choice.chosen.decode

    @property
    def gpu_layers(self) -> int:
        return self.plan.gpu_layers

    @property
    def switch_s(self) -> float:
        return self.predicted.switch_s

    @property
    def ttft_s(self) -> float:
        return self.predicted.ttft_s

    @property
    def tpot_s(self) -> float | None:
        return self.predicted.tpot_s

    @property
    def e2e_s(self) -> float:
        return self.predicted.e2e_s

    @property
    def h2d_bytes(self) -> int:
        return self.predicted.h2d_bytes

    @property
    def d2h_bytes(self) -> int:
        return self.predicted.d2h_bytes

    @property
    def gpu_peak_bytes(self) -> int:
        return self.predicted.gpu_peak_bytes

    @property
    def cpu_peak_bytes(self) -> int:
        return self.predicted.cpu_peak_bytes

    @property
    def fits(self) -> bool:
        return self.choice.chosen.fits

    @property
    def why(self) -> str:
        return self.choice.chosen.why

    def predicted_for(self, new_tokens: int) -> Times:
        """The plan's times if it ends after fewer tokens; the peaks stay those of the whole, which was reserved."""
        if new_tokens == self.workload.new_tokens:
            return self.predicted
        times = estimate(self.spec, self.plan, replace(self.workload, new_tokens=new_tokens), self.profile)[2]
        whole = self.predicted
        return replace(times, gpu_peak_bytes=whole.gpu_peak_bytes, cpu_peak_bytes=whole.cpu_peak_bytes)

    def explain(self) -> str:
        """A table of the candidates and two or three sentences: what runs where, what binds, why the next one lost."""
        return explain(self.spec, self.workload, self.profile, self.choice)

    def to_json(self) -> dict[str, Any]:
        """flexinfer.plan/1."""
        return plan_json(self.spec, self.workload, self.profile, self.choice)

    def __repr__(self) -> str:
        return f"ChosenPlan({self.name}, gpu_layers={self.gpu_layers}, e2e_s={self.e2e_s:.4g})"


def choose(spec: ModelSpec, workload: Workload, profile: HardwareProfile, options: LoadOptions) -> ChosenPlan:
    """The fastest plan that fits, of those that the options allow. Raises DoesNotFitError and UserError."""
    request = PlanRequest(
        prefill=options.prefill,
        decode=options.decode,
        gpu_layers=options.gpu_layers,
        gpu_memory_bytes=options.gpu_memory_bytes,
        cpu_memory_bytes=options.cpu_memory_bytes,
        gpu_free_bytes=options.gpu_free_bytes,
        cpu_free_bytes=options.cpu_free_bytes,
    )
    return ChosenPlan(spec, workload, profile, search(spec, workload, profile, request))


def profile_on_device(profile: HardwareProfile, options: LoadOptions) -> HardwareProfile:
    """The part of a machine's profile that a device of it has: `options` are those of `LoadOptions.on(device)`.

    The CPU alone has no GPU; the emulated device has the CPU's figures and the link that is asked for; "auto" takes
    the profile as it is. Raises ProfileError for a GPU that the profile does not have.
    """
    device = options.device.partition(":")[0]
    if device == "cpu":
        return replace(profile, gpu=None, link=None)
    if device == "emulated":
        from flexinfer.engine.devices import ThreadBudget

        if options.link_bytes_per_s is None or options.gpu_memory_bytes is None:
            raise UserError("the emulated device needs a GPU memory size and a link bandwidth")
        budget = ThreadBudget.split(options.threads, device)
        return emulated_profile(profile, options.link_bytes_per_s, options.gpu_memory_bytes, budget.compute, budget.cpu)
    if device != "auto" and profile.gpu is None:
        raise ProfileError(f"profile {profile.name!r} has no GPU; calibrate on the machine that has {options.device}")
    return profile
