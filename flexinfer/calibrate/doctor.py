"""What was detected on this machine, what really runs, and what is missing: the data of `flexinfer doctor`."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

import flexinfer
from flexinfer import host, kernels
from flexinfer.calibrate.factors import linear_flops, weight_bytes
from flexinfer.calibrate.selfcheck import TOLERANCE, check_products
from flexinfer.calibrate.store import cache_folder, cache_path, stale_reason
from flexinfer.errors import EngineError, ProfileError
from flexinfer.estimator import HardwareProfile
from flexinfer.host.fingerprint import cpu_model, driver_gpus, driver_version, huge_pages
from flexinfer.units import format_rate, format_size

Section = dict[str, Any]


def doctor_report() -> dict[str, Section]:
    """Sections of plain values, in the order to be shown; the last, "problems", is {what: how to mend it}.

    Imports torch and multiplies small matrices, so it takes a few seconds.
    """
    problems: dict[str, str] = {}
    return {
        "flexinfer": flexinfer_section(),
        "cpu": cpu_section(),
        "kernels": kernels_section(problems),
        "memory": memory_section(),
        "torch": torch_section(problems),
        "gpu": gpu_section(problems),
        "profile": profile_section(problems),
        "folders": folders_section(problems),
        "packages": packages_section(problems),
        "problems": problems,
    }


def flexinfer_section() -> Section:
    variables = {name: value for name, value in sorted(os.environ.items()) if name.startswith("FLEXINFER_")}
    return {
        "version": flexinfer.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "environment": ", ".join(f"{name}={value}" for name, value in variables.items()) or "no FLEXINFER_ variables",
    }


def cpu_section() -> Section:
    seen, quota, threads = host.topology(), host.cpu_quota(), host.available_threads()
    limit = (
        "the CPU quota" if quota is not None and int(quota) < seen.fast_cores else "physical cores in the affinity mask"
    )
    return {
        "name": cpu_model(),
        "logical_cpus": len(seen.cpus),
        "physical_cores": len(seen.cores),
        "fast_cores": seen.fast_cores,
        "numa_nodes": len(seen.nodes),
        "quota": "none" if quota is None else quota,
        "threads": f"{threads} (set by {limit})",
        "huge_pages": huge_pages() or "unknown",
    }


def kernels_section(problems: dict[str, str]) -> Section:
    if not kernels.native():
        problems["CPU kernels run on torch: the native library is not there or cannot be opened"] = (
            "install a C++17 compiler (g++ or clang++), then install flexinfer again"
        )
    return {"library": "native" if kernels.native() else "torch only", "instruction_set": kernels.isa()}


def memory_section() -> Section:
    return {
        "usable_now": format_size(host.memory_limit_bytes()),
        "limited_by": host.memory_limit_reason(),
        "process_peak": format_size(host.rss_peak_bytes()),
    }


def product_check(dtype: str) -> str:
    """ "ok", or what is wrong with matrix products of this dtype."""
    try:
        check_products(dtype)
    except EngineError as error:
        return str(error)
    return "ok"


def torch_section(problems: dict[str, str]) -> Section:
    import torch

    products = {dtype: product_check(dtype) for dtype in TOLERANCE}
    for dtype, verdict in products.items():
        if verdict != "ok":
            problems[f"{dtype} matrix products are wrong"] = verdict
    onednn = torch.backends.mkldnn.is_available()
    if not onednn:
        problems["torch was built without oneDNN: bfloat16 runs on slow kernels"] = "install a standard build of torch"
    return {
        "version": torch.__version__,
        "onednn": onednn,
        "onednn_bfloat16": onednn and torch.ops.mkldnn._is_mkldnn_bf16_supported(),
        "onednn_float16": onednn and torch.ops.mkldnn._is_mkldnn_fp16_supported(),
        "mkl": torch.backends.mkl.is_available(),
        "threads": torch.get_num_threads(),
        "products": ", ".join(f"{dtype} {verdict}" for dtype, verdict in products.items()),
    }


def gpu_section(problems: dict[str, str]) -> Section:
    import torch

    driver, present = driver_gpus(), torch.accelerator.is_available()
    if driver and not present:
        build = "this torch was built without CUDA" if torch.version.cuda is None else "torch cannot use it"
        problems[f"a GPU is there ({driver}), but {build}"] = "install a torch build for your CUDA driver"
    if not present:
        return {"device": "none", "driver_sees": driver or "none", "use": "--device cpu, or emulated to try plans"}
    kind = torch.accelerator.current_accelerator()
    module = torch.get_device_module(kind)
    free, total = module.mem_get_info()
    return {
        "device": f"{module.get_device_name()} ({kind})",
        "count": torch.accelerator.device_count(),
        "driver": driver_version() or "unknown",
        "memory_free": f"{format_size(free)} of {format_size(total)}",
        "hardware_tested": "no: the GPU path has not run on hardware yet",
    }


def speeds(profile: HardwareProfile) -> Section:
    """Per dtype: weights read a second with one row, and the best products, from the profile's samples."""
    found = {}
    for dtype in TOLERANCE:
        linear = [s for s in profile.cpu.samples.linear if s.dtype == dtype]
        lone = [weight_bytes(s) / s.median_s for s in linear if s.rows == 1]
        if lone:
            best = max(linear_flops(s) / s.median_s for s in linear)
            found[dtype] = f"decode {format_rate(max(lone))} of weights, prefill {best / 1e9:.0f} GFLOP/s"
    return found


