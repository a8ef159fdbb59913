"""How long this process's threads were ready to run and did not, because others had the CPU."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

from flexinfer.host.files import ROOT


class RunQueue:
    """Seconds that the threads of this process spent waiting for a CPU, those that exist when it is made.

    Reading takes a microsecond a thread. Where the kernel keeps no such count the seconds stay 0. A context manager.
    """

    def __init__(self, root: Path = ROOT) -> None:
        self._files: list[int] = []
        folder = root / "proc/self/task"
        for thread in sorted(folder.iterdir()) if folder.is_dir() else ():
            try:
                self._files.append(os.open(thread / "schedstat", os.O_RDONLY))
            except OSError:
                # The thread has ended, or the kernel was built without these counts.
                continue

    def seconds(self) -> float:
        """The sum so far; a thread that has ended counts no more."""
        return sum(map(_waited_ns, self._files)) / 1e9

    def __enter__(self) -> RunQueue:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files:
            os.close(file)
        self._files.clear()


def _waited_ns(file: int) -> int:
    """The second of schedstat's three numbers: on the CPU, waiting for it, and turns taken."""
    try:
        fields = os.pread(file, 100, 0).split()
    except OSError:
        return 0
    return int(fields[1]) if len(fields) == 3 else 0
