"""Binds each op of a schedule to its work: tensors of the plan's buffers, a family's functions, a device's op set.

Everything that does not change from step to step is looked up here once; what runs in a step is a closure.

Legend: B batch, S new tokens, T KV capacity, N query heads, K kv heads, H head_dim, D hidden size, E embedding size,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

import torch

from flexinfer.cache import Group, KvLayer, kv_layer, typed_view
from flexinfer.engine.attention import AttentionBlock, Exchange, sequence_groups
from flexinfer.engine.memory import Memory
from flexinfer.engine.step import StepInputs, StepParams, TokenFeed, fill_inputs
from flexinfer.machine.base import BoundOp, BoundSchedule, Machine, Run
from flexinfer.models import family_of
from flexinfer.models.opset import OpSet
from flexinfer.plan import Home
from flexinfer.schedule.buffers import aligned, head_slice
from flexinfer.schedule.inputs import input_fields
from flexinfer.schedule.ops import Op, Schedule
from flexinfer.spec.model_spec import Block, ModelSpec
from flexinfer.weights import WeightStore

Weights = Mapping[str, torch.Tensor]
Sample = Callable[[torch.Tensor, int], list[int]]
"""(logits [B, V] float32 on the CPU, step) -> the next token of each sequence."""


@dataclass(frozen=True)
class Parts:
    """What binding needs besides the schedule: one object, since every op's binder takes from it."""

    spec: ModelSpec
    store: WeightStore
    machine: Machine
    memory: Memory
    ops: Mapping[Home, OpSet]
    feed: TokenFeed
    sample: Sample
    head_slices: int


def bind(schedule: Schedule, parts: Parts) -> BoundSchedule:
    """Every op with its work."""
    binder = _Binder(schedule, parts)
    return BoundSchedule(
        schedule,
        tuple(BoundOp(op, binder.bind(op)) for op in schedule.prologue),
        tuple(BoundOp(op, binder.bind(op)) for op in schedule.body),
    )


def weight_views(
    buffer: torch.Tensor, spec: ModelSpec, block: Block, names: frozenset[str] | None = None
) -> dict[str, torch.Tensor]:
    """A block's tensors laid out in one uint8 buffer in the table's order, each aligned; `names` keeps some only."""
    dtype = getattr(torch, spec.weight_dtype)
    views, offset = {}, 0
    for tensor in spec.block_tensors(block):
        if names is not None and tensor.name not in names:
            continue
        views[tensor.name] = typed_view(buffer, offset, tensor.shape, dtype)
        offset += aligned(tensor.numel * spec.dtype_bytes)
    return views


def resident_views(memory: Memory, spec: ModelSpec, name: str) -> dict[str, torch.Tensor]:
    """The GPU's copy of weights.L.block, weights.head, weights.head_norm or weights.embed."""
    buffer = memory.tensor("gpu", name)
    block = cast(Block, name.rsplit(".", 1)[1].removesuffix("_norm"))
    names = None
    if name == "weights.head_norm":
        names = frozenset(t.name for t in spec.block_tensors("head")) - {"out.weight"}
    if name == "weights.embed" and spec.tied_head and ("gpu", "weights.head") in memory:
        rest = frozenset(t.name for t in spec.block_tensors("embed")) - {"tokens.weight"}
        head = resident_views(memory, spec, "weights.head")
        return {**weight_views(buffer, spec, "embed", rest), "tokens.weight": head["out.weight"]}
    return weight_views(buffer, spec, block, names)


