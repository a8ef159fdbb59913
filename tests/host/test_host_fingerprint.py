"""What identifies a machine, and the file systems under paths."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from flexinfer.host import file_system, fingerprint, fingerprint_differences
from flexinfer.host.fingerprint import cpu_model, driver_gpus, driver_version, huge_pages


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def test_cpu_model_of_the_first_processor(tmp_path: Path) -> None:
    first = "processor\t: 0\ncpu family\t: 25\nmodel\t\t: 1\nmodel name\t: EPYC 7B13\nstepping\t: 0"
    write(tmp_path / "proc/cpuinfo", f"{first}\n\nprocessor\t: 1\nmodel name\t: other")
    assert cpu_model(tmp_path) == "EPYC 7B13 (25.1.0)"


def test_huge_page_state(tmp_path: Path) -> None:
    assert huge_pages(tmp_path) is None
    write(tmp_path / "sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never")
    assert huge_pages(tmp_path) == "madvise"


def test_gpus_by_the_drivers_files(tmp_path: Path) -> None:
    assert driver_gpus(tmp_path) is None
    assert driver_version(tmp_path) is None
    folder = tmp_path / "proc/driver/nvidia"
    write(folder / "gpus/0000:21:00.0/information", "Model: \t\t NVIDIA A100\nIRQ:   \t\t 12")
    write(folder / "gpus/0000:41:00.0/information", "Model: \t\t NVIDIA L4")
    line = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build  (builder@host)"
    write(folder / "version", f"{line}\nGCC version:  gcc version 12.2.0")
    assert driver_gpus(tmp_path) == "NVIDIA A100; NVIDIA L4"
    assert driver_version(tmp_path) == "550.54.15"


def test_fingerprint_is_the_same_twice_and_names_what_matters() -> None:
    first = fingerprint()
    assert first == fingerprint()
    assert {"cpu", "isa", "cores", "quota", "numa_nodes", "huge_pages", "gpu", "gpu_driver", "torch"} <= set(first)
    assert fingerprint_differences(first, fingerprint()) == []


def test_waiting_of_threads_is_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    assert fingerprint()["thread_waiting"] is None
    monkeypatch.setenv("GOMP_SPINCOUNT", "5000")
    assert fingerprint()["thread_waiting"] == "GOMP_SPINCOUNT=5000"


def test_differences_name_old_and_new() -> None:
    stored = {"torch": "2.8.0", "cores": 4, "quota": None}
    assert fingerprint_differences(stored, {"torch": "2.13.0", "cores": 4, "quota": 2.0}) == [
        "quota was none, is 2.0",
        "torch was 2.8.0, is 2.13.0",
    ]


def test_gpu_is_compared_only_when_both_know_it() -> None:
    assert fingerprint_differences({"gpu": "A100"}, {"gpu": None}) == []
    assert fingerprint_differences({"gpu": "A100"}, {"gpu": "none"}) == ["gpu was A100, is none"]


def test_reading_the_machine_does_not_import_torch() -> None:
    code = "from flexinfer import host; host.available_threads(); host.memory_limit_bytes(); host.fingerprint()"
    check = f"import sys; {code}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True, timeout=60)


@pytest.mark.parametrize(
    ("path", "kind", "network", "in_memory"),
    [
        ("/models/llama/config.json", "nfs4", True, False),
        ("/models", "nfs4", True, False),
        ("/models2/x", "ext4", False, False),
        ("/dev/shm/x", "tmpfs", False, True),
        ("/with blank/x", "fuse.sshfs", True, False),
    ],
)
def test_file_system_under_a_path(tmp_path: Path, path: str, kind: str, network: bool, in_memory: bool) -> None:
    lines = [
        "1 0 254:0 / / rw - ext4 /dev/vda rw",
        "2 1 0:1 / /models rw - nfs4 server:/export rw",
        "3 1 0:2 / /dev/shm rw - tmpfs tmpfs rw",
        r"4 1 0:3 / /with\040blank rw - fuse.sshfs host: rw",
    ]
    write(tmp_path / "proc/self/mountinfo", "\n".join(lines))
    found = file_system(Path(path), root=tmp_path)
    assert (found.kind, found.network, found.in_memory) == (kind, network, in_memory)


def test_later_mount_hides_the_earlier(tmp_path: Path) -> None:
    lines = "1 0 254:0 / /data rw - ext4 /dev/vda rw\n2 1 0:1 / /data rw - nfs server:/x rw"
    write(tmp_path / "proc/self/mountinfo", lines)
    assert file_system(Path("/data/x"), root=tmp_path).network


def test_unknown_file_system(tmp_path: Path) -> None:
    assert file_system(Path("/x"), root=tmp_path).kind == "unknown"
