"""What a command's process needs around it: standard streams that are there, and signals that end it in order."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import IO, Any, NoReturn, cast

Handler = Callable[[int, FrameType | None], NoReturn]

EXPLAINED_S = 2.0
"""So long after Ctrl-C an error is taken for its consequence: imports that it broke off fail in ways of their own."""


class Interrupts:
    """Raises KeyboardInterrupt, and remembers when."""

    def __init__(self) -> None:
        self._last_s: float | None = None

    def __call__(self, number: int, frame: FrameType | None) -> NoReturn:
        self._last_s = time.monotonic()
        raise KeyboardInterrupt

    def explain_an_error(self) -> bool:
        """True for what fails right after Ctrl-C."""
        return self._last_s is not None and time.monotonic() - self._last_s < EXPLAINED_S


class Terminated(SystemExit):
    """A command that is told to end closes what it has open, and exits as shells report the signal."""


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise Terminated(128 + number)


@contextlib.contextmanager
def signals() -> Iterator[Interrupts]:
    """Ours while a command runs. What the caller ignores (nohup, a shell's background) or handles stays as it is."""
    interrupts = Interrupts()
    wanted: dict[signal.Signals, tuple[Any, Handler]] = {
        signal.SIGINT: (signal.default_int_handler, interrupts),
        signal.SIGTERM: (signal.SIG_DFL, _terminate),
    }
    if hasattr(signal, "SIGHUP"):
        wanted[signal.SIGHUP] = (signal.SIG_DFL, _terminate)
    if threading.current_thread() is not threading.main_thread():  # the only one that signals reach
        wanted = {}
    replaced = [(n, signal.getsignal(n)) for n, (old, _) in wanted.items() if signal.getsignal(n) == old]
    for number, _ in replaced:
        signal.signal(number, wanted[number][1])
    try:
        yield interrupts
    finally:
        for number, old in replaced:
            signal.signal(number, old)


def open_streams() -> None:
    """Standard streams that the caller closed become /dev/null; the next file to be opened would take their number.

    stdin is then empty, stderr swallows, and stdout cannot be written, which is reported like a full disk. Text that
    a terminal's encoding does not have is shown as "?", and broken input is refused where it is used.
    """
    for name, flags, mode in (("stdin", os.O_RDONLY, "r"), ("stdout", os.O_RDONLY, "w"), ("stderr", os.O_WRONLY, "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, cast("IO[str]", os.fdopen(os.open(os.devnull, flags), mode, encoding="utf-8")))
    for stream, errors in ((sys.stdout, "replace"), (sys.stderr, "replace"), (sys.stdin, "surrogateescape")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)


def close_stdout() -> OSError | None:
    """Flushes stdout while an error can still be reported, and keeps Python from trying once more at exit."""
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return error
    return None


def leave(code: int) -> NoReturn:
    """Ends the process with its command, which is not to be broken off.

    A thread that was left behind in an op would be torn down in the middle of it, and the runtime aborts at that: then
    the process ends without taking anything down.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if any(thread.daemon and thread.name.startswith("flexinfer") for thread in threading.enumerate()):
        os._exit(code)
    sys.exit(code)
