"""Prompts as the engine takes them: lists of token ids, checked against the model. Imports no torch.

B batch, S length of the longest prompt.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from flexinfer.engine.tokenizer import Tokenizer
from flexinfer.errors import ModelError, UserError
from flexinfer.spec.model_spec import ModelSpec
from flexinfer.units import as_whole, check_whole, parse_whole
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
        return [parse_whole(part) for part in text.split(",")]
    except UserError:
        raise UserError(f"{text!r} is not a list of token ids; write it like 1,2,3") from None


def prompts_from_ids(input_ids: Any, attention_mask: Any = None) -> list[list[int]]:
    """Prompts of uneven lists, or of a [B, S] tensor whose mask (1 = real) says what is padding, on either side.

    Without a mask every id is real: no id is ever taken for padding, which may be an end-of-sequence id.
    """
    rows = _rows(input_ids, "input_ids", "whole numbers", as_whole)
    if attention_mask is None:
        return rows
    masks = _rows(attention_mask, "attention_mask", "zeros and ones", _mask_bit)
    if [len(row) for row in masks] != [len(row) for row in rows]:
        raise UserError("attention_mask has another shape than input_ids")
    return [
        [token for token, real in zip(row, mask, strict=True) if real] for row, mask in zip(rows, masks, strict=True)
    ]


def is_array(value: Any) -> bool:
    """A torch tensor or a NumPy array, told without importing either."""
    return hasattr(value, "tolist") and hasattr(value, "ndim")


def is_tensor(value: Any) -> bool:
    """A torch tensor, told without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _mask_bit(value: Any) -> int | None:
    """1 or 0 of a number or a bool; None for others, such as the large negative ones of additive masks."""
    return int(value) if isinstance(value, (int, float)) and value in (0, 1) else None


def _rows(value: Any, what: str, numbers: str, read: Callable[[Any], int | None]) -> list[list[int]]:
    """One list a sequence, each entry as `read` has it."""
    rows = _plain(value, what)
    if rows and read(rows[0]) is not None:
        rows = [rows]
    wanted = f"{what} must be lists of {numbers}, or a tensor of them of shape [batch, length]"
    found = [[read(entry) for entry in _plain(row, wanted)] for row in rows]
    if any(entry is None for row in found for entry in row):
        raise UserError(wanted)
    return [[entry for entry in row if entry is not None] for row in found]


def _plain(value: Any, what: str) -> list[Any]:
    """A list of a list, a tuple, a range, an array or a tensor."""
    if is_array(value):
        try:
            value = value.tolist()
        except (RuntimeError, NotImplementedError) as error:  # a tensor on "meta" has no values
            raise UserError(f"{what}: {error}") from None
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray)):
        return list(value)
    raise UserError(what if " " in what else f"{what} must be lists of numbers, not {type(value).__name__}")


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
    wanted = check_whole("max_new_tokens", max_new_tokens, 1)
    check_window(spec, prompt_len, wanted)
    return wanted


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