def profile_section(problems: dict[str, str]) -> Section:
    threads, facts = host.available_threads(), host.fingerprint()
    try:
        path = cache_path(threads, facts)
    except ProfileError:
        return {"file": "none: there is no folder to keep it in"}  # folders_section says what to do
    if not os.path.isfile(path):
        return {"file": "none yet: the first run measures this machine (about 10 seconds), or `flexinfer calibrate`"}
    try:
        profile = HardwareProfile.load(path)
    except ProfileError as error:
        problems["the cached profile cannot be read"] = f"`flexinfer calibrate` measures again ({error})"
        return {"file": str(path)}
    reason = stale_reason(profile, facts)
    if reason is not None:
        problems[f"the cached profile is stale ({reason})"] = "the next run measures again, or `flexinfer calibrate`"
    if profile.noisy:
        problems["other programs disturbed the measurements"] = "`flexinfer calibrate` on a quiet machine"
    age_hours = (time.time() - path.stat().st_mtime) / 3600
    return {
        "file": str(path),
        "age": f"{age_hours:.0f} hours",
        "state": "stale" if reason else "noisy" if profile.noisy else "good",
        "memory_read": format_rate(profile.cpu.memory_bytes_per_s),
        **speeds(profile),
    }


def folder_line(path: Path) -> str:
    """The path, its file system, and whether it can be written."""
    existing = next(folder for folder in (path, *path.parents) if os.path.exists(folder))
    kind = host.file_system(path)
    notes = [kind.kind] + ["over a network"] * kind.network + ["read-only"] * (not os.access(existing, os.W_OK))
    return f"{path} ({', '.join(notes)})"


def model_cache() -> Path:
    """Where huggingface_hub keeps what it downloads."""
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    return Path(os.path.expanduser(os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub")))


def folders_section(problems: dict[str, str]) -> Section:
    folders = {"model": model_cache()}
    try:
        folders["profile"] = cache_folder()
    except ProfileError as error:
        problems["measured profiles cannot be kept"] = str(error)
    for what, path in folders.items():
        if host.file_system(path).network:
            problems[f"the {what} cache lies on a network file system"] = "loading may be slow; use a local folder"
    offline = os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0")
    cache = folder_line(folders["profile"]) if "profile" in folders else "none"
    return {"cache": cache, "models": folder_line(folders["model"]), "hub": "offline" if offline else "online"}


def packages_section(problems: dict[str, str]) -> Section:
    """Installed versions of what flexinfer's own metadata asks for, the extras included."""
    from packaging.requirements import Requirement

    found: Section = {}
    for line in importlib.metadata.requires("flexinfer") or []:
        wanted = Requirement(line)
        extra = next((e for e in extras() if wanted.marker and wanted.marker.evaluate({"extra": e})), None)
        if wanted.name == "flexinfer" or (wanted.marker and extra is None):
            continue
        version = installed_version(wanted.name)
        found[wanted.name] = version or f"missing{f' (extra {extra})' if extra else ''}"
        if version is None and extra is None:
            problems[f"the package {wanted.name} is missing"] = f"{Path(sys.executable).name} -m pip install '{wanted}'"
        elif version is not None and not wanted.specifier.contains(version, prereleases=True):
            problems[f"{wanted.name} {version} is older than {wanted.specifier}"] = f"pip install -U '{wanted.name}'"
    return found


def extras() -> list[str]:
    return importlib.metadata.metadata("flexinfer").get_all("Provides-Extra") or []


def installed_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def doctor_text(report: dict[str, Section]) -> str:
    """The report for people: a block a section, names in one column, problems last, each with its remedy."""
    lines: list[str] = []
    for title, section in report.items():
        if title == "problems":
            continue
        lines.append(title)
        width = max(map(len, section), default=0)
        lines += [f"  {name.replace('_', ' '):<{width}}  {_shown(value)}" for name, value in section.items()]
    problems = report["problems"]
    lines.append(
        f"{len(problems)} problem{'' if len(problems) == 1 else 's'} found" if problems else "no problems found"
    )
    for what, remedy in problems.items():
        lines += [f"  {what}", f"    -> {remedy}"]
    return "\n".join(lines)


def _shown(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
