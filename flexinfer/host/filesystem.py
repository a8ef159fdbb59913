"""The file system under a path: mapping a checkpoint over a network is tens of times slower than reading it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from flexinfer.host.cgroup import mounts
from flexinfer.host.files import ROOT

_NETWORK = frozenset(
    ("9p", "afs", "beegfs", "ceph", "cifs", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "pvfs2")
    + ("smb2", "smb3", "smbfs", "virtiofs", "wekafs", "fuse.gcsfuse", "fuse.glusterfs", "fuse.juicefs")
    + ("fuse.s3fs", "fuse.sshfs")
)


@dataclass(frozen=True)
class FileSystem:
    """`kind` as the kernel names it (ext4, nfs4, tmpfs ...; "unknown" where it does not tell)."""

    kind: str
    mount_point: str
    network: bool
    in_memory: bool


def file_system(path: Path, root: Path = ROOT) -> FileSystem:
    """What `path` lies on; it need not exist. The longest mount point above it decides, the last mounted of equals."""
    target = PurePosixPath(path.resolve().as_posix())
    best = None
    for mount in mounts(root):
        above = target == PurePosixPath(mount.point) or PurePosixPath(mount.point) in target.parents
        if above and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    if best is None:
        return FileSystem("unknown", "", network=False, in_memory=False)
    kind = best.fstype
    return FileSystem(kind, best.point, kind in _NETWORK, in_memory=kind in ("tmpfs", "ramfs"))
