"""Profiles as JSON: strict reading, with one clear line for each mistake, and atomic writing."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

from flexinfer.errors import ProfileError, UserError
from flexinfer.estimator.paths import profiles_folder, shipped_profiles
from flexinfer.estimator.profile import (
    DTYPES,
    OP_CLASSES,
    SCHEMA,
    AttentionSample,
    CpuProfile,
    Efficiency,
    GpuProfile,
    HardwareProfile,
    Kind,
    LinearSample,
    LinkProfile,
    OpClass,
    Samples,
)
from flexinfer.json_file import read_json
from flexinfer.whole_file import WholeFile

T = TypeVar("T")


class _Object:
    """One JSON object that is being read; every complaint names the dotted key and the file."""

    def __init__(self, data: object, key: str, where: str) -> None:
        self.key, self.where = key, where
        if not isinstance(data, dict):
            self.fail("is not an object")
        self.data: dict[str, Any] = data
        self.seen: set[str] = set()

    def fail(self, problem: str, key: str | None = None) -> NoReturn:
        dotted = ".".join(part for part in (self.key, key) if part)
        raise ProfileError(f"{self.where}: {dotted or 'the profile'} {problem}")

    def value(self, key: str) -> Any:
        if key not in self.data:
            self.fail("is missing", key)
        self.seen.add(key)
        return self.data[key]

    def text(self, key: str) -> str:
        value = self.value(key)
        if not isinstance(value, str):
            self.fail(f"is {value!r}, wanted a string", key)
        return value

    def number(self, key: str, zero: bool = False) -> float:
        value = self.value(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            self.fail(f"is {value!r}, wanted a number", key)
        if value < 0 or (value == 0 and not zero):
            self.fail(f"is {value!r}, wanted a {'number of at least 0' if zero else 'positive number'}", key)
        return float(value)

    def count(self, key: str) -> int:
        value = self.number(key)
        if value != int(value):
            self.fail(f"is {value!r}, wanted a whole number", key)
        return int(value)

    def flag(self, key: str) -> bool:
        value = self.value(key)
        if not isinstance(value, bool):
            self.fail(f"is {value!r}, wanted true or false", key)
        return value

    def child(self, key: str) -> _Object:
        return _Object(self.value(key), f"{self.key}.{key}".lstrip("."), self.where)

    def items(self, key: str, read: Callable[[_Object], T]) -> tuple[T, ...]:
        rows = self.value(key)
        if not isinstance(rows, list):
            self.fail("is not a list", key)
        dotted = f"{self.key}.{key}".lstrip(".")
        return tuple(_finished(read, _Object(row, f"{dotted}[{i}]", self.where)) for i, row in enumerate(rows))

    def finish(self) -> None:
        """Raises for a key that nobody asked for: a misspelt one would otherwise be ignored."""
        for key in self.data:
            if key not in self.seen:
                self.fail("is not a known key", key)


def _finished(read: Callable[[_Object], T], obj: _Object) -> T:
    value = read(obj)
    obj.finish()
    return value


def _dtype(obj: _Object) -> str:
    dtype = obj.text("dtype")
    if dtype not in DTYPES:
        obj.fail(f"is {dtype!r}, wanted one of {', '.join(DTYPES)}", "dtype")
    return dtype


def _efficiency(obj: _Object) -> Efficiency:
    return Efficiency(obj.number("eff_compute"), obj.number("eff_memory"), obj.number("fixed_s", zero=True))


def _linear_sample(obj: _Object) -> LinearSample:
    rows, out, into = (obj.count(key) for key in ("rows", "out_features", "in_features"))
    return LinearSample(
        _dtype(obj), rows, out, into, obj.number("median_s"), obj.number("spread_s", zero=True), obj.count("n")
    )


def _attention_sample(obj: _Object) -> AttentionSample:
    batch, heads, kv_heads, head_dim = (obj.count(key) for key in ("batch", "heads", "kv_heads", "head_dim"))
    new, context = obj.count("new"), obj.count("context")
    if new > context:
        obj.fail(f"is {new}, more than context, {context}", "new")
    seconds, spread = obj.number("median_s"), obj.number("spread_s", zero=True)
    return AttentionSample(_dtype(obj), batch, heads, kv_heads, head_dim, new, context, seconds, spread, obj.count("n"))


def _samples(obj: _Object) -> Samples:
    return Samples(
        linear=obj.items("linear", _linear_sample),
        attention_prefill=obj.items("attention_prefill", _attention_sample),
        attention_decode=obj.items("attention_decode", _attention_sample),
    )


def _peaks(obj: _Object) -> Mapping[str, float]:
    return {dtype: obj.number(dtype) for dtype in DTYPES}


def _efficiencies(obj: _Object) -> Mapping[OpClass, Efficiency]:
    return {op: _finished(_efficiency, obj.child(op)) for op in OP_CLASSES}


def _cpu(obj: _Object) -> CpuProfile:
    return CpuProfile(
        name=obj.text("name"),
        threads=obj.count("threads"),
        memory_bytes=obj.count("memory_bytes"),
        memory_bytes_per_s=obj.number("memory_bytes_per_s"),
        copy_bytes_per_s=obj.number("copy_bytes_per_s"),
        peak_flops_per_s=_finished(_peaks, obj.child("peak_flops_per_s")),
        efficiency=_finished(_efficiencies, obj.child("efficiency")),
        dispatch_s=obj.number("dispatch_s", zero=True),
        step_overhead_s=obj.number("step_overhead_s", zero=True),
        samples=_finished(_samples, obj.child("samples")),
    )


def _gpu(obj: _Object) -> GpuProfile:
    return GpuProfile(
        name=obj.text("name"),
        memory_bytes=obj.count("memory_bytes"),
        memory_bytes_per_s=obj.number("memory_bytes_per_s"),
        peak_flops_per_s=_finished(_peaks, obj.child("peak_flops_per_s")),
        efficiency=_finished(_efficiencies, obj.child("efficiency")),
        dispatch_s=obj.number("dispatch_s", zero=True),
        samples=_finished(_samples, obj.child("samples")),
    )


def _link(obj: _Object) -> LinkProfile:
    return LinkProfile(
        name=obj.text("name"),
        h2d_bytes_per_s=obj.number("h2d_bytes_per_s"),
        d2h_bytes_per_s=obj.number("d2h_bytes_per_s"),
        eff_h2d=obj.number("eff_h2d"),
        eff_d2h=obj.number("eff_d2h"),
        fixed_s=obj.number("fixed_s", zero=True),
        pageable_h2d_bytes_per_s=_absent_or_null(obj, "pageable_h2d_bytes_per_s", _Object.number),
        pageable_d2h_bytes_per_s=_absent_or_null(obj, "pageable_d2h_bytes_per_s", _Object.number),
    )


def _scalars(obj: _Object) -> dict[str, str | int | float | None]:
    for key in obj.data:
        value = obj.value(key)
        if value is not None and not isinstance(value, (str, int, float)):
            obj.fail(f"is {value!r}, wanted a string, a number or null", key)
    return dict(obj.data)


def _texts(obj: _Object) -> dict[str, str]:
    return {key: obj.text(key) for key in obj.data}


def _optional(obj: _Object, key: str, read: Callable[[_Object], T]) -> T | None:
    return None if obj.value(key) is None else _finished(read, obj.child(key))


def _absent_or_null(obj: _Object, key: str, read: Callable[[_Object, str], T]) -> T | None:
    """A key that profiles written by hand may leave out."""
    obj.seen.add(key)
    return None if obj.data.get(key) is None else read(obj, key)


def _profile(obj: _Object) -> HardwareProfile:
    schema = obj.value("schema")
    if schema != SCHEMA:
        obj.fail(f"is {schema!r}, this version reads {SCHEMA!r}: calibrate again", "schema")
    kind = obj.text("kind")
    if kind not in ("nominal", "measured"):
        obj.fail(f"is {kind!r}, wanted nominal or measured", "kind")
    gpu, link = _optional(obj, "gpu", _gpu), _optional(obj, "link", _link)
    if (gpu is None) != (link is None):
        obj.fail("is null: a profile has both a GPU and a link, or neither", "gpu" if gpu is None else "link")
    return HardwareProfile(
        name=obj.text("name"),
        kind=cast(Kind, kind),
        cpu=_finished(_cpu, obj.child("cpu")),
        gpu=gpu,
        link=link,
        fingerprint=_finished(_scalars, obj.child("fingerprint")),
        sources=_finished(_texts, obj.child("sources")),
        cpu_one_thread=_absent_or_null(obj, "cpu_one_thread", lambda obj, key: _finished(_cpu, obj.child(key))),
        noisy=_absent_or_null(obj, "noisy", _Object.flag) or False,
    )


def profile_from_json(data: object, where: str) -> HardwareProfile:
    """See HardwareProfile.from_json."""
    return _finished(_profile, _Object(data, "", where))


def profile_to_json(profile: HardwareProfile) -> dict[str, Any]:
    """See HardwareProfile.to_json."""
    fields: dict[str, Any] = json.loads(json.dumps(asdict(profile)))
    return {"schema": SCHEMA, **fields}


def _resolve(profile: str | Path) -> Path:
    path = Path(profile)
    folder = profiles_folder()
    if folder is not None and str(profile) in shipped_profiles():
        return folder / f"{profile}.json"
    if not path.is_file():
        known = ", ".join(shipped_profiles()) or "none found"
        raise ProfileError(f"{profile}: no such profile file, nor a shipped profile ({known})")
    return path


def load_profile(profile: str | Path) -> HardwareProfile:
    """See HardwareProfile.load."""
    path = _resolve(profile)
    return profile_from_json(read_json(path, ProfileError, "measure again with `flexinfer calibrate`"), str(path))


def save_profile(profile: HardwareProfile, path: str | Path) -> None:
    """See HardwareProfile.save. Raises ProfileError when the folder cannot be written."""
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ProfileError(f"{target} cannot be written: {error.strerror}") from None
    try:
        with WholeFile(target) as file:
            file.write(json.dumps(profile_to_json(profile), indent=2) + "\n")
    except UserError as error:
        raise ProfileError(str(error)) from None
