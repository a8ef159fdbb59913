"""The space of plans: for a pair of strategies, every way to share out GPU memory, priced and checked for size.

Prices of phases are kept: pairs share most of them, and a search asks for each a few times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

from flexinfer.estimator import HardwareProfile
from flexinfer.estimator.closed_form import phase_estimate, switch_seconds
from flexinfer.estimator.layers import PassCosts
from flexinfer.plan import Home, Phase, PhaseEstimate, PhasePlan, Plan
from flexinfer.planner.memory import PhaseMemory
from flexinfer.planner.strategies import STRATEGIES, HeadChoice, Layout, Strategy
from flexinfer.spec.model_spec import ModelSpec
from flexinfer.spec.workload import Workload

COARSE = 8
"""Intervals of the first grid over M; the best point's surroundings are then halved down to single layers."""

Pair = tuple[Strategy, Strategy]


@dataclass(frozen=True)
class Variant:
    """What is decided beside M. keep_kv: offload's decode keeps as much KV on the GPU as fits, or none."""

    pair: Pair
    head: HeadChoice
    prefill_attend: Home
    decode_attend: Home
    keep_kv: bool


@dataclass(frozen=True)
class Option:
    """One point of the space, priced."""

    variant: Variant
    prefill_layout: Layout
    decode_layout: Layout
    e2e_s: float


