"""Prompts as the engine takes them: lists of token ids, checked against the model. Imports no torch.

B batch, S length of the longest prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flexinfer.engine.stopping import check_new_tokens
from flexinfer.engine.tokenizer import Tokenizer
from flexinfer.errors import ModelError, UserError
from flexinfer.spec.model_spec import ModelSpec
from flexinfer.window import check_window

if TYPE_CHECKING:
    import torch

DEFAULT_NEW_TOKENS = 128


def encode_prompts(tokenizer: Tokenizer | None, texts: Sequence[str], chat: bool = False) -> list[list[int]]:
    """Token ids of each text; with `chat` each is a user's message in the model's template. Raises UserError."""
    if tokenizer is None:
        raise UserError("this model has no tokenizer; give token ids (--prompt-ids 1,2,3, or input_ids in Python)")
    if chat:
        return [tokenizer.apply_chat_template([{"role": "user", "content": _not_empty(text)}]) for text in texts]
    return [tokenizer.encode(text) for text in texts]


def _not_empty(text: str) -> str:
    if not text:
        raise UserError("the prompt is empty; give it at least one character")
    return text


def parse_ids(text: str) -> list[int]:
    """Ids of "1,2,3". Raises UserError."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"{text!r} is not a list of token ids; write it like 1,2,3") from None


def prompts_from_ids(input_ids: Any, attention_mask: Any = None) -> list[list[int]]:
    """Prompts of uneven lists, or of a [B, S] tensor whose mask (1 = real) says what is padding, on either side.

    Without a mask every id is real: no id is ever taken for padding, which may be an end-of-sequence id.
    """
    rows = _rows(input_ids, "input_ids")
    if attention_mask is None:
        return rows
    masks = _rows(attention_mask, "attention_mask")
    if [len(row) for row in masks] != [len(row) for row in rows]:
        raise UserError("attention_mask has another shape than input_ids")
    return [
        [token for token, real in zip(row, mask, strict=True) if real] for row, mask in zip(rows, masks, strict=True)
    ]


def is_tensor(value: Any) -> bool:
    """A torch tensor, told without importing torch."""
    return hasattr(value, "tolist") and hasattr(value, "ndim")


def _rows(value: Any, what: str) -> list[list[int]]:
    rows = value.tolist() if is_tensor(value) else value
    if isinstance(rows, Sequence) and not isinstance(rows, str) and rows and all(isinstance(x, int) for x in rows):
        rows = [rows]
    lists = isinstance(rows, Sequence) and all(isinstance(row, Sequence) and not isinstance(row, str) for row in rows)
    if not lists or not all(isinstance(token, int) for row in rows for token in row):
        raise UserError(f"{what} must be lists of whole numbers, or a tensor of them of shape [batch, length]")
    return [[int(token) for token in row] for row in rows]


def check_prompts(prompts: Sequence[Sequence[int]], spec: ModelSpec) -> None:
    """Raises UserError for no prompt, an empty one, or an id outside the vocabulary."""
    if not prompts:
        raise UserError("there is no prompt; give at least one")
    for index, prompt in enumerate(prompts):
        if not prompt:
            raise UserError(f"prompt {index} is empty; give it at least one token")
        outside = [token for token in prompt if not 0 <= token < spec.vocab_size]
        if outside:
            raise UserError(
                f"prompt {index} has token id {outside[0]}; {spec.name} knows ids 0 to {spec.vocab_size - 1}"
            )


def check_vocabulary(encoded: Sequence[Sequence[int]], spec: ModelSpec) -> None:
    """Raises ModelError when a tokenizer made ids that the model does not have."""
    largest = max((max(ids, default=0) for ids in encoded), default=0)
    if largest >= spec.vocab_size:
        raise ModelError(
            f"the tokenizer gives token id {largest}, and {spec.name} knows ids 0 to {spec.vocab_size - 1}; "
            "the two do not belong together, fetch both from one place"
        )


def new_tokens_within(prompt_len: int, max_new_tokens: int | None, spec: ModelSpec) -> int:
    """The count asked for, or the default cut to what the model's window leaves. Raises UserError with the numbers."""
    if max_new_tokens is None:
        return min(DEFAULT_NEW_TOKENS, check_window(spec, prompt_len, None))
    check_new_tokens(max_new_tokens)
    check_window(spec, prompt_len, max_new_tokens)
    return max_new_tokens


def sequences_tensor(
    input_ids: torch.Tensor, new_ids: Sequence[Sequence[int]], pad_token_id: int | None, eos_token_ids: frozenset[int]
) -> torch.Tensor:
    """[B, S + longest answer]: the tensor given, then the new ids, short rows padded as transformers does.

    Padding is the pad token, or else the lowest end-of-sequence id, or else 0.
    """
    import torch

    given_BS = input_ids if input_ids.ndim == 2 else input_ids[None]
    pad = pad_token_id if pad_token_id is not None else min(eos_token_ids, default=0)
    longest = max(map(len, new_ids))
    rows = [[*ids, *[pad] * (longest - len(ids))] for ids in new_ids]
    return torch.cat([given_BS, torch.tensor(rows, dtype=given_BS.dtype, device=given_BS.device)], dim=1)
