"""The profile of the emulated machine: CPU threads that stand for a GPU, and a link throttled to a given rate."""

from __future__ import annotations

from dataclasses import replace

from flexinfer.estimator.profile import CpuProfile, GpuProfile, HardwareProfile, LinkProfile, Samples

HOP_S = 60e-6
"""Handing an op to another engine's thread and back, which real GPUs do by launching."""
GPU_OP_S = 12e-6
"""What the marks on an emulated device's tensors add to every small op: 3.3 us a call, of views too, in a warm loop."""
COPY_S = 80e-6
"""One copy: its op, and the sleep that throttles it, which wakes late."""
GPU_ATTENTION_SHARE = 0.35
"""Its decode attention is plain torch and reads KV at about a third of the rate of the CPU's kernel."""
FEW_ROWS = 16
"""Up to this many rows a matrix product is taken to be bound by memory, which fewer threads slow down less."""


def emulated_profile(
    profile: HardwareProfile,
    link_bytes_per_s: float,
    gpu_memory_bytes: int,
    compute_threads: int,
    cpu_threads: int,
) -> HardwareProfile:
    """`profile` with `compute_threads` of its CPU as the GPU and `cpu_threads` as the CPU.

    One-thread figures are used where the profile has them; other counts are scaled: arithmetic with the number of
    threads, memory traffic with its root.
    """
    cpu, stand_in = with_threads(profile, cpu_threads), with_threads(profile, compute_threads)
    rate = min(link_bytes_per_s, stand_in.copy_bytes_per_s)
    link = LinkProfile("emulated link", rate, rate, eff_h2d=1.0, eff_d2h=1.0, fixed_s=COPY_S)
    gpu = _as_gpu(stand_in, gpu_memory_bytes)
    return replace(profile, name=f"emulated on {profile.name}", cpu=cpu, gpu=gpu, link=link)


def _as_gpu(cpu: CpuProfile, memory_bytes: int) -> GpuProfile:
    efficiency = {op: replace(share, fixed_s=share.fixed_s + GPU_OP_S) for op, share in cpu.efficiency.items()}
    decode = efficiency["attention_decode"]
    efficiency["attention_decode"] = replace(decode, eff_memory=decode.eff_memory * GPU_ATTENTION_SHARE)
    return GpuProfile(
        name=f"{cpu.threads} threads of {cpu.name}",
        memory_bytes=memory_bytes,
        memory_bytes_per_s=cpu.memory_bytes_per_s,
        peak_flops_per_s=cpu.peak_flops_per_s,
        efficiency=efficiency,
        dispatch_s=cpu.dispatch_s + HOP_S,
        samples=replace(cpu.samples, attention_decode=()),
    )


def with_threads(profile: HardwareProfile, threads: int) -> CpuProfile:
    """The profile's CPU as it is with another number of threads."""
    if threads == profile.cpu.threads:
        return profile.cpu
    one = profile.cpu_one_thread
    if one is not None and threads == one.threads:
        return one
    return _scaled(profile.cpu, threads)


def _scaled(cpu: CpuProfile, threads: int) -> CpuProfile:
    arithmetic = threads / cpu.threads
    memory = arithmetic**0.5
    return replace(
        cpu,
        threads=threads,
        memory_bytes_per_s=cpu.memory_bytes_per_s * memory,
        copy_bytes_per_s=cpu.copy_bytes_per_s * memory,
        peak_flops_per_s={dtype: peak * arithmetic for dtype, peak in cpu.peak_flops_per_s.items()},
        samples=_scaled_samples(cpu.samples, arithmetic, memory),
    )


def _scaled_samples(samples: Samples, arithmetic: float, memory: float) -> Samples:
    return Samples(
        linear=tuple(
            replace(s, median_s=s.median_s / (memory if s.rows <= FEW_ROWS else arithmetic)) for s in samples.linear
        ),
        attention_prefill=tuple(replace(s, median_s=s.median_s / arithmetic) for s in samples.attention_prefill),
        attention_decode=tuple(replace(s, median_s=s.median_s / memory) for s in samples.attention_decode),
    )
