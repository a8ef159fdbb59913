"""What crosses the link while a plan runs, byte for byte as the executor counts it.

Bytes are the tensors' own, without the padding of the buffers they land in. B sequences, S new tokens each in a pass
(the prompt in prefill, 1 in decode), `held` tokens of each already in the cache when the pass starts.

One pass, host to device:
- weights: all tensors of every block whose placement streams, once; of a streamed head out.weight alone, in however
  many slices (its norm and projection are resident);
- kv: of every layer whose KV streams, the B x (held + S) rows up to the pass's end (the new rows come with the rest,
  still zero; windows do not shorten this). Nothing in a prefill that starts from an empty cache;
- context: of every delegated layer, B x S x q_size;
- hidden: B x S x hidden_size wherever the next block computes on the GPU and the last one, or the embedding, did not;
  B x hidden_size, the last position of each sequence, where only the head does;
- inputs: once, if the phase uses the GPU at all, the packed inputs (`schedule.inputs.input_bytes`).
One pass, device to host:
- kv: of every layer whose KV streams, the B x S new rows of K and V;
- q, k, v: of every delegated layer, B x S x (q_size + 2 kv_size);
- hidden: B x S x hidden_size where the next block computes on the CPU and the last one did not; B x hidden_size
  before a head on the CPU;
- logits: B x vocab_size in the weights' dtype where the head computes on the GPU.
Prefill is one pass with held = cached_tokens; decode is new_tokens - 1 passes with held = cached + prompt + step. What
the first step's loads need is loaded once before it, and the last step loads nothing for a next one.
At the switch (not when one token is asked for), once:
- kv: B x (cached + prompt) rows of each layer whose KV changes its home, in the direction of the move;
- weights: every GPU copy that decode has and prefill had not (layers, head, a streamed head's norm, embedding; of a
  tied pair on the GPU the embedding's own copy has no table).
Loading what is resident from the start is not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from flexinfer.plan import BlockPlacement, Home, LayerPlacement, Phase, PhasePlan, Plan
from flexinfer.schedule.buffers import exchange_bytes, kv_moves, step_tokens
from flexinfer.schedule.inputs import input_bytes
from flexinfer.spec.model_spec import Block, ModelSpec
from flexinfer.spec.workload import Workload


@dataclass(frozen=True)
class Traffic:
    """Bytes in each direction."""

    h2d: int = 0
    d2h: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.h2d + other.h2d, self.d2h + other.d2h)

    def times(self, count: int) -> Traffic:
        return Traffic(self.h2d * count, self.d2h * count)


def held_tokens(phase: Phase, workload: Workload, step: int = 0) -> int:
    """Tokens of one sequence in the cache when the pass starts."""
    return workload.cached_tokens + (workload.prompt_len + step if phase == "decode" else 0)


def streamed_bytes(spec: ModelSpec, placement: BlockPlacement, block: Block) -> int:
    """Weights of one layer's block that cross in each pass."""
    return spec.block_bytes(block) if placement.streamed else 0


def table_bytes(spec: ModelSpec) -> int:
    """The LM head's out.weight, or the embedding's tokens.weight."""
    return spec.vocab_size * spec.embedding_size * spec.dtype_bytes


def kv_rows_bytes(spec: ModelSpec, workload: Workload, tokens: int) -> int:
    """K and V of `tokens` tokens of every sequence in one layer."""
    return workload.batch * tokens * spec.kv_bytes_per_token_layer


def exchange_traffic(spec: ModelSpec, phase: Phase, workload: Workload) -> Traffic:
    """q, k, v down and context up, of one delegated layer."""
    sizes = exchange_bytes(spec, phase, workload)
    return Traffic(h2d=sizes["context"], d2h=sizes["q"] + sizes["k"] + sizes["v"])


def layer_traffic(spec: ModelSpec, placement: LayerPlacement, phase: Phase, workload: Workload, held: int) -> Traffic:
    """One layer in one pass, hidden states apart."""
    weights = streamed_bytes(spec, placement.attention, "attention") + streamed_bytes(spec, placement.mlp, "mlp")
    total = Traffic(h2d=weights)
    if placement.kv_streamed:
        new = step_tokens(phase, workload)
        total += Traffic(
            h2d=kv_rows_bytes(spec, workload, held + new) if held else 0, d2h=kv_rows_bytes(spec, workload, new)
        )
    if placement.delegated:
        total += exchange_traffic(spec, phase, workload)
    return total


def hidden_bytes(spec: ModelSpec, workload: Workload, tokens: int) -> int:
    """Hidden states of `tokens` positions of every sequence."""
    return workload.batch * tokens * spec.hidden_size * spec.dtype_bytes


