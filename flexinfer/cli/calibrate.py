"""`flexinfer calibrate`: measure this machine and keep, or write out, its profile."""

from __future__ import annotations

from pathlib import Path

import click

from flexinfer import settings
from flexinfer.cli.options import DEVICE, FILE, THREADS, verbosity
from flexinfer.cli.output import measure_progress, print_json, say, show
from flexinfer.errors import ProfileError, UserError
from flexinfer.estimator import HardwareProfile
from flexinfer.units import format_rate
from flexinfer.whole_file import WholeFile


@click.command()
@click.option("--quick", is_flag=True, help="The measurement of about 10 seconds; at present the only one.")
@click.option("--output", type=FILE, help="Write the profile here; without it, it is kept for later runs.")
@click.option("--device", type=DEVICE, help="The device that has to be in the profile.")
@click.option("--threads", type=THREADS, help="CPU threads.")
@click.option("--json", "as_json", is_flag=True, help="Print the profile as one JSON object.")
@verbosity
def calibrate(quick: bool, output: str | None, device: str | None, threads: int | None, as_json: bool) -> None:
    """Measure this machine: what its CPU, its GPU and the link between them reach."""
    from flexinfer.calibrate import kept_path, quick_profile
    from flexinfer.host import available_threads

    settings.check_environment()
    device = settings.resolve("DEVICE", device, default="auto")
    threads = settings.resolve("THREADS", threads) or available_threads()
    # A missing device and an unwritable place show now, not after the measurements
    _check_device(device)
    if output is not None:
        WholeFile(output).close()
    place = kept_path(threads) if output is None else Path(output)
    with measure_progress("kept for later runs" if output is None else f"written to {output}") as on_measure:
        profile = quick_profile(threads, on_measure)
    if device not in ("auto", "cpu") and profile.gpu is None:
        raise ProfileError(f"device {device} cannot be measured: only CUDA devices are")
    profile.save(place)
    if as_json:
        print_json(profile.to_json())
    else:
        show(_summary(profile))
        if output is not None:
            say(f"written to {output}")


def _check_device(device: str) -> None:
    """Raises UserError for a device that is not there."""
    if device == "emulated":
        raise UserError("the emulated device has this machine's CPU figures: calibrate with --device cpu")
    if device not in ("auto", "cpu"):
        from flexinfer.engine.devices import accelerator_device

        accelerator_device(device)


def _summary(profile: HardwareProfile) -> str:
    cpu, gpu, link = profile.cpu, profile.gpu, profile.link
    lines = [f"CPU  {cpu.name}, {cpu.threads} threads: reads {format_rate(cpu.memory_bytes_per_s)}, {_peaks(cpu)}"]
    if gpu is not None and link is not None:
        lines.append(f"GPU  {gpu.name}: reads {format_rate(gpu.memory_bytes_per_s)}, {_peaks(gpu)}")
        to, back = format_rate(link.h2d_bytes_per_s), format_rate(link.d2h_bytes_per_s)
        lines.append(f"link {link.name}: {to} to the device, {back} back")
    return "\n".join(lines)


def _peaks(device: object) -> str:
    peaks = device.peak_flops_per_s.items()  # type: ignore[attr-defined]  # CpuProfile and GpuProfile both have it
    return ", ".join(f"{dtype} {flops / 1e9:.0f} GFLOP/s" for dtype, flops in peaks)
