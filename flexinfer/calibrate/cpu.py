"""The CPU's figures with a given number of threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from flexinfer import kernels
from flexinfer.calibrate.attention import decode_samples, prefill_samples
from flexinfer.calibrate.effort import Effort
from flexinfer.calibrate.factors import Measured, efficiencies, peaks
from flexinfer.calibrate.linear import OnCase, linear_case, linear_samples
from flexinfer.calibrate.ops import Bench, cpu_bench
from flexinfer.calibrate.overhead import dispatch_seconds, step_seconds
from flexinfer.calibrate.timing import Measurement, Patience, measure_all
from flexinfer.calibrate.traffic import copy_rate, small_ops
from flexinfer.calibrate.workset import WorkSet
from flexinfer.estimator.profile import AttentionSample, CpuProfile, LinearSample, Samples
from flexinfer.host import memory_limit_bytes
from flexinfer.host.fingerprint import cpu_model

READ_BYTES = 2**28
TINY = 64
NOISY_SHARE = 0.05


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """torch's thread count inside the block; what it was afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def any_noise(results: Sequence[Measurement]) -> bool:
    """Whether more than a few samples are noisy: calls of microseconds differ from pass to pass on any machine."""
    return sum(result.noisy for result in results) > NOISY_SHARE * len(results)


def all_samples(bench: Bench, efforts: Sequence[Effort], on_case: OnCase | None) -> tuple[Samples, bool]:
    """Every sample of these efforts, and whether any of them was noisy."""
    linear: list[tuple[LinearSample, Measurement]] = []
    prefill: list[tuple[AttentionSample, Measurement]] = []
    decode: list[tuple[AttentionSample, Measurement]] = []
    for effort in efforts:
        for dtype in effort.dtypes:
            linear += linear_samples(bench, dtype, effort, on_case)
            prefill += prefill_samples(bench, dtype, effort, on_case)
            decode += decode_samples(bench, dtype, effort, on_case)
    noisy = any_noise([result for pairs in (linear, prefill, decode) for _, result in pairs])
    return Samples(*(tuple(sample for sample, _ in pairs) for pairs in (linear, prefill, decode))), noisy


def measured_cpu(
    threads: int, efforts: Sequence[Effort], work: WorkSet, patience: Patience, on_case: OnCase | None = None
) -> tuple[CpuProfile, bool]:
    """The CPU with this many threads, and whether other processes or guests disturbed its measurements."""
    with torch_threads(threads), torch.inference_mode():
        bench = cpu_bench(threads, work, patience)
        case_s = efforts[0].case_s
        samples, noisy = all_samples(bench, efforts, on_case)
        tiny = linear_case(bench, torch.float32, 1, TINY, TINY)
        (call,) = measure_all([tiny], case_s, bench.clock, on_case)
        measured = Measured(
            bytes_per_s=kernels.read_bandwidth(threads=threads, nbytes=min(READ_BYTES, work.nbytes)),
            copy_bytes_per_s=copy_rate(bench, case_s),
            call_s=call.median_s,
            small=small_ops(bench, torch.float32, case_s),
            samples=samples,
        )
        step_s = step_seconds()
    peak = peaks(samples.linear)
    profile = CpuProfile(
        name=cpu_model(),
        threads=threads,
        memory_bytes=memory_limit_bytes(),
        memory_bytes_per_s=measured.bytes_per_s,
        copy_bytes_per_s=measured.copy_bytes_per_s,
        peak_flops_per_s=peak,
        efficiency=efficiencies(measured, peak),
        dispatch_s=dispatch_seconds(),
        step_overhead_s=step_s,
        samples=samples,
    )
    return profile, noisy or measured.small.noisy
