"""The times of one layer in one pass under a placement: its compute, its loads, and what it sends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from flexinfer.estimator.blocks import AttentionCosts, Rows, attention_costs, embed_costs, head_costs, mlp_costs
from flexinfer.estimator.costs import Cost, DeviceCosts, LinkCosts
from flexinfer.estimator.pipeline import LayerTimes
from flexinfer.estimator.profile import HardwareProfile
from flexinfer.estimator.tally import ENGINE, Tally
from flexinfer.estimator.traffic import exchange_traffic, hidden_bytes, kv_rows_bytes, streamed_bytes
from flexinfer.plan import Home, LayerPlacement, Phase, PhasePlan
from flexinfer.schedule.buffers import step_tokens
from flexinfer.spec.model_spec import Block, ModelSpec
from flexinfer.spec.workload import Workload


@dataclass(frozen=True)
class LayerKind:
    """What makes layers cost the same: placement, window, and the device that the hidden states come from.

    `like` is the first layer with this window.
    """

    placement: LayerPlacement
    like: int
    enter: Home


def layer_kinds(spec: ModelSpec, phase_plan: PhasePlan) -> Iterator[tuple[LayerKind, int]]:
    """Runs of equal consecutive layers, with their lengths."""
    first = {window: spec.windows.index(window) for window in set(spec.windows)}
    kind, count, enter = None, 0, phase_plan.embed
    for placement, window in zip(phase_plan.layers, spec.windows, strict=True):
        like = first[window]
        # strategies share one placement object among equal layers: identity spares a deep comparison
        same = kind is not None and (kind.placement is placement or kind.placement == placement)
        if kind is None or not same or kind.like != like or kind.enter != enter:
            if kind is not None:
                yield kind, count
            kind, count = LayerKind(placement, like, enter), 0
        count += 1
        enter = placement.mlp.compute
    if kind is not None:
        yield kind, count


@dataclass(frozen=True)
class Layer:
    """One layer in one pass: its times, and what it adds to each engine."""

    times: LayerTimes
    tally: Tally


class PassCosts:
    """Everything a pass's price is made of, for one model, workload and machine. Results are kept: ask again freely."""

    def __init__(self, spec: ModelSpec, workload: Workload, profile: HardwareProfile) -> None:
        self.spec, self.workload, self.profile = spec, workload, profile
        self._devices: dict[Home, DeviceCosts] = {"cpu": DeviceCosts(profile.cpu, spec.weight_dtype)}
        if profile.gpu is not None:
            self._devices["gpu"] = DeviceCosts(profile.gpu, spec.weight_dtype)
        self._link = None if profile.link is None else LinkCosts(profile.link)
        self.layer = lru_cache(maxsize=None)(self._layer)
        self.attention = lru_cache(maxsize=None)(self._attention)
        self.mlp = lru_cache(maxsize=None)(self._mlp)
        self.head = lru_cache(maxsize=None)(self._head)
        self.embed = lru_cache(maxsize=None)(self._embed)

    def device(self, home: Home) -> DeviceCosts:
        if home not in self._devices:
            raise ValueError(f"profile {self.profile.name} has no GPU, and the plan computes on one")
        return self._devices[home]

    @property
    def link(self) -> LinkCosts:
        if self._link is None:
            raise ValueError(f"profile {self.profile.name} has no GPU, and the plan sends things to one")
        return self._link

    def _rows(self, phase: Phase, held: int) -> Rows:
        return Rows(self.workload.batch, step_tokens(phase, self.workload), held)

    def _attention(self, home: Home, like: int, phase: Phase, held: int) -> AttentionCosts:
        return attention_costs(self.spec, self.device(home), like, self._rows(phase, held))

    def _mlp(self, home: Home, phase: Phase) -> Cost:
        return mlp_costs(self.spec, self.device(home), self._rows(phase, 0))

    def _head(self, home: Home) -> Cost:
        return head_costs(self.spec, self.device(home), self.workload.batch)

    def _embed(self, home: Home, phase: Phase) -> Cost:
        return embed_costs(self.spec, self.device(home), self._rows(phase, 0))

    def hidden_s(self, phase: Phase | None, to: Home) -> float:
        """Hidden states to a device: all new positions of a phase, or the last of each sequence."""
        tokens = 1 if phase is None else step_tokens(phase, self.workload)
        nbytes = hidden_bytes(self.spec, self.workload, tokens)
        return self.link.h2d(nbytes) if to == "gpu" else self.link.d2h(nbytes)

    def load_s(self, block: Block, nbytes: int) -> float:
        """A block crosses tensor by tensor."""
        return self.link.h2d(nbytes, len(self.spec.block_tensors(block))) if nbytes else 0.0

    def _layer(self, kind: LayerKind, phase: Phase, held: int) -> Layer:
        tally = Tally()
        times = LayerTimes(
            **_sends(self, kind, phase),
            **_compute(self, tally, kind, phase, held),
            **_loads(self, kind.placement, phase, held),
            delegated=kind.placement.delegated,
            streams_kv=kind.placement.kv_streamed,
        )
        tally.add("h2d", times.h2d_s)
        tally.add("d2h", times.d2h_s)
        return Layer(times, tally)

    def op(self, tally: Tally, home: Home, cost: Cost, calls: int = 1) -> float:
        """Seconds of one op on its device, dispatched in `calls` pieces."""
        seconds = cost.seconds + calls * self.device(home).dispatch_s
        tally.add(ENGINE[home], seconds, cost.compute_s)
        return seconds


