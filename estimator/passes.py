"""One pass of a phase, priced: a walk over its runs of equal layers, from the step's inputs to its logits."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from flexinfer.estimator.layers import Layer, PassCosts, layer_kinds
from flexinfer.estimator.pipeline import Clock, Slots, run_layers
from flexinfer.estimator.tally import Tally
from flexinfer.estimator.traffic import logits_bytes, table_bytes
from flexinfer.plan import Phase, PhasePlan
from flexinfer.schedule.buffers import KV_STAGES
from flexinfer.schedule.inputs import input_bytes


@dataclass(frozen=True)
class Edges:
    """What a pass does before its first layer and after its last, in seconds.

    last_up_s, last_down_s: each sequence's last position on its way to a head on the other device. head_s is one
    slice's where the head streams in `slices`, and load_s that slice's load. host_s: inputs and sampling.
    """

    inputs_s: float
    embed_s: float
    last_up_s: float
    last_down_s: float
    head_s: float
    logits_s: float
    host_s: float
    slices: int = 0
    load_s: float = 0.0


def pass_edges(costs: PassCosts, phase_plan: PhasePlan, phase: Phase, tally: Tally) -> Edges:
    """The edges of every pass of a phase, added to the tally."""
    spec, workload, head = costs.spec, costs.workload, phase_plan.head
    slices = phase_plan.head_slices if head.streamed else 0
    crosses = phase_plan.layers[-1].mlp.compute != head.compute
    last_s = costs.hidden_s(None, head.compute) if crosses else 0.0
    edges = Edges(
        inputs_s=costs.link.h2d(input_bytes(spec, phase, workload)) if phase_plan.uses_gpu else 0.0,
        embed_s=costs.op(tally, phase_plan.embed, costs.embed(phase_plan.embed, phase)),
        last_up_s=last_s if head.compute == "gpu" else 0.0,
        last_down_s=last_s if head.compute == "cpu" else 0.0,
        head_s=costs.op(tally, head.compute, costs.head(head.compute), max(1, slices)) / max(1, slices),
        logits_s=costs.link.d2h(logits_bytes(spec, workload)) if head.compute == "gpu" else 0.0,
        host_s=_host_s(costs, phase),
        slices=slices,
        load_s=costs.link.h2d(table_bytes(spec) / slices) if slices else 0.0,
    )
    tally.add("h2d", edges.inputs_s + edges.last_up_s + slices * edges.load_s)
    tally.add("d2h", edges.last_down_s + edges.logits_s)
    tally.add("cpu", edges.host_s)
    return edges


def _host_s(costs: PassCosts, phase: Phase) -> float:
    """Filling the inputs and sampling: the profile's figure for one sequence, and what more bytes and rows add."""
    spec, batch = costs.spec, costs.workload.batch
    nbytes = 2.0 * (input_bytes(spec, phase, costs.workload) + 4 * batch * spec.vocab_size)
    return costs.profile.cpu.step_overhead_s + costs.device("cpu").elementwise(nbytes, batch - 1).seconds


@dataclass(frozen=True)
class PassTime:
    """first_s: a pass whose first loads start with it. steady_s: one whose first loads the pass before had issued."""

    first_s: float
    steady_s: float
    tally: Tally


class Pass:
    """One pass of a phase; `time` prices it for `held` tokens in the cache of each sequence."""

    def __init__(self, costs: PassCosts, phase_plan: PhasePlan, phase: Phase) -> None:
        self._costs, self._plan, self._phase = costs, phase_plan, phase
        self._kinds = list(layer_kinds(costs.spec, phase_plan))
        self._edge_tally = Tally()
        self._edges = pass_edges(costs, phase_plan, phase, self._edge_tally)

    def time(self, held: int) -> PassTime:
        runs = [(self._costs.layer(kind, self._phase, held), count) for kind, count in self._kinds]
        tally = Tally()
        tally.merge(self._edge_tally, 1)
        for layer, count in runs:
            tally.merge(layer.tally, count)
        loop = self._phase == "decode"
        weights = Slots(self._plan.prefetch_depth, self._loads(runs), loop)
        kv = Slots(KV_STAGES, _kv_loads(runs), loop)
        clock = Clock()
        weights.prime(clock)
        kv.prime(clock)
        first_s = steady_s = self._walk(clock, runs, weights, kv)
        if loop and (weights.loads or kv.loads):
            weights.restart()
            kv.restart()
            steady_s = self._walk(clock, runs, weights, kv)
        return PassTime(first_s, steady_s, tally)

    def _loads(self, runs: list[tuple[Layer, int]]) -> list[float]:
        """What takes the weight slots in turn: the streamed blocks in order, then the head's slices."""
        blocks = (
            [s for s in (layer.times.load_attention_s, layer.times.load_mlp_s) if s] * count for layer, count in runs
        )
        return [*chain.from_iterable(blocks), *[self._edges.load_s] * self._edges.slices]

    def _walk(self, clock: Clock, runs: list[tuple[Layer, int]], weights: Slots, kv: Slots) -> float:
        start = clock.now
        self._begin(clock)
        for layer, count in runs:
            run_layers(clock, count, layer.times, weights, kv)
        self._finish(clock, weights)
        return clock.now - start

    def _begin(self, clock: Clock) -> None:
        """Inputs go up behind the loads that were issued before them; the CPU gathers embedding rows meanwhile."""
        sent = clock.h2d(clock.now, self._edges.inputs_s) if self._plan.uses_gpu else clock.now
        if self._plan.embed == "gpu":
            clock.wait(sent)
        clock.work(self._edges.embed_s)
        if self._plan.layers[0].attention.compute == "gpu":
            clock.wait(sent)

    def _finish(self, clock: Clock, weights: Slots) -> None:
        """The last positions, the head, the logits' way to the host, and sampling."""
        edges = self._edges
        clock.send_up(edges.last_up_s)
        clock.send_down(edges.last_down_s)
        for _ in range(edges.slices):
            clock.wait(weights.ready_at())
            clock.work(edges.head_s)
            weights.release(clock, clock.now)
        if not edges.slices:
            clock.work(edges.head_s)
        clock.send_down(edges.logits_s)
        clock.work(edges.host_s)


def _kv_loads(runs: list[tuple[Layer, int]]) -> list[float]:
    return list(chain.from_iterable([r.times.load_kv_s] * count for r, count in runs if r.times.streams_kv))
