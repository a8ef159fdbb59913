"""Memory that may still be used, and what this process has used at most."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from flexinfer.host.cgroup import Group, groups
from flexinfer.host.files import ROOT, read_fields, read_int


def memory_limit_bytes(root: Path = ROOT) -> int:
    """Bytes this process may still take: the least of MemAvailable and what each cgroup level has left.

    Page cache counts as free, since the kernel gives it up; swap does not count as memory. What the process already
    holds is not in the figure.
    """
    return max(0, min(_limits(root))[0])


def memory_limit_reason(root: Path = ROOT) -> str:
    """What sets memory_limit_bytes: "available memory", or the folder of the cgroup level."""
    return min(_limits(root))[1]


def _limits(root: Path) -> list[tuple[int, str]]:
    limits = [(_available_bytes(root), "available memory")]
    for group in groups("memory", root):
        left = _group_left_bytes(group)
        if left is not None:
            limits.append((left, f"control group {group.folder}"))
    return limits


def _available_bytes(root: Path) -> int:
    fields = read_fields(root / "proc/meminfo", ":")
    for names in (("MemAvailable",), ("MemFree", "Cached")):
        if all(name in fields for name in names):
            return sum(_kib(fields[name]) for name in names)
    return _portable_available_bytes()


def _kib(text: str) -> int:
    return int(text.split()[0]) * 1024


def _portable_available_bytes() -> int:
    """Systems without /proc/meminfo: free pages where they are counted, else half of all memory."""
    if sys.platform == "win32":
        return _windows_available_bytes()
    page = os.sysconf("SC_PAGE_SIZE")
    if "SC_AVPHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_AVPHYS_PAGES") * page
    # macOS counts all pages only; half is about what a desktop leaves to one program.
    return os.sysconf("SC_PHYS_PAGES") * page // 2


def _windows_available_bytes() -> int:
    import ctypes

    # MEMORYSTATUSEX: its own length and the load as 32-bit words, then seven 64-bit sizes, the second "available".
    status = (ctypes.c_uint64 * 8)()
    ctypes.cast(status, ctypes.POINTER(ctypes.c_uint32))[0] = ctypes.sizeof(status)
    if not ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)):  # type: ignore[attr-defined]  # Windows
        raise OSError("GlobalMemoryStatusEx failed")
    return status[2]


def _group_left_bytes(group: Group) -> int | None:
    """What one level has left; None when it sets no limit."""
    v2 = group.version == 2
    names = ("memory.max", "memory.high") if v2 else ("memory.limit_in_bytes",)
    limits = [value for name in names if (value := read_int(group.folder / name)) is not None]
    used = read_int(group.folder / ("memory.current" if v2 else "memory.usage_in_bytes"))
    if not limits or used is None:
        return None
    return min(limits) - max(0, used - _reclaimable_bytes(group))


def _reclaimable_bytes(group: Group) -> int:
    """Page cache and freeable kernel memory of a level and those below it; shared memory is not among it."""
    stat = read_fields(group.folder / "memory.stat")
    if group.version == 2:
        names = ["active_file", "inactive_file", "slab_reclaimable"]
    else:
        names = ["total_active_file", "total_inactive_file"]
    return sum(int(stat.get(name, 0)) for name in names)


def rss_bytes(root: Path = ROOT) -> int | None:
    """Resident bytes of this process now; None where the system does not tell."""
    return _status_bytes("VmRSS", root)


def rss_peak_bytes(root: Path = ROOT) -> int:
    """Most resident bytes of this process since it started or since reset_rss_peak."""
    peak = _status_bytes("VmHWM", root)
    return _portable_peak_bytes() if peak is None else peak


def _status_bytes(name: str, root: Path) -> int | None:
    text = read_fields(root / "proc/self/status", ":").get(name)
    return None if text is None else _kib(text)


def _portable_peak_bytes() -> int:
    if sys.platform == "win32":
        return 0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def reset_rss_peak(root: Path = ROOT) -> bool:
    """Start a new peak; False where the kernel does not allow it, and the peak stays that of the whole process."""
    try:
        # Unbuffered and without O_CREAT: on a system without this file nothing must appear in its place.
        descriptor = os.open(root / "proc/self/clear_refs", os.O_WRONLY)
    except OSError:
        return False
    try:
        os.write(descriptor, b"5")
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
