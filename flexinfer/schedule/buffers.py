"""The buffers of a phase: the one list that the planner sums and the executor allocates.

Every byte a phase holds on either device is a Buffer here: weights, KV, staging, activations, step inputs, logits
and the largest op's workspace. Peaks are sums over this list, so a plan's figure and the arena's are the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from flexinfer.plan import Home, LayerPlacement, Phase, PhasePlan, Plan
from flexinfer.schedule.inputs import input_bytes, mask_windows
from flexinfer.spec.model_spec import Block, ModelSpec
from flexinfer.spec.workload import Workload

Kind = Literal["weights", "kv", "staging", "activation", "workspace"]
ALIGN = 256
KV_STAGES = 2
ATTENTION_TOKENS = 4096
"""An attention block works through a batch in groups of whole sequences of about this many tokens."""
MASKED_CELLS = 2**20
"""Torch widens a boolean mask to the queries' dtype; masked queries go in pieces of so many (query, key) cells."""
MLP_TOKENS = 2048
"""An MLP works through its tokens in groups of this many, which bounds its intermediate to 2048 x ffn_size."""


@dataclass(frozen=True)
class Buffer:
    """One allocation. `name` is unique within its device and phase; equal names in two phases are one buffer."""

    name: str
    device: Home
    kind: Kind
    nbytes: int


def aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGN) * ALIGN


def block_buffer_bytes(spec: ModelSpec, block: Block) -> int:
    """Bytes of one block's weights laid out in one buffer, each tensor aligned."""
    return sum(aligned(t.numel * spec.dtype_bytes) for t in spec.block_tensors(block))


