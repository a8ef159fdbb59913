"""Reads JSON files that others wrote: whatever is wrong with one is one line that names it. No torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flexinfer.errors import ModelError, UserError

_LONGEST_REASON = 200


def read_json(path: Path, error: type[UserError] = ModelError, remedy: str = "fetch it again") -> Any:
    """The file's value. Raises `error`: not there, not readable, not JSON; `remedy` says what to do about the last."""
    try:
        return json.loads(path.read_bytes())
    except OSError as refusal:
        raise error(f"{path} cannot be read: {refusal.strerror or refusal}") from None
    except RecursionError:
        raise error(f"{path} is not valid JSON (nested too deeply); {remedy}") from None
    except ValueError as fault:  # not JSON, or not UTF-8
        raise error(f"{path} is not valid JSON ({one_line(fault)}); {remedy}") from None


def read_json_object(path: Path, error: type[UserError] = ModelError, remedy: str = "fetch it again") -> dict[str, Any]:
    """As read_json, for a file that has to hold an object."""
    value = read_json(path, error, remedy)
    if not isinstance(value, dict):
        raise error(f"{path} holds a {type(value).__name__}, not an object; {remedy}")
    return value


def one_line(error: BaseException) -> str:
    """What an exception says, however many lines it takes for it; its type where it says nothing."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]} ..."
