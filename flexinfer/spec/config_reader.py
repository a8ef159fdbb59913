"""Typed access to a config.json: every wrong or missing value is one line that names the key. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flexinfer.errors import ModelError

MOST = 2**31 - 1
"""Of anything that a model has a number of."""
MOST_LAYERS = 4096


@dataclass(frozen=True)
class Config:
    """The keys of one config; `where` begins every message. A key set to null counts as absent."""

    values: Mapping[str, Any]
    where: str

    def error(self, message: str) -> ModelError:
        """The error to raise, in one line whatever text of the file the message quotes."""
        return ModelError("".join(c if c.isprintable() else "?" for c in f"{self.where}: {message}"))

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def _value(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        if value is None:
            value = default
        if value is None:
            raise self.error(f"{key} is missing")
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._value(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(f"{key} is {value!r}; it must be a whole number")
        return value

    def count(self, key: str, default: int | None = None, most: int = MOST) -> int:
        """A whole number from 1 to `most`."""
        value = self.integer(key, default)
        if value < 1:
            raise self.error(f"{key} is {value}; it must be at least 1")
        if value > most:
            raise self.error(f"{key} is too large; it must be at most {most}")
        return value

    def layers(self, key: str) -> int:
        """How many layers: no more than a plan can name one by one."""
        return self.count(key, most=MOST_LAYERS)

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
            raise self.error(f"{key} is {value!r}; it must be a positive number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.error(f"{key} is {value!r}; it must be true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self.error(f"{key} is {value!r}; it must be a string")
        return value

    def names(self, key: str) -> list[str] | None:
        """A list of strings; None where the key is absent."""
        value = self.values.get(key)
        if value is not None and (not isinstance(value, list) or not all(isinstance(name, str) for name in value)):
            raise self.error(f"{key} is {value!r}; it must be a list of names")
        return value

    def token_ids(self, key: str, default: int | None) -> tuple[int, ...]:
        """One id or a list of ids; () where the key is null, or absent without a default."""
        value = self.values.get(key, default)
        found = () if value is None else tuple(value) if isinstance(value, list) else (value,)
        for token in found:
            if isinstance(token, bool) or not isinstance(token, int) or token < 0:
                raise self.error(f"{key} is {value!r}; it must be a token id or a list of them")
        return found
