"""The engine: one model on one machine. Allocates what a plan lists, runs prefill, the switch and decode, and measures.

The engine knows no strategy: it follows the placements of the plan it is given.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from flexinfer.cache import KvLayer, kv_layer
from flexinfer.engine.bind import Parts, Sample, bind
from flexinfer.engine.carry import HeldKv, carry_kv
from flexinfer.engine.devices import DeviceConfig, ThreadBudget, make_machine
from flexinfer.engine.memory import Memory
from flexinfer.engine.residents import kv_move, resident_loads, run_all
from flexinfer.engine.step import StepParams, TokenFeed, prefill_params
from flexinfer.errors import UserError
from flexinfer.host import available_threads, rss_peak_bytes
from flexinfer.machine.base import BoundOp, Machine, Player
from flexinfer.models.opset import CpuOps, OpSet, TorchOps
from flexinfer.plan import Home, Phase, Plan, Times
from flexinfer.schedule.buffers import Buffer, kv_layer_bytes, kv_moves, phase_buffers
from flexinfer.schedule.build import build
from flexinfer.schedule.trace import chrome_events
from flexinfer.spec.model_spec import ModelSpec
from flexinfer.spec.workload import Workload
from flexinfer.weights import WeightStore

OnTokens = Callable[[int, list[int]], Sequence[bool]]
"""(step, the new token of each sequence) -> which sequences are finished."""


@dataclass(frozen=True)
class RunResult:
    """What one generation measured. `steps` counts tokens a sequence."""

    times: Times
    steps: int


class Engine:
    """One model's weights on one machine, for one generation at a time.

    Raises UserError for a device that is not there, DoesNotFitError when a buffer does not fit, EngineError when an
    op fails. After an exception everything the generation held is released and the engine can be used again.
    """

    def __init__(
        self,
        spec: ModelSpec,
        store: WeightStore,
        config: DeviceConfig,
        threads: int | None = None,
        machine: Machine | None = None,
    ) -> None:
        self.spec, self.store, self.config = spec, store, config
        self.threads = ThreadBudget.split(threads or available_threads(), config.device)
        self.machine = machine or make_machine(config, self.threads)
        self.memory = Memory(self.machine)
        self.held: HeldKv | None = None
        self._cached_ids: list[list[int]] = []
        self._whole = True
        """False while buffers and lanes are in the middle of something."""
        # An engine that nobody closed still ends its threads when it goes
        weakref.finalize(self, self.machine.close).atexit = False
        self._ops: Mapping[Home, OpSet] = {"cpu": CpuOps(threads=self.threads.cpu), "gpu": TorchOps()}

    # -- memory ---------------------------------------------------------------------------------------------------

    def prepare(self, plan: Plan, workload: Workload) -> None:
        """Loads residents and allocates the buffers of the prefill phase. No part of a generation's time.

        workload.cached_tokens: so many leading tokens are taken from the KV that the last generation left (`held`).
        """
        if not self._whole:  # an earlier end was broken off as well, by a second Ctrl-C
            self._abandon()
        self._whole = False
        try:
            self._prepare(plan, workload)
        except BaseException:
            self._abandon()
            raise
        self._whole = True

    def _prepare(self, plan: Plan, workload: Workload) -> None:
        buffers = phase_buffers(self.spec, plan.prefill, "prefill", workload)
        held, self.held = self.held, None
        self._cached_ids = [[] for _ in range(workload.batch)]
        if workload.cached_tokens:
            if held is None or not held.covers(workload):
                raise UserError("cached_tokens: no earlier generation of this batch left its KV in the cache")
            self._cached_ids = [list(tokens[: workload.cached_tokens]) for tokens in held.tokens]
            self.memory.keep_only([*buffers, *held.buffers(self.spec)])
            carry_kv(held, plan.prefill, workload, self.spec, self.memory, self.machine)
        self.memory.keep_only(buffers)
        for arena in self.machine.arenas.values():
            if arena is not None:
                arena.reset_peak()
        with _unthrottled(self.machine):
            run_all(self._allocate(buffers, workload), self.machine)
        self.machine.traffic.clear()
        self.machine.spans.clear()

    def _allocate(self, buffers: Sequence[Buffer], workload: Workload) -> list[BoundOp]:
        """Allocates what is missing, zeroes new KV, and returns the loads of new residents."""
        new = self.memory.allocate(buffers)
        for buffer in new:
            if buffer.kind in ("kv", "staging") and buffer.name.startswith("kv"):
                # Rows that nothing wrote are zero: masked attention multiplies them by zero, and they must be finite
                self.machine.zero(self.memory.tensor(buffer.device, buffer.name))
        return list(resident_loads(new, self.spec, self.store, self.memory, self.machine))

    def _kv(self, device: Home, name: str, workload: Workload) -> KvLayer:
        shape = (workload.batch, self.spec.num_kv_heads, workload.kv_capacity, self.spec.head_dim)
        return kv_layer(self.memory.tensor(device, name), shape, getattr(torch, self.spec.weight_dtype))

    # -- generation -----------------------------------------------------------------------------------------------

    def generate(
        self, plan: Plan, workload: Workload, prompts: Sequence[Sequence[int]], pick: Sample, on_tokens: OnTokens
    ) -> RunResult:
        """Prefill, the switch and decode, after `prepare` with the same plan and workload.

        prompts: new token ids, uneven, at least one each; the longest has workload.prompt_len. pick gets float32 logits
        [B, V] and the step, on_tokens what it picked. Ends when all sequences are finished or new_tokens are made.
        """
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads.cpu)
        self._whole = False
        try:
            with torch.no_grad():
                result = _Generation(self, plan, workload, pick, on_tokens).run(prompts)
            self._whole = True
            return result
        except BaseException:
            self._abandon()
            raise
        finally:
            torch.set_num_threads(before)

    def _abandon(self) -> None:
        self.held = None
        self.machine.abort()
        self.memory.clear()
        self._whole = True

    # -- the rest -------------------------------------------------------------------------------------------------

    def trace_events(self) -> list[dict[str, Any]]:
        """Chrome events of the last generation; empty unless the engine was made with tracing."""
        return chrome_events(self.machine.spans)

    def close(self) -> None:
        """Ends the engines' threads and frees what the engine holds; the weights are the store's."""
        self.memory.clear()
        self.machine.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class _Generation:
    """One call of generate."""

    def __init__(self, engine: Engine, plan: Plan, workload: Workload, pick: Sample, on_tokens: OnTokens) -> None:
        self.engine, self.plan, self.workload = engine, plan, workload
        self.pick, self.on_tokens = pick, on_tokens
        self.feed = TokenFeed()
        self.machine = engine.machine

    def run(self, prompts: Sequence[Sequence[int]]) -> RunResult:
        start = time.perf_counter()
        self.feed.tokens = [list(prompt) for prompt in prompts]
        self.fed = [[*cached, *prompt] for cached, prompt in zip(self.engine._cached_ids, prompts, strict=True)]
        params = prefill_params(prompts, [self.workload.cached_tokens] * len(prompts))
        self._prefill(params)
        ttft_s = time.perf_counter() - start
        steps, switch_s = 1, 0.0
        if not self._finished(0) and self.workload.decode_steps:
            switch_s = self._switch(params)
            steps += self._decode(params)
        self.machine.drain()
        e2e_s = time.perf_counter() - start
        phase_plan = self.plan.prefill if steps == 1 else self.plan.decode
        homes = tuple(placement.kv for placement in phase_plan.layers)
        self.engine.held = HeldKv(self.workload, homes, tuple(tuple(row) for row in self.fed))
        return RunResult(self._times(ttft_s, switch_s, e2e_s, steps), steps)

    def _prefill(self, params: StepParams) -> None:
        """One step. Its bound ops hold buffers, and go before the switch releases those."""
        self._player("prefill").step(params, None)

    def _finished(self, step: int) -> bool:
        return all(self.on_tokens(step, [row[0] for row in self.feed.tokens]))

    def _player(self, phase: Phase) -> Player:
        phase_plan = self.plan.prefill if phase == "prefill" else self.plan.decode
        engine = self.engine
        parts = Parts(
            engine.spec,
            engine.store,
            engine.machine,
            engine.memory,
            engine._ops,
            self.feed,
            self.pick,
            phase_plan.head_slices,
        )
        return Player(self.machine, bind(build(phase_plan, phase, self.workload), parts))

    def _decode(self, params: StepParams) -> int:
        """Steps until everything is finished; returns how many."""
        player = self._player("decode")
        params = params.following()
        player.start(params)
        for step in range(1, self.workload.new_tokens):
            for fed, row in zip(self.fed, self.feed.tokens, strict=True):
                fed += row
            following = params.following() if step < self.workload.decode_steps else None
            player.step(params, following)
            if self._finished(step):
                return step
            if following is not None:
                params = following
        return self.workload.decode_steps

    def _switch(self, params: StepParams) -> float:
        """Moves what decode wants elsewhere, in the order that schedule.buffers.peak_bytes counts with.

        What only prefill needs goes first, then KV leaves the GPU, then KV moves onto it, then the rest is allocated.
        """
        start = time.perf_counter()
        self.machine.drain()
        engine, workload = self.engine, self.workload
        wanted = phase_buffers(engine.spec, self.plan.decode, "decode", workload)
        moves = kv_moves(self.plan)
        nbytes = kv_layer_bytes(engine.spec, workload)
        engine.memory.keep_only([*wanted, *(Buffer(f"kv.{layer}", home, "kv", nbytes) for layer, home, _ in moves)])
        for target in ("cpu", "gpu"):
            self._move_kv([move for move in moves if move[2] == target], wanted, params)
        run_all(engine._allocate(wanted, workload), self.machine)
        return time.perf_counter() - start

    def _move_kv(self, moves: Sequence[tuple[int, Home, Home]], wanted: Sequence[Buffer], params: StepParams) -> None:
        engine = self.engine
        for layer, source, target in moves:
            name = f"kv.{layer}"
            engine._allocate([b for b in wanted if b.name == name], self.workload)
            pair = [engine._kv(device, name, self.workload) for device in (target, source)]
            run_all([kv_move(layer, target, pair[0], pair[1], params.end, self.machine)], self.machine)
            engine.memory.release((source, name))

    def _times(self, ttft_s: float, switch_s: float, e2e_s: float, steps: int) -> Times:
        machine = self.machine
        peak = {device: 0 if arena is None else arena.peak_bytes for device, arena in machine.arenas.items()}
        tpot_s = (e2e_s - ttft_s - switch_s) / (steps - 1) if steps > 1 else None
        return Times(
            ttft_s, tpot_s, e2e_s, switch_s, machine.traffic["h2d"], machine.traffic["d2h"], peak["gpu"], peak["cpu"],
            rss_peak_bytes(),
        )  # fmt: skip


class _unthrottled:
    """Residents load at the speed of memory on the emulated machine: loading is not what it emulates."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def __enter__(self) -> None:
        if hasattr(self._machine, "throttled"):
            self._machine.throttled = False

    def __exit__(self, *exc: object) -> None:
        if hasattr(self._machine, "throttled"):
            self._machine.throttled = True
