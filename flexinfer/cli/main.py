"""`flexinfer`: the commands, and what each way of ending exits with."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

import click

import flexinfer
from flexinfer.cli.calibrate import calibrate
from flexinfer.cli.chat import chat
from flexinfer.cli.doctor import doctor
from flexinfer.cli.output import show
from flexinfer.cli.plan import plan
from flexinfer.cli.run import run
from flexinfer.errors import FlexInferError
from flexinfer.waiting import spin_briefly

INTERNAL, BAD_INPUT, INTERRUPTED = 1, 2, 130


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(flexinfer.__version__, prog_name="flexinfer")
@click.pass_context
def cli(context: click.Context) -> None:
    """Run language models that do not fit the GPU: planned per phase, and priced before they run."""
    if context.invoked_subcommand is None:
        show(context.get_help())


for command in (run, chat, plan, calibrate, doctor):
    cli.add_command(command)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs one command and exits with its code. Whatever goes wrong is one line on stderr."""
    spin_briefly()
    _prepare_logging()
    _prepare_streams()
    sys.exit(_closed(_run(arguments)))


def _run(arguments: Sequence[str] | None) -> int:
    try:
        cli.main(args=None if arguments is None else list(arguments), prog_name="flexinfer", standalone_mode=False)
        return 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except (KeyboardInterrupt, click.Abort):
        return _fail("interrupted", INTERRUPTED)
    except click.ClickException as error:
        return _fail(_usage(error), BAD_INPUT)
    except FlexInferError as error:
        return _fail(str(error), error.exit_code)
    except Exception as error:  # the last resort: one line instead of a traceback
        return _internal(error)


def _usage(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    where = f" (see {context.command_path} --help)" if context else ""
    return " ".join(error.format_message().split()) + where


def _internal(error: Exception) -> int:
    if logging.getLogger("flexinfer").isEnabledFor(logging.DEBUG):
        traceback.print_exc()
    text = str(error).strip().splitlines()
    said = f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
    return _fail(f"internal error: {said} (-v shows where)", INTERNAL)


def _fail(line: str, code: int) -> int:
    with contextlib.suppress(OSError):  # nobody reads stderr either; the code still says it
        click.echo(f"flexinfer: {' '.join(line.splitlines())}", err=True)
    return code


def _closed(code: int) -> int:
    """Flushes stdout while an error can still be reported, and keeps Python from trying once more at exit."""
    try:
        sys.stdout.flush()
        return code
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return code or _fail(f"the output cannot be written: {error.strerror}", BAD_INPUT)


def _prepare_logging() -> None:
    """Our warnings as lines on stderr; other libraries keep to errors, their progress bars included."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("flexinfer: %(message)s"))
    logger = logging.getLogger("flexinfer")
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.WARNING)
    for name, value in (("TRANSFORMERS_VERBOSITY", "error"), ("TOKENIZERS_PARALLELISM", "false")):
        os.environ.setdefault(name, value)


def _prepare_streams() -> None:
    """Text that a terminal's encoding does not have is shown as "?", and broken input is refused where it is used."""
    for stream, errors in ((sys.stdout, "replace"), (sys.stderr, "replace"), (sys.stdin, "surrogateescape")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)
