"""What the blocks of a model cost on one device, for the rows of one pass.

A block is one op of the executor: a few matrix products, the attention over KV, and small element-wise ops. The
products work through a batch in the same groups as the executor does, so that their rows are the real ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from flexinfer.estimator.costs import NOTHING, Cost, DeviceCosts
from flexinfer.schedule.buffers import ATTENTION_TOKENS, MLP_TOKENS
from flexinfer.spec.model_spec import Block, ModelSpec

NORM_OPS = {"rms": 6, "layer": 1}
"""Small ops in a norm: the RMS norm squares, averages, roots and scales, widened to float32; the other is one call."""
ROPE_OPS = 10
"""Rotating q and k: two products, a sum and a swap of halves each."""
COPIES = 3
"""K rows, V rows and the block's result are copied into their places."""
VIEW_OPS = 7
"""Some thirty views of heads, groups and cache rows, which cost a quarter of a call each."""


@dataclass(frozen=True)
class Rows:
    """One pass: `batch` sequences of `new` tokens each on top of `held` cached ones."""

    batch: int
    new: int
    held: int

    @property
    def total(self) -> int:
        return self.batch * self.new


@dataclass(frozen=True)
class AttentionCosts:
    """An attention block in its three parts: norm and q, k, v; attention over KV; output projection and residual."""

    before: Cost
    attend: Cost
    after: Cost

    @property
    def whole(self) -> Cost:
        return self.before + self.attend + self.after


def _matrices(spec: ModelSpec, block: Block) -> list[tuple[str, int, int]]:
    """(name, out, in) of the matrices of a block that rows are multiplied with."""
    tables = ("tokens.weight", "positions.weight")
    return [(t.name, *t.shape) for t in spec.block_tensors(block) if len(t.shape) == 2 and t.name not in tables]


def _grouped(device: DeviceCosts, matrices: list[tuple[str, int, int]], rows: int, group: int) -> Cost:
    """Every matrix once for each full group of rows and once for what is left."""
    full, rest = divmod(rows, group)
    total = NOTHING
    for _, out, into in matrices:
        if full:
            total += device.linear(group, out, into).times(full)
        if rest:
            total += device.linear(rest, out, into)
    return total


def _small_ops(spec: ModelSpec, device: DeviceCosts, rows: int, width: int, calls: int) -> Cost:
    """`calls` ops that each read and write [rows, width]."""
    return device.elementwise(2.0 * calls * rows * width * spec.dtype_bytes, calls) if calls else NOTHING


def _attend(spec: ModelSpec, device: DeviceCosts, layer: int, rows: Rows) -> Cost:
    flops = spec.attention_flops(layer, rows.new, rows.held)
    if rows.new == 1:
        kv_bytes = float(rows.batch * spec.kv_read_bytes(layer, rows.held + 1))
        return device.attention_decode(rows.batch * flops, kv_bytes, spec.num_heads / spec.num_kv_heads)
    keys = rows.held + rows.new
    nbytes = 2.0 * (rows.new * spec.q_size + keys * spec.kv_size) * spec.dtype_bytes
    return device.attention_prefill(rows.batch, flops, nbytes)


def small_calls(spec: ModelSpec) -> dict[Block, int]:
    """Element-wise calls of a block, as this module counts them: what elementwise.fixed_s is multiplied with."""
    norm = NORM_OPS[spec.norm]
    heads = 2 * (ROPE_OPS // 2 * (spec.rope is not None) + norm * spec.qk_norm)
    return {"attention": norm + heads + COPIES + VIEW_OPS + 1, "mlp": norm + 1 + (2 if spec.gated_mlp else 1)}


def attention_costs(spec: ModelSpec, device: DeviceCosts, layer: int, rows: Rows) -> AttentionCosts:
    """One attention block. `layer` chooses the window; dispatch is not in it."""
    matrices = _matrices(spec, "attention")
    sequences = min(rows.batch, max(1, ATTENTION_TOKENS // rows.new))
    group = sequences * rows.new
    projections = _grouped(device, [m for m in matrices if m[0] != "o.weight"], rows.total, group)
    output = _grouped(device, [m for m in matrices if m[0] == "o.weight"], rows.total, group)
    norm_ops = NORM_OPS[spec.norm]
    norm = _small_ops(spec, device, rows.total, spec.hidden_size, norm_ops)
    head_ops = small_calls(spec)["attention"] - norm_ops - COPIES - VIEW_OPS - 1
    # half of these are for q and half for k
    turned = _small_ops(spec, device, rows.total, (spec.q_size + spec.kv_size) // 2, head_ops)
    copied = 2.0 * rows.total * (2 * spec.kv_size + spec.hidden_size) * spec.dtype_bytes
    stored = device.elementwise(copied, COPIES + VIEW_OPS)
    residual = _small_ops(spec, device, rows.total, spec.hidden_size, 1)
    before = norm + projections + turned + stored
    return AttentionCosts(before, _attend(spec, device, layer, rows), output + residual)


def mlp_costs(spec: ModelSpec, device: DeviceCosts, rows: Rows) -> Cost:
    """One MLP: norm, matrices, activation, residual."""
    matrices = _grouped(device, _matrices(spec, "mlp"), rows.total, MLP_TOKENS)
    gates = 2 if spec.gated_mlp else 1
    around = _small_ops(spec, device, rows.total, spec.hidden_size, small_calls(spec)["mlp"] - gates)
    inside = _small_ops(spec, device, rows.total, spec.ffn_size, gates)
    return matrices + around + inside


def embed_costs(spec: ModelSpec, device: DeviceCosts, rows: Rows) -> Cost:
    """Gathering token and position rows, and the projection where the table is narrower."""
    calls = 2 if spec.learned_positions else 1
    gathered = _small_ops(spec, device, rows.total, spec.hidden_size, calls)
    return gathered + _grouped(device, _matrices(spec, "embed"), rows.total, MLP_TOKENS)


def head_costs(spec: ModelSpec, device: DeviceCosts, batch: int) -> Cost:
    """Final norm, projection and the LM head for one row a sequence."""
    norm = _small_ops(spec, device, batch, spec.hidden_size, NORM_OPS[spec.norm] if spec.final_norm else 0)
    return norm + _grouped(device, _matrices(spec, "head"), batch, MLP_TOKENS)
