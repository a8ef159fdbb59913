"""A generation on a worker thread, its pieces on the caller's."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence

from flexinfer.engine.generation import Generation
from flexinfer.errors import EngineError

_END = object()


class PieceQueue:
    """Listener that hands the first sequence's text over to another thread."""

    def __init__(self) -> None:
        self.items: queue.SimpleQueue[object] = queue.SimpleQueue()

    def on_step(self, step: int, tokens: Sequence[int], pieces: Sequence[str]) -> None:
        if not threading.main_thread().is_alive():
            # Nobody reads on, and the interpreter waits for this thread before it ends
            raise EngineError("the program ended while a stream of it was open")
        if pieces[0]:
            self.items.put(pieces[0])


def stream_pieces(run: Callable[[], object], generation: Generation, pieces: PieceQueue) -> Iterator[str]:
    """Runs `run` on a thread of its own and yields what reaches `pieces`; what it raises is raised here.

    Closing the generator (or leaving the loop) cancels the generation and waits until the thread has ended, which
    takes as long as the step that runs.
    """

    def work() -> None:
        try:
            run()
            pieces.items.put(_END)
        except BaseException as error:  # it is raised again on the consumer's thread
            pieces.items.put(error)

    thread = threading.Thread(target=work, name="flexinfer-stream")
    try:
        thread.start()
        while (item := pieces.items.get()) is not _END:
            if isinstance(item, BaseException):
                raise item
            yield str(item)
    finally:
        generation.cancelled = True
        with contextlib.suppress(RuntimeError):  # Ctrl-C broke off its start: it ends by itself
            thread.join()
