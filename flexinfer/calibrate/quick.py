"""The quick profile: what first use of a machine measures."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import torch

from flexinfer.calibrate.accelerator import measured_gpu
from flexinfer.calibrate.cpu import measured_cpu
from flexinfer.calibrate.effort import HALF, ONE_THREAD, QUICK, Effort
from flexinfer.calibrate.selfcheck import check_products
from flexinfer.calibrate.store import OnProgress
from flexinfer.calibrate.timing import Case, Patience
from flexinfer.calibrate.workset import WorkSet, workset_bytes
from flexinfer.estimator import HardwareProfile
from flexinfer.host import available_threads, fingerprint

log = logging.getLogger(__name__)


@dataclass
class Progress:
    """Counts cases as they start; `expected` of them fill the bar."""

    on_progress: OnProgress | None
    expected: int
    started: int = 0

    def __call__(self, case: Case) -> None:
        self.started += 1
        if self.on_progress:
            self.on_progress(min(1.0, self.started / self.expected), case.what)


def case_count(effort: Effort) -> int:
    """Cases of an effort, each of the two passes counted."""
    attention = len(effort.heads) * len(effort.decode) + len(effort.prefill)
    return 2 * len(effort.dtypes) * (len(effort.matrices) * len(effort.rows) + attention)


def quick_profile(
    threads: int,
    on_progress: OnProgress | None = None,
    efforts: tuple[Effort, ...] = (QUICK, HALF),
    one_thread: Effort = ONE_THREAD,
    workset: int | None = None,
) -> HardwareProfile:
    """This machine's CPU with `threads` threads and, where there are more, with one; its GPU and link if torch has one.

    About 10 seconds on two cores. Raises EngineError when matrix products are wrong here.
    """
    for dtype in ("float32", "bfloat16"):
        check_products(dtype)
    split = threads > 1
    progress = Progress(on_progress, sum(map(case_count, efforts)) + split * case_count(one_thread))
    work = WorkSet(workset or workset_bytes())
    # With more threads than cores they wait for one another; that is how they will run, and no disturbance.
    patience = Patience() if threads <= available_threads() else Patience(left_s=0.0)
    alone, alone_noisy = measured_cpu(1, (one_thread,), work, patience, progress) if split else (None, False)
    cpu, noisy = measured_cpu(threads, efforts, work, patience, progress, alone)
    profile = HardwareProfile(
        f"{cpu.name}, {threads} threads", "measured", cpu, cpu_one_thread=alone, noisy=noisy or alone_noisy
    )
    if torch.cuda.is_available():
        gpu, link = measured_gpu(torch.device("cuda", torch.cuda.current_device()), progress)
        profile = replace(profile, gpu=gpu, link=link)
    if profile.noisy:
        log.warning("other programs disturbed the measurements; predictions may be off (`flexinfer calibrate` repeats)")
    return replace(profile, fingerprint=fingerprint())
