"""Numbers, sizes, rates and counts: checked, parsed from what people type, printed as people read them.

Binary suffixes (KiB, MiB, GiB, TiB) are powers of 1024, decimal ones (KB, MB, GB, TB) powers of 1000.
"""

from __future__ import annotations

import math
import operator
import re
from decimal import Decimal
from numbers import Real
from typing import Any

from flexinfer.errors import UserError

_BYTES = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_COUNT = re.compile(r"(-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]{1,3})?)(k?)", re.IGNORECASE)
_LARGEST_COUNT = 10**18
_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]+)?\s*([a-z]*)(/s)?\s*", re.IGNORECASE)


def as_whole(value: Any) -> int | None:
    """The int that a value is, of whatever integer type (NumPy's, a tensor of one); None for others, bool included."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def check_whole(name: str, value: Any, least: int, most: int | None = None) -> int:
    """The value as int. Raises UserError that names it when it is not a whole number of `least` to `most`."""
    whole = as_whole(value)
    if whole is None or whole < least or (most is not None and whole > most):
        wanted = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise UserError(f"{name} is {value!r}; it must be a whole number {wanted}")
    return whole


def as_real(value: Any) -> float | None:
    """The float that a value is, of whatever real type; None for others, bool included, and for NaN and infinity."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    return float(value) if math.isfinite(value) else None


def parse_whole(text: str) -> int:
    """A whole number in plain digits. Raises UserError."""
    if not re.fullmatch(r"\s*-?[0-9]+\s*", text):
        raise UserError(f"{text!r} is not a whole number")
    return int(text)


def parse_number(text: str) -> float:
    """A finite number. Raises UserError."""
    match = _COUNT.fullmatch(text.strip())
    if match is None or match.group(2) or not math.isfinite(float(text)):
        raise UserError(f"{text!r} is not a number")
    return float(text)


def _scaled(text: str, what: str, example: str, rate: bool) -> float:
    match = _NUMBER.fullmatch(text)
    suffix = match.group(3).lower() if match else None
    if match is None or suffix not in _BYTES or (bool(match.group(4)) and not rate):
        raise UserError(f"{text!r} is not a {what}; write it like {example}")
    value = float(match.group(1) + (match.group(2) or "")) * _BYTES[suffix]
    if not math.isfinite(value) or value <= 0:
        raise UserError(f"{text!r} is not a positive {what}")
    return value


def parse_size(value: int | str) -> int:
    """Bytes of 800MiB, 24GiB, 24GB or a plain positive integer. Raises UserError."""
    text = value if isinstance(value, str) else as_whole(value)
    if text is None:
        raise UserError(f"{value!r} is not a size; write it like 24GiB, 800MiB or a number of bytes")
    nbytes = int(_scaled(str(text), "size", "24GiB, 800MiB or a number of bytes", rate=False))
    if nbytes < 1:
        raise UserError(f"{value!r} is less than a byte; write it like 24GiB, 800MiB or a number of bytes")
    return nbytes


def parse_rate(value: float | str) -> float:
    """Bytes per second of 8GB/s or a plain positive number. Raises UserError."""
    text = value if isinstance(value, str) else as_real(value)
    if text is None:
        raise UserError(f"{value!r} is not a rate; write it like 8GB/s")
    return _scaled(str(text), "rate", "8GB/s", rate=True)


def parse_count(text: str) -> int:
    """A positive whole number; 1k is 1000 and 25.6k is 25600. Raises UserError."""
    match = _COUNT.fullmatch(text.strip())
    if match is None:
        raise UserError(f"{text!r} is not a number; write it like 512 or 1k")
    value = Decimal(match.group(1)) * (1000 if match.group(2) else 1)
    if value > _LARGEST_COUNT:
        raise UserError(f"{text!r} is too large")
    if value < 1 or value % 1:
        raise UserError(f"{text!r} is not a positive whole number")
    return int(value)


def format_size(nbytes: float) -> str:
    """2.5 GiB, 160 MiB, 512 B."""
    for unit, scale in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(nbytes) >= scale:
            value = nbytes / scale
            return f"{value:.0f} {unit}" if value >= 100 else f"{value:.1f} {unit}"
    return f"{nbytes:.0f} B"


def format_rate(bytes_per_s: float) -> str:
    """31.5 GB/s, 800 MB/s."""
    return f"{bytes_per_s / 1e9:.1f} GB/s" if bytes_per_s >= 1e9 else f"{bytes_per_s / 1e6:.0f} MB/s"


def format_time(seconds: float) -> str:
    """2 min 05 s, 12.3 s, 45.2 ms, 310 us."""
    if seconds >= 120:
        return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
    if seconds >= 1:
        return f"{seconds:.2f} s"
    if seconds >= 1e-3:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds * 1e6:.0f} us"
