"""Blocks: what they change in place, that a batch equals its sequences, that temporaries stay in the plan's bound."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from flexinfer.models import family_of, mlp
from flexinfer.models.attention import causal_mask, decode_attention, prefill_attention
from flexinfer.models.forward import full_forward
from flexinfer.models.opset import TorchOps
from flexinfer.models.rope import rope_rows
from flexinfer.schedule import buffers
from flexinfer.spec import ModelSpec, Workload

OPS = TorchOps()


class Peak(TorchDispatchMode):
    """Bytes of storages that operations made and that are still alive, and the most there were."""

    def __init__(self) -> None:
        super().__init__()
        self.live, self.peak, self.known = 0, 0, set[int]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        old = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        out = func(*args, **kwargs)
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self._count(tensor.untyped_storage(), old)
        return out

    def _count(self, storage: Any, old: set[int]) -> None:
        key = storage._cdata
        if key in old or key in self.known:
            return
        nbytes = storage.nbytes()
        self.known.add(key)
        self.live += nbytes
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._free, key, nbytes)

    def _free(self, key: int, nbytes: int) -> None:
        self.known.discard(key)
        self.live -= nbytes


@contextmanager
def peak_bytes() -> Iterator[Peak]:
    with torch.inference_mode(False), torch.no_grad(), Peak() as peak:
        yield peak


def weights_of(spec: ModelSpec, name: Any) -> dict[str, torch.Tensor]:
    dtype = getattr(torch, spec.weight_dtype)
    return {t.name: torch.randn(t.shape).mul_(0.1).to(dtype) for t in spec.block_tensors(name)}


def test_the_peak_counter_counts() -> None:
    """Guards the tests below."""
    with peak_bytes() as peak:
        a = torch.ones(1000)
        b = a + a
        del a
        (b + b).add_(b).view(10, 100)
    assert peak.peak == 8000 and peak.live == 4000


@pytest.fixture(params=["float32", "bfloat16"])
def wide(request: pytest.FixtureRequest, build_tiny: Any) -> ModelSpec:
    """Sizes in the proportions of real models, so that the bound is held to what matters."""
    return replace(
        build_tiny("llama_grouped_tied").spec,
        hidden_size=256,
        num_heads=8,
        num_kv_heads=2,
        head_dim=32,
        ffn_size=640,
        weight_dtype=request.param,
    )


@pytest.mark.parametrize(("batch", "new"), [(2, 700), (7, 400), (5, 1)])
def test_mlp_stays_within_its_workspace(wide: ModelSpec, batch: int, new: int) -> None:
    """2,800 tokens are more than one group of rows."""
    phase, workload = ("decode", Workload(batch, 8, 2)) if new == 1 else ("prefill", Workload(batch, new, 2))
    weights = weights_of(wide, "mlp")
    hidden_BSD = torch.randn(batch, new, wide.hidden_size).to(getattr(torch, wide.weight_dtype))
    with peak_bytes() as peak:
        out = family_of(wide).mlp(weights, hidden_BSD, wide, OPS)
    assert out is hidden_BSD
    assert 0 < peak.peak <= buffers.mlp_workspace_bytes(wide, phase, workload)


@pytest.mark.parametrize(("batch", "new", "window"), [(2, 700, None), (2, 700, 100), (1, 1500, None)])
def test_prefill_attention_stays_within_its_workspace(
    wide: ModelSpec, batch: int, new: int, window: int | None
) -> None:
    family, weights = family_of(wide), weights_of(wide, "attention")
    hidden_BSD = torch.randn(batch, new, wide.hidden_size).to(getattr(torch, wide.weight_dtype))
    starts_B, positions_BS = torch.zeros(batch, dtype=torch.int64), torch.arange(new).expand(batch, new)
    rope = rope_rows(wide, positions_BS, starts_B + new)
    mask = causal_mask(starts_B, new, new, window) if window else None
    with peak_bytes() as peak:
        q, k, v = family.qkv(weights, hidden_BSD, rope, wide, OPS)
        context = prefill_attention(q, k, v, mask, 0.2, OPS)
        family.attention_out(weights, hidden_BSD, context, wide, OPS)
    assert 0 < peak.peak <= buffers.attention_workspace_bytes(wide, "prefill", Workload(batch, new, 2))


def test_decode_attention_stays_within_its_workspace(wide: ModelSpec) -> None:
    batch, capacity, dtype = 6, 300, getattr(torch, wide.weight_dtype)
    family, weights = family_of(wide), weights_of(wide, "attention")
    hidden_BSD, lengths_B = torch.randn(batch, 1, wide.hidden_size).to(dtype), torch.full((batch,), capacity)
    kv = torch.randn(batch, wide.num_kv_heads, capacity, wide.head_dim).to(dtype)
    rope, mask = rope_rows(wide, lengths_B.unsqueeze(1) - 1, lengths_B), causal_mask(lengths_B - 1, 1, capacity, None)
    with peak_bytes() as peak:
        q, _, _ = family.qkv(weights, hidden_BSD, rope, wide, OPS)
        context = decode_attention(q, kv, kv, lengths_B, mask, None, 0.2, OPS)
        family.attention_out(weights, hidden_BSD, context, wide, OPS)
    assert 0 < peak.peak <= buffers.attention_workspace_bytes(wide, "decode", Workload(batch, capacity - 1, 2))


def test_head_stays_within_its_workspace(wide: ModelSpec) -> None:
    family, weights = family_of(wide), weights_of(wide, "head")
    hidden_BD = torch.randn(9, wide.hidden_size).to(getattr(torch, wide.weight_dtype))
    with peak_bytes() as peak:
        family.head_logits(weights["out.weight"], family.head_input(weights, hidden_BD, wide, OPS), OPS)
    assert 0 < peak.peak <= buffers.head_workspace_bytes(wide, Workload(9, 1, 1))


@torch.inference_mode()
def test_groups_of_rows_change_nothing(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden_BSD = torch.randn(3, 5, tiny.spec.hidden_size)
    weights, family = tiny.store.block(1, "mlp"), family_of(tiny.spec)
    want = family.mlp(weights, hidden_BSD.clone(), tiny.spec, OPS)
    monkeypatch.setattr(mlp, "MLP_TOKENS", 4)
    got = family.mlp(weights, hidden_BSD, tiny.spec, OPS)
    assert got is hidden_BSD
    torch.testing.assert_close(got, want, atol=1e-6, rtol=1e-6)


@torch.inference_mode()
def test_attention_changes_none_of_its_arguments(tiny: Any) -> None:
    spec, family, weights = tiny.spec, family_of(tiny.spec), tiny.store.block(0, "attention")
    hidden_BSD, positions_BS = torch.randn(2, 6, spec.hidden_size), torch.arange(6).expand(2, 6)
    rope = rope_rows(spec, positions_BS, torch.tensor([6, 6])) if spec.rope else None
    kept = {name: tensor.clone() for name, tensor in weights.items()}
    before = hidden_BSD.clone()
    q, k, v = family.qkv(weights, hidden_BSD, rope, spec, OPS)
    copies = [x.clone() for x in (q, k, v)]
    context = prefill_attention(q, k, v, None, spec.head_dim**-0.5, OPS)
    family.attention_out(weights, hidden_BSD, context, spec, OPS)
    assert torch.equal(hidden_BSD, before)
    assert all(torch.equal(a, b) for a, b in zip((q, k, v), copies, strict=True))
    assert all(torch.equal(weights[name], kept[name]) for name in kept)


@torch.inference_mode()
def test_embedding_tables_are_not_changed(tiny: Any) -> None:
    weights = tiny.store.block(None, "embed")
    kept = {name: tensor.clone() for name, tensor in weights.items()}
    family_of(tiny.spec).embed(weights, torch.tensor([[3, 4]]), torch.tensor([[0, 1]]), tiny.spec, OPS)
    assert all(torch.equal(weights[name], kept[name]) for name in kept)


@torch.inference_mode()
def test_batch_equals_its_sequences_alone(tiny: Any) -> None:
    ids_BS = torch.randint(3, tiny.spec.vocab_size, (3, 20))
    batch = full_forward(tiny.spec, tiny.store, ids_BS, OPS)
    for b in range(3):
        alone = full_forward(tiny.spec, tiny.store, ids_BS[b : b + 1], OPS)
        torch.testing.assert_close(batch[b], alone[0], atol=1e-5, rtol=0)


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits_stay_near_float32(tiny: Any, dtype: torch.dtype) -> None:
    """A tensor left in another dtype would raise, or return float32."""

    class Narrow:
        def block(self, layer: int | None, name: Any) -> dict[str, torch.Tensor]:
            return {key: tensor.to(dtype) for key, tensor in tiny.store.block(layer, name).items()}

    ids_BS = torch.randint(3, tiny.spec.vocab_size, (1, 20))
    want, got = full_forward(tiny.spec, tiny.store, ids_BS, OPS), full_forward(tiny.spec, Narrow(), ids_BS, OPS)
    assert got.dtype == dtype
    assert torch.nn.functional.cosine_similarity(got.float(), want, dim=-1).min() > 0.95
