"""Token ids to text, piece by piece. No torch.

A character may be spread over several tokens, and a tokenizer may spell a token differently at the start of a text
(SentencePiece drops the first space there). So each piece is the difference of two decodings of the same short
window of tokens, and what ends in an unfinished character is held back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

UNFINISHED = "\ufffd"
"""What decoders put for bytes that are not a character (yet)."""

Decode = Callable[[Sequence[int]], str]


class Detokenizer:
    """One sequence's text. The pieces of `push` and `flush` together are the text of all its tokens."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._window: list[int] = []
        # Tokens at the window's start whose text is out already; they stay for one piece, as context
        self._context = 0
        # Characters of the window's text that are out
        self._given = 0

    def push(self, token: int) -> str:
        """The text that is certain now; "" while a character is unfinished."""
        self._window.append(token)
        text = self._decode(self._window)
        whole = text.rstrip(UNFINISHED)
        piece = whole[self._given :]
        self._given = max(self._given, len(whole))
        if piece and whole == text:
            self._forget()
        return piece

    def flush(self) -> str:
        """What is left at the end: bytes that never became a character, as U+FFFD."""
        piece = self._decode(self._window)[self._given :]
        self._given += len(piece)
        return piece

    def _forget(self) -> None:
        """Keep the tokens of the last piece only: the context of the next."""
        del self._window[: self._context]
        self._context = len(self._window)
        self._given = len(self._decode(self._window))