class Space:
    """Plans for one model, workload, machine and pair of memory limits."""

    def __init__(self, spec: ModelSpec, workload: Workload, profile: HardwareProfile, limits: dict[Home, int]) -> None:
        self.spec, self.workload, self.limits = spec, workload, limits
        self.costs = PassCosts(spec, workload, profile)
        self.memory = PhaseMemory(spec, workload)
        self.phase_plan = lru_cache(maxsize=None)(self._phase_plan)
        self.phase_time = lru_cache(maxsize=None)(self._phase_time)

    # -- what is cached ----------------------------------------------------------------------------------------------

    def _phase_plan(self, strategy: Strategy, layout: Layout) -> PhasePlan:
        return STRATEGIES[strategy](self.spec, layout)

    def _phase_time(self, strategy: Strategy, phase: Phase, layout: Layout) -> PhaseEstimate:
        return phase_estimate(self.costs, self.phase_plan(strategy, layout), phase)

    # -- from choices to plans ---------------------------------------------------------------------------------------

    def plan(self, variant: Variant, prefill: Layout, decode: Layout) -> Plan:
        first, second = variant.pair
        return Plan(self.phase_plan(first, prefill), self.phase_plan(second, decode))

    def layouts(self, variant: Variant, resident: int) -> tuple[Layout, Layout]:
        """(prefill, decode) with M residents. Offload's prefill homes KV where decode wants it."""
        first, second = variant.pair
        gpu_kv = {"cpu": 0, "split": resident, "gpu": self.spec.num_layers}.get(second)
        if gpu_kv is None:
            gpu_kv = self._most_kv(variant, resident) if variant.keep_kv else 0
        return (
            Layout(resident, gpu_kv if first == "offload" else 0, variant.prefill_attend, variant.head),
            Layout(resident, gpu_kv if second == "offload" else 0, variant.decode_attend, variant.head),
        )

    def _most_kv(self, variant: Variant, resident: int) -> int:
        """Layers whose KV fits on the GPU beside everything else, in both phases that offload it."""
        count = self.spec.num_layers
        return min(
            (
                self._most_kv_in(strategy, phase, Layout(resident, count, attend, variant.head))
                for strategy, phase, attend in self._phases(variant)
                if strategy == "offload"
            ),
            default=0,
        )

    def _most_kv_in(self, strategy: Strategy, phase: Phase, all_there: Layout) -> int:
        if self.memory.bytes(strategy, phase, all_there)[0] <= self.limits["gpu"]:
            return all_there.gpu_kv
        none_there = Layout(all_there.resident, 0, all_there.attend, all_there.head)
        free = self.limits["gpu"] - self.memory.bytes(strategy, phase, none_there)[0]
        return max(0, min(free // self.memory.kv_bytes, all_there.gpu_kv - 1))

    @staticmethod
    def _phases(variant: Variant) -> tuple[tuple[Strategy, Phase, Home], tuple[Strategy, Phase, Home]]:
        return (
            (variant.pair[0], "prefill", variant.prefill_attend),
            (variant.pair[1], "decode", variant.decode_attend),
        )

    # -- what fits ---------------------------------------------------------------------------------------------------

    def needs(self, variant: Variant, resident: int) -> dict[Home, int]:
        """Peak bytes of both devices, by the arithmetic of PhaseMemory."""
        phases = zip(self._phases(variant), self.layouts(variant, resident), strict=True)
        pairs = [self.memory.bytes(strategy, phase, layout) for (strategy, phase, _), layout in phases]
        return {"gpu": max(gpu for gpu, _ in pairs), "cpu": max(cpu for _, cpu in pairs)}

    def excess_bytes(self, variant: Variant, resident: int) -> int:
        """What is missing on both devices together; 0 when the plan fits."""
        needs = self.needs(variant, resident)
        return sum(max(0, needs[device] - limit) for device, limit in self.limits.items())

    def fits(self, variant: Variant, resident: int) -> bool:
        return self.excess_bytes(variant, resident) == 0

    def feasible(self, variant: Variant, counts: Sequence[int]) -> Sequence[int]:
        """The M among ascending `counts` that fit.

        GPU bytes grow with M, but for the last step where nothing streams any more; CPU bytes have one valley, so
        that all between two that fit do too.
        """
        limit = self.limits["gpu"]
        low, high = 0, len(counts) - 1
        while low < high:
            middle = (low + high) // 2
            fits = self.needs(variant, counts[middle])["gpu"] <= limit
            low, high = (middle + 1, high) if fits else (low, middle)
        ends = [*counts[:low], *(m for m in counts[-1:] if self.needs(variant, m)["gpu"] <= limit)]
        if ends and all(self.fits(variant, m) for m in (ends[0], ends[-1])):
            return ends
        return [m for m in ends if self.fits(variant, m)]

    def resident_counts(self, pair: Pair, asked: int | None) -> Sequence[int]:
        """The M that a pair may have: the one asked for, else what gives each strategy its meaning."""
        count = self.spec.num_layers
        if pair == ("cpu", "cpu"):
            return [0] if not asked else []
        if asked is not None:
            return [asked] if "gpu" not in pair or asked == count else []
        if "gpu" in pair:
            return [count]
        return range(1 if "split" in pair else 0, count + 1)

    def variants(self, pair: Pair) -> list[Variant]:
        """Every choice beside M that makes a difference for the pair, the plainest first."""
        first, second = pair
        heads: tuple[HeadChoice, ...] = ("cpu",)
        if pair != ("cpu", "cpu"):
            heads = ("resident", "streamed", "cpu") if "offload" in pair else ("resident", "cpu")
        homes: tuple[Home, ...] = ("gpu", "cpu")
        # without cached tokens, KV that streams in prefill sends its new rows home and nothing else: never slower
        prefill_homes = homes if first == "offload" and self.workload.cached_tokens else homes[:1]
        decode_homes = homes if second == "offload" else homes[:1]
        keep = (True, False) if second == "offload" else (True,)
        return [Variant(pair, *choice) for choice in product(heads, prefill_homes, decode_homes, keep)]

    def fallbacks(self, pair: Pair) -> list[Variant]:
        """Variants for when none of those fits: without the KV staging buffers of prefill."""
        if pair[0] != "offload" or self.workload.cached_tokens:
            return []
        return [replace(variant, prefill_attend="cpu") for variant in self.variants(pair)]

    def all_variants(self, pair: Pair) -> list[Variant]:
        return [*self.variants(pair), *self.fallbacks(pair)]

    # -- the best of a variant ---------------------------------------------------------------------------------------

    def best(self, variant: Variant, counts: Sequence[int]) -> Option | None:
        """The fastest M among `counts` that fit; None if none does. Of equal ones the smallest."""
        feasible = self.feasible(variant, counts)
        if not feasible:
            return None
        points = {round(i * (len(feasible) - 1) / COARSE) for i in range(COARSE + 1)}
        options = {i: self.option(variant, feasible[i]) for i in sorted(points)}
        step = max(1, (len(feasible) - 1) // COARSE)
        while step >= 1:
            best = min(options, key=lambda i: (options[i].e2e_s, i))
            for i in (best - step, best + step):
                if 0 <= i < len(feasible) and i not in options:
                    options[i] = self.option(variant, feasible[i])
            step //= 2
        return min(options.values(), key=lambda o: (o.e2e_s, o.decode_layout.resident))

    def option(self, variant: Variant, resident: int) -> Option:
        prefill, decode = self.layouts(variant, resident)
        first, second = variant.pair
        e2e_s = (
            self.phase_time(first, "prefill", prefill).time_s
            + switch_seconds(self.costs, self.plan(variant, prefill, decode))
            + self.phase_time(second, "decode", decode).time_s
        )
        return Option(variant, prefill, decode, e2e_s)
