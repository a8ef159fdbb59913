"""Memory limits from trees of files, and this process's own peak."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import pytest

from flexinfer.host import memory_limit_bytes, reset_rss_peak, rss_bytes, rss_peak_bytes

GIB = 2**30


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def meminfo(root: Path, available_gib: int = 64) -> Path:
    write(root / "proc/meminfo", f"MemTotal: 134217728 kB\nMemFree: 1024 kB\nMemAvailable: {available_gib * 2**20} kB")
    return root


def v2(root: Path, path: str) -> Path:
    write(root / "proc/self/cgroup", f"0::{path}")
    write(root / "proc/self/mountinfo", "30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw")
    return root / "sys/fs/cgroup"


def v2_level(folder: Path, limit: str, used: int, stat: str = "", high: str = "max") -> None:
    write(folder / "memory.max", limit)
    write(folder / "memory.high", high)
    write(folder / "memory.current", str(used))
    write(folder / "memory.stat", stat)


def test_without_groups_the_available_memory_counts(tmp_path: Path) -> None:
    assert memory_limit_bytes(meminfo(tmp_path)) == 64 * GIB


def test_group_limit_less_what_cannot_be_reclaimed(tmp_path: Path) -> None:
    top = v2(meminfo(tmp_path), "/job")
    sizes = {"anon": 2, "file": 3, "active_file": 1, "inactive_file": 1, "slab_reclaimable": 1, "shmem": 1}
    stat = "\n".join(f"{name} {gib * GIB}" for name, gib in sizes.items())
    v2_level(top / "job", str(16 * GIB), 8 * GIB, stat)
    assert memory_limit_bytes(tmp_path) == 11 * GIB


def test_tighter_parent_counts(tmp_path: Path) -> None:
    top = v2(meminfo(tmp_path), "/pod/job")
    v2_level(top / "pod/job", "max", GIB)
    v2_level(top / "pod", str(8 * GIB), 3 * GIB)
    assert memory_limit_bytes(tmp_path) == 5 * GIB


def test_throttling_limit_counts_as_the_hard_one_does(tmp_path: Path) -> None:
    v2_level(v2(meminfo(tmp_path), "/"), str(16 * GIB), 0, high=str(4 * GIB))
    assert memory_limit_bytes(tmp_path) == 4 * GIB


def test_no_limit_and_a_limit_above_the_machine(tmp_path: Path) -> None:
    v2_level(v2(meminfo(tmp_path), "/"), "max", 5 * GIB)
    assert memory_limit_bytes(tmp_path) == 64 * GIB
    v2_level(tmp_path / "sys/fs/cgroup", str(500 * GIB), 5 * GIB)
    assert memory_limit_bytes(tmp_path) == 64 * GIB


def test_spent_group_has_nothing_left(tmp_path: Path) -> None:
    v2_level(v2(meminfo(tmp_path), "/"), str(GIB), 2 * GIB)
    assert memory_limit_bytes(tmp_path) == 0


@pytest.mark.parametrize(
    ("limit", "left_gib"), [(12 * GIB, 10), (9223372036854771712, 64)], ids=["limited", "unlimited"]
)
def test_cgroup_v1(tmp_path: Path, limit: int, left_gib: int) -> None:
    write(meminfo(tmp_path) / "proc/self/cgroup", "7:memory:/slurm/job_1/step_0\n0::/")
    write(tmp_path / "proc/self/mountinfo", "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory")
    folder = tmp_path / "sys/fs/cgroup/memory/slurm/job_1"
    (folder / "step_0").mkdir(parents=True)
    write(folder / "memory.limit_in_bytes", str(limit))
    write(folder / "memory.usage_in_bytes", str(5 * GIB))
    write(folder / "memory.stat", f"total_active_file {GIB}\ntotal_inactive_file {2 * GIB}\ntotal_shmem {GIB}")
    assert memory_limit_bytes(tmp_path) == left_gib * GIB


def test_old_kernel_without_an_available_figure(tmp_path: Path) -> None:
    write(tmp_path / "proc/meminfo", "MemTotal: 4096 kB\nMemFree: 1024 kB\nCached: 512 kB")
    assert memory_limit_bytes(tmp_path) == 1536 * 1024


def test_other_systems_ask_sysconf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = {"SC_PAGE_SIZE": 4096, "SC_AVPHYS_PAGES": 1000, "SC_PHYS_PAGES": 3000}
    monkeypatch.setattr("os.sysconf", pages.__getitem__)
    assert memory_limit_bytes(tmp_path) == 4096 * 1000
    monkeypatch.setattr("os.sysconf_names", {"SC_PAGE_SIZE": 0, "SC_PHYS_PAGES": 1})
    assert memory_limit_bytes(tmp_path) == 4096 * 1500


def test_peak_without_kernel_files_is_what_getrusage_says(tmp_path: Path) -> None:
    assert rss_peak_bytes(tmp_path) > 2**20
    assert rss_bytes(tmp_path) is None
    assert not reset_rss_peak(tmp_path)
    assert list(tmp_path.iterdir()) == [], "nothing is created where the kernel's file is missing"


def held_memory(nbytes: int) -> mmap.mmap:
    """Pages of its own, all written: a large bytearray may get ones that earlier tests have left on the heap."""
    block = mmap.mmap(-1, nbytes)
    block[:: mmap.PAGESIZE] = b"1" * (nbytes // mmap.PAGESIZE)
    return block


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is reset through a file of Linux")
def test_peak_follows_what_was_held_since_the_reset() -> None:
    block = held_memory(64 * 2**20)
    before = rss_peak_bytes()
    block.close()
    if not reset_rss_peak():
        assert rss_peak_bytes() >= before
        return
    now = rss_bytes()
    assert now is not None
    assert rss_peak_bytes() < before - 32 * 2**20
    block = held_memory(48 * 2**20)
    assert rss_peak_bytes() >= now + 40 * 2**20
    block.close()
