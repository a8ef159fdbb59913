"""Profiles kept between runs: one JSON for a machine and a thread count, in the user's cache folder. No torch here.

The file's name carries what a machine is; the file's fingerprint also says what it ran with (driver, torch, quota,
huge pages). When that changes the figures are stale, and they are measured again. A profile that the user names is
never replaced: a stale one is refused with the reason.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from flexinfer import settings
from flexinfer.errors import ProfileError
from flexinfer.estimator import HardwareProfile
from flexinfer.host import fingerprint, fingerprint_differences, memory_limit_bytes
from flexinfer.host.fingerprint import Fact
from flexinfer.units import format_time
from flexinfer.whole_file import WholeFile

log = logging.getLogger(__name__)

IDENTITY = ("cpu", "system", "isa", "thread_waiting", "gpus", "visible_gpus")
"""What tells machines apart that may share a home folder; a change of anything else makes a file stale."""

NOISY_KEPT_S = 600.0
"""A profile measured on a busy machine is used this long, then measured again."""

OnProgress = Callable[[float, str], None]
"""(share done, what is being measured)"""


def cache_folder() -> Path:
    """FLEXINFER_CACHE_DIR, else flexinfer/ in the XDG cache folder, else ~/.cache/flexinfer.

    Raises ProfileError where that needs a home folder and nobody knows one.
    """
    folder = settings.read("FLEXINFER_CACHE_DIR")
    if folder is None:
        base = os.environ.get("XDG_CACHE_HOME", "")
        # The XDG rules say that a relative path is to be ignored.
        folder = os.path.join(base if os.path.isabs(base) else "~/.cache", "flexinfer")
    path = os.path.expanduser(folder)
    if path.startswith("~"):
        raise ProfileError(f"{folder} has no home folder to lie in; set FLEXINFER_CACHE_DIR to a folder for profiles")
    return Path(path)


def cache_path(threads: int, facts: Mapping[str, Fact]) -> Path:
    """Where this machine's profile for so many threads is kept. Raises ProfileError."""
    identity = json.dumps([facts.get(key) for key in IDENTITY])
    digest = hashlib.sha256(identity.encode()).hexdigest()[:12]
    return cache_folder() / "profiles" / f"{digest}-{threads}threads.json"


def kept_path(threads: int) -> Path:
    """As cache_path, for this machine; its folder is there and can be written. Raises ProfileError and UserError."""
    path = cache_path(threads, fingerprint())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ProfileError(f"{path.parent} cannot be made: {error.strerror}; set FLEXINFER_CACHE_DIR") from None
    WholeFile(path).close()
    return path


def stale_reason(profile: HardwareProfile, facts: Mapping[str, Fact]) -> str | None:
    """Why a measured profile does not hold here, or None. Nominal profiles never are stale."""
    if profile.kind != "measured":
        return None
    differences = fingerprint_differences(profile.fingerprint, facts)
    return "; ".join(differences) or None


def cached_profile(threads: int, refresh: bool = False, on_progress: OnProgress | None = None) -> HardwareProfile:
    """This machine's profile: read from the cache folder, or measured (about 10 s) and kept there.

    Reading does not import torch. Memory sizes are those of now. A file that is stale or corrupt is replaced, and the
    log says why; one that cannot be written costs the next run its measurements and is logged too.
    """
    facts = fingerprint()
    path: Path | None = None
    try:
        path = cache_path(threads, facts)
    except ProfileError as error:
        log.warning("the profile is not kept, the next run will measure again (%s)", error)
    profile = _usable(path, facts) if path is not None and not refresh else None
    return _with_memory_of_now(profile or _measured(threads, path, on_progress))


def peek_profile(threads: int) -> HardwareProfile | None:
    """The cached profile if there is one that holds, without measuring."""
    facts = fingerprint()
    try:
        path = cache_path(threads, facts)
        profile = HardwareProfile.load(path) if os.path.isfile(path) else None
    except ProfileError:
        return None
    return profile if profile is not None and stale_reason(profile, facts) is None else None


def named_profile(name: str, threads: int | None = None) -> HardwareProfile:
    """The profile a user names for a run on this machine: a file, or a shipped profile.

    Raises ProfileError when a measured one is stale. `threads` that differ from the profile's are logged only.
    """
    profile = HardwareProfile.load(name)
    reason = stale_reason(profile, fingerprint())
    if reason is not None:
        raise ProfileError(
            f"profile {name} was measured under other conditions ({reason}); "
            "measure again with `flexinfer calibrate --output FILE`, or leave --profile out"
        )
    check_threads(profile, name, threads)
    return profile


def check_threads(profile: HardwareProfile, name: str, threads: int | None) -> None:
    """Logs that a profile says nothing about another number of threads."""
    if threads is not None and threads != profile.cpu.threads:
        log.warning("profile %s is for %d threads; %d are used", name, profile.cpu.threads, threads)


def _usable(path: Path, facts: Mapping[str, Fact]) -> HardwareProfile | None:
    if not os.path.isfile(path):
        log.info("no profile of this machine yet in %s: measuring", path.parent)
        return None
    try:
        profile = HardwareProfile.load(path)
    except ProfileError as error:
        log.warning("the cached profile cannot be used (%s): measuring again", error)
        return None
    reason = stale_reason(profile, facts)
    if reason is not None:
        log.warning("the cached profile is stale (%s): measuring again", reason)
        return None
    age_s = time.time() - path.stat().st_mtime
    if profile.noisy and age_s > NOISY_KEPT_S:
        log.info("the cached profile was measured on a busy machine, %s ago: measuring again", format_time(age_s))
        return None
    log.debug("profile %s", path)
    return profile


def _measured(threads: int, path: Path | None, on_progress: OnProgress | None) -> HardwareProfile:
    from flexinfer.calibrate.quick import quick_profile

    profile = quick_profile(threads, on_progress)
    try:
        if path is not None:
            profile.save(path)
    except ProfileError as error:
        log.warning("the profile is not kept, the next run will measure again (%s)", error)
    return profile


def _with_memory_of_now(profile: HardwareProfile) -> HardwareProfile:
    free = memory_limit_bytes()
    one_thread = profile.cpu_one_thread
    return replace(
        profile,
        cpu=replace(profile.cpu, memory_bytes=free),
        cpu_one_thread=one_thread and replace(one_thread, memory_bytes=free),
    )