def _compute(costs: PassCosts, tally: Tally, kind: LayerKind, phase: Phase, held: int) -> dict[str, float]:
    placement, home = kind.placement, kind.placement.attention.compute
    parts = costs.attention(home, kind.like, phase, held)
    mlp_s = costs.op(tally, placement.mlp.compute, costs.mlp(placement.mlp.compute, phase))
    if not placement.delegated:
        return {"attention_s": costs.op(tally, home, parts.whole), "mlp_s": mlp_s}
    attend = costs.attention("cpu", kind.like, phase, held).attend
    return {
        "attention_s": costs.op(tally, "gpu", parts.before),
        "attend_s": costs.op(tally, "cpu", attend),
        "output_s": costs.op(tally, "gpu", parts.after),
        "mlp_s": mlp_s,
    }


def _loads(costs: PassCosts, placement: LayerPlacement, phase: Phase, held: int) -> dict[str, float]:
    spec, workload = costs.spec, costs.workload
    times = {
        "load_attention_s": costs.load_s("attention", streamed_bytes(spec, placement.attention, "attention")),
        "load_mlp_s": costs.load_s("mlp", streamed_bytes(spec, placement.mlp, "mlp")),
    }
    new = step_tokens(phase, workload)
    if placement.kv_streamed:
        up = kv_rows_bytes(spec, workload, held + new) if held else 0
        times["load_kv_s"] = costs.link.h2d(up, 2)
        times["store_kv_s"] = costs.link.d2h(kv_rows_bytes(spec, workload, new), 2)
    if placement.delegated:
        exchange = exchange_traffic(spec, phase, workload)
        times["send_qkv_s"] = costs.link.d2h(exchange.d2h, 3)
        times["context_s"] = costs.link.h2d(exchange.h2d)
    return times


def _sends(costs: PassCosts, kind: LayerKind, phase: Phase) -> dict[str, float]:
    """Hidden states that cross before the layer and between its blocks."""
    first, second = kind.placement.attention.compute, kind.placement.mlp.compute
    times = {}
    for name, source, target in (("enter", kind.enter, first), ("between", first, second)):
        if source != target:
            times[f"{name}_{'up' if target == 'gpu' else 'down'}_s"] = costs.hidden_s(phase, target)
    return times
