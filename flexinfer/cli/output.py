"""Where results, progress and files go: results to stdout, everything else to stderr, files whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import click

from flexinfer.errors import UserError
from flexinfer.units import format_size


def say(text: str = "") -> None:
    """A line for people, on stderr."""
    click.echo(text, err=True)


def say_if(text: str | None) -> None:
    """The line, where there is one."""
    if text is not None:
        say(text)


def show(text: str = "", end: str = "\n") -> None:
    """A result, on stdout, at once. Raises UserError when nobody takes it: a full disk, a reader that left."""
    try:
        click.echo(text + end, nl=False)
    except OSError as error:
        raise UserError(f"the output cannot be written: {error.strerror}") from None


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
            click.echo("\r" + text.ljust(self._width), err=True, nl=False)
            self._width = len(text)
        else:
            say(text)

    def clear(self) -> None:
        if self._width:
            click.echo("\r" + " " * self._width + "\r", err=True, nl=False)
            self._width = 0


@contextmanager
def load_progress() -> Iterator[Any]:
    """A callback for FlexInfer.load."""
    line = ProgressLine()

    def on_load(done: int, total: int, file: str) -> None:
        line.update(f"loading {file}: {format_size(done)} of {format_size(total)}")

    try:
        yield on_load
    finally:
        line.clear()


@contextmanager
def measure_progress() -> Iterator[Any]:
    """A callback for calibration. Says first what is going on, for it takes seconds."""
    line = ProgressLine(quiet_s=0)
    started = False

    def on_measure(share: float, what: str) -> None:
        nonlocal started
        if not started:
            say("measuring this machine, for about 10 seconds; the result is kept for later runs")
            started = True
        if sys.stderr.isatty():
            line.update(f"measuring: {share:4.0%} {what}")

    try:
        yield on_measure
    finally:
        line.clear()


class WholeFile:
    """A file that appears with all its content or not at all: written beside its place, then renamed.

    Opening it already shows whether it can be written, before any work is done for it. What is no regular file, such
    as a device or a pipe, is written directly. Raises UserError for an unwritable place and a full disk.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(os.path.realpath(path))
        self._temporary: Path | None = None
        with _writing(path):
            if self._path.is_dir():
                raise IsADirectoryError(21, "it is a folder")
            if self._path.exists() and not self._path.is_file():
                self._file: IO[str] = self._path.open("w", encoding="utf-8")
                return
            self._temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}.part")
            self._file = self._temporary.open("x", encoding="utf-8")

    def write_json(self, value: Any) -> None:
        """Writes and puts the file in its place."""
        with _writing(str(self._path)):
            json.dump(value, self._file)
            self._file.flush()
            if self._temporary is not None:
                os.fsync(self._file.fileno())
                self._file.close()
                os.replace(self._temporary, self._path)
                self._temporary = None

    def close(self) -> None:
        """Removes what was not completed."""
        with contextlib.suppress(OSError):  # a full disk again, which write_json has reported
            self._file.close()
        if self._temporary is not None:
            self._temporary.unlink(missing_ok=True)
            self._temporary = None

    def __enter__(self) -> WholeFile:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


@contextmanager
def _writing(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from None
