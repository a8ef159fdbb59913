"""Cold operands, samples, factors and whole profiles, at a size that takes no time."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from flexinfer.calibrate import accelerator, quick, selfcheck
from flexinfer.calibrate.bounds import bounded_decode, bounded_linear, bounded_prefill
from flexinfer.calibrate.cpu import any_noise, torch_threads
from flexinfer.calibrate.effort import Effort, Heads
from flexinfer.calibrate.factors import Measured, efficiencies, peaks
from flexinfer.calibrate.linear import linear_samples
from flexinfer.calibrate.ops import Bench
from flexinfer.calibrate.small_ops import SmallOps
from flexinfer.calibrate.timing import Case, Clock, Measurement
from flexinfer.calibrate.workset import WorkSet
from flexinfer.errors import EngineError
from flexinfer.estimator import AttentionSample, HardwareProfile, LinearSample, Samples
from flexinfer.models.opset import CpuOps

TINY = Effort(
    dtypes=("float32", "bfloat16"),
    matrices=((16, 32), (64, 64)),
    rows=(1, 4),
    heads=(Heads(4, 2, 16),),
    decode=((1, 8), (2, 16)),
    prefill=(4, 8),
    case_s=0.001,
)


@pytest.fixture(scope="module")
def work() -> WorkSet:
    return WorkSet(2**20)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_cold_operands_are_ordinary_numbers(work: WorkSet, dtype: torch.dtype) -> None:
    numbers = work.cut(dtype, 64, 32).float().abs()
    assert torch.isfinite(numbers).all()
    assert float(numbers.min()) > 1e-3
    assert float(numbers.max()) < 1e2


def test_pieces_do_not_overlap_until_the_set_is_used_up() -> None:
    work = WorkSet(4096)
    starts = [work.cut(torch.float32, 16, 16).data_ptr() for _ in range(5)]
    assert len(set(starts[:4])) == 4
    assert starts[4] == starts[0]


def test_piece_larger_than_the_set_is_refused(work: WorkSet) -> None:
    assert work.fits(torch.float32, 256, 256)
    assert not work.fits(torch.float32, 1024, 256)
    with pytest.raises(ValueError, match="larger than the work set"):
        work.cut(torch.float32, 1024, 1024)


def test_matrices_that_would_take_too_long_are_left_out(work: WorkSet) -> None:
    class SlowForManyRows(CpuOps):
        def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
            time.sleep(0.002 if len(x) == 4 else 0.0)
            return x

    slow = Bench(work, Clock(), SlowForManyRows())
    effort = replace(TINY, slow_s=0.01)
    shapes = {(s.out_features, s.rows) for s, _ in linear_samples(slow, "float32", effort)}
    assert shapes == {(16, 1), (16, 4), (64, 1)}


def linear(dtype: str, rows: int, size: int, seconds: float) -> LinearSample:
    return LinearSample(dtype, rows, size, size, seconds, 0.0, 3)


def attention(new: int, context: int, seconds: float) -> AttentionSample:
    return AttentionSample("float32", 1, 4, 4, 16, new, context, seconds, 0.0, 3)


def test_factors_by_hand() -> None:
    samples = Samples(
        linear=(linear("float32", 1, 1000, 1e-3), linear("float32", 100, 1000, 2e-3), linear("bfloat16", 1, 10, 1e-6)),
        attention_prefill=(attention(99, 99, 4.0 * 4 * 16 * 99 * 50 / 25e9),),
        attention_decode=(attention(1, 1000, 512000 / 1e9),),
    )
    peak = peaks(samples.linear)
    assert peak == {"float32": 1e11, "bfloat16": pytest.approx(2e8), "float16": pytest.approx(2e8)}
    measured = Measured(2e9, 1e9, 3e-6, SmallOps(1e-6, 8e9), 1e-6, 1e-4, samples, noisy=False)
    found = efficiencies(measured, peak)
    assert found["linear"].eff_memory == pytest.approx(2.0)
    assert found["linear"].fixed_s == 3e-6
    assert found["attention_prefill"].eff_compute == pytest.approx(0.25)
    assert found["attention_decode"].eff_memory == pytest.approx(0.5)
    assert found["elementwise"].eff_memory == pytest.approx(4.0)


def test_noisy_samples_are_cut_at_what_one_thread_takes() -> None:
    alone = quick.quick_profile(1, efforts=(TINY,), workset=2**25).cpu
    known, decode, prefill = (
        alone.samples.linear[0],
        alone.samples.attention_decode[0],
        alone.samples.attention_prefill[0],
    )
    assert bounded_linear(replace(known, median_s=9.0), alone).median_s == pytest.approx(known.median_s)
    assert bounded_decode(replace(decode, median_s=9.0), alone).median_s == pytest.approx(decode.median_s)
    assert bounded_prefill(replace(prefill, median_s=9.0), alone).median_s == pytest.approx(prefill.median_s)
    assert bounded_linear(replace(known, median_s=1e-9), alone).median_s == 1e-9
    assert bounded_linear(replace(known, median_s=9.0), None).median_s == 9.0
    assert bounded_linear(replace(known, dtype="float16", median_s=9.0), alone).median_s == 9.0


def test_a_few_noisy_samples_are_no_noisy_machine() -> None:
    good, bad = Measurement(1.0, 0.0, 3), Measurement(1.0, 0.0, 3, noisy=True)
    assert not any_noise([good] * 39 + [bad])
    assert any_noise([good] * 9 + [bad])


def test_quick_profile_is_complete_and_survives_json() -> None:
    before, steps = torch.get_num_threads(), []
    profile = quick.quick_profile(
        2, lambda done, what: steps.append((done, what)), efforts=(TINY,), one_thread=TINY, workset=2**25
    )
    assert HardwareProfile.from_json(profile.to_json()) == profile
    assert (profile.kind, profile.cpu.threads, profile.gpu, profile.link) == ("measured", 2, None, None)
    assert profile.cpu_one_thread is not None
    assert profile.cpu_one_thread.threads == 1
    assert len(profile.cpu.samples.linear) == len(TINY.dtypes) * len(TINY.matrices) * len(TINY.rows)
    assert len(profile.cpu.samples.attention_decode) == len(TINY.dtypes) * len(TINY.decode)
    assert len(profile.cpu.samples.attention_prefill) == len(TINY.dtypes) * len(TINY.prefill)
    assert profile.fingerprint["torch"]
    assert 1e6 < profile.cpu.memory_bytes_per_s < 1e13
    assert 0 < profile.cpu.dispatch_s < 1e-3
    assert 0 < profile.cpu.step_overhead_s < 1e-1
    assert torch.get_num_threads() == before
    shares = [done for done, _ in steps]
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)


def test_one_thread_is_measured_once() -> None:
    profile = quick.quick_profile(1, efforts=(replace(TINY, dtypes=("float32",)),), workset=2**25)
    assert profile.cpu_one_thread is None


def test_threads_are_restored_after_an_error() -> None:
    before = torch.get_num_threads()
    with pytest.raises(RuntimeError), torch_threads(before + 1):
        raise RuntimeError
    assert torch.get_num_threads() == before


def test_accelerator_code_runs_through_on_a_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not hardware: the CPU stands for the device, so that at least no line of it is wrong on its face."""
    module = SimpleNamespace(mem_get_info=lambda device: (2**27, 2**28), get_device_name=lambda device: "stand-in")
    waits = []
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    monkeypatch.setattr(torch.accelerator, "synchronize", waits.append)
    monkeypatch.setattr(accelerator, "host_memory", lambda nbytes, pinned: torch.zeros(nbytes, dtype=torch.uint8))
    monkeypatch.setattr(accelerator, "LINK_BYTES", 2**16)
    seen: list[Case] = []
    gpu, link = accelerator.measured_gpu(torch.device("cpu"), seen.append, TINY)
    assert (gpu.name, gpu.memory_bytes) == ("stand-in", 2**28)
    assert set(gpu.peak_flops_per_s) == {"float32", "bfloat16", "float16"}
    assert link.h2d_bytes_per_s > 0
    assert link.pageable_d2h_bytes_per_s is not None
    assert waits
    assert seen


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_products_are_right_here(dtype: str) -> None:
    selfcheck.check_products(dtype)


@pytest.mark.parametrize("wrong", [1.05, float("nan")], ids=["off by 5%", "NaN"])
def test_wrong_products_are_told_with_a_way_out(monkeypatch: pytest.MonkeyPatch, wrong: float) -> None:
    right = torch.nn.functional.linear
    selfcheck.check_products.cache_clear()
    monkeypatch.setattr(torch.nn.functional, "linear", lambda x, weight: right(x, weight) * wrong)
    with pytest.raises(EngineError, match="bfloat16 matrix products are wrong on cpu .*--dtype"):
        selfcheck.check_products("bfloat16")


def test_products_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    selfcheck.check_products("float32")
    monkeypatch.setattr(selfcheck, "relative_error", lambda *shape: 1.0)
    selfcheck.check_products("float32")
