"""When a sequence ends: a stop token, a stop string, or its count of new tokens. No torch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from flexinfer.errors import UserError
from flexinfer.json_file import read_json_object
from flexinfer.units import as_whole, check_whole

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class StopRules:
    """`token_ids` end a sequence and stay among its ids; `strings` end it and their text is cut off.

    Raises UserError for an empty stop string and for a count below 1.
    """

    max_new_tokens: int
    token_ids: frozenset[int] = frozenset()
    strings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_new_tokens", check_whole("max_new_tokens", self.max_new_tokens, 1))
        for text in self.strings:
            if not isinstance(text, str) or not text:
                raise UserError(f"stop string {text!r} must be text of at least one character")


def stop_token_ids(path: Path, *more: Iterable[int]) -> frozenset[int]:
    """The end-of-sequence ids of generation_config.json beside the model, together with those of `more`.

    Checkpoints name some in one file and some in another, so the set is the union. Raises ModelError.
    """
    folder = path if path.is_dir() else path.parent
    return frozenset(_generation_config_ids(folder / "generation_config.json")).union(*more)


def _generation_config_ids(file: Path) -> list[int]:
    if not file.is_file():
        return []
    return as_token_ids(read_json_object(file).get("eos_token_id"), f"eos_token_id in {file}")


def as_token_ids(value: Any, what: str) -> list[int]:
    """None, one id or a list, an array or a tensor of ids, as a list. Raises UserError."""
    if value is None:
        return []
    plain = value.tolist() if hasattr(value, "tolist") else value
    found = list(plain) if isinstance(plain, (list, tuple, set, frozenset)) else [plain]
    ids = [token for token in map(as_whole, found) if token is not None and token >= 0]
    if len(ids) != len(found):
        raise UserError(f"{what} is {value!r}; it must be a token id or a list of them")
    return ids


class StopStrings:
    """Passes text on until one of the strings appears; holds back an end that may be the start of one."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = strings
        self._held = ""
        self.found = False

    def push(self, piece: str) -> str:
        """What may be shown now; after a stop string is found, what comes before it and then nothing."""
        if self.found:
            return ""
        text = self._held + piece
        starts = [at for at in (text.find(s) for s in self._strings) if at >= 0]
        if starts:
            self.found, self._held = True, ""
            return text[: min(starts)]
        keep = _possible_start(text, self._strings)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """What was held back, when the sequence ends without a stop string."""
        held, self._held = self._held, ""
        return held


def _possible_start(text: str, strings: Collection[str]) -> int:
    """Length of the longest end of `text` with which one of the strings starts."""
    longest = max(map(len, strings), default=1) - 1
    for length in range(min(longest, len(text)), 0, -1):
        if any(s.startswith(text[len(text) - length :]) for s in strings):
            return length
    return 0