def crossings(phase_plan: PhasePlan) -> tuple[int, int]:
    """Changes of device in one pass, (up to the GPU, down from it), from the embedding to the last layer's output."""
    route: list[Home] = [phase_plan.embed]
    for layer in phase_plan.layers:
        route += [layer.attention.compute, layer.mlp.compute]
    pairs = list(zip(route, route[1:], strict=False))
    return pairs.count(("cpu", "gpu")), pairs.count(("gpu", "cpu"))


def head_crossing(phase_plan: PhasePlan) -> tuple[Home, Home]:
    """Where the last layer's output is, and where the head wants it."""
    return phase_plan.layers[-1].mlp.compute, phase_plan.head.compute


def edge_traffic(spec: ModelSpec, phase_plan: PhasePlan, phase: Phase, workload: Workload) -> Traffic:
    """What a pass moves beside its layers' own: tokens, inputs, hidden states, the head's weights, logits."""
    new = step_tokens(phase, workload)
    up, down = crossings(phase_plan)
    hidden = hidden_bytes(spec, workload, new)
    h2d, d2h = up * hidden, down * hidden
    if phase_plan.uses_gpu:
        h2d += input_bytes(spec, phase, workload)
    last, head = head_crossing(phase_plan)
    if (last, head) == ("cpu", "gpu"):
        h2d += hidden_bytes(spec, workload, 1)
    elif (last, head) == ("gpu", "cpu"):
        d2h += hidden_bytes(spec, workload, 1)
    h2d += table_bytes(spec) if phase_plan.head.streamed else 0
    if head == "gpu":
        d2h += logits_bytes(spec, workload)
    return Traffic(h2d, d2h)


def logits_bytes(spec: ModelSpec, workload: Workload) -> int:
    return workload.batch * spec.vocab_size * spec.dtype_bytes


def phase_traffic(spec: ModelSpec, phase_plan: PhasePlan, phase: Phase, workload: Workload) -> Traffic:
    """All passes of one phase. Bytes grow by the same amount each step, so the sum is the mean of first and last."""
    passes = 1 if phase == "prefill" else workload.decode_steps
    first, last = held_tokens(phase, workload), held_tokens(phase, workload, passes - 1)
    total = edge_traffic(spec, phase_plan, phase, workload).times(passes)
    kinds = {placement: phase_plan.layers.count(placement) for placement in set(phase_plan.layers)}
    for placement, count in kinds.items():
        ends = layer_traffic(spec, placement, phase, workload, first)
        ends += layer_traffic(spec, placement, phase, workload, last)
        total += Traffic(ends.h2d * passes * count // 2, ends.d2h * passes * count // 2)
    return total


def gpu_copies(spec: ModelSpec, phase_plan: PhasePlan) -> dict[str, int]:
    """Bytes of each GPU copy of weights that a phase keeps, under the names of `schedule.buffers.weight_buffers`."""
    head, table = spec.block_bytes("head"), table_bytes(spec)
    copies = {f"weights.{layer}": spec.layer_bytes for layer in phase_plan.resident}
    head_there = phase_plan.head.weights == "gpu"
    if head_there:
        copies["weights.head"] = head
    if phase_plan.head.streamed:
        copies["weights.head_norm"] = head - table
    if phase_plan.embed == "gpu":
        copies["weights.embed"] = spec.block_bytes("embed") - (table if spec.tied_head and head_there else 0)
    return copies


def switch_weights_bytes(spec: ModelSpec, plan: Plan) -> int:
    """Weights that become resident at the switch. A copy that changes its size is loaded anew."""
    before, after = gpu_copies(spec, plan.prefill), gpu_copies(spec, plan.decode)
    return sum(nbytes for name, nbytes in after.items() if before.get(name) != nbytes)


def switch_traffic(spec: ModelSpec, plan: Plan, workload: Workload) -> Traffic:
    """KV and weights that move between the phases; nothing when there is no decode step."""
    if not workload.decode_steps:
        return Traffic()
    rows = kv_rows_bytes(spec, workload, held_tokens("decode", workload))
    targets = [target for _, _, target in kv_moves(plan)]
    weights = switch_weights_bytes(spec, plan)
    return Traffic(h2d=rows * targets.count("gpu") + weights, d2h=rows * targets.count("cpu"))


def plan_traffic(spec: ModelSpec, plan: Plan, workload: Workload) -> Traffic:
    """Everything from the first token's prefill to the last step."""
    return (
        phase_traffic(spec, plan.prefill, "prefill", workload)
        + switch_traffic(spec, plan, workload)
        + phase_traffic(spec, plan.decode, "decode", workload)
    )
