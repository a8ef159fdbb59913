"""A model's window: how many tokens a prompt and its answer may have together. No torch."""

from __future__ import annotations

from flexinfer.errors import UserError
from flexinfer.spec import ModelSpec


def check_window(spec: ModelSpec, prompt_len: int, new_tokens: int | None) -> int:
    """Raises UserError when prompt and new tokens pass the model's window; returns how many new ones it has room for.

    The last new token is not fed back, so the window holds prompt + new - 1 tokens.
    """
    room = spec.max_positions - prompt_len + 1
    if room < 1:
        raise UserError(
            f"the prompt has {prompt_len} tokens and the window of {spec.name} holds {spec.max_positions}; shorten it"
        )
    if new_tokens is not None and new_tokens > room:
        raise UserError(
            f"{prompt_len} prompt tokens and {new_tokens} new ones do not fit the window of {spec.name}, "
            f"{spec.max_positions}; ask for at most {room} new tokens"
        )
    return room
