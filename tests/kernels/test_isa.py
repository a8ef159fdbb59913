"""Which instruction set kernels say they run on, and what they do without their library."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from flexinfer import kernels
from flexinfer.errors import UserError
from flexinfer.kernels import levels
from flexinfer.kernels import library as library_module


class FakeLibrary:
    """A CPU that offers the given level."""

    def __init__(self, level: int) -> None:
        self.level = level

    def fx_detected_isa(self) -> int:
        return self.level


@pytest.fixture
def full_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLEXINFER_ISA", raising=False)
    monkeypatch.setattr(levels, "library", lambda: FakeLibrary(levels.AMX))
    monkeypatch.setattr(levels, "amx_works", lambda: True)


@pytest.mark.usefixtures("full_cpu")
@pytest.mark.parametrize("name", levels.LEVELS)
def test_the_environment_lowers_it(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert kernels.isa() == "amx"
    monkeypatch.setenv("FLEXINFER_ISA", name)
    assert kernels.isa() == name


@pytest.mark.usefixtures("full_cpu")
def test_the_environment_never_raises_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "library", lambda: FakeLibrary(1))
    monkeypatch.setenv("FLEXINFER_ISA", "avx512")
    assert kernels.isa() == "avx2"


def test_an_unknown_name_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEXINFER_ISA", "avx1024")
    with pytest.raises(UserError, match="FLEXINFER_ISA.*avx1024"):
        kernels.isa()


@pytest.mark.usefixtures("full_cpu")
def test_amx_that_does_not_run_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "amx_works", lambda: False)
    assert kernels.isa() == "avx512_bf16"


@pytest.mark.parametrize("program", ["raise SystemExit(1)", "import os; os.abort()"])
def test_the_amx_probe_fails_with_its_process(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setattr(levels, "_PROBE", program)
    assert not levels.amx_works.__wrapped__()


def test_no_process_to_probe_in_means_no_amx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    assert not levels.amx_works.__wrapped__()


def test_names_and_probes_need_no_torch() -> None:
    program = (
        "import sys; from flexinfer import kernels; kernels.isa(); kernels.read_bandwidth(1, 1 << 20);"
        "print('torch' in sys.modules, kernels.native())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() in (["False", "True"], ["True", "False"])  # without the library torch is measured


def test_where_there_is_a_compiler_there_is_a_library() -> None:
    assert kernels.native() or not shutil.which(os.environ.get("CXX", "c++"))


@pytest.fixture
def patient_threads() -> Iterator[None]:
    """Python takes the lock from no thread that does not give it up by itself."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(60)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("patient_threads")
def test_other_python_threads_run_during_a_call() -> None:
    lib = library_module.library()
    if lib is None:
        pytest.skip("the native library was not built: no C++ compiler")
    calls, finished = 100, []

    def call_in_a_row() -> None:
        for i in range(calls):
            lib.fx_read_bandwidth(4 << 20, 0, 1)
            finished.append(i)

    caller = threading.Thread(target=call_in_a_row)
    caller.start()
    seen = len(finished)
    caller.join()
    assert seen < calls


@pytest.fixture
def fresh_library() -> Iterator[None]:
    library_module.library.cache_clear()
    yield
    library_module.library.cache_clear()


@pytest.mark.usefixtures("fresh_library")
def test_a_missing_library_is_logged_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(library_module, "library_path", lambda: None)
    with caplog.at_level(logging.WARNING):
        assert not kernels.native() and not kernels.native()
    assert len(caplog.records) == 1
    assert "for want of a C++ compiler" in caplog.text and "running on torch's kernels" in caplog.text
    assert kernels.isa() == "generic"


@pytest.mark.usefixtures("fresh_library")
def test_a_library_from_other_sources_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(library_module, "ABI", -7)
    assert not kernels.native()
    assert ("wanted -7" in caplog.text) == (library_module.library_path() is not None)
