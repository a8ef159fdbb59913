"""`flexinfer`: runs a command, and what each way of ending exits with.

The commands are imported when they are to run: Ctrl-C is one line from the first moment on, imports included.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from flexinfer.cli.process import Interrupts, Terminated, close_stdout, leave, open_streams, signals
from flexinfer.errors import FlexInferError

if TYPE_CHECKING:
    import click

INTERNAL, BAD_INPUT, DOES_NOT_FIT, INTERRUPTED = 1, 2, 3, 130

_OUTPUT_ERRORS = (errno.EPIPE, errno.ENOSPC, errno.EBADF, errno.EDQUOT, errno.EFBIG)
"""What writing fails with. Without a file's name it was stdout: our files report by themselves."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs one command and exits with its code. Whatever goes wrong is one line on stderr."""
    open_streams()
    try:
        with signals() as interrupts:
            code = _closed(_run(arguments, interrupts))
    except KeyboardInterrupt:  # once more, while the first one was being dealt with
        code = _fail("interrupted", INTERRUPTED)
    if arguments is None:
        leave(code)
    sys.exit(code)


def _run(arguments: Sequence[str] | None, interrupts: Interrupts) -> int:
    try:
        return _command(arguments)
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except Terminated as stop:
        return _fail("terminated", int(stop.code or INTERNAL))
    except FlexInferError as error:
        return _fail(str(error), error.exit_code)
    except OSError as error:
        return _refused(error)
    except MemoryError:
        return _fail("this machine has no memory left for it; free some, or ask for less", DOES_NOT_FIT)
    except Exception as error:  # the last resort: one line instead of a traceback
        if interrupts.explain_an_error():
            return _fail("interrupted", INTERRUPTED)
        return _internal(error)


def _command(arguments: Sequence[str] | None) -> int:
    _prepare_logging()
    import click

    from flexinfer.cli.commands import cli

    try:
        cli.main(args=None if arguments is None else list(arguments), prog_name="flexinfer", standalone_mode=False)
        return 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.Abort:
        raise KeyboardInterrupt from None
    except click.ClickException as error:
        return _fail(_usage(error), BAD_INPUT)
    except Terminated:
        raise
    except SystemExit:  # click's way out when the reader of its own text, such as --help, has left
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)) from None


def _usage(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    where = f" (see {context.command_path} --help)" if context else ""
    return " ".join(error.format_message().split()) + where


def _refused(error: OSError) -> int:
    """What the system does not allow or have: a file that may not be read, an output that nobody takes."""
    _show_traceback()
    said = error.strerror or str(error)
    if error.filename is None and error.errno in _OUTPUT_ERRORS:
        return _fail(f"the output cannot be written: {said}", BAD_INPUT)
    return _fail(f"{error.filename}: {said}" if error.filename is not None else said, BAD_INPUT)


def _internal(error: Exception) -> int:
    _show_traceback()
    text = str(error).strip().splitlines()
    said = f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
    return _fail(f"internal error: {said} (-v shows where)", INTERNAL)


def _show_traceback() -> None:
    if logging.getLogger("flexinfer").isEnabledFor(logging.DEBUG):
        import traceback

        traceback.print_exc()


def _fail(line: str, code: int) -> int:
    with contextlib.suppress(OSError):  # nobody reads stderr either; the code still says it
        print(f"flexinfer: {' '.join(line.splitlines())}", file=sys.stderr, flush=True)
    return code


def _closed(code: int) -> int:
    error = close_stdout()
    return code if error is None or code else _fail(f"the output cannot be written: {error.strerror}", BAD_INPUT)


def _prepare_logging() -> None:
    """Our warnings as lines on stderr; other libraries keep to errors, their progress bars included."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("flexinfer: %(message)s"))
    logger = logging.getLogger("flexinfer")
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.WARNING)
    for name, value in (("TRANSFORMERS_VERBOSITY", "error"), ("TOKENIZERS_PARALLELISM", "false")):
        os.environ.setdefault(name, value)
