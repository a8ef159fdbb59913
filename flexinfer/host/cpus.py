"""Threads worth starting: physical cores we may run on, cut by the cgroup's CPU quota.

A second thread on a core's other hyperthread slows matrix products, and threads beyond the quota are stopped for the
rest of each period (8 threads under a quota of 4 ran 40 times slower than 4). Cores and nodes are what /sys says they
are: CPU numbers follow no rule (nodes interleave, siblings lie anywhere, a node is split by sub-NUMA clustering).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from flexinfer.host.cgroup import groups
from flexinfer.host.files import ROOT, parse_cpu_list, read_fields, read_int, read_text

_CPUS = "sys/devices/system/cpu"
_NODES = "sys/devices/system/node"


@dataclass(frozen=True)
class Topology:
    """What this process may run on. `cores`: the allowed CPUs of each physical core. `nodes`: allowed CPUs of each
    NUMA node that has any, ordered by node number. `fast_cores`: how many cores are of the fast kind, all of them
    unless the CPU is a hybrid."""

    cpus: tuple[int, ...]
    cores: tuple[tuple[int, ...], ...]
    nodes: tuple[tuple[int, ...], ...]
    fast_cores: int


def allowed_cpus(root: Path = ROOT) -> tuple[int, ...]:
    """CPUs in the affinity mask (a cpuset narrows it too) that are online."""
    text = read_fields(root / "proc/self/status", ":").get("Cpus_allowed_list")
    if text is None:
        return _portable_cpus()
    allowed = parse_cpu_list(text)
    online = read_text(root / _CPUS / "online")
    if online is None:
        return allowed
    # Some kernels list every possible CPU in the mask, far more than there are.
    present = set(parse_cpu_list(online))
    return tuple(cpu for cpu in allowed if cpu in present) or allowed


def _portable_cpus() -> tuple[int, ...]:
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def _core_of(cpu: int, root: Path) -> tuple[int, ...]:
    """All CPUs of the core that this CPU belongs to; the CPU alone where /sys does not tell."""
    for name in ("core_cpus_list", "thread_siblings_list"):
        text = read_text(root / _CPUS / f"cpu{cpu}" / "topology" / name)
        if text:
            return parse_cpu_list(text)
    return (cpu,)


def _cores(cpus: tuple[int, ...], root: Path) -> tuple[tuple[int, ...], ...]:
    cores: dict[tuple[int, ...], list[int]] = {}
    for cpu in cpus:
        cores.setdefault(_core_of(cpu, root), []).append(cpu)
    return tuple(tuple(members) for members in cores.values())


def _nodes(cpus: tuple[int, ...], root: Path) -> tuple[tuple[int, ...], ...]:
    folder = root / _NODES
    names = [p.name for p in folder.glob("node*") if p.name[4:].isdigit()] if folder.is_dir() else []
    allowed, nodes = set(cpus), []
    for name in sorted(names, key=lambda name: int(name[4:])):
        members = parse_cpu_list(read_text(folder / name / "cpulist") or "")
        nodes.append(tuple(cpu for cpu in members if cpu in allowed))
    return tuple(node for node in nodes if node) or (cpus,)


def _fast_cpus(cpus: tuple[int, ...], root: Path) -> set[int]:
    """CPUs of the fast kind: Intel names them, Arm gives each a capacity. All where neither file is there."""
    named = read_text(root / "sys/devices/cpu_core/cpus")
    if named:
        return set(parse_cpu_list(named))
    capacity = {cpu: read_int(root / _CPUS / f"cpu{cpu}" / "cpu_capacity") or 0 for cpu in cpus}
    best = max(capacity.values(), default=0)
    # Cores of one kind differ by a few percent in their best clock, and by half from the small ones.
    return {cpu for cpu in cpus if capacity[cpu] >= 0.8 * best}


def topology(root: Path = ROOT) -> Topology:
    """Cores and NUMA nodes within the affinity mask."""
    cpus = allowed_cpus(root)
    cores = _cores(cpus, root)
    fast = _fast_cpus(cpus, root)
    fast_cores = sum(1 for core in cores if core[0] in fast)
    return Topology(cpus, cores, _nodes(cpus, root), fast_cores or len(cores))


def cpu_quota(root: Path = ROOT) -> float | None:
    """CPUs' worth of time that the tightest cgroup level grants; None when no level limits it."""
    quotas = []
    for group in groups("cpu", root):
        if group.version == 2:
            fields = (read_text(group.folder / "cpu.max") or "").split()
            pair = fields if len(fields) == 2 and fields[0] != "max" else []
        else:
            pair = [read_text(group.folder / f"cpu.cfs_{name}_us") or "" for name in ("quota", "period")]
        if len(pair) == 2 and pair[0].isdigit() and pair[1].isdigit() and int(pair[1]):
            quotas.append(int(pair[0]) / int(pair[1]))
    return min(quotas, default=None)


def available_threads(root: Path = ROOT) -> int:
    """min(physical cores in the affinity mask, floor of the cgroup quota), at least 1.

    On a hybrid CPU only fast cores count: work is dealt out evenly, so one slow core would hold up all.
    """
    quota = cpu_quota(root)
    cores = topology(root).fast_cores
    return max(1, cores if quota is None else min(cores, int(quota)))


def cache_bytes(root: Path = ROOT) -> int:
    """Size of the largest cache of the first allowed CPU, shared ones whole; 32 MiB where /sys does not tell."""
    folder = root / _CPUS / f"cpu{allowed_cpus(root)[0]}" / "cache"
    texts = [read_text(path) or "" for path in folder.glob("index*/size")]
    sizes = [int(text[:-1]) * (2**10 if text[-1] == "K" else 2**20) for text in texts if text[:-1].isdigit()]
    return max(sizes, default=32 * 2**20)
