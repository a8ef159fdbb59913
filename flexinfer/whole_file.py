"""Files that appear with all their content or not at all, whoever writes them. No torch."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from flexinfer.errors import UserError


class WholeFile:
    """Written beside its place, then renamed onto it, so that no reader sees half of it.

    Opening it already shows whether it can be written, before any work is done for it. A symbolic link stays, and what
    it names is replaced; what is no regular file, such as a device or a pipe, is written directly. Raises UserError for
    an unwritable place and a full disk.
    """

    def __init__(self, path: str | Path) -> None:
        self._name = str(path)
        self._path = Path(os.path.realpath(path))
        self._temporary: Path | None = None
        with self._writing():
            if not self._name:
                raise OSError("its name is empty")
            if Path(path).is_dir():
                raise OSError("it is a folder")
            if self._path.exists() and not os.access(self._path, os.W_OK):
                raise OSError("it is read-only")  # renaming another file onto it would be possible, and is not meant
            if Path(path).exists() and not Path(path).is_file():
                self._file: IO[str] = Path(path).open("w", encoding="utf-8")  # noqa: SIM115  # `close` closes it
                return
            # A name of its own, by chance: process numbers repeat in containers, and a killed process cleans nothing up
            self._temporary = self._path.with_name(f".{self._path.name}.{secrets.token_hex(4)}.part")
            self._file = self._temporary.open("x", encoding="utf-8")

    def write(self, text: str) -> None:
        """Writes and puts the file in its place. Call once."""
        with self._writing():
            self._file.write(text)
            self._finish()

    def write_json(self, value: Any) -> None:
        """As `write`, without the whole text in memory."""
        with self._writing():
            json.dump(value, self._file)
            self._finish()

    def _finish(self) -> None:
        self._file.flush()
        if self._temporary is not None:
            os.fsync(self._file.fileno())
            self._file.close()
            os.replace(self._temporary, self._path)
            self._temporary = None

    def close(self) -> None:
        """Removes what was not completed."""
        with contextlib.suppress(OSError):  # a full disk again, which `write` has reported
            self._file.close()
        if self._temporary is not None:
            self._temporary.unlink(missing_ok=True)
            self._temporary = None

    def __enter__(self) -> WholeFile:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UserError(f"{self._name or 'the file'} cannot be written: {error.strerror or error}") from None
