"""Profiles kept between runs: where, until when, and what happens to broken ones."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from flexinfer.calibrate import cache_folder, cached_profile, named_profile, peek_profile, quick, store
from flexinfer.errors import ProfileError
from flexinfer.estimator import CpuProfile, Efficiency, HardwareProfile
from flexinfer.host import fingerprint, memory_limit_bytes

Measure = Callable[..., HardwareProfile]


def profile(threads: int = 2, kind: str = "measured", **facts: str) -> HardwareProfile:
    share = Efficiency(0.5, 0.5, 1e-6)
    classes = ("linear", "attention_prefill", "attention_decode", "elementwise")
    peak = {"float32": 1e11, "bfloat16": 1e12, "float16": 1e11}
    cpu = CpuProfile("cpu", threads, 1, 1e10, 1e10, peak, dict.fromkeys(classes, share), 1e-6, 1e-4)  # type: ignore[arg-type]  # keys are OpClass
    return HardwareProfile("test", kind, cpu, fingerprint={**fingerprint(), **facts})  # type: ignore[arg-type]  # kind is a Kind


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Thread counts of the measurements made; measuring takes no time, and the cache folder is the test's own."""
    calls: list[int] = []

    def measure(threads: int, on_progress: object = None) -> HardwareProfile:
        calls.append(threads)
        return profile(threads)

    monkeypatch.setattr(quick, "quick_profile", measure)
    monkeypatch.setenv("FLEXINFER_CACHE_DIR", str(tmp_path / "cache"))
    return calls


def the_file(threads: int = 2) -> Path:
    return store.cache_path(threads, fingerprint())


def test_measured_once_then_read(measured: list[int]) -> None:
    first, second = cached_profile(2), cached_profile(2)
    assert measured == [2]
    assert first.cpu.peak_flops_per_s == second.cpu.peak_flops_per_s
    assert list(cache_folder().rglob("*.json")) == [the_file()]


def test_thread_counts_have_files_of_their_own(measured: list[int]) -> None:
    assert [cached_profile(t).cpu.threads for t in (2, 1, 2, 1)] == [2, 1, 2, 1]
    assert measured == [2, 1]


def test_refresh_measures_again(measured: list[int]) -> None:
    cached_profile(2)
    cached_profile(2, refresh=True)
    assert measured == [2, 2]


def test_memory_is_that_of_now(measured: list[int]) -> None:
    cached_profile(2)
    free = cached_profile(2).cpu.memory_bytes
    assert abs(free - memory_limit_bytes()) < 2**30


def test_stale_file_is_replaced_and_the_reason_logged(measured: list[int], caplog: pytest.LogCaptureFixture) -> None:
    profile(torch="1.0.0").save(the_file())
    cached_profile(2)
    assert measured == [2]
    assert "torch was 1.0.0" in caplog.text
    assert HardwareProfile.load(the_file()).fingerprint["torch"] == fingerprint()["torch"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": "flexinfer.hardware/0"}'])
def test_corrupt_file_is_replaced(measured: list[int], caplog: pytest.LogCaptureFixture, text: str) -> None:
    the_file().parent.mkdir(parents=True)
    the_file().write_text(text)
    cached_profile(2)
    assert measured == [2]
    assert "measuring again" in caplog.text
    assert HardwareProfile.load(the_file()).cpu.threads == 2


def test_noisy_profile_is_used_for_a_while_then_measured_again(measured: list[int]) -> None:
    replace(profile(), noisy=True).save(the_file())
    cached_profile(2)
    assert measured == []
    long_ago = time.time() - 2 * store.NOISY_KEPT_S
    os.utime(the_file(), (long_ago, long_ago))
    cached_profile(2)
    assert measured == [2]


def test_hand_edited_figures_are_used(measured: list[int]) -> None:
    cached_profile(2)
    data = json.loads(the_file().read_text())
    data["cpu"]["memory_bytes_per_s"] = 12345.0
    the_file().write_text(json.dumps(data))
    assert cached_profile(2).cpu.memory_bytes_per_s == 12345.0
    assert measured == [2]


def test_folder_that_cannot_be_written_costs_only_the_keeping(
    measured: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("FLEXINFER_CACHE_DIR", str(blocked))
    assert cached_profile(2).cpu.threads == 2
    assert "is not kept" in caplog.text


def test_peek_never_measures(measured: list[int]) -> None:
    assert peek_profile(2) is None
    cached_profile(2)
    assert peek_profile(2) is not None
    profile(torch="1.0.0").save(the_file())
    assert peek_profile(2) is None
    the_file().write_text("{")
    assert peek_profile(2) is None
    assert measured == [2]


def test_named_profile_that_is_stale_is_refused_with_the_reason(tmp_path: Path) -> None:
    profile(torch="1.0.0").save(tmp_path / "p.json")
    with pytest.raises(ProfileError, match="torch was 1.0.0, is .*flexinfer calibrate"):
        named_profile(str(tmp_path / "p.json"))


def test_named_profile_that_holds_or_is_nominal_is_taken(tmp_path: Path) -> None:
    profile().save(tmp_path / "here.json")
    profile(kind="nominal", torch="1.0.0").save(tmp_path / "nominal.json")
    assert named_profile(str(tmp_path / "here.json")).kind == "measured"
    assert named_profile(str(tmp_path / "nominal.json")).kind == "nominal"


def test_named_profile_for_other_threads_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    profile(threads=2).save(tmp_path / "p.json")
    with caplog.at_level(logging.WARNING):
        named_profile(str(tmp_path / "p.json"), threads=4)
    assert "is for 2 threads; 4 are used" in caplog.text


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLEXINFER_CACHE_DIR", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.delenv("FLEXINFER_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "flexinfer"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "flexinfer"


def test_reading_a_kept_profile_does_not_import_torch(measured: list[int]) -> None:
    cached_profile(2)
    code = "from flexinfer.calibrate import cached_profile as c; assert c(2).cpu.threads == 2"
    check = f"import sys; {code}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True, timeout=60)
