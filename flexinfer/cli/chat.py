"""`flexinfer chat`: a conversation, streamed, each turn planned for the tokens that it really has."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import click

from flexinfer.api import FlexInfer
from flexinfer.cli.options import SAMPLING_NAMES, load_options, sampling_options, take_load_options
from flexinfer.cli.output import OutputError, load_progress, measure_progress, say, say_if, show
from flexinfer.errors import DoesNotFitError, UserError
from flexinfer.report import eta_warning
from flexinfer.units import format_time

HELP = "/clear forgets the conversation, /exit leaves; Ctrl-C stops an answer"


@click.command()
@click.argument("model")
@click.option("--system", metavar="TEXT", help="A system message, before everything else.")
@sampling_options
@load_options
def chat(model: str, system: str | None, **options: Any) -> None:
    """Talk with MODEL. Ctrl-C stops an answer, and a second one leaves; so does the end of input."""
    loaded = take_load_options(options)
    with ExitStack() as stack:
        with measure_progress() as on_measure:
            opened = stack.enter_context(FlexInfer.open(model, loaded, on_measure=on_measure))
            if opened.tokenizer is None or not opened.tokenizer.has_chat_template:
                raise UserError(f"{opened.spec.name} has no chat template; use `flexinfer run` with plain prompts")
            opened.check_fits()
        with load_progress() as on_load:
            opened.load(on_load)
        Conversation(opened, system, {name: options[name] for name in SAMPLING_NAMES}).loop()


class Conversation:
    """Reads lines, answers them, and keeps what was said."""

    def __init__(self, model: FlexInfer, system: str | None, sampling: dict[str, Any]) -> None:
        self._model = model
        self._sampling = sampling
        self._start = [{"role": "system", "content": system}] if system else []
        self._messages = list(self._start)

    def loop(self) -> None:
        """Until the end of input, /exit, or Ctrl-C twice without a line between (then KeyboardInterrupt)."""
        terminal = sys.stdin.isatty()
        interrupted = False
        if terminal:
            say(HELP)
        while True:
            try:
                line = _read_line(terminal)
                if line is None or line.strip() == "/exit":
                    return
                interrupted = False
                self._take(line.strip())
            except KeyboardInterrupt:
                if interrupted:
                    raise
                interrupted = True
                say("\n(stopped; Ctrl-C again leaves)")

    def _take(self, line: str) -> None:
        if line == "/clear":
            self._messages = list(self._start)
        elif line:
            try:
                self._answer(line)
            except OutputError:
                raise
            except (UserError, DoesNotFitError) as error:
                say(f"{error} (/clear forgets the conversation)")

    def _answer(self, line: str) -> None:
        """One turn. An answer that is stopped stays in the conversation as far as it came."""
        tokenizer = self._model.tokenizer
        assert tokenizer is not None
        messages = [*self._messages, {"role": "user", "content": line}]
        request = self._model.request(input_ids=[tokenizer.apply_chat_template(messages)], **self._sampling)
        plan = self._model.plan_for(request, reuse=True)
        say_if(eta_warning(plan.predicted, request.rules.max_new_tokens))
        printer = AnswerPrinter()
        try:
            times = self._model.run(request, printer, plan).metrics
        finally:
            show()
            if printer.pieces:
                self._messages = [*messages, {"role": "assistant", "content": "".join(printer.pieces)}]
        rate = "" if times.tpot_s is None else f", then {format_time(times.tpot_s)} a token"
        cached = plan.workload.cached_tokens
        read = f"{plan.workload.prompt_len} tokens" + (f" after {cached} cached" if cached else "")
        say(f"[{plan.name}: {read} in {format_time(times.ttft_s)}{rate}]")


class AnswerPrinter:
    """Writes the answer as it comes, and remembers it."""

    def __init__(self) -> None:
        self.pieces: list[str] = []

    def on_step(self, step: int, tokens: Sequence[int], pieces: Sequence[str]) -> None:
        if pieces[0]:
            self.pieces.append(pieces[0])
            show(pieces[0], end="")


def _read_line(terminal: bool) -> str | None:
    """The next line without its end, None at the end of input. On a terminal with line editing."""
    if not terminal:
        line = sys.stdin.readline()
        return line.removesuffix("\n") if line else None
    import readline  # noqa: F401  # importing it is what gives `input` line editing

    try:
        return input("> ")
    except EOFError:
        return None
