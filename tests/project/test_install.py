"""Wheels as users get them: what is in one, and that one installs and runs where no C++ compiler is. Slow: builds."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
LIBRARY = "flexinfer/kernels/libflexinfer_kernels.so"
NO_COMPILER = {"CC": "/nonexistent/cc", "CXX": "/nonexistent/c++"}
BROKEN_COMPILER = {"CXXFLAGS": "-DVec=1"}  # compiles, but not our sources


def build_wheel(folder: Path, environment: Mapping[str, str]) -> tuple[Path, str]:
    """The wheel, and what the build said."""
    command = [sys.executable, "-m", "pip", "wheel", "-v", "--no-deps", "--no-build-isolation"]
    command += ["--config-settings", f"build-dir={folder / 'cmake'}", "--wheel-dir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (wheel,) = folder.glob("*.whl")
    return wheel, done.stdout + done.stderr


@pytest.mark.slow
def test_a_wheel_holds_the_package_and_nothing_else(tmp_path: Path) -> None:
    wheel, _ = build_wheel(tmp_path, {})
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names} == {"flexinfer", "flexinfer-0.1.0.dist-info"}
    assert {LIBRARY, "flexinfer/estimator/__init__.py", "flexinfer/profiles/h100-spr.json"} <= set(names)
    assert not [name for name in names if name.endswith((".cpp", ".h", ".pyc", "CMakeLists.txt"))]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "message"),
    [(NO_COMPILER, "no C++ compiler found"), (BROKEN_COMPILER, "kernels could not be built")],
    ids=["none", "broken"],
)
def test_installs_and_runs_without_a_compiler(environment: dict[str, str], message: str, tmp_path: Path) -> None:
    wheel, said = build_wheel(tmp_path, environment)
    assert said.count(message) == 1
    assert LIBRARY not in zipfile.ZipFile(wheel).namelist()
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    program = """
import torch
import flexinfer
from flexinfer import kernels
from flexinfer.estimator import HardwareProfile
assert flexinfer.__file__.startswith(SITE), flexinfer.__file__
k, v, lengths = torch.ones(1, 2, 5, 8), torch.ones(1, 2, 5, 8), torch.tensor([3], dtype=torch.int32)
for _ in range(2):
    print(kernels.decode_attention(torch.ones(1, 4, 8), k, v, lengths, 1.0).sum().item())
print(kernels.isa(), kernels.native(), HardwareProfile.load("h100-spr").name)
"""
    # -S keeps the editable install of the environment out; its other packages come by path
    packages = os.pathsep.join([str(site), *(path for path in sys.path if path.endswith("site-packages"))])
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"SITE = {str(site)!r}\n{program}"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": packages},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["32.0", "32.0", "generic", "False", "h100-spr"]
    assert done.stderr.count("running on torch's kernels") == 1