def head_slice_rows(spec: ModelSpec, slices: int) -> int:
    """Rows of the largest slice."""
    return -(-spec.vocab_size // slices)


def head_slice(spec: ModelSpec, slices: int, part: int) -> tuple[int, int]:
    """(first row, rows) of one slice of the head. Slices differ by one row at most, whatever their number is."""
    first, end = (spec.vocab_size * i // slices for i in (part, part + 1))
    return first, end - first


def head_slices_for(spec: ModelSpec) -> int:
    """Slices of a streamed head, each no larger than the larger block's buffer."""
    room = max(block_buffer_bytes(spec, "attention"), block_buffer_bytes(spec, "mlp"))
    rows = max(1, room // (spec.embedding_size * spec.dtype_bytes) - 1)
    return math.ceil(spec.vocab_size / rows)


def kv_layer_bytes(spec: ModelSpec, workload: Workload) -> int:
    """K and V of one layer at full capacity, each aligned."""
    one = workload.batch * spec.kv_size * workload.kv_capacity * spec.dtype_bytes
    return 2 * aligned(one)


def step_tokens(phase: Phase, workload: Workload) -> int:
    """New tokens of one sequence in one step of the phase."""
    return workload.prompt_len if phase == "prefill" else 1


def embed_workspace_bytes(spec: ModelSpec, phase: Phase, workload: Workload) -> int:
    """Temporaries of one group's embedding: token rows, their projection, positions and their rows."""
    new = step_tokens(phase, workload)
    rows = _grouped_sequences(workload, new) * new
    projected = spec.hidden_size if spec.embedding_size != spec.hidden_size else 0
    positions = (spec.hidden_size * spec.dtype_bytes + 8) if spec.learned_positions else 0
    return _spare(rows * ((spec.embedding_size + projected) * spec.dtype_bytes + positions))


def _grouped_sequences(workload: Workload, new: int) -> int:
    """Sequences that an embedding or an attention block works on at a time."""
    return min(workload.batch, max(1, ATTENTION_TOKENS // new))


def attention_workspace_bytes(spec: ModelSpec, phase: Phase, workload: Workload) -> int:
    """Temporaries of an attention block over one group of sequences, at its fullest moment.

    The moments: the norm before; q, k or v being rotated beside the others; attention, whose mask is widened; the
    projection and the norm after it.
    """
    new, item = step_tokens(phase, workload), spec.dtype_bytes
    sequences = _grouped_sequences(workload, new)
    hidden, q, kv = spec.hidden_size, spec.q_size, spec.kv_size
    turning = 2 * item + 4 + (item if item < 4 else 0)  # a copy, its halves swapped, the sum in float32, and narrowed
    a_row = max(
        _norm_bytes(spec, hidden),
        (hidden + q + 2 * kv) * item + max(q * turning, _norm_bytes(spec, q) if spec.qk_norm else 0),
        (hidden + 2 * q + 2 * kv) * item + kv * turning,
        (4 * q + 2 * kv) * item,
        (3 * q + 2 * kv + hidden) * item + (0 if spec.norm_first else _norm_bytes(spec, hidden)),
    )
    return _spare(sequences * new * a_row) + _mask_bytes(spec, phase, workload) + _expanded_bytes(spec, phase, workload)


def _norm_bytes(spec: ModelSpec, width: int) -> int:
    """A norm's output and what it computes in float32."""
    return width * (spec.dtype_bytes + 8)


def _spare(nbytes: int) -> int:
    """A quarter on top of the tensors that are counted by name, for what torch's operations keep for themselves."""
    return nbytes * 5 // 4


def _mask_bytes(spec: ModelSpec, phase: Phase, workload: Workload) -> int:
    """The piece of a mask that is widened: a decode step's at once, a prefill's one sequence at a time."""
    if not mask_windows(spec, phase, workload):
        return 0
    whole = step_tokens(phase, workload) * workload.kv_capacity
    return spec.dtype_bytes * (workload.batch * whole if phase == "decode" else min(whole, MASKED_CELLS))


def _expanded_bytes(spec: ModelSpec, phase: Phase, workload: Workload) -> int:
    """K and V of the group once more, for a device whose attention knows no grouped queries."""
    if spec.num_heads == spec.num_kv_heads or (phase == "prefill" and not workload.cached_tokens):
        return 0
    sequences = _grouped_sequences(workload, step_tokens(phase, workload))
    return 2 * spec.kv_size * sequences * workload.kv_capacity * spec.dtype_bytes


def mlp_workspace_bytes(spec: ModelSpec, phase: Phase, workload: Workload) -> int:
    """Temporaries of an MLP over one group of tokens: the norms, the activation, and the projection back."""
    rows = min(workload.batch * step_tokens(phase, workload), MLP_TOKENS)
    hidden, ffn, item = spec.hidden_size, spec.ffn_size, spec.dtype_bytes
    a_row = max(
        _norm_bytes(spec, hidden) + (0 if spec.norm_first else hidden * item),
        (hidden + 2 * ffn) * item,
        (2 * hidden + ffn) * item,
    )
    return _spare(rows * a_row)


def head_workspace_bytes(spec: ModelSpec, workload: Workload) -> int:
    item = spec.dtype_bytes
    return workload.batch * (
        4 * spec.hidden_size * (item + 4) + spec.embedding_size * item + 2 * spec.vocab_size * item
    )


def fill_workspace_bytes(spec: ModelSpec, phase: Phase, workload: Workload) -> int:
    """What the host makes to fill the step's inputs: indices, rotary angles and tables, and masks with their parts."""
    tokens = workload.batch * step_tokens(phase, workload)
    masks = 3 * bool(mask_windows(spec, phase, workload)) * tokens * workload.kv_capacity
    rope = 6 * tokens * spec.head_dim * 4 if spec.rope else 0
    return masks + rope + (6 + 3 * spec.num_kv_heads) * tokens * 8 + 4096


def workspace_bytes(spec: ModelSpec, phase: Phase, workload: Workload) -> int:
    """The largest op's temporaries: filling the inputs, the embedding, an attention block, an MLP or the head."""
    return max(
        fill_workspace_bytes(spec, phase, workload),
        embed_workspace_bytes(spec, phase, workload),
        attention_workspace_bytes(spec, phase, workload),
        mlp_workspace_bytes(spec, phase, workload),
        head_workspace_bytes(spec, workload),
    )


def hidden_bytes(spec: ModelSpec, phase: Phase, workload: Workload) -> int:
    return workload.batch * step_tokens(phase, workload) * spec.hidden_size * spec.dtype_bytes


def exchange_bytes(spec: ModelSpec, phase: Phase, workload: Workload) -> dict[str, int]:
    """q, k, v and context of a delegated attention, as sent over the link."""
    tokens = workload.batch * step_tokens(phase, workload) * spec.dtype_bytes
    return {
        "q": tokens * spec.q_size,
        "k": tokens * spec.kv_size,
        "v": tokens * spec.kv_size,
        "context": tokens * spec.q_size,
    }


def weight_buffers(spec: ModelSpec, phase_plan: PhasePlan) -> Iterator[Buffer]:
    """GPU copies of weights that stay for the phase. A tied head on the GPU is the embedding's one copy."""
    for layer in phase_plan.resident:
        for block in ("attention", "mlp"):
            yield Buffer(f"weights.{layer}.{block}", "gpu", "weights", block_buffer_bytes(spec, block))
    embed_on_gpu, head_on_gpu = phase_plan.embed == "gpu", phase_plan.head.weights == "gpu"
    if phase_plan.head.streamed:
        norm = (t for t in spec.block_tensors("head") if t.name != "out.weight")
        yield Buffer("weights.head_norm", "gpu", "weights", sum(aligned(t.numel * spec.dtype_bytes) for t in norm))
    if head_on_gpu:
        yield Buffer("weights.head", "gpu", "weights", block_buffer_bytes(spec, "head"))
    if embed_on_gpu:
        nbytes = block_buffer_bytes(spec, "embed")
        if spec.tied_head and head_on_gpu:
            nbytes -= aligned(spec.vocab_size * spec.embedding_size * spec.dtype_bytes)
        yield Buffer("weights.embed", "gpu", "weights", nbytes)


def streams_weights(phase_plan: PhasePlan) -> bool:
    return phase_plan.head.streamed or any(p.attention.streamed or p.mlp.streamed for p in phase_plan.layers)


def stage_bytes(spec: ModelSpec, phase_plan: PhasePlan) -> int:
    """One weight staging slot: the largest thing that streams."""
    sizes = [0]
    for placement in set(phase_plan.layers):
        sizes += [block_buffer_bytes(spec, "attention")] * placement.attention.streamed
        sizes += [block_buffer_bytes(spec, "mlp")] * placement.mlp.streamed
    if phase_plan.head.streamed:
        rows = head_slice_rows(spec, phase_plan.head_slices)
        sizes.append(aligned(rows * spec.embedding_size * spec.dtype_bytes))
    return max(sizes)


def phase_buffers(spec: ModelSpec, phase_plan: PhasePlan, phase: Phase, workload: Workload) -> tuple[Buffer, ...]:
    """Every buffer that one phase holds, on both devices. The CPU's checkpoint copy is one buffer, "weights"."""
    return tuple(_phase_buffers(spec, phase_plan, phase, workload))


def _phase_buffers(spec: ModelSpec, phase_plan: PhasePlan, phase: Phase, workload: Workload) -> Iterator[Buffer]:
    layers = phase_plan.layers
    yield Buffer("weights", "cpu", "weights", spec.total_bytes)
    yield from weight_buffers(spec, phase_plan)
    kv_bytes = kv_layer_bytes(spec, workload)
    for index, placement in enumerate(layers):
        yield Buffer(f"kv.{index}", placement.kv, "kv", kv_bytes)
    hidden = hidden_bytes(spec, phase, workload)
    last = workload.batch * spec.hidden_size * spec.dtype_bytes
    logits = workload.batch * spec.vocab_size
    work = workspace_bytes(spec, phase, workload)
    yield Buffer("inputs", "cpu", "activation", input_bytes(spec, phase, workload))
    yield Buffer("logits", "cpu", "activation", logits * 4)
    yield Buffer("workspace", "cpu", "workspace", work)
    yield Buffer("hidden", "cpu", "activation", hidden)
    yield Buffer("last", "cpu", "activation", last)
    if phase_plan.uses_gpu:
        yield Buffer("inputs", "gpu", "activation", input_bytes(spec, phase, workload))
        yield Buffer("hidden", "gpu", "activation", hidden)
        yield Buffer("workspace", "gpu", "workspace", work)
        yield Buffer("last", "gpu", "activation", last)
    if phase_plan.head.compute == "gpu":
        yield Buffer("logits", "gpu", "activation", logits * spec.dtype_bytes)
    if phase_plan.head.streamed:
        yield Buffer("head_input", "gpu", "activation", workload.batch * spec.embedding_size * spec.dtype_bytes)
    if streams_weights(phase_plan):
        slot = stage_bytes(spec, phase_plan)
        for index in range(phase_plan.prefetch_depth):
            yield Buffer(f"stage.{index}", "gpu", "staging", slot)
    if any(p.kv_streamed for p in layers):
        for index in range(KV_STAGES):
            yield Buffer(f"kv_stage.{index}", "gpu", "staging", kv_bytes)
    if any(p.delegated for p in layers):
        for name, nbytes in exchange_bytes(spec, phase, workload).items():
            yield Buffer(name, "gpu", "activation", nbytes)
            yield Buffer(name, "cpu", "activation", nbytes)


def device_bytes(buffers: Iterable[Buffer], device: Home) -> int:
    return sum(aligned(b.nbytes) for b in buffers if b.device == device)


def peak_bytes(spec: ModelSpec, plan: Plan, workload: Workload) -> dict[Home, int]:
    """Peak of each device over prefill, the switch and decode, of which there is none when one token is asked for."""
    devices: tuple[Home, Home] = ("gpu", "cpu")
    prefill = phase_buffers(spec, plan.prefill, "prefill", workload)
    if not workload.decode_steps:
        return {d: device_bytes(prefill, d) for d in devices}
    decode = phase_buffers(spec, plan.decode, "decode", workload)
    phases = {d: max(device_bytes(prefill, d), device_bytes(decode, d)) for d in devices}
    return {d: max(phases[d], _switch_bytes(prefill, decode, plan, d)) for d in devices}


def _switch_bytes(prefill: Iterable[Buffer], decode: Iterable[Buffer], plan: Plan, device: Home) -> int:
    """What a device holds at the switch when its last KV has come in: what stays, and KV that has not left yet.

    Buffers that only prefill has go first, then KV moves off the GPU, then onto it, then the rest of decode's follow.
    """
    stays = set(prefill) & set(decode)
    moves = kv_moves(plan)
    arrivals = [b for b in decode if b.kind == "kv" and b not in stays and b.device == device]
    if not arrivals:
        return 0
    leaves_later = {f"kv.{layer}" for layer, home, _ in moves if home == device == "cpu"}
    waiting = [b for b in prefill if b.device == device and b.name in leaves_later]
    # The GPU takes KV in while each layer's copy on the CPU is released in turn; the CPU takes it in first
    return device_bytes([*stays, *arrivals, *waiting], device)


def kv_moves(plan: Plan) -> list[tuple[int, Home, Home]]:
    """(layer, from, to) for each layer whose KV changes home at the switch."""
    pairs: Iterable[tuple[LayerPlacement, LayerPlacement]] = zip(plan.prefill.layers, plan.decode.layers, strict=True)
    return [(i, a.kv, b.kv) for i, (a, b) in enumerate(pairs) if a.kv != b.kv]
