"""The CPU's figures with a given number of threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from flexinfer.calibrate.attention import decode_samples, prefill_samples
from flexinfer.calibrate.bounds import bounded_decode, bounded_linear, bounded_prefill
from flexinfer.calibrate.effort import Effort
from flexinfer.calibrate.factors import Measured, efficiencies, peaks
from flexinfer.calibrate.linear import OnCase, linear_case, linear_samples
from flexinfer.calibrate.ops import Bench, cpu_bench
from flexinfer.calibrate.overhead import overheads
from flexinfer.calibrate.small_ops import small_ops
from flexinfer.calibrate.timing import Measurement, Patience, measure_all
from flexinfer.calibrate.traffic import copy_rate, read_rate
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


def all_samples(
    bench: Bench, efforts: Sequence[Effort], on_case: OnCase | None, alone: CpuProfile | None
) -> tuple[Samples, bool]:
    """Every sample of these efforts, and whether many of them were noisy.

    Noisy ones are cut at what one thread takes (`alone`): beside a busy process two threads look 50 times as slow.
    """
    linear: list[tuple[LinearSample, Measurement]] = []
    prefill: list[tuple[AttentionSample, Measurement]] = []
    decode: list[tuple[AttentionSample, Measurement]] = []
    for effort in efforts:
        for dtype in effort.dtypes:
            linear += linear_samples(bench, dtype, effort, on_case)
            prefill += prefill_samples(bench, dtype, effort, on_case)
            decode += decode_samples(bench, dtype, effort, on_case)
    noisy = any_noise([result for pairs in (linear, prefill, decode) for _, result in pairs])
    samples = Samples(
        tuple(bounded_linear(s, alone) if r.noisy else s for s, r in linear),
        tuple(bounded_prefill(s, alone) if r.noisy else s for s, r in prefill),
        tuple(bounded_decode(s, alone) if r.noisy else s for s, r in decode),
    )
    return samples, noisy


def measured_cpu(
    threads: int,
    efforts: Sequence[Effort],
    work: WorkSet,
    patience: Patience,
    on_case: OnCase | None = None,
    alone: CpuProfile | None = None,
) -> tuple[CpuProfile, bool]:
    """The CPU with this many threads, and whether other processes or guests disturbed its measurements.

    alone: the same CPU with one thread, where that is known already.
    """
    with torch_threads(threads), torch.inference_mode():
        bench = cpu_bench(threads, work, patience)
        measured = _measured(bench, threads, efforts, on_case, alone)
    peak = peaks(measured.samples.linear)
    profile = CpuProfile(
        name=cpu_model(),
        threads=threads,
        memory_bytes=memory_limit_bytes(),
        memory_bytes_per_s=measured.bytes_per_s,
        copy_bytes_per_s=measured.copy_bytes_per_s,
        peak_flops_per_s=peak,
        efficiency=efficiencies(measured, peak),
        dispatch_s=measured.dispatch_s,
        step_overhead_s=measured.step_overhead_s,
        samples=measured.samples,
    )
    return profile, measured.noisy


def _measured(
    bench: Bench, threads: int, efforts: Sequence[Effort], on_case: OnCase | None, alone: CpuProfile | None
) -> Measured:
    """The single figures first, while there is patience: every estimate uses them."""
    case_s = efforts[0].case_s
    bytes_per_s = read_rate(threads, min(READ_BYTES, bench.work.nbytes))
    copied = copy_rate(bench, case_s)
    small = small_ops(bench, efforts[0].dtypes, case_s)
    (call,) = measure_all([linear_case(bench, torch.float32, 1, TINY, TINY)], case_s, bench.clock)
    dispatch_s, step_overhead_s = overheads(bench, case_s)
    samples, noisy = all_samples(bench, efforts, on_case, alone)
    return Measured(bytes_per_s, copied, call.median_s, small, dispatch_s, step_overhead_s, samples, noisy)
