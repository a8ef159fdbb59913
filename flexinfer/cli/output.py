"""Where results and progress go: results to stdout, everything else to stderr."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from flexinfer.errors import UserError
from flexinfer.units import format_size


class OutputError(UserError):
    """Results have nowhere to go: nothing more is worth computing."""


def say(text: str = "", end: str = "\n") -> None:
    """A line for people, on stderr. Results are not given up because nobody can read about them."""
    with contextlib.suppress(OSError):
        click.echo(text + end, err=True, nl=False)


def say_if(text: str | None) -> None:
    """The line, where there is one."""
    if text is not None:
        say(text)


def show(text: str = "", end: str = "\n") -> None:
    """A result, on stdout, at once. Raises OutputError when nobody takes it: a full disk, a reader that left."""
    try:
        click.echo(text + end, nl=False)
    except OSError as error:
        raise OutputError(f"the output cannot be written: {error.strerror}") from None


def print_json(value: dict[str, Any]) -> None:
    """One JSON object, the last line of stdout."""
    show(json.dumps(value, allow_nan=False))


class ProgressLine:
    """One line on stderr that is rewritten in place; without a terminal, only its first text is printed.

    Writes at most ten times a second, and nothing before `quiet_s`, so that what is quick stays silent.
    """

    def __init__(self, quiet_s: float = 0.5) -> None:
        self._start = time.monotonic()
        self._quiet_s = quiet_s
        self._last = 0.0
        self._width = 0
        self._tty = sys.stderr.isatty()

    def update(self, text: str) -> None:
        now = time.monotonic()
        if now - self._start < self._quiet_s or now - self._last < 0.1 or (self._last and not self._tty):
            return
        self._last = now
        if self._tty:
            say("\r" + text.ljust(self._width), end="")
            self._width = len(text)
        else:
            say(text)

    def clear(self) -> None:
        if self._width:
            say("\r" + " " * self._width + "\r", end="")
            self._width = 0


@contextmanager
def load_progress() -> Iterator[Any]:
    """A callback for FlexInfer.load."""
    line = ProgressLine()

    def on_load(done: int, total: int, file: str) -> None:
        if sys.stderr.isatty():
            line.update(f"loading {file}: {format_size(done)} of {format_size(total)}")
        else:  # one line stays for good: it says what is loaded, not how far that was at one moment
            line.update(f"loading {file}: {format_size(total)}")

    try:
        yield on_load
    finally:
        line.clear()


@contextmanager
def measure_progress(result: str = "kept for later runs") -> Iterator[Any]:
    """A callback for calibration. Says first what is going on, for it takes seconds; `result` is what becomes of it."""
    line = ProgressLine(quiet_s=0)
    started = False

    def on_measure(share: float, what: str) -> None:
        nonlocal started
        if not started:
            say(f"measuring this machine, for about 10 seconds; the result is {result}")
            started = True
        if sys.stderr.isatty():
            line.update(f"measuring: {share:4.0%} {what}")

    try:
        yield on_measure
    finally:
        line.clear()
