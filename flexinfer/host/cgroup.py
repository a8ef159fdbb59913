"""The control groups that hold this process: one folder a level, from its own group up to the mount.

Limits nest: a group may be freer than its parent, and the tightest level counts. In a container without a cgroup
namespace /proc/self/cgroup names the host's path, of which only the part below the mount's own root is visible.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from flexinfer.host.files import ROOT, read_text

Controller = Literal["cpu", "memory"]


@dataclass(frozen=True)
class Group:
    """One level: cgroup version 1 or 2, and the folder with its files."""

    version: Literal[1, 2]
    folder: Path


@dataclass(frozen=True)
class Mount:
    """One line of mountinfo: what part of the file system (`root`) is seen where (`point`)."""

    root: str
    point: str
    fstype: str
    source: str
    options: frozenset[str]


def _unescape(text: str) -> str:
    """mountinfo writes blanks and backslashes as octal."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)


def mounts(root: Path = ROOT) -> list[Mount]:
    """What is mounted, in the order of mounting; empty where the kernel does not tell."""
    found = []
    for line in (read_text(root / "proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        fields, tail = left.split(), right.split()
        if len(fields) >= 6 and len(tail) >= 3:
            options = frozenset(tail[2].split(","))
            found.append(Mount(_unescape(fields[3]), _unescape(fields[4]), tail[0], _unescape(tail[1]), options))
    return found


def _paths(root: Path, controller: Controller) -> dict[int, str]:
    """This process's path in each hierarchy that may carry the controller, keyed by cgroup version."""
    paths: dict[int, str] = {}
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        number, names, path = (line.split(":", 2) + ["", ""])[:3]
        if number == "0" and not names:
            paths[2] = path
        elif controller in names.split(","):
            paths[1] = path
    return paths


def _below(path: str, mount: Mount) -> PurePosixPath:
    """The process's path as seen below the mount: relative, "." when it is the mount's root or cannot be seen."""
    pure = PurePosixPath(path)
    if ".." in pure.parts:
        return PurePosixPath(".")
    try:
        return pure.relative_to(mount.root)
    except ValueError:
        return PurePosixPath(".")


def groups(controller: Controller, root: Path = ROOT) -> Iterator[Group]:
    """Every visible level that limits this process, its own group first."""
    paths = _paths(root, controller)
    for mount in mounts(root):
        version: Literal[1, 2] = 2 if mount.fstype == "cgroup2" else 1
        is_one = mount.fstype == "cgroup2" or (mount.fstype == "cgroup" and controller in mount.options)
        if not is_one or version not in paths:
            continue
        top = root / mount.point.lstrip("/")
        below = _below(paths[version], mount)
        for level in (below, *below.parents):
            if (top / level).is_dir():
                yield Group(version, top / level)
