"""The doctor's report: complete, honest about what is missing, each problem with its remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from flexinfer.calibrate import doctor, doctor_report, doctor_text
from flexinfer.errors import EngineError


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLEXINFER_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_report_has_every_section_and_its_text_every_value() -> None:
    report = doctor_report()
    sections = ["flexinfer", "cpu", "kernels", "memory", "torch", "gpu", "profile", "folders", "packages", "problems"]
    assert list(report) == sections
    text = doctor_text(report)
    assert report["cpu"]["name"] in text
    assert report["kernels"]["instruction_set"] in text
    assert "float32 ok, bfloat16 ok, float16 ok" in text
    assert "none yet" in report["profile"]["file"]


def test_missing_kernels_are_a_problem_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.kernels, "native", lambda: False)
    problems: dict[str, str] = {}
    assert doctor.kernels_section(problems)["library"] == "torch only"
    assert "C++" in next(iter(problems.values()))


def test_wrong_products_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(dtype: str) -> None:
        if dtype == "bfloat16":
            raise EngineError("bfloat16 is wrong; use another --dtype")

    monkeypatch.setattr(doctor, "check_products", wrong)
    problems: dict[str, str] = {}
    doctor.torch_section(problems)
    assert problems == {"bfloat16 matrix products are wrong": "bfloat16 is wrong; use another --dtype"}


def test_gpu_that_torch_cannot_use_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "driver_gpus", lambda: "NVIDIA L4")
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    problems: dict[str, str] = {}
    assert doctor.gpu_section(problems)["driver_sees"] == "NVIDIA L4"
    assert "NVIDIA L4" in next(iter(problems))


def test_packages_that_are_missing_or_old_are_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ["here>=1", "old>=2", "gone>=3", 'plots>=1; extra == "plots"', 'other; python_version < "3"']
    monkeypatch.setattr(doctor.importlib.metadata, "requires", lambda name: wanted)
    monkeypatch.setattr(doctor, "extras", lambda: ["plots"])
    monkeypatch.setattr(doctor, "installed_version", {"here": "1.5", "old": "1.9"}.get)
    problems: dict[str, str] = {}
    section = doctor.packages_section(problems)
    assert section == {"here": "1.5", "old": "1.9", "gone": "missing", "plots": "missing (extra plots)"}
    assert [what.split()[0] for what in problems] == ["old", "the"]
    assert "gone>=3" in problems["the package gone is missing"]


def test_unreadable_profile_is_a_problem(own_cache: Path) -> None:
    path = doctor.cache_path(doctor.host.available_threads(), doctor.host.fingerprint())
    path.parent.mkdir(parents=True)
    path.write_text("{")
    problems: dict[str, str] = {}
    assert doctor.profile_section(problems)["file"] == str(path)
    assert "the cached profile cannot be read" in problems


def test_problems_are_listed_last_with_their_remedies() -> None:
    text = doctor_text({"cpu": {"physical_cores": 2, "fast": True}, "problems": {"it is slow": "make it fast"}})
    assert text.splitlines() == [
        "cpu",
        "  physical cores  2",
        "  fast            yes",
        "1 problem found",
        "  it is slow",
        "    -> make it fast",
    ]
