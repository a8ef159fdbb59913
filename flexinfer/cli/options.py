"""Options that several commands share, declared once, and the types their values have."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from flexinfer import settings
from flexinfer.errors import UserError
from flexinfer.options import LoadOptions
from flexinfer.units import parse_count, parse_number, parse_rate, parse_size, parse_whole

Command = TypeVar("Command", bound=Callable[..., Any])


class Parsed(click.ParamType):  # type: ignore[type-arg]  # generic only in the newest click
    """A value read by one of our parsers; what it objects to is a usage error."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """As it is written, not in capitals. Versions of click before 8.2 pass no context."""
        return self.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except UserError as error:
            self.fail(str(error), param, ctx)


COUNT = Parsed("N", parse_count)
THREADS = Parsed("N", settings.parse_threads)
LAYERS = Parsed("M", settings.parse_layers)
SIZE = Parsed("SIZE", parse_size)
RATE = Parsed("RATE", parse_rate)
STRATEGY = Parsed("|".join(settings.STRATEGIES), settings.parse_strategy)
FILE = Parsed("FILE", settings.parse_path)
DEVICE = Parsed("auto|cpu|cuda|cuda:1|emulated", settings.parse_device)
DTYPE = Parsed("|".join(settings.DTYPES), settings.parse_dtype)

_LOAD = (
    click.option("--strategy", type=STRATEGY, help="One strategy for both phases."),
    click.option("--prefill", type=STRATEGY, help="Strategy of prefill."),
    click.option("--decode", type=STRATEGY, help="Strategy of decode."),
    click.option("--gpu-layers", type=LAYERS, help="Layers that stay in GPU memory; 0 is pure streaming."),
    click.option("--device", type=DEVICE, help="Where to run; emulated stands in for a GPU."),
    click.option("--gpu-memory", type=SIZE, help="GPU memory to use, such as 24GiB or 800MiB."),
    click.option("--cpu-memory", type=SIZE, help="CPU memory to use."),
    click.option("--link-bandwidth", type=RATE, help="Link of the emulated device, such as 8GB/s."),
    click.option("--dtype", type=DTYPE, help="Type of the weights; auto keeps the file's own."),
    click.option("--profile", type=FILE, help="Hardware profile to plan with, instead of this machine's own."),
    click.option("--threads", type=THREADS, help="CPU threads."),
)


def verbosity(command: Command) -> Command:
    """-v: say what was decided and why, and show the traceback of an internal error."""
    return click.option("-v", "--verbose", is_flag=True, expose_value=False, callback=_set_level, help="Say more.")(
        command
    )


def _set_level(ctx: click.Context, param: click.Parameter, verbose: bool) -> None:
    if verbose:
        logging.getLogger("flexinfer").setLevel(logging.DEBUG)


def load_options(command: Command) -> Command:
    """The common options. The command gets them as keywords; `take_load_options` collects them."""
    for option in reversed(_LOAD):
        command = option(command)
    return verbosity(command)


def take_load_options(values: Mapping[str, Any]) -> LoadOptions:
    """LoadOptions of a command's keywords: options, then environment, then defaults. Raises UserError."""
    names = ("strategy", "prefill", "decode", "gpu_layers", "device", "gpu_memory", "cpu_memory", "link_bandwidth")
    return LoadOptions.resolve(**{name: values[name] for name in (*names, "dtype", "profile", "threads")})


def number(kind: type, least: float | None = None) -> Parsed:
    """An int or float of at least `least`, in words."""

    def parse(text: str) -> Any:
        value = parse_whole(text) if kind is int else parse_number(text)
        if least is not None and value < least:
            raise UserError(f"{text} is below {least}")
        return value

    return Parsed("N" if kind is int else "X", parse)


_SAMPLING = (
    click.option("--max-new-tokens", type=COUNT, help="Tokens to generate, at most; 128 unless set."),
    click.option("--temperature", type=number(float, 0), help="0 (greedy, the default) or more."),
    click.option("--top-k", type=COUNT, help="Choose among the K most likely."),
    click.option("--top-p", type=number(float), help="Choose among the most likely that together have P."),
    click.option("--min-p", type=number(float), help="Leave out what has less than P times the likeliest."),
    click.option("--repetition-penalty", type=number(float), help="Above 1: make what was said less likely."),
    click.option("--seed", type=number(int, 0), help="Same seed, same tokens, whatever the plan or the batch."),
    click.option("--stop", multiple=True, metavar="S", help="End where this text appears; may be repeated."),
    click.option("--ignore-eos", is_flag=True, help="Go on past the end-of-sequence token."),
)
SAMPLING_NAMES = (
    "max_new_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "seed",
    "stop",
    "ignore_eos",
)


def sampling_options(command: Command) -> Command:
    """How tokens are chosen and when they end: the keywords of FlexInfer.generate."""
    for option in reversed(_SAMPLING):
        command = option(command)
    return command
