"""One request through the engine: chooses tokens, tracks every sequence, and tells who listens.

B batch, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from flexinfer.engine.detokenizer import Decode
from flexinfer.engine.request import Request
from flexinfer.engine.sampling import pick, sequence_keys
from flexinfer.engine.sequence import SequenceOutput


class Listener(Protocol):
    """Hears of a generation while it runs, between steps, on the thread that generates; so it should be quick."""

    def on_step(self, step: int, tokens: Sequence[int], pieces: Sequence[str]) -> None:
        """The new token of each sequence and the text that it made certain ("" for one that has finished)."""


class Generation:
    """The state of one request. `pick` and `on_tokens` are what Engine.generate calls.

    decode: None without a tokenizer. `cancelled`, set from any thread, ends the request after the step that runs.
    """

    def __init__(self, request: Request, decode: Decode | None, listener: Listener | None = None) -> None:
        self.request = request
        self.cancelled = False
        self._listener = listener
        self._keys = sequence_keys(request.prompts)
        live = listener is not None
        self.outputs = [SequenceOutput(prompt, request.rules, decode, live) for prompt in request.prompts]

    def pick(self, logits_BV: torch.Tensor, step: int) -> list[int]:
        """The next token of each sequence."""
        sampling = self.request.sampling
        penalized = sampling.repetition_penalty != 1.0
        history = [output.history for output in self.outputs] if penalized else []
        return pick(logits_BV, sampling, history, self._keys, step)

    def on_tokens(self, step: int, tokens: list[int]) -> Sequence[bool]:
        """Takes the new tokens; says which sequences are finished."""
        pieces = [output.push(token) for output, token in zip(self.outputs, tokens, strict=True)]
        if self._listener is not None:
            self._listener.on_step(step, tokens, pieces)
        return [self.cancelled or output.finished for output in self.outputs]

    def finish(self) -> None:
        """Completes every sequence's text. Call once after the run, an interrupted one too."""
        for output in self.outputs:
            output.finish()
