"""Prompts of texts, lists and tensors; what is refused, with the numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from flexinfer.engine import prompt
from flexinfer.errors import UserError
from flexinfer.spec.model_spec import ModelSpec

SPEC = ModelSpec(
    name="tiny",
    family="llama",
    hidden_size=8,
    num_layers=1,
    num_heads=1,
    num_kv_heads=1,
    head_dim=8,
    ffn_size=8,
    vocab_size=10,
    max_positions=16,
    weight_dtype="float32",
    activation="silu",
    gated_mlp=True,
    norm="rms",
    norm_eps=1e-5,
)


def test_lists_and_tensors_become_prompts():
    assert prompt.prompts_from_ids([[1, 2], [3]]) == [[1, 2], [3]]
    assert prompt.prompts_from_ids([1, 2]) == [[1, 2]]
    assert prompt.prompts_from_ids(torch.tensor([[1, 2], [3, 4]])) == [[1, 2], [3, 4]]
    assert prompt.prompts_from_ids(torch.tensor([1, 2])) == [[1, 2]]


def test_the_mask_alone_says_what_is_padding():
    ids = torch.tensor([[0, 0, 1], [2, 3, 0]])
    assert prompt.prompts_from_ids(ids, torch.tensor([[0, 1, 1], [1, 1, 0]])) == [[0, 1], [2, 3]]
    assert prompt.prompts_from_ids(ids) == [[0, 0, 1], [2, 3, 0]]
    with pytest.raises(UserError, match="another shape"):
        prompt.prompts_from_ids(ids, torch.ones(2, 2, dtype=torch.long))


@pytest.mark.parametrize(
    "bad", ["text", ["a"], [[1.5]], 3, torch.tensor([[0.5]]), torch.zeros(1, 1, 1, dtype=torch.int)]
)
def test_ids_are_whole_numbers(bad):
    with pytest.raises(UserError, match="input_ids"):
        prompt.prompts_from_ids(bad)


@pytest.mark.parametrize(
    ("prompts", "named"),
    [([], "no prompt"), ([[1], []], "prompt 1 is empty"), ([[1, 10]], "id 10.*0 to 9"), ([[-1]], "id -1")],
)
def test_prompts_are_checked_against_the_model(prompts, named):
    with pytest.raises(UserError, match=named):
        prompt.check_prompts(prompts, SPEC)


def test_the_window_bounds_prompt_and_answer():
    assert prompt.new_tokens_within(10, 7, SPEC) == 7
    assert prompt.new_tokens_within(10, None, SPEC) == 7
    assert prompt.new_tokens_within(10, None, replace(SPEC, max_positions=4096)) == prompt.DEFAULT_NEW_TOKENS
    with pytest.raises(UserError, match=r"10 prompt tokens and 8 new.*16.*at most 7"):
        prompt.new_tokens_within(10, 8, SPEC)
    with pytest.raises(UserError, match=r"17 tokens.*16"):
        prompt.new_tokens_within(17, 1, SPEC)
    with pytest.raises(UserError, match="max_new_tokens"):
        prompt.new_tokens_within(1, 0, SPEC)


def test_ids_on_the_command_line():
    assert prompt.parse_ids("1, 2,3") == [1, 2, 3]
    with pytest.raises(UserError, match="1,2,3"):
        prompt.parse_ids("1,,2")


def test_without_a_tokenizer_text_is_refused():
    with pytest.raises(UserError, match="no tokenizer"):
        prompt.encode_prompts(None, ["x"])


def test_sequences_are_padded_as_transformers_pads():
    given = torch.tensor([[9, 1], [2, 3]])
    out = prompt.sequences_tensor(given, [[4, 5, 6], [7]], pad_token_id=None, eos_token_ids=frozenset({8, 7}))
    assert out.tolist() == [[9, 1, 4, 5, 6], [2, 3, 7, 7, 7]]
    assert prompt.sequences_tensor(given, [[4, 5], [7]], 0, frozenset())[1].tolist() == [2, 3, 7, 0]
