"""From logits to the next token: greedy, or drawn after the usual filters.

B batch, V vocabulary, C candidates of one sequence (tokens that the filters kept, in order of token id).

The filters are those of transformers, in its order: repetition penalty, temperature, top-k, top-p, min-p. Random
numbers come from a counter-based generator keyed by (seed, sequence, step), and a sequence's key from its own prompt,
so neither the batch around it nor its order nor the plan changes what is drawn.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from flexinfer.errors import EngineError, UserError
from flexinfer.units import as_real, check_whole


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are chosen. Temperature 0 is greedy; None switches a filter off. Raises UserError on a bad value."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        self._real("temperature", lambda x: x >= 0, "a number of 0 (greedy) or more")
        self._real("repetition_penalty", lambda x: x > 0, "a number above 0")
        self._real("top_p", lambda x: 0 < x <= 1, "a number above 0 and at most 1")
        self._real("min_p", lambda x: 0 <= x <= 1, "a number from 0 to 1")
        object.__setattr__(self, "seed", check_whole("seed", self.seed, 0, 2**64 - 1))
        if self.top_k is not None:
            object.__setattr__(self, "top_k", check_whole("top_k", self.top_k, 1))

    def _real(self, name: str, allowed: Callable[[float], bool], wanted: str) -> None:
        """Leaves the field's value as float. None passes where it switches a filter off."""
        value = getattr(self, name)
        if value is None and name in ("top_p", "min_p"):
            return
        number = as_real(value)
        if number is None or not allowed(number):
            raise UserError(f"{name} is {value!r}; it must be {wanted}")
        object.__setattr__(self, name, number)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def idle_filters(self) -> tuple[str, ...]:
        """Filters that are set although greedy choice ignores them."""
        named = {"top_k": self.top_k, "top_p": self.top_p, "min_p": self.min_p}
        return tuple(name for name, value in named.items() if value is not None) if self.greedy else ()


def sequence_keys(prompts: Sequence[Sequence[int]]) -> list[int]:
    """A 64-bit key for each prompt, made of its ids; the n-th copy of one prompt in a batch gets a key of its own."""
    seen: Counter[tuple[int, ...]] = Counter()
    keys = []
    for prompt in prompts:
        ids = tuple(prompt)
        text = f"{seen[ids]}:{','.join(map(str, ids))}"
        keys.append(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little"))
        seen[ids] += 1
    return keys


def uniform(seed: int, sequence_key: int, step: int) -> float:
    """The one random number in [0, 1) of (seed, sequence, step)."""
    bits = np.random.Philox(key=[seed, sequence_key], counter=[0, step, 0, 0])
    return float(np.random.Generator(bits).random())


def pick(
    logits_BV: torch.Tensor, params: SamplingParams, history: Sequence[Sequence[int]], keys: Sequence[int], step: int
) -> list[int]:
    """The next token id of each sequence. Changes neither logits nor history.

    logits_BV: float32 on the CPU. history: prompt and generated ids of each sequence, for the repetition penalty.
    keys: from `sequence_keys`. Greedy takes the lowest id among equals. Raises EngineError on NaN or infinite logits.
    """
    top = logits_BV.max(dim=-1)
    _check_finite(top.values, step)
    if params.repetition_penalty != 1.0:
        logits_BV = _penalized(logits_BV, history, params.repetition_penalty)
        top = logits_BV.max(dim=-1)
    if params.greedy:
        return [int(token) for token in top.indices]
    return [_draw(row_V, params, uniform(params.seed, key, step)) for row_V, key in zip(logits_BV, keys, strict=True)]


def _check_finite(largest_B: torch.Tensor, step: int) -> None:
    """The maximum is NaN if any logit is; +inf, and -inf throughout, are as useless."""
    bad = (~torch.isfinite(largest_B)).nonzero()
    if len(bad):
        raise EngineError(
            f"the logits of sequence {int(bad[0])} at step {step} are not finite (NaN or infinity): the weights are "
            "damaged, or their values overflow in this dtype (try --dtype float32)"
        )


def _penalized(logits_BV: torch.Tensor, history: Sequence[Sequence[int]], penalty: float) -> torch.Tensor:
    """Each id seen before: positive logits divided by the penalty, negative ones multiplied."""
    out_BV = logits_BV.clone()
    for row_V, ids in zip(out_BV, history, strict=True):
        seen = torch.tensor(sorted(set(ids)), dtype=torch.int64)
        values = row_V[seen]
        row_V[seen] = torch.where(values < 0, values * penalty, values / penalty)
    if not torch.isfinite(out_BV.max()):
        raise UserError(f"repetition_penalty {penalty:g} makes logits overflow; choose one nearer to 1")
    return out_BV


def candidates(row_V: torch.Tensor, params: SamplingParams) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids_C, probabilities_C) that temperature, top-k, top-p and min-p leave of one row; the sum may be under 1."""
    # From the largest: a tiny temperature then gives -inf for the rest, not inf for the best
    scores_V = (row_V - row_V.max()) / params.temperature
    if params.top_k is not None and params.top_k < len(scores_V):
        least = scores_V.topk(params.top_k).values[-1]
        ids_C = (scores_V >= least).nonzero().squeeze(1)
        probs_C = torch.softmax(scores_V[ids_C], dim=0).double()
    else:
        ids_C = torch.arange(len(scores_V))
        probs_C = torch.softmax(scores_V, dim=0).double()
    if params.top_p is not None and params.top_p < 1:
        keep_C = _nucleus(probs_C, params.top_p)
        ids_C, probs_C = ids_C[keep_C], probs_C[keep_C]
    if params.min_p is not None:
        keep_C = probs_C >= params.min_p * probs_C.max()
        ids_C, probs_C = ids_C[keep_C], probs_C[keep_C]
    return ids_C, probs_C


def _nucleus(probs_C: torch.Tensor, top_p: float) -> torch.Tensor:
    """Indices, in order, of the most probable tokens: each whose more probable ones together have less than top_p.

    Only tokens of at least (1 - top_p) / C are sorted: all below that together have less than 1 - top_p, so the
    nucleus is full before it reaches them. A sort of a whole vocabulary takes longer than the rest of sampling.
    """
    likely = (probs_C >= (1 - top_p) / len(probs_C)).nonzero().squeeze(1)
    sorted_probs, order = probs_C[likely].sort(descending=True, stable=True)
    before = sorted_probs.cumsum(0) - sorted_probs
    keep = before < top_p
    keep[0] = True
    return likely[order[keep]].sort().values


def _draw(row_V: torch.Tensor, params: SamplingParams, number: float) -> int:
    """The token at which the running sum of probabilities passes `number` of their total."""
    ids_C, probs_C = candidates(row_V, params)
    sums_C = probs_C.cumsum(0)
    place = int(torch.searchsorted(sums_C, number * float(sums_C[-1]), right=True))
    return int(ids_C[min(place, len(ids_C) - 1)])
