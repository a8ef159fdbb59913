"""Streamers in transformers' shape: put(ids) for the prompt, then for each new token, then end()."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from flexinfer.errors import UserError


class Streamer(Protocol):
    """What transformers calls a streamer, as far as it is called here."""

    def put(self, value: torch.Tensor) -> None:
        """Ids: [1, S] of the prompt first, then [1] of each new token."""

    def end(self) -> None:
        """No more will come."""


class StreamerListener:
    """Tells a streamer of one sequence's tokens. `end` is called on every way out, so that no reader waits for ever."""

    def __init__(self, streamer: Streamer, prompts: Sequence[Sequence[int]]) -> None:
        for name in ("put", "end"):
            if not callable(getattr(streamer, name, None)):
                raise UserError(f"a streamer needs put(ids) and end(); {type(streamer).__name__} has no {name}")
        if len(prompts) != 1:
            raise UserError(f"a streamer follows one prompt, not {len(prompts)}")
        self._streamer = streamer
        self._prompt = prompts[0]

    def __enter__(self) -> StreamerListener:
        try:
            self._streamer.put(torch.tensor([list(self._prompt)]))
        except BaseException:
            self._streamer.end()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._streamer.end()

    def on_step(self, step: int, tokens: Sequence[int], pieces: Sequence[str]) -> None:
        self._streamer.put(torch.tensor([tokens[0]]))
