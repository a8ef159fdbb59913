"""What this machine lets us use: cores, quota, memory, topology. Read from the kernel's files; no torch.

Every reader takes `root`, the folder that stands for "/", so that machines nobody here owns are tested from small
trees of files. Where a file is missing (other systems, locked-down containers) the portable call answers instead.
"""

from __future__ import annotations

from flexinfer.host.cpus import Topology, available_threads, cache_bytes, cpu_quota, topology
from flexinfer.host.filesystem import FileSystem, file_system
from flexinfer.host.fingerprint import fingerprint, fingerprint_differences
from flexinfer.host.memory import (
    memory_limit_bytes,
    memory_limit_reason,
    reset_rss_peak,
    rss_bytes,
    rss_peak_bytes,
)
from flexinfer.host.waiting import RunQueue

__all__ = [
    "FileSystem",
    "RunQueue",
    "Topology",
    "available_threads",
    "cache_bytes",
    "cpu_quota",
    "file_system",
    "fingerprint",
    "fingerprint_differences",
    "memory_limit_bytes",
    "memory_limit_reason",
    "reset_rss_peak",
    "rss_bytes",
    "rss_peak_bytes",
    "topology",
]
