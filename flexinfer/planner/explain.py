"""A choice for people: a table of candidates and a few plain sentences. And for programs: flexinfer.plan/1."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flexinfer.estimator import HardwareProfile
from flexinfer.plan import Candidate
from flexinfer.planner.break_even import MOST_BATCH
from flexinfer.planner.reasons import binding, describe, describe_kv
from flexinfer.planner.search import Choice
from flexinfer.spec.model_spec import ModelSpec
from flexinfer.spec.workload import Workload
from flexinfer.units import format_rate, format_size, format_time

SLOW_TPOT_S = 1.0
"""A token that takes longer than this looks like a hang: it is said beforehand."""
COLUMNS = (("plan", 16), ("layers on GPU", 13), ("TTFT", 12), ("TPOT", 12), ("total", 12), ("over link", 10))


def explain(spec: ModelSpec, workload: Workload, profile: HardwareProfile, choice: Choice) -> str:
    """What was asked, the candidates as a table, what runs where and what binds, and why the runner-up lost."""
    lines = [_title(spec, workload), _hardware(profile), "", *_table(choice), ""]
    return "\n".join([*lines, *_sentences(spec, workload, choice)])


def _title(spec: ModelSpec, workload: Workload) -> str:
    cached = f" on {workload.cached_tokens} cached" if workload.cached_tokens else ""
    return (
        f"{spec.name}: {spec.num_layers} layers, {format_size(spec.total_bytes)} of {spec.weight_dtype}; "
        f"batch {workload.batch}, {workload.prompt_len} prompt tokens{cached}, {workload.new_tokens} new"
    )


def _hardware(profile: HardwareProfile) -> str:
    parts = [] if profile.name.startswith(profile.cpu.name) else [profile.cpu.name]
    if profile.gpu is not None and profile.link is not None:
        parts += [profile.gpu.name, f"link {format_rate(profile.link.h2d_bytes_per_s * profile.link.eff_h2d)}"]
    return "; ".join([f"{profile.name} ({profile.kind})", *parts])


def _table(choice: Choice) -> Iterator[str]:
    yield "  ".join(_cell(name, width, at) for at, (name, width) in enumerate(COLUMNS)) + "  GPU peak"
    for candidate in choice.candidates:
        row = _row(candidate)
        cells = "  ".join(
            _cell(text, width, at) for at, (text, (_, width)) in enumerate(zip(row, COLUMNS, strict=True))
        )
        mark = "  <- chosen" if candidate is choice.chosen else "" if candidate.fits else "  does not fit"
        yield f"{cells}  {format_size(candidate.times.gpu_peak_bytes):>8}{mark}"


def _cell(text: str, width: int, column: int) -> str:
    return text.ljust(width) if column == 0 else text.rjust(width)


def _row(candidate: Candidate) -> tuple[str, ...]:
    times = candidate.times
    tpot = "-" if times.tpot_s is None else format_time(times.tpot_s)
    moved = format_size(times.h2d_bytes + times.d2h_bytes)
    layers = str(candidate.plan.gpu_layers)
    return (candidate.name, layers, format_time(times.ttft_s), tpot, format_time(times.e2e_s), moved)


def _sentences(spec: ModelSpec, workload: Workload, choice: Choice) -> Iterator[str]:
    chosen = choice.chosen
    yield _phase_sentence("Prefill", spec, chosen)
    if workload.decode_steps:
        yield _phase_sentence("Decode", spec, chosen)
        if chosen.plan.prefill.uses_gpu and not chosen.plan.decode.uses_gpu:
            yield "The GPU idles in decode: the CPU reads a step's weights faster than the link would bring them."
    yield from _runner_up(choice)
    yield from _crossings(choice)
    if (chosen.times.tpot_s or 0.0) > SLOW_TPOT_S:
        yield f"Expect {format_time(chosen.times.tpot_s or 0.0)} for each token: slow, not stuck."


def _phase_sentence(name: str, spec: ModelSpec, chosen: Candidate) -> str:
    phase = name.lower()
    phase_plan = chosen.plan.prefill if phase == "prefill" else chosen.plan.decode
    estimate = chosen.prefill if phase == "prefill" else chosen.decode
    busy = sorted(estimate.terms.items(), key=lambda item: -item[1])
    engines = ", ".join(f"{engine} {format_time(seconds)}" for engine, seconds in busy if seconds > 0)
    what = describe(spec, phase_plan) + describe_kv(phase_plan)
    return f"{name} ({format_time(estimate.time_s)}): {what}; {binding(chosen, phase)} (busy: {engines})."


def _runner_up(choice: Choice) -> Iterator[str]:
    if len(choice.candidates) > 1 and choice.candidates[1].fits:
        second = choice.candidates[1]
        yield f"Runner-up {second.name}: {second.why}."
    elif len(choice.candidates) > 1:
        yield f"Nothing else fits; {choice.candidates[1].name} {choice.candidates[1].why}."


def _crossings(choice: Choice) -> Iterator[str]:
    tokens, batch = choice.break_even["prefill_tokens"], choice.break_even["decode_batch"]
    parts = []
    if tokens is not None:
        parts.append(f"in prefill, streaming all weights beats the CPU from {tokens} new tokens a sequence on")
    if batch is not None:
        reach = f"at every batch up to {batch}" if batch == MOST_BATCH else f"up to batch {batch}"
        parts.append(f"in decode, the CPU beats streaming {reach}")
    if parts:
        yield "Break-even: " + "; ".join(parts) + "."


def plan_json(spec: ModelSpec, workload: Workload, profile: HardwareProfile, choice: Choice) -> dict[str, Any]:
    """The flexinfer.plan/1 object."""
    return {
        "schema": "flexinfer.plan/1",
        "model": {
            "name": spec.name,
            "family": spec.family,
            "layers": spec.num_layers,
            "parameters": spec.total_params,
            "dtype": spec.weight_dtype,
            "weight_bytes": spec.total_bytes,
            "kv_bytes_per_token": spec.kv_bytes_per_token,
        },
        "workload": {
            "batch": workload.batch,
            "prompt_len": workload.prompt_len,
            "new_tokens": workload.new_tokens,
            "cached_tokens": workload.cached_tokens,
        },
        "hardware": _hardware_json(profile),
        "chosen": choice.chosen.to_json(),
        "candidates": [candidate.to_json() for candidate in choice.candidates],
        "break_even": dict(choice.break_even),
    }


def _hardware_json(profile: HardwareProfile) -> dict[str, Any]:
    gpu, link = profile.gpu, profile.link
    return {
        "name": profile.name,
        "kind": profile.kind,
        "cpu": profile.cpu.name,
        "cpu_memory_bytes": profile.cpu.memory_bytes,
        "gpu": None if gpu is None else gpu.name,
        "gpu_memory_bytes": None if gpu is None else gpu.memory_bytes,
        "link_h2d_bytes_per_s": None if link is None else link.h2d_bytes_per_s * link.eff_h2d,
    }
