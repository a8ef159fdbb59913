"""The kernel library under the compiler's sanitizers, driven by native_check.cpp. Slow: builds it anew for each."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_clean_under(sanitizer: str, tmp_path: Path) -> None:
    if not shutil.which("cmake") or not shutil.which(os.environ.get("CXX", "c++")):
        pytest.skip("needs cmake and a C++ compiler")
    flags = f"-g -fno-omit-frame-pointer -fsanitize={sanitizer} -fno-sanitize-recover=all"
    configure = [
        "cmake",
        "-S",
        str(ROOT),
        "-B",
        str(tmp_path),
        "-DFLEXINFER_NATIVE_CHECK=ON",
        f"-DCMAKE_CXX_FLAGS={flags}",
    ]
    subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(
        ["cmake", "--build", str(tmp_path), "--target", "native_check"], check=True, stdout=subprocess.DEVNULL
    )
    done = subprocess.run([str(tmp_path / "kernels/native/native_check")], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and done.stdout == "ok\n", done.stderr[-3000:]
