"""An accelerator and its link, through torch's device API. Not run on hardware yet.

Calls are timed in bursts with one wait at the end, since the executor keeps the device's queue filled too. Copies are
timed each way, from pinned and from pageable memory, since a checkpoint may have to stay pageable.
"""

from __future__ import annotations

import torch

from flexinfer.calibrate.cpu import all_samples
from flexinfer.calibrate.effort import GPU, Effort
from flexinfer.calibrate.factors import Measured, efficiencies, peaks
from flexinfer.calibrate.linear import OnCase, linear_case
from flexinfer.calibrate.ops import accelerator_bench, cpu_bench
from flexinfer.calibrate.overhead import overheads
from flexinfer.calibrate.small_ops import small_ops
from flexinfer.calibrate.timing import Case, Clock, Patience, measure_all
from flexinfer.calibrate.traffic import copy_rate
from flexinfer.calibrate.workset import WorkSet
from flexinfer.estimator.profile import GpuProfile, LinkProfile

WORKSET_BYTES = 2 * 2**30
"""Far beyond any accelerator's cache."""
LINK_BYTES = 64 * 2**20
SMALL_COPY_BYTES = 4096
TINY = 64
HOST_BYTES = 2**27


def measured_gpu(
    device: torch.device, on_case: OnCase | None = None, effort: Effort = GPU
) -> tuple[GpuProfile, LinkProfile]:
    """The device's figures and its link's."""
    free, total = torch.get_device_module(device).mem_get_info(device)
    with torch.inference_mode():
        work = WorkSet(min(WORKSET_BYTES, free // 4), device)
        bench = accelerator_bench(device, work)
        samples, noisy = all_samples(bench, (effort,), on_case, alone=None)
        (call,) = measure_all([linear_case(bench, torch.float32, 1, TINY, TINY)], effort.case_s, bench.clock)
        copied = copy_rate(bench, effort.case_s)
        small = small_ops(bench, effort.dtypes, effort.case_s)
        # The executor runs on the host, after one of whose own products it is timed.
        host = cpu_bench(torch.get_num_threads(), WorkSet(HOST_BYTES), Patience())
        dispatch_s, step_overhead_s = overheads(host, effort.case_s)
        link = measured_link(device, effort.case_s)
    # A copy within the device reads and writes every byte.
    measured = Measured(2 * copied, copied, call.median_s, small, dispatch_s, step_overhead_s, samples, noisy)
    peak = peaks(samples.linear)
    name = torch.get_device_module(device).get_device_name(device)
    gpu = GpuProfile(
        name=str(name),
        memory_bytes=total,
        memory_bytes_per_s=measured.bytes_per_s,
        peak_flops_per_s=peak,
        efficiency=efficiencies(measured, peak),
        dispatch_s=measured.dispatch_s,
        samples=samples,
    )
    return gpu, link


def measured_link(device: torch.device, case_s: float) -> LinkProfile:
    """Rates each way for blocks of 64 MiB, pinned and pageable, and what a copy of a few bytes takes."""
    wait = Clock(wait=lambda: torch.accelerator.synchronize(device))

    def seconds(nbytes: int, pinned: bool, up: bool) -> float:
        case = copy_case(device, nbytes, pinned, up)
        (result,) = measure_all([case], case_s, wait)
        return result.median_s

    def rate(pinned: bool, up: bool) -> float:
        return LINK_BYTES / seconds(LINK_BYTES, pinned, up)

    return LinkProfile(
        name=f"host to {device.type}",
        h2d_bytes_per_s=rate(pinned=True, up=True),
        d2h_bytes_per_s=rate(pinned=True, up=False),
        eff_h2d=1.0,
        eff_d2h=1.0,
        fixed_s=seconds(SMALL_COPY_BYTES, pinned=True, up=True),
        pageable_h2d_bytes_per_s=rate(pinned=False, up=True),
        pageable_d2h_bytes_per_s=rate(pinned=False, up=False),
    )


def host_memory(nbytes: int, pinned: bool) -> torch.Tensor:
    return torch.zeros(nbytes, dtype=torch.uint8, pin_memory=pinned)


def copy_case(device: torch.device, nbytes: int, pinned: bool, up: bool) -> Case:
    """One copy of `nbytes` over the link."""
    host = host_memory(nbytes, pinned)
    far = torch.empty(nbytes, dtype=torch.uint8, device=device)
    target, source = (far, host) if up else (host, far)
    what = f"{nbytes} bytes {'up' if up else 'down'}"
    return Case(what, tuple, lambda: target.copy_(source, non_blocking=pinned))
