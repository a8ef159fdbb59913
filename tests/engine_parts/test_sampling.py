"""Each filter against transformers' own logits processors, and randomness that depends on nothing but its key."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.generation import logits_process as reference

from flexinfer.engine.sampling import SamplingParams, candidates, pick, sequence_keys, uniform
from flexinfer.errors import EngineError, UserError


def random_logits(rows: int, vocab: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 3


def transformers_keeps(processors: list, row_V: torch.Tensor) -> list[int]:
    scores = row_V[None].clone()
    for processor in processors:
        scores = processor(torch.zeros(1, 1, dtype=torch.long), scores)
    return torch.isfinite(scores[0]).nonzero().squeeze(1).tolist()


@given(
    st.integers(0, 10_000),
    st.sampled_from([5, 97, 1000]),
    st.sampled_from([0.3, 1.0, 2.5]),
    st.sampled_from([None, 1, 7, 5000]),
    st.sampled_from([None, 0.05, 0.5, 0.9, 1.0]),
    st.sampled_from([None, 0.0, 0.02, 0.4, 1.0]),
)
def test_filters_keep_what_transformers_keeps(seed, vocab, temperature, top_k, top_p, min_p):
    row_V = random_logits(1, vocab, seed)[0]
    processors = [reference.TemperatureLogitsWarper(temperature)]
    processors += [reference.TopKLogitsWarper(top_k)] if top_k else []
    processors += [reference.TopPLogitsWarper(top_p)] if top_p and top_p < 1 else []
    processors += [reference.MinPLogitsWarper(min_p)] if min_p is not None else []
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    ids_C, probs_C = candidates(row_V, params)
    assert ids_C.tolist() == transformers_keeps(processors, row_V)
    scores = row_V[None]
    for processor in processors:
        scores = processor(torch.zeros(1, 1, dtype=torch.long), scores)
    torch.testing.assert_close(probs_C / probs_C.sum(), torch.softmax(scores[0].double(), 0)[ids_C], rtol=1e-4, atol=0)


def test_repetition_penalty_is_transformers_own():
    logits = random_logits(2, 50)
    best = [int(row.argmax()) for row in logits]
    history = [[3, 4, 3, best[0]], [0, best[1]]]
    want = [
        int(reference.RepetitionPenaltyLogitsProcessor(1.7)(torch.tensor([ids]), logits[i : i + 1].clone()).argmax())
        for i, ids in enumerate(history)
    ]
    before = logits.clone()
    got = pick(logits, SamplingParams(repetition_penalty=1.7), history, [0, 1], step=0)
    assert got == want != best
    assert torch.equal(logits, before), "the caller's logits are not changed"


@pytest.mark.parametrize("vocab", [7, 4096, 150_001])
def test_greedy_takes_the_lowest_id_among_equals(vocab):
    logits = torch.zeros(3, vocab)
    logits[1, [vocab // 2, vocab - 1]] = 1
    logits[2, vocab - 1] = 1
    assert pick(logits, SamplingParams(), [[]] * 3, [0] * 3, 0) == [0, vocab // 2, vocab - 1]


def test_draws_depend_on_seed_sequence_and_step_alone():
    logits = random_logits(3, 200)
    params = SamplingParams(temperature=1.0, seed=5)
    keys = [11, 22, 33]
    together = [pick(logits, params, [[]] * 3, keys, step) for step in range(20)]
    for order in ([2, 0, 1], [1]):
        alone = [pick(logits[order], params, [[]] * len(order), [keys[i] for i in order], s) for s in range(20)]
        assert alone == [[tokens[i] for i in order] for tokens in together]
    other = [pick(logits, SamplingParams(temperature=1.0, seed=6), [[]] * 3, keys, step) for step in range(20)]
    assert other != together
    assert len({tuple(tokens) for tokens in together}) > 10, "steps differ from one another"


def test_draws_follow_the_distribution():
    probs = torch.tensor([0.1, 0.2, 0.3, 0.4])
    params = SamplingParams(temperature=1.0, seed=1)
    drawn = [pick(probs.log()[None], params, [[]], [7], step)[0] for step in range(4000)]
    shares = np.bincount(drawn, minlength=4) / len(drawn)
    assert np.abs(shares - probs.numpy()).max() < 0.03


def test_tiny_temperature_is_greedy():
    logits = random_logits(4, 100)
    got = pick(logits, SamplingParams(temperature=1e-30), [[]] * 4, [1, 2, 3, 4], 0)
    assert got == logits.argmax(-1).tolist()


def test_uniform_numbers_are_fixed_and_spread():
    assert uniform(1, 2, 3) == uniform(1, 2, 3)
    numbers = [uniform(0, key, step) for key in range(20) for step in range(20)]
    assert min(numbers) >= 0 and max(numbers) < 1 and abs(sum(numbers) / 400 - 0.5) < 0.05


def test_sequence_keys_come_from_the_prompt_and_copies_differ():
    a, b, c = sequence_keys([[1, 2], [3], [1, 2]])
    assert len({a, b, c}) == 3
    assert sequence_keys([[3], [1, 2], [1, 2]]) == [b, a, c]
    assert sequence_keys([[12]]) != sequence_keys([[1, 2]])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_are_an_engine_error(value, temperature):
    logits = random_logits(2, 10)
    logits[1, 3] = value
    with pytest.raises(EngineError, match="sequence 1 at step 4 are not finite"):
        pick(logits, SamplingParams(temperature=temperature), [[]] * 2, [0, 1], 4)


def test_a_single_minus_infinity_is_only_an_impossible_token():
    logits = torch.tensor([[-float("inf"), 0.0, -1.0]])
    assert pick(logits, SamplingParams(), [[]], [0], 0) == [1]
    assert 0 not in {pick(logits, SamplingParams(temperature=9.0), [[]], [0], step)[0] for step in range(50)}


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": True},
        {"temperature": None},
        {"top_k": 0},
        {"top_k": 1.5},
        {"top_p": 0},
        {"top_p": 1.01},
        {"min_p": -0.1},
        {"min_p": "x"},
        {"repetition_penalty": 0},
        {"repetition_penalty": None},
        {"seed": -1},
        {"seed": 2**64},
    ],
)
def test_bad_parameters_are_named(bad):
    with pytest.raises(UserError, match=next(iter(bad))):
        SamplingParams(**bad)


def test_filters_without_a_temperature_are_reported_idle():
    assert SamplingParams(top_p=0.9).idle_filters == ("top_p",)
    assert SamplingParams(top_p=0.9, temperature=0.1).idle_filters == ()