class _Binder:
    """One phase's binder: `bind` finds the method named after the op's kind."""

    def __init__(self, schedule: Schedule, parts: Parts) -> None:
        self.p = parts
        self.workload = schedule.workload
        self.phase = schedule.phase
        self.new = schedule.workload.prompt_len if schedule.phase == "prefill" else 1
        self.dtype = getattr(torch, parts.spec.weight_dtype)
        self.family = family_of(parts.spec)
        self.fields = input_fields(parts.spec, schedule.phase, schedule.workload)
        self.inputs = {d: StepInputs(parts.memory.tensor(d, "inputs"), self.fields) for d in self._devices("inputs")}

    def _devices(self, name: str) -> list[Home]:
        homes: tuple[Home, Home] = ("cpu", "gpu")
        return [home for home in homes if (home, name) in self.p.memory]

    def bind(self, op: Op) -> Run:
        return cast(Run, getattr(self, f"_{op.kind}")(op))

    # -- tensors --------------------------------------------------------------------------------------------------

    def tensor(self, device: Home, name: str, *shape: int) -> torch.Tensor:
        return typed_view(self.p.memory.tensor(device, name), 0, shape, self.dtype)

    def hidden(self, device: Home) -> torch.Tensor:
        return self.tensor(device, "hidden", self.workload.batch, self.new, self.p.spec.hidden_size)

    def last(self, device: Home) -> torch.Tensor:
        return self.tensor(device, "last", self.workload.batch, self.p.spec.hidden_size)

    def logits(self, device: Home) -> torch.Tensor:
        return self.tensor(device, "logits", self.workload.batch, self.p.spec.vocab_size)

    def kv(self, device: Home, name: str) -> KvLayer:
        shape = (self.workload.batch, self.p.spec.num_kv_heads, self.workload.kv_capacity, self.p.spec.head_dim)
        return kv_layer(self.p.memory.tensor(device, name), shape, self.dtype)

    def weights(self, op: Op) -> Weights:
        """The weights that a compute op uses: the store's, a resident copy's, or a staging slot's."""
        block = cast(Block, op.block)
        if op.engine == "cpu":
            return self.p.store.block(op.layer, block)
        if op.slot is not None:
            return weight_views(self.p.memory.tensor("gpu", f"stage.{op.slot}"), self.p.spec, block)
        name = f"weights.{block}" if op.layer is None else f"weights.{op.layer}.{block}"
        return resident_views(self.p.memory, self.p.spec, name)

    @staticmethod
    def device(op: Op) -> Home:
        return "cpu" if op.engine == "cpu" else "gpu"

    # -- host ops -------------------------------------------------------------------------------------------------

    def _fill(self, op: Op) -> Run:
        spec, inputs, capacity, feed = self.p.spec, self.inputs["cpu"], self.workload.kv_capacity, self.p.feed

        def run(params: StepParams) -> int:
            fill_inputs(inputs, spec, capacity, params, feed)
            return 0

        return run

    def _sample(self, op: Op) -> Run:
        logits_BV, feed, sample = self.logits("cpu"), self.p.feed, self.p.sample

        def run(params: StepParams) -> int:
            feed.tokens = [[token] for token in sample(logits_BV.float(), params.step)]
            return 0

        return run

    # -- link ops -------------------------------------------------------------------------------------------------

    def _transfer(self, *pairs: tuple[torch.Tensor, torch.Tensor]) -> Run:
        machine = self.p.machine

        def run(params: StepParams) -> int:
            return sum(machine.transfer(target, source) for target, source in pairs)

        return run

    def _send_inputs(self, op: Op) -> Run:
        return self._transfer((self.inputs["gpu"].buffer, self.inputs["cpu"].buffer))

    def _send_between(self, op: Op, view: Callable[[Home], torch.Tensor]) -> Run:
        to_gpu = op.engine == "h2d"
        return self._transfer((view("gpu"), view("cpu")) if to_gpu else (view("cpu"), view("gpu")))

    def _send_hidden(self, op: Op) -> Run:
        return self._send_between(op, self.hidden)

    def _send_last(self, op: Op) -> Run:
        return self._send_between(op, self.last)

    def _send_logits(self, op: Op) -> Run:
        return self._send_between(op, self.logits)

    def _load_weights(self, op: Op) -> Run:
        block = cast(Block, op.block)
        source = self.p.store.block(op.layer, block)
        stage = weight_views(self.p.memory.tensor("gpu", f"stage.{op.slot}"), self.p.spec, block)
        return self._transfer(*((stage[name], source[name]) for name in stage))

    def _load_head(self, op: Op) -> Run:
        rows = self._slice_rows(op)
        source = rows.of(self.p.store.block(None, "head")["out.weight"])
        return self._transfer((self._staged_head(op, rows.count), source))

    def _load_kv(self, op: Op) -> Run:
        home, stage = self.kv("cpu", f"kv.{op.layer}"), self.kv("gpu", f"kv_stage.{op.kv_slot}")
        machine = self.p.machine

        def run(params: StepParams) -> int:
            # Up to the step's end: rows that the step will write are zero at home, and masked rows must be finite
            pairs = zip(stage.filled(params.end), home.filled(params.end), strict=True)
            return sum(machine.transfer(target, source) for target, source in pairs)

        return run

    def _store_kv(self, op: Op) -> Run:
        home, stage = self.kv("cpu", f"kv.{op.layer}"), self.kv("gpu", f"kv_stage.{op.kv_slot}")
        machine = self.p.machine

        def run(params: StepParams) -> int:
            total = 0
            for group, first in params.row_groups():
                new = [kv.span(first, first + params.new).of(group) for kv in (home, stage)]
                total += sum(machine.transfer(target, source) for target, source in zip(*new, strict=True))
            return total

        return run

    def _exchange(self, device: Home) -> Exchange:
        spec, batch = self.p.spec, self.workload.batch
        query, key = (
            (batch, spec.num_heads, self.new, spec.head_dim),
            (batch, spec.num_kv_heads, self.new, spec.head_dim),
        )
        return Exchange(
            self.tensor(device, "q", *query),
            self.tensor(device, "k", *key),
            self.tensor(device, "v", *key),
            self.tensor(device, "context", *query),
        )

    def _send_qkv(self, op: Op) -> Run:
        gpu, cpu = self._exchange("gpu"), self._exchange("cpu")
        return self._transfer((cpu.q_BNSH, gpu.q_BNSH), (cpu.k_BKSH, gpu.k_BKSH), (cpu.v_BKSH, gpu.v_BKSH))

    def _send_context(self, op: Op) -> Run:
        return self._transfer((self._exchange("gpu").context_BNSH, self._exchange("cpu").context_BNSH))

    # -- blocks ---------------------------------------------------------------------------------------------------

    def _embed(self, op: Op) -> Run:
        device = self.device(op)
        weights, inputs, hidden_BSD = self.weights(op), self.inputs[device], self.hidden(device)
        spec, ops, family, machine = self.p.spec, self.p.ops[device], self.family, self.p.machine

        def run(params: StepParams) -> int:
            for group in sequence_groups(*inputs["tokens"].shape):
                tokens_BS, positions_BS = group.of(inputs["tokens"]), group.of(inputs["positions"])
                machine.copy(group.of(hidden_BSD), family.embed(weights, tokens_BS, positions_BS, spec, ops))
            return 0

        return run

    def _attention_block(self, op: Op) -> AttentionBlock:
        device = self.device(op)
        spec, ops = self.p.spec, self.p.ops[device]
        layer = cast(int, op.layer)
        return AttentionBlock(
            spec, self.family, ops, self.p.machine, self.inputs[device], device, spec.windows[layer], self.reads_cache
        )

    @property
    def reads_cache(self) -> bool:
        return self.phase == "decode" or self.workload.cached_tokens > 0

    def _attention(self, op: Op) -> Run:
        device = self.device(op)
        name = f"kv.{op.layer}" if op.kv_slot is None else f"kv_stage.{op.kv_slot}"
        block, weights, hidden_BSD, kv = (
            self._attention_block(op),
            self.weights(op),
            self.hidden(device),
            self.kv(device, name),
        )

        def run(params: StepParams) -> int:
            block.whole(weights, hidden_BSD, kv, params)
            return 0

        return run

    def _qkv(self, op: Op) -> Run:
        block, weights, hidden_BSD, exchange = (
            self._attention_block(op),
            self.weights(op),
            self.hidden("gpu"),
            self._exchange("gpu"),
        )

        def run(params: StepParams) -> int:
            block.project(weights, hidden_BSD, exchange)
            return 0

        return run

    def _attend(self, op: Op) -> Run:
        block, kv, exchange = self._attention_block(op), self.kv("cpu", f"kv.{op.layer}"), self._exchange("cpu")

        def run(params: StepParams) -> int:
            block.attend_exchange(exchange, kv, params)
            return 0

        return run

    def _attention_out(self, op: Op) -> Run:
        block, weights, hidden_BSD, exchange = (
            self._attention_block(op),
            self.weights(op),
            self.hidden("gpu"),
            self._exchange("gpu"),
        )

        def run(params: StepParams) -> int:
            block.finish(weights, hidden_BSD, exchange)
            return 0

        return run

    def _mlp(self, op: Op) -> Run:
        device = self.device(op)
        weights, hidden_BSD = self.weights(op), self.hidden(device)
        spec, ops, family = self.p.spec, self.p.ops[device], self.family

        def run(params: StepParams) -> int:
            family.mlp(weights, hidden_BSD, spec, ops)  # in place
            return 0

        return run

    # -- head -----------------------------------------------------------------------------------------------------

    def _last(self, op: Op) -> Run:
        device = self.device(op)
        flat = self.hidden(device).view(-1, self.p.spec.hidden_size)
        last_BD, inputs, machine = self.last(device), self.inputs[device], self.p.machine

        def run(params: StepParams) -> int:
            machine.copy(last_BD, flat.index_select(0, inputs["last"]))
            return 0

        return run

    def _head(self, op: Op) -> Run:
        device = self.device(op)
        weights, last_BD, logits_BV = self.weights(op), self.last(device), self.logits(device)
        spec, ops, family, machine = self.p.spec, self.p.ops[device], self.family, self.p.machine

        def run(params: StepParams) -> int:
            head_input_BE = family.head_input(weights, last_BD, spec, ops)
            machine.copy(logits_BV, family.head_logits(weights["out.weight"], head_input_BE, ops))
            return 0

        return run

    def _head_input(self, op: Op) -> Run:
        weights = resident_views(self.p.memory, self.p.spec, "weights.head_norm")
        last_BD, target_BE = self.last("gpu"), self._head_input_buffer()
        spec, ops, family, machine = self.p.spec, self.p.ops["gpu"], self.family, self.p.machine

        def run(params: StepParams) -> int:
            machine.copy(target_BE, family.head_input(weights, last_BD, spec, ops))
            return 0

        return run

    def _head_slice(self, op: Op) -> Run:
        rows = self._slice_rows(op)
        target = self.logits("gpu").narrow(1, rows.first, rows.count)
        stage, source_BE = self._staged_head(op, rows.count), self._head_input_buffer()
        ops, family, machine = self.p.ops["gpu"], self.family, self.p.machine

        def run(params: StepParams) -> int:
            machine.copy(target, family.head_logits(stage, source_BE, ops))
            return 0

        return run

    def _head_input_buffer(self) -> torch.Tensor:
        return self.tensor("gpu", "head_input", self.workload.batch, self.p.spec.embedding_size)

    def _slice_rows(self, op: Op) -> Group:
        return Group(*head_slice(self.p.spec, self.p.head_slices, op.part or 0))

    def _staged_head(self, op: Op, rows: int) -> torch.Tensor:
        return self.tensor("gpu", f"stage.{op.slot}", rows, self.p.spec.embedding_size)
