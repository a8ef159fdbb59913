"""Whose turn it is on a model: one generation at a time, and none once the model is closed. No torch."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from flexinfer.errors import UserError

CLOSED = "this model is closed; load it again"


class Cancellable(Protocol):
    """What holds a turn. `cancelled`, set from any thread, makes it end soon."""

    cancelled: bool


class Turns:
    """Ctrl-C may come between any two steps: the turn is taken inside the block that gives it back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current: Cancellable | None = None
        self._thread: int | None = None
        self._closed = False

    @contextmanager
    def take(self, generation: Cancellable) -> Iterator[None]:
        """The turn, while the block runs. Raises UserError when it is another's, and when the model is closed."""
        try:
            with self._lock:
                if self._current is None and not self._closed:
                    self._current, self._thread = generation, threading.get_ident()
            if self._current is not generation:
                self.check_open()
                raise UserError("this model is generating already; finish or close that stream first")
            yield
            self.check_open()
        finally:
            if self._current is generation:
                self._current = None

    def check_open(self) -> None:
        if self._closed:
            raise UserError(CLOSED)

    def end(self) -> None:
        """No more turns. A generation of another thread ends after the step that runs, and fails there."""
        with self._lock:
            running = self._current
            if running is not None and self._thread == threading.get_ident():
                raise UserError("a model cannot be closed in the middle of its own generation, by its streamer")
            self._closed = True
        if running is not None:
            running.cancelled = True
            while self._current is running:
                time.sleep(0.002)
