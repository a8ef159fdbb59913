"""Logits and greedy tokens against transformers, in float32 on the CPU, for every family and option.

Legend: B batch, S new tokens, T KV capacity, K kv heads, H head dim, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch

from flexinfer.models import family_of
from flexinfer.models.attention import causal_mask, decode_attention, prefill_attention
from flexinfer.models.forward import full_forward
from flexinfer.models.opset import CpuOps, OpSet, TorchOps
from flexinfer.models.rope import rope_rows

PROMPT_LEN, STEPS, CAPACITY = 24, 32, 64


def tokens(batch: int, length: int, vocab: int, seed: int = 3) -> torch.Tensor:
    return torch.randint(3, vocab, (batch, length), generator=torch.Generator().manual_seed(seed))


def forget_long_inputs(model: Any) -> None:
    """transformers' dynamic frequencies stay those of the longest input so far, until a short one comes."""
    model(torch.tensor([[1, 2, 3]]))


@torch.inference_mode()
def test_logits_match_transformers(tiny: Any) -> None:
    """40 tokens: past every window (7, 9) and past the original positions (16) of the scaled rope types."""
    ids_BS = tokens(2, 40, tiny.spec.vocab_size)
    forget_long_inputs(tiny.model)
    want_BSV = tiny.model(ids_BS).logits
    got_BSV = full_forward(tiny.spec, tiny.store, ids_BS, TorchOps())
    assert want_BSV.std() > 0.5, "logits too flat to tell anything"
    torch.testing.assert_close(got_BSV, want_BSV, atol=1e-4, rtol=0)


class Cached:
    """A model with a KV cache on one device, as plain as it can be written: prefill, then one token at a time."""

    def __init__(self, tiny: Any, batch: int, ops: OpSet) -> None:
        self.spec, self.store, self.ops, self.family = tiny.spec, tiny.store, ops, family_of(tiny.spec)
        shape = (batch, self.spec.num_kv_heads, CAPACITY, self.spec.head_dim)
        # What nothing has written is NaN for the op set that goes by lengths; the one that masks needs finite rows.
        filler = float("nan") if isinstance(ops, CpuOps) else 0.0
        self.kv = [(torch.full(shape, filler), torch.full(shape, filler)) for _ in range(self.spec.num_layers)]

    def forward(self, ids_BS: torch.Tensor, starts_B: torch.Tensor, last_B: torch.Tensor) -> torch.Tensor:
        """Logits [B, V] at each sequence's last real token; `last_B` is its index among the new ones."""
        spec, family, (batch, new) = self.spec, self.family, ids_BS.shape
        positions_BS = starts_B.unsqueeze(1) + torch.arange(new)
        rope = rope_rows(spec, positions_BS, starts_B + last_B + 1) if spec.rope else None
        hidden_BSD = family.embed(self.store.block(None, "embed"), ids_BS, positions_BS, spec, self.ops)
        for layer in range(spec.num_layers):
            weights = self.store.block(layer, "attention")
            q, k, v = family.qkv(weights, hidden_BSD, rope, spec, self.ops)
            assert all(x.is_contiguous() for x in (q, k, v))
            self._append(layer, k, v, starts_B)
            context = self._attend(layer, q, k, v, starts_B)
            hidden_BSD = family.attention_out(weights, hidden_BSD, context, spec, self.ops)
            hidden_BSD = family.mlp(self.store.block(layer, "mlp"), hidden_BSD, spec, self.ops)
        head, hidden_BD = self.store.block(None, "head"), hidden_BSD[torch.arange(batch), last_B]
        return family.head_logits(head["out.weight"], family.head_input(head, hidden_BD, spec, self.ops), self.ops)

    def _append(self, layer: int, k_BKSH: torch.Tensor, v_BKSH: torch.Tensor, starts_B: torch.Tensor) -> None:
        for b, start in enumerate(starts_B.tolist()):
            for cache, new in zip(self.kv[layer], (k_BKSH, v_BKSH), strict=True):
                cache[b, :, start : start + new.shape[2]] = new[b]

    def _attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, starts_B: torch.Tensor
    ) -> torch.Tensor:
        window, scale, new = self.spec.windows[layer], self.spec.head_dim**-0.5, q.shape[2]
        if new > 1:
            mask = causal_mask(starts_B, new, new, window) if window else None
            return prefill_attention(q, k, v, mask, scale, self.ops)
        lengths_B, mask = (starts_B + 1).to(torch.int32), None
        if not isinstance(self.ops, CpuOps):
            mask, window = causal_mask(starts_B, 1, CAPACITY, window), None
        return decode_attention(q, *self.kv[layer], lengths_B, mask, window, scale, self.ops)


def greedy(tiny: Any, prompts: list[torch.Tensor], ops: OpSet) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens [B, 1 + STEPS] and their logits [B, 1 + STEPS, V]; uneven prompts are padded on the right."""
    lengths_B = torch.tensor([len(prompt) for prompt in prompts])
    ids_BS = torch.full((len(prompts), int(lengths_B.max())), 5)
    for row, prompt in zip(ids_BS, prompts, strict=True):
        row[: len(prompt)] = prompt
    cached = Cached(tiny, len(prompts), ops)
    logits = [cached.forward(ids_BS, torch.zeros_like(lengths_B), lengths_B - 1)]
    for step in range(STEPS):
        next_B1 = logits[-1].argmax(-1, keepdim=True)
        logits.append(cached.forward(next_B1, lengths_B + step, torch.zeros_like(lengths_B)))
    logits_BSV = torch.stack(logits, dim=1)
    return logits_BSV.argmax(-1), logits_BSV


@torch.inference_mode()
def test_cached_greedy_tokens_match_transformers(tiny: Any) -> None:
    """An uneven batch of two, with 32 steps over the cache, gives each the tokens transformers gives it alone."""
    prompts = [tokens(1, PROMPT_LEN, tiny.spec.vocab_size)[0], tokens(1, 11, tiny.spec.vocab_size, seed=4)[0]]
    by_mask, by_length = greedy(tiny, prompts, TorchOps()), greedy(tiny, prompts, CpuOps())
    for b, prompt in enumerate(prompts):
        forget_long_inputs(tiny.model)
        want = tiny.model.generate(
            prompt.unsqueeze(0),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=STEPS + 1,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
        )
        for ids_BS, logits_BSV in (by_mask, by_length):
            assert ids_BS[b].tolist() == want.sequences[0, len(prompt) :].tolist()
            torch.testing.assert_close(logits_BSV[b], torch.cat(want.logits), atol=1e-4, rtol=0)


def test_parameters_are_counted_as_transformers_counts_them(tiny: Any) -> None:
    assert tiny.spec.total_params == tiny.model.num_parameters()
