"""What one sequence has produced so far: ids, text as it becomes certain, and why it ended. No torch."""

from __future__ import annotations

from collections.abc import Sequence

from flexinfer.engine.detokenizer import Decode, Detokenizer
from flexinfer.engine.stopping import FinishReason, StopRules, StopStrings


class SequenceOutput:
    """Takes new tokens one by one. `decode` is None without a tokenizer: then there is no text and no stop string.

    A stop token is kept in `token_ids` and has no text. `live` text is made while tokens arrive, which costs some
    50 us a token; it is needed for streaming and stop strings, and otherwise left to `finish`.
    """

    def __init__(self, prompt: Sequence[int], rules: StopRules, decode: Decode | None, live: bool) -> None:
        self.prompt = prompt
        self.token_ids: list[int] = []
        self.finish_reason: FinishReason | None = None
        self._rules = rules
        self._live = (live or bool(rules.strings)) and decode is not None
        self._detokenizer = Detokenizer(decode) if decode is not None else None
        self._stops = StopStrings(rules.strings)
        self._pieces: list[str] = []

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    @property
    def history(self) -> list[int]:
        """Prompt and new ids, for the repetition penalty."""
        return [*self.prompt, *self.token_ids]

    def push(self, token: int) -> str:
        """Takes one token; returns the text that it made certain. Nothing happens once finished."""
        if self.finished:
            return ""
        self.token_ids.append(token)
        piece = ""
        if token in self._rules.token_ids:
            self.finish_reason = "stop"
        else:
            piece = self._text_of(token) if self._live else ""
            if self._stops.found:
                self.finish_reason = "stop"
            elif len(self.token_ids) >= self._rules.max_new_tokens:
                self.finish_reason = "length"
        if self.finished and self._live:
            piece += self._rest()
        return self._keep(piece)

    def finish(self) -> str:
        """The text that is still to come (all of it if it was not live). "length" where the run ended first."""
        self.finish_reason = self.finish_reason or "length"
        if self._detokenizer is None:
            return ""
        piece = ""
        if not self._live:
            ended = bool(self.token_ids) and self.token_ids[-1] in self._rules.token_ids
            piece = "".join(map(self._text_of, self.token_ids[:-1] if ended else self.token_ids))
        piece += self._rest()
        self._live = True
        return self._keep(piece)

    def _text_of(self, token: int) -> str:
        assert self._detokenizer is not None
        return self._stops.push(self._detokenizer.push(token))

    def _rest(self) -> str:
        """What both stages held back, once; nothing after a stop string."""
        assert self._detokenizer is not None
        last = self._stops.push(self._detokenizer.flush())
        return last + self._stops.flush()

    def _keep(self, piece: str) -> str:
        if piece:
            self._pieces.append(piece)
        return piece
