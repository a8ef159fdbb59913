"""Threads and topology from trees of files that stand for machines nobody here owns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from flexinfer.host import available_threads, cpu_quota, topology
from flexinfer.host.files import parse_cpu_list


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def machine(
    root: Path,
    cores: Sequence[Sequence[int]],
    nodes: Sequence[str] | None = None,
    allowed: str | None = None,
    online: str | None = None,
) -> Path:
    """Lays out /proc and /sys for the given cores (CPU numbers of each) and nodes (CPU lists)."""
    cpus = sorted(cpu for core in cores for cpu in core)
    everything = ",".join(map(str, cpus))
    write(root / "proc/self/status", f"Name:\tpython\nCpus_allowed:\tff\nCpus_allowed_list:\t{allowed or everything}")
    write(root / "sys/devices/system/cpu/online", online or everything)
    for core in cores:
        for cpu in core:
            write(root / f"sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list", ",".join(map(str, core)))
    for index, members in enumerate(nodes or ()):
        write(root / f"sys/devices/system/node/node{index}/cpulist", members)
    return root


def cgroup_v2(root: Path, path: str, quotas: dict[str, str]) -> Path:
    write(root / "proc/self/cgroup", f"0::{path}")
    write(
        root / "proc/self/mountinfo", "30 25 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"
    )
    for level, text in quotas.items():
        write(root / "sys/fs/cgroup" / level.strip("/") / "cpu.max", text)
    return root


def cgroup_v1(root: Path, path: str, quotas: dict[str, tuple[int, int]], mount_root: str = "/") -> Path:
    write(root / "proc/self/cgroup", f"5:cpu,cpuacct:{path}\n4:memory:/elsewhere\n0::/ignored")
    mount = f"33 32 0:30 {mount_root} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct"
    write(root / "proc/self/mountinfo", mount)
    for level, (quota, period) in quotas.items():
        folder = root / "sys/fs/cgroup/cpu,cpuacct" / level.strip("/")
        write(folder / "cpu.cfs_quota_us", str(quota))
        write(folder / "cpu.cfs_period_us", str(period))
    return root


def single_cores(count: int) -> list[tuple[int, ...]]:
    return [(cpu,) for cpu in range(count)]


def test_cpu_lists() -> None:
    assert parse_cpu_list("0-2,8,10-11\n") == (0, 1, 2, 8, 10, 11)
    assert parse_cpu_list("") == ()


def test_siblings_count_once_wherever_they_lie(tmp_path: Path) -> None:
    adjacent = machine(tmp_path / "a", [(0, 1), (2, 3), (4, 5)])
    far_apart = machine(tmp_path / "b", [(0, 4), (1, 5), (2, 6), (3, 7)])
    assert available_threads(adjacent) == 3
    assert available_threads(far_apart) == 4
    assert topology(far_apart).cores == ((0, 4), (1, 5), (2, 6), (3, 7))


def test_older_kernels_name_the_siblings_file_differently(tmp_path: Path) -> None:
    root = machine(tmp_path, single_cores(2))
    for cpu in (0, 1):
        folder = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        (folder / "core_cpus_list").unlink()
        write(folder / "thread_siblings_list", "0-1")
    assert available_threads(root) == 1


def test_interleaved_nodes_are_read_not_computed(tmp_path: Path) -> None:
    root = machine(tmp_path, single_cores(8), nodes=["0,2,4,6", "1,3,5,7"], allowed="0-3")
    assert topology(root).nodes == ((0, 2), (1, 3))
    assert available_threads(root) == 4


def test_sub_numa_clusters(tmp_path: Path) -> None:
    root = machine(tmp_path, single_cores(8), nodes=["0-1", "2-3", "4-5", "6-7"], allowed="2-5")
    assert topology(root).nodes == ((2, 3), (4, 5))


def test_nodes_in_order_of_their_numbers_and_memory_only_nodes_left_out(tmp_path: Path) -> None:
    root = machine(tmp_path, single_cores(4), nodes=["0-1", ""])
    write(root / "sys/devices/system/node/node10/cpulist", "2")
    write(root / "sys/devices/system/node/node2/cpulist", "3")
    assert topology(root).nodes == ((0, 1), (3,), (2,))


@pytest.mark.parametrize("nodes", [None, ["0-3"]], ids=["no node folder", "one node"])
def test_single_node(tmp_path: Path, nodes: list[str] | None) -> None:
    assert topology(machine(tmp_path, single_cores(4), nodes)).nodes == ((0, 1, 2, 3),)


def test_cpuset_subset_with_one_sibling_of_a_core(tmp_path: Path) -> None:
    root = machine(tmp_path, [(0, 4), (1, 5), (2, 6), (3, 7)], allowed="1,4-5")
    assert topology(root).cores == ((1, 5), (4,))
    assert available_threads(root) == 2


def test_mask_that_lists_cpus_which_are_not_there(tmp_path: Path) -> None:
    root = machine(tmp_path, single_cores(2), allowed="0-127", online="0-1")
    assert topology(root).cpus == (0, 1)


def test_hybrid_cpu_counts_fast_cores_only(tmp_path: Path) -> None:
    root = machine(tmp_path, [(0, 1), (2, 3), (4,), (5,), (6,), (7,)])
    write(root / "sys/devices/cpu_core/cpus", "0-3")
    assert available_threads(root) == 2
    confined = machine(tmp_path, [(0, 1), (2, 3), (4,), (5,), (6,), (7,)], allowed="4-6")
    assert available_threads(confined) == 3, "confined to slow cores, all of them count"


def test_capacity_tells_big_cores_from_small_ones(tmp_path: Path) -> None:
    root = machine(tmp_path, single_cores(6))
    for cpu, capacity in enumerate((400, 400, 950, 950, 1024, 1000)):
        write(root / f"sys/devices/system/cpu/cpu{cpu}/cpu_capacity", str(capacity))
    assert available_threads(root) == 4


@pytest.mark.parametrize(
    ("quota", "threads"),
    [("765000 100000", 7), ("max 100000", 96), ("50000 100000", 1), ("9700000 100000", 96), ("400000 50000", 8)],
)
def test_quota_is_rounded_down_and_never_below_one(tmp_path: Path, quota: str, threads: int) -> None:
    root = cgroup_v2(machine(tmp_path, single_cores(96)), "/pod", {"/pod": quota})
    assert available_threads(root) == threads


def test_tighter_parent_counts(tmp_path: Path) -> None:
    levels = {"/": "max 100000", "/pod": "250000 100000", "/pod/job": "800000 100000"}
    root = cgroup_v2(machine(tmp_path, single_cores(16)), "/pod/job", levels)
    assert cpu_quota(root) == 2.5
    assert available_threads(root) == 2


def test_cgroup_v1_quota_and_parent(tmp_path: Path) -> None:
    levels = {"/": (-1, 100000), "/docker": (300000, 100000), "/docker/abc": (-1, 100000)}
    root = cgroup_v1(machine(tmp_path, single_cores(8)), "/docker/abc", levels)
    assert available_threads(root) == 3


def test_cgroup_v1_in_a_container_that_sees_only_its_own_group(tmp_path: Path) -> None:
    root = cgroup_v1(
        machine(tmp_path, single_cores(8)), "/docker/abc", {"/": (200000, 100000)}, mount_root="/docker/abc"
    )
    assert available_threads(root) == 2


def test_path_outside_the_namespace_uses_the_mount(tmp_path: Path) -> None:
    root = cgroup_v2(machine(tmp_path, single_cores(8)), "/../other", {"/": "150000 100000"})
    assert available_threads(root) == 1


def test_affinity_below_the_quota_wins(tmp_path: Path) -> None:
    root = cgroup_v2(machine(tmp_path, single_cores(8), allowed="2-3"), "/", {"/": "600000 100000"})
    assert available_threads(root) == 2


def test_no_kernel_files_fall_back_on_the_portable_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 6)
    assert available_threads(tmp_path) == 6
    monkeypatch.setattr("os.cpu_count", lambda: None)
    assert available_threads(tmp_path) == 1


def test_this_machine_answers() -> None:
    seen = topology()
    assert 1 <= available_threads() <= len(seen.cores) <= len(seen.cpus)
