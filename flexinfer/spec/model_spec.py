"""ModelSpec: what a decoder-only model is made of, and what its parts cost. No torch.

One table, `block_tensors`, says which tensors each block holds, under canonical names. Bytes and FLOPs are
sums over it, the weight readers account for every entry of it, and the engine binds its names, so the plan
and the checkpoint cannot disagree. Blocks: "embed", then per layer "attention" and "mlp", then "head".
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

Family = Literal["opt", "llama", "mistral", "qwen2", "qwen3"]
Block = Literal["embed", "attention", "mlp", "head"]
RopeType = Literal["default", "linear", "dynamic", "llama3", "yarn"]
Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class RopeSpec:
    """Rotary position embedding; fields that a type does not use keep their defaults.

    `freq_factors`, where given, are divisors of the head_dim / 2 frequencies, on top of the type's own scaling: a GGUF
    file states llama3 scaling so.
    """

    type: RopeType = "default"
    theta: float = 10000.0
    factor: float = 1.0
    original_max_positions: int | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    freq_factors: tuple[float, ...] = ()


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a block: canonical name within the block, and shape ([out, in] for matrices)."""

    name: str
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class ModelSpec:
    """Sizes and options of one model. Frozen; derived figures are methods and cached properties.

    `weight_dtype` is the dtype in which weights are held and computed ("float32", "bfloat16", "float16").
    `windows` has one entry a layer: the sliding window in tokens, or None for full attention.
    """

    name: str
    family: Family
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    vocab_size: int
    max_positions: int
    weight_dtype: str
    activation: Activation
    gated_mlp: bool
    norm: Literal["rms", "layer"]
    norm_eps: float
    tied_head: bool = False
    norm_first: bool = True
    final_norm: bool = True
    norm_affine: bool = True
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    rope: RopeSpec | None = None
    learned_positions: int = 0
    position_offset: int = 0
    embed_size: int | None = None
    windows: tuple[int | None, ...] = ()
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    source: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not self.windows:
            object.__setattr__(self, "windows", (None,) * self.num_layers)
        if len(self.windows) != self.num_layers:
            raise ValueError(f"{self.name}: {len(self.windows)} windows for {self.num_layers} layers")
        if self.weight_dtype not in DTYPE_BYTES:
            raise ValueError(f"{self.name}: weight dtype {self.weight_dtype!r} is not one of {sorted(DTYPE_BYTES)}")

    # -- widths ---------------------------------------------------------------------------------------------

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def embedding_size(self) -> int:
        """Width of the embedding table: OPT-350m's differs from the hidden size (then projected)."""
        return self.embed_size or self.hidden_size

    @property
    def dtype_bytes(self) -> int:
        return DTYPE_BYTES[self.weight_dtype]

    # -- tensors ----------------------------------------------------------------------------------------------

    def _norm_tensors(self, name: str, size: int) -> list[TensorSpec]:
        if not self.norm_affine:
            return []
        weight = [TensorSpec(f"{name}.weight", (size,))]
        return weight if self.norm == "rms" else [*weight, TensorSpec(f"{name}.bias", (size,))]

    def _linear_tensors(self, name: str, out: int, into: int, bias: bool) -> list[TensorSpec]:
        weight = [TensorSpec(f"{name}.weight", (out, into))]
        return [*weight, TensorSpec(f"{name}.bias", (out,))] if bias else weight

    @cached_property
    def _tables(self) -> dict[str, tuple[TensorSpec, ...]]:
        d, e = self.hidden_size, self.embedding_size
        attention = self._norm_tensors("norm", d)
        for part, size in (("q", self.q_size), ("k", self.kv_size), ("v", self.kv_size)):
            attention += self._linear_tensors(part, size, d, self.qkv_bias)
        attention += self._linear_tensors("o", d, self.q_size, self.out_bias)
        if self.qk_norm:
            attention += [TensorSpec("q_norm.weight", (self.head_dim,)), TensorSpec("k_norm.weight", (self.head_dim,))]
        mlp = self._norm_tensors("norm", d)
        for part in ("gate", "up") if self.gated_mlp else ("up",):
            mlp += self._linear_tensors(part, self.ffn_size, d, self.mlp_bias)
        mlp += self._linear_tensors("down", d, self.ffn_size, self.mlp_bias)
        embed = [TensorSpec("tokens.weight", (self.vocab_size, e))]
        if self.learned_positions:
            embed.append(TensorSpec("positions.weight", (self.learned_positions, d)))
        if e != d:
            embed.append(TensorSpec("project.weight", (d, e)))
        head = self._norm_tensors("norm", d) if self.final_norm else []
        if e != d:
            head.append(TensorSpec("project.weight", (e, d)))
        head.append(TensorSpec("out.weight", (self.vocab_size, e)))
        return {"embed": tuple(embed), "attention": tuple(attention), "mlp": tuple(mlp), "head": tuple(head)}

    def block_tensors(self, block: Block) -> tuple[TensorSpec, ...]:
        """Tensors of one block. A tied head lists out.weight too: its storage is the embedding's tokens.weight."""
        return self._tables[block]

    def blocks(self) -> Iterator[tuple[int | None, Block]]:
        """(layer, block) in the order of the forward pass; layer is None for embed and head."""
        yield None, "embed"
        for layer in range(self.num_layers):
            yield layer, "attention"
            yield layer, "mlp"
        yield None, "head"

    # -- bytes --------------------------------------------------------------------------------------------------

    def block_params(self, block: Block) -> int:
        return sum(t.numel for t in self.block_tensors(block))

    def block_bytes(self, block: Block) -> int:
        """Weight bytes of one block; the head's include out.weight even when tied (what a GPU copy takes)."""
        return self.block_params(block) * self.dtype_bytes

    @cached_property
    def layer_bytes(self) -> int:
        return self.block_bytes("attention") + self.block_bytes("mlp")

    @cached_property
    def total_params(self) -> int:
        """Parameters, a tied head counted once."""
        tied = self.vocab_size * self.embedding_size if self.tied_head else 0
        layers = self.num_layers * (self.block_params("attention") + self.block_params("mlp"))
        return self.block_params("embed") + layers + self.block_params("head") - tied

    @property
    def total_bytes(self) -> int:
        return self.total_params * self.dtype_bytes

    @property
    def kv_bytes_per_token_layer(self) -> int:
        """K and V of one token in one layer."""
        return 2 * self.kv_size * self.dtype_bytes

    @property
    def kv_bytes_per_token(self) -> int:
        return self.num_layers * self.kv_bytes_per_token_layer

    # -- FLOPs --------------------------------------------------------------------------------------------------

    def block_linear_flops(self, block: Block, tokens: int) -> float:
        """2 x matrix elements x tokens; the embedding gathers rows and multiplies only by its projection."""
        skip = {"tokens.weight", "positions.weight"} if block == "embed" else set()
        elements = sum(t.numel for t in self.block_tensors(block) if len(t.shape) == 2 and t.name not in skip)
        return 2.0 * elements * tokens

    def attended_tokens(self, layer: int, new: int, cached: int) -> float:
        """Sum over new tokens of the keys each attends to: cached + 1 ... cached + new, cut at the window."""
        first, last, window = cached + 1, cached + new, self.windows[layer]
        if window is None or last <= window:
            return new * (first + last) / 2
        growing = max(0, window - cached)
        return growing * (first + window) / 2 + (new - growing) * window

    def attention_flops(self, layer: int, new: int, cached: int) -> float:
        """QK^T and PV of one sequence: 4 x heads x head_dim per (query, key) pair."""
        return 4.0 * self.q_size * self.attended_tokens(layer, new, cached)

    def kv_read_bytes(self, layer: int, context: int) -> int:
        """K and V that one decode step of one sequence reads with `context` tokens held (the new one included)."""
        window = self.windows[layer]
        return self.kv_bytes_per_token_layer * (context if window is None else min(window, context))
