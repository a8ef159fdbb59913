"""`flexinfer run`: prompts in, text out, with the plan before it and predicted beside measured after it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flexinfer.api import FlexInfer
from flexinfer.cli.options import FILE, SAMPLING_NAMES, load_options, sampling_options, take_load_options
from flexinfer.cli.output import ProgressLine, load_progress, measure_progress, print_json, say, say_if, show
from flexinfer.errors import UserError
from flexinfer.planning import ChosenPlan
from flexinfer.report import eta_warning, times_table
from flexinfer.result import GenerateResult
from flexinfer.whole_file import WholeFile

if TYPE_CHECKING:
    from flexinfer.engine.request import Request


@click.command()
@click.argument("model")
@click.option("--prompt", "prompts", multiple=True, metavar="TEXT", help="A prompt; may be repeated for a batch.")
@click.option("--prompt-file", type=FILE, metavar="F", help="A file whose whole text is one prompt; - is stdin.")
@click.option("--prompt-ids", multiple=True, metavar="1,2,3", help="A prompt as token ids; may be repeated.")
@click.option("--chat", is_flag=True, help="Put each prompt into the model's chat template.")
@sampling_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the text.")
@click.option("--trace", type=FILE, help="Write what ran when, for Perfetto or chrome://tracing.")
@load_options
def run(
    model: str,
    prompts: Sequence[str],
    prompt_file: str | None,
    prompt_ids: Sequence[str],
    chat: bool,
    as_json: bool,
    trace: str | None,
    **options: Any,
) -> None:
    """Generate text with MODEL: a folder in Hugging Face layout, a .gguf file or a hub id.

    The text goes to stdout; the plan and the times, predicted and measured, to stderr.
    """
    asked = _prompts(prompts, prompt_file, prompt_ids, chat)
    loaded = take_load_options(options)
    with ExitStack() as stack:
        trace_file = stack.enter_context(WholeFile(trace)) if trace is not None else None
        with measure_progress() as on_measure:
            opened = stack.enter_context(FlexInfer.open(model, loaded, trace is not None, on_measure))
            request = opened.request(**asked, chat=chat, **{name: options[name] for name in SAMPLING_NAMES})
            plan = opened.plan_for(request)
        result = _generate(opened, request, plan, as_json)
        if trace_file is not None:
            trace_file.write_json({"traceEvents": opened.trace_events()})
    _show(result, request, as_json)


def _prompts(texts: Sequence[str], file: str | None, ids: Sequence[str], chat: bool) -> dict[str, Any]:
    """The keyword of `request` that the options amount to. Raises UserError."""
    from_file = [_read(file)] if file is not None else []
    if not texts and not from_file and not ids:
        raise UserError("there is no prompt; give --prompt TEXT, --prompt-file F (- for stdin) or --prompt-ids 1,2,3")
    if not ids:
        return {"prompts": [*texts, *from_file]}
    if texts or from_file:
        raise UserError("give prompts as text or as --prompt-ids, not both")
    if chat:
        raise UserError("--chat wraps text, and --prompt-ids gives ids")
    from flexinfer.engine.prompt import parse_ids

    return {"input_ids": [parse_ids(text) for text in ids]}


def _read(file: str) -> str:
    """The file's text without a last line end. Raises UserError."""
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        text = data.decode("utf-8-sig")  # the mark that some editors begin a file with is no text
    except OSError as error:
        raise UserError(f"prompt file {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"prompt file {file} is not UTF-8 text (byte {error.start})") from None
    return text.removesuffix("\n").removesuffix("\r")


def _generate(model: FlexInfer, request: Request, plan: ChosenPlan, as_json: bool) -> GenerateResult:
    """Load and run, with what people want to see before and on the way."""
    if as_json:
        say_if(eta_warning(plan.predicted, request.rules.max_new_tokens))
    else:
        say(plan.explain() + "\n")
    with load_progress() as on_load:
        model.load(on_load)
    show_text = not as_json and len(request.prompts) == 1 and model.tokenizer is not None
    listener = TextPrinter() if show_text else StepCounter(request.rules.max_new_tokens)
    try:
        return model.run(request, listener, plan)
    finally:
        listener.end()


class TextPrinter:
    """Writes the text as it comes."""

    def on_step(self, step: int, tokens: Sequence[int], pieces: Sequence[str]) -> None:
        if pieces[0]:
            show(pieces[0], end="")

    def end(self) -> None:
        show()


class StepCounter:
    """Says on stderr how far a batch is."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._line = ProgressLine()

    def on_step(self, step: int, tokens: Sequence[int], pieces: Sequence[str]) -> None:
        if sys.stderr.isatty():
            self._line.update(f"token {step + 1} of {self._steps}")

    def end(self) -> None:
        self._line.clear()


def _show(result: GenerateResult, request: Request, as_json: bool) -> None:
    if as_json:
        print_json(result.to_json())
        return
    alone = len(result.outputs) == 1
    for index, output in enumerate(result.outputs):
        if not alone:
            show(f"--- {index + 1} of {len(result.outputs)}")
        if not output.text and output.token_ids:
            show(",".join(map(str, output.token_ids)))
        elif not alone:
            show(output.text)
    say()
    made = max(len(output.token_ids) for output in result.outputs)
    if made < result.plan.workload.new_tokens:
        say(f"ended after {made} of {result.plan.workload.new_tokens} tokens; predicted for {made}")
    say(times_table(result.plan.predicted_for(made), result.metrics))
    if request.sampling.temperature > 0:
        say(f"seed {result.seed}")
