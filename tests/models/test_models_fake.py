"""The compute code of the CUDA path, run on torch's fake CUDA tensors: a wrong device, shape or dtype raises.

No GPU is needed: FakeTensorMode knows what each operation takes and gives, and computes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from flexinfer.models import family_of
from flexinfer.models.attention import decode_attention, prefill_attention
from flexinfer.models.opset import TorchOps
from flexinfer.models.rope import RopeRows
from flexinfer.spec import ModelSpec

pytestmark = pytest.mark.usefixtures("fake_cuda")

OPS = TorchOps()
BATCH, NEW, CAPACITY = 2, 5, 16
SHAPES = [
    "llama",
    "llama_biases",
    "mistral_window",
    "qwen2",
    "qwen3_bias",
    "opt",
    "opt_post_norm_projected",
    "opt_bare",
]
"""Every family, and the options that change which operations run; scalings and windows only change tables and masks."""
Make = Callable[..., torch.Tensor]


def on_cuda(*shape: int, dtype: torch.dtype = torch.int64, name: str = "") -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="cuda")


def block(spec: ModelSpec, name: Any, make: Make) -> dict[str, torch.Tensor]:
    dtype = getattr(torch, spec.weight_dtype)
    return {t.name: make(*t.shape, dtype=dtype, name=t.name) for t in spec.block_tensors(name)}


def run_model(spec: ModelSpec, new: int, make: Make = on_cuda) -> torch.Tensor:
    """One layer from tokens to logits: prefill for new > 1, one step over a cache for new == 1."""
    family, dtype = family_of(spec), getattr(torch, spec.weight_dtype)
    cell = (BATCH, new, spec.head_dim)
    rope = RopeRows(*(make(*cell, dtype=torch.float32, name=n) for n in ("cos", "sin"))) if spec.rope else None
    tokens, positions = make(BATCH, new, name="tokens"), make(BATCH, new, name="positions")
    hidden = family.embed(block(spec, "embed", make), tokens, positions, spec, OPS)
    attention = block(spec, "attention", make)
    q, k, v = family.qkv(attention, hidden, rope, spec, OPS)
    if new > 1:
        mask = make(BATCH, new, new, dtype=torch.bool, name="mask")
        plain, masked = (prefill_attention(q, k, v, m, 0.125, OPS) for m in (None, mask))
        assert plain.shape == masked.shape == q.shape
        context = masked
    else:
        cache = make(BATCH, spec.num_kv_heads, CAPACITY, spec.head_dim, dtype=dtype, name="kv")
        cache = cache.narrow(2, 0, CAPACITY - 1)
        mask = make(BATCH, 1, CAPACITY - 1, dtype=torch.bool, name="mask")
        lengths = make(BATCH, dtype=torch.int32, name="lengths")
        context = decode_attention(q, cache, cache, lengths, mask, None, 0.125, OPS)
    hidden = family.attention_out(attention, hidden, context, spec, OPS)
    hidden = family.mlp(block(spec, "mlp", make), hidden, spec, OPS)
    head = block(spec, "head", make)
    last = hidden.narrow(1, new - 1, 1).flatten(0, 1)
    assert hidden.shape == (BATCH, new, spec.hidden_size) and hidden.dtype == dtype
    return family.head_logits(head["out.weight"], family.head_input(head, last, spec, OPS), OPS)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("new", [1, NEW])
@pytest.mark.parametrize("name", SHAPES)
def test_whole_model_runs_on_fake_cuda_tensors(build_tiny: Any, name: str, new: int, dtype: str) -> None:
    spec = replace(build_tiny(name).spec, weight_dtype=dtype)
    with FakeTensorMode(allow_non_fake_inputs=False):
        logits = run_model(spec, new)
    assert logits.device.type == "cuda" and logits.dtype == getattr(torch, dtype)
    assert logits.shape == (BATCH, spec.vocab_size)


@pytest.mark.parametrize("family", ["llama", "opt"])
@pytest.mark.parametrize("place", ["tokens", "cos", "k.weight", "mask", "down.weight", "norm.weight"])
def test_one_cpu_tensor_among_them_raises(build_tiny: Any, family: str, place: str) -> None:
    spec = build_tiny(family).spec
    if place == "cos" and spec.rope is None:
        place = "positions"
    made: list[str] = []

    def make(*shape: int, dtype: torch.dtype = torch.int64, name: str) -> torch.Tensor:
        made.append(name)
        return torch.empty(shape, dtype=dtype, device="cpu" if name == place else "cuda")

    with FakeTensorMode(allow_non_fake_inputs=False), pytest.raises(RuntimeError, match="device"):
        run_model(spec, NEW, make)
    assert place in made


def test_a_real_cpu_tensor_raises_too(build_tiny: Any) -> None:
    spec = build_tiny("llama").spec
    weights = {t.name: torch.zeros(t.shape) for t in spec.block_tensors("mlp")}
    with FakeTensorMode(allow_non_fake_inputs=False):
        hidden = on_cuda(BATCH, NEW, spec.hidden_size, dtype=torch.float32)
        with pytest.raises((AssertionError, RuntimeError)):
            family_of(spec).mlp(weights, hidden, spec, OPS)


def test_a_wrong_shape_raises(build_tiny: Any) -> None:
    spec = build_tiny("llama").spec
    with FakeTensorMode(allow_non_fake_inputs=False):
        hidden = on_cuda(BATCH, NEW, spec.hidden_size, dtype=torch.float32)
        narrow = block(replace(spec, ffn_size=spec.ffn_size - 1), "mlp", on_cuda)
        narrow["up.weight"] = on_cuda(spec.ffn_size, spec.hidden_size, dtype=torch.float32)
        with pytest.raises(RuntimeError):
            family_of(spec).mlp(narrow, hidden, spec, OPS)
