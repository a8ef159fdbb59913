"""`flexinfer plan`: the plan for a model, a request and a machine, without running it. No torch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from flexinfer.cli.options import COUNT, FILE, load_options, take_load_options
from flexinfer.cli.output import measure_progress, print_json, show
from flexinfer.errors import UserError
from flexinfer.estimator import HardwareProfile
from flexinfer.options import LoadOptions
from flexinfer.planning import choose, profile_on_device
from flexinfer.spec import ModelSpec, Workload, builtin_names, load_spec
from flexinfer.window import check_window


@click.command()
@click.argument("model")
@click.option("--batch", type=COUNT, default=1, show_default=True, help="Sequences at a time.")
@click.option("--prompt-len", type=COUNT, default=512, show_default=True, help="Tokens of the longest prompt.")
@click.option("--new-tokens", type=COUNT, default=128, show_default=True, help="Tokens to generate for each.")
@click.option(
    "--hardware",
    type=FILE,
    metavar="PROFILE",
    help="A shipped profile (a100-icl, h100-spr) or a file; else this machine.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
@load_options
def plan(
    model: str, batch: int, prompt_len: int, new_tokens: int, hardware: str | None, as_json: bool, **options: Any
) -> None:
    """Weigh the ways to run MODEL (a folder, a .gguf file, a hub id or a built-in name) and say which is best."""
    if hardware is not None and options["profile"] is not None:
        raise UserError("--hardware and --profile name the same thing; give one of them")
    loaded = take_load_options(options)
    spec = model_spec(model, loaded)
    workload = Workload(batch, prompt_len, new_tokens)
    check_window(spec, prompt_len, new_tokens)
    profile = machine(hardware, loaded, options["threads"])
    if loaded.device == "auto":
        loaded = loaded.on("cpu" if profile.gpu is None else "cuda")
    if hardware is not None and options["threads"] is None:
        loaded = replace(loaded, threads=profile.cpu.threads)  # another machine has its own
    chosen = choose(spec, workload, profile_on_device(profile, loaded), loaded)
    if as_json:
        print_json(chosen.to_json())
    else:
        show(chosen.explain())


def model_spec(model: str, options: LoadOptions) -> ModelSpec:
    """The sizes of what MODEL names; of a hub model no weights are fetched."""
    from flexinfer.weights import resolve_model

    if model in builtin_names() and not Path(model).exists():
        return load_spec(model, options.dtype)
    return load_spec(resolve_model(model, weights=False), options.dtype)


def machine(hardware: str | None, options: LoadOptions, threads: int | None) -> HardwareProfile:
    """The profile that --hardware or --profile names, else this machine's own, measured where none is kept yet.

    threads: as the option says; of no effect on the figures of another machine, which is logged.
    """
    from flexinfer.calibrate import cached_profile, check_threads

    name = hardware or options.profile
    if name is not None:
        profile = HardwareProfile.load(name)
        check_threads(profile, name, threads)
        return profile
    with measure_progress() as on_measure:
        return cached_profile(options.threads, on_progress=on_measure)
