"""Every FLEXINFER_* environment variable: its name, what it takes, and what it is for. No torch.

The environment is read when a command starts or a model is loaded, never at import. A value that does not parse and
a FLEXINFER_* name that nobody reads are errors, so that a misspelt setting is not silently without effect.
"""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flexinfer.errors import UserError
from flexinfer.units import as_whole, parse_count, parse_rate, parse_size

log = logging.getLogger(__name__)

STRATEGIES = ("auto", "cpu", "offload", "split", "gpu")
DTYPES = ("auto", "float32", "bfloat16", "float16")
ISAS = ("generic", "avx2", "avx512", "avx512_bf16", "amx")
_DEVICE = re.compile(r"[a-z]+(:[0-9]+)?")


def one_of(what: str, choices: Sequence[str]) -> Callable[[Any], str]:
    """A parser that takes exactly the given words."""

    def parse(value: Any) -> str:
        if value not in choices:
            raise UserError(f"{what} {value!r} is not known; it is one of {', '.join(choices)}")
        return str(value)

    return parse


parse_strategy = one_of("strategy", STRATEGIES)
parse_dtype = one_of("dtype", DTYPES)


def parse_device(value: Any) -> str:
    """auto, cpu, emulated, cuda, cuda:1, or another torch device type; whether torch knows it is seen at load."""
    if not isinstance(value, str) or not _DEVICE.fullmatch(value):
        raise UserError(f"device {value!r} is not one of auto, cpu, emulated, cuda, cuda:1 or a torch device type")
    kind, _, index = value.partition(":")
    if index and kind in ("auto", "cpu", "emulated"):
        raise UserError(f"device {value!r} does not exist: there is only one {kind!r}")
    return value


def parse_layers(value: int | str) -> int:
    """A layer count: a whole number, 0 included."""
    whole = as_whole(value)
    text = value if isinstance(value, str) else str(whole)
    if not re.fullmatch(r"[0-9]+", text):
        raise UserError(f"{value!r} is not a number of layers; write 0 or a positive whole number")
    return int(text)


def parse_threads(value: int | str) -> int:
    """A number of threads that an OpenMP runtime survives."""
    from flexinfer.kernels.library import MAX_THREADS

    whole = as_whole(value)
    if whole is None and not isinstance(value, str):
        raise UserError(f"{value!r} is not a number of threads")
    threads = parse_count(value if isinstance(value, str) else str(whole))
    if threads > MAX_THREADS:
        raise UserError(f"{value!r} threads are too many; give at most {MAX_THREADS}, best as many as there are cores")
    return threads


def parse_path(value: Any) -> str:
    """The name of a file or folder: text or a path object, not empty. Raises UserError."""
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(text, str) or not text:
        raise UserError(f"{value!r} is not the name of a file")
    return text


def parse_seconds(value: str) -> float:
    """A finite, non-negative number of seconds."""
    try:
        seconds = float(value)
    except ValueError:
        raise UserError(f"{value!r} is not a number of seconds") from None
    if not math.isfinite(seconds) or seconds < 0:
        raise UserError(f"{value!r} is not a number of seconds of 0 or more")
    return seconds


@dataclass(frozen=True)
class Variable:
    """One environment variable. `parse` raises UserError on a bad value."""

    name: str
    parse: Callable[[str], Any]
    meaning: str


VARIABLES: Mapping[str, Variable] = {
    v.name: v
    for v in (
        Variable("FLEXINFER_DEVICE", parse_device, "as --device"),
        Variable("FLEXINFER_STRATEGY", parse_strategy, "as --strategy"),
        Variable("FLEXINFER_PREFILL", parse_strategy, "as --prefill"),
        Variable("FLEXINFER_DECODE", parse_strategy, "as --decode"),
        Variable("FLEXINFER_GPU_LAYERS", parse_layers, "as --gpu-layers"),
        Variable("FLEXINFER_GPU_MEMORY", parse_size, "as --gpu-memory"),
        Variable("FLEXINFER_CPU_MEMORY", parse_size, "as --cpu-memory"),
        Variable("FLEXINFER_LINK_BANDWIDTH", parse_rate, "as --link-bandwidth"),
        Variable("FLEXINFER_DTYPE", parse_dtype, "as --dtype"),
        Variable("FLEXINFER_PROFILE", parse_path, "as --profile"),
        Variable("FLEXINFER_THREADS", parse_threads, "as --threads"),
        Variable("FLEXINFER_ISA", one_of("instruction set", ISAS), "the best instruction set that CPU kernels may use"),
        Variable("FLEXINFER_EMULATED_JITTER_S", parse_seconds, "emulated: delay each op by up to so long"),
        Variable(
            "FLEXINFER_CACHE_DIR", parse_path, "where measured profiles are kept, instead of the user's cache folder"
        ),
        Variable("FLEXINFER_DEMO_MODEL", str, "the model of the demo and of the tests that need a real one"),
        Variable("FLEXINFER_FUZZ", str, "set by the long tests: draw fresh inputs, and more of them"),
    )
}


def check_environment(environ: Mapping[str, str] | None = None) -> None:
    """Raises UserError for a FLEXINFER_* variable that is not known or whose value does not parse."""
    environ = os.environ if environ is None else environ
    for name in sorted(n for n in environ if n.startswith("FLEXINFER_")):
        if name not in VARIABLES:
            raise UserError(f"environment variable {name} is not known; known are {', '.join(sorted(VARIABLES))}")
        read(name, environ)


def read(name: str, environ: Mapping[str, str] | None = None) -> Any:
    """The parsed value of one known variable; None where it is unset or empty. Raises UserError naming it."""
    text = (os.environ if environ is None else environ).get(name, "").strip()
    if not text:
        return None
    try:
        return VARIABLES[name].parse(text)
    except UserError as error:
        raise UserError(f"environment variable {name}: {error}") from None


def resolve(name: str, option: Any, profile: Any = None, default: Any = None) -> Any:
    """The first that is set of: option, FLEXINFER_<name>, profile, default. None means "not set"."""
    sources = (("option", option), ("environment", read(f"FLEXINFER_{name}")), ("profile", profile))
    for source, value in sources:
        if value is not None:
            log.debug("%s = %s (%s)", name.lower(), value, source)
            return value
    return default
