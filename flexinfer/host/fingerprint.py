"""What a measured profile depends on: if any of it changes, the figures are another machine's.

Two GPU entries, because torch may not be imported to ask: `gpus` comes from the driver's files and is always there,
`gpu` is the device as torch sees it, known only in a process that has torch already. Unknown differs from nothing.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from flexinfer.host.cpus import cpu_quota, topology
from flexinfer.host.files import ROOT, read_fields, read_text

Fact = str | int | float | None


def fingerprint(root: Path = ROOT) -> dict[str, Fact]:
    """CPU, instruction set that runs, cores, quota, NUMA nodes, huge pages, GPUs, driver and torch version."""
    from flexinfer import kernels

    seen = topology(root)
    return {
        "cpu": cpu_model(root),
        "isa": kernels.isa(),
        "cores": len(seen.cores),
        "quota": cpu_quota(root),
        "numa_nodes": len(seen.nodes),
        "huge_pages": huge_pages(root),
        "thread_waiting": thread_waiting(),
        "gpus": driver_gpus(root),
        "visible_gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "gpu_driver": driver_version(root),
        "gpu": torch_gpu(),
        "torch": torch_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def fingerprint_differences(stored: Mapping[str, Fact], current: Mapping[str, Fact]) -> list[str]:
    """One line a difference, "torch was 2.8.0, is 2.13.0"; what either side does not know is not compared."""
    differences = []
    for key in sorted(set(stored) | set(current)):
        old, new = stored.get(key), current.get(key)
        unknown = key == "gpu" and (old is None or new is None)
        if old != new and not unknown:
            differences.append(f"{key} was {_shown(old)}, is {_shown(new)}")
    return differences


def _shown(value: Fact) -> str:
    return "none" if value is None else str(value)


def cpu_model(root: Path = ROOT) -> str:
    """The CPU's name; a virtual machine's may be vague, so family, model and stepping go with it."""
    fields: dict[str, str] = {}
    for line in (read_text(root / "proc/cpuinfo") or "").splitlines():
        if not line.strip() and fields:
            break
        name, _, value = line.partition(":")
        fields[name.strip()] = value.strip()
    name = fields.get("model name") or fields.get("CPU part") or platform.processor() or platform.machine()
    numbers = [fields[key] for key in ("cpu family", "model", "stepping") if key in fields]
    return f"{name} ({'.'.join(numbers)})" if numbers else name


def huge_pages(root: Path = ROOT) -> str | None:
    """State of transparent huge pages: always, madvise or never."""
    text = read_text(root / "sys/kernel/mm/transparent_hugepage/enabled") or ""
    chosen = re.search(r"\[(\w+)\]", text)
    return chosen.group(1) if chosen else None


def thread_waiting() -> str | None:
    """How the user, or we, told OpenMP's threads to wait for work: it moves small ops by tens of microseconds."""
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    return ", ".join(f"{name}={os.environ[name]}" for name in names if name in os.environ) or None


def driver_gpus(root: Path = ROOT) -> str | None:
    """NVIDIA GPUs by the driver's files, in bus order, joined by "; "; None where there are none or no such files."""
    files = sorted((root / "proc/driver/nvidia/gpus").glob("*/information"))
    return "; ".join(read_fields(path, ":").get("Model", "unknown") for path in files) or None


def driver_version(root: Path = ROOT) -> str | None:
    """Version of NVIDIA's kernel driver."""
    text = read_text(root / "proc/driver/nvidia/version") or ""
    found = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", text)
    return found.group(1) if found else None


def torch_version() -> str | None:
    """Version of the installed torch, without importing it (that takes seconds)."""
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None


def torch_gpu() -> str | None:
    """The first GPU's name as torch sees it; None when torch is not imported yet, and "none" when it sees none."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda"):
        return None
    return str(torch.cuda.get_device_name(0)) if torch.cuda.is_available() else "none"
