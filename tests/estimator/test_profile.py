"""Profiles: what goes out comes back, what is wrong is named, what is shipped says where it is from."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import pytest

from flexinfer.errors import ProfileError
from flexinfer.estimator import AttentionSample, HardwareProfile, LinearSample, Samples, shipped_profiles


@pytest.fixture(scope="module")
def shipped() -> dict[str, Any]:
    return HardwareProfile.load("h100-spr").to_json()


def changed(data: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """A copy with the dotted key set, or removed when value is ..."""
    out = copy.deepcopy(data)
    *parents, last = path.split(".")
    at = out
    for key in parents:
        at = at[key]
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return out


def test_round_trip_with_samples(shipped: dict[str, Any], tmp_path: Path) -> None:
    profile = HardwareProfile.from_json(shipped)
    samples = Samples(
        linear=(LinearSample("float32", 8, 64, 32, 1e-5, 1e-6, 9),),
        attention_decode=(AttentionSample("bfloat16", 2, 4, 2, 16, 1, 100, 1e-5, 0.0, 5),),
    )
    full = HardwareProfile.from_json({**shipped, "cpu": {**shipped["cpu"], "samples": {**_json(samples)}}})
    assert full.cpu.samples == samples and profile.cpu.samples == Samples()
    full.save(tmp_path / "deep" / "p.json")
    assert HardwareProfile.load(tmp_path / "deep" / "p.json") == full


def _json(samples: Samples) -> dict[str, Any]:
    from dataclasses import asdict

    return {key: [dict(row) for row in rows] for key, rows in asdict(samples).items()}


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("schema", "flexinfer.hardware/0", "schema"),
        ("kind", "guessed", "kind"),
        ("surprise", 1, "surprise is not a known key"),
        ("cpu.threads", ..., "cpu.threads is missing"),
        ("cpu.threads", 2.5, "cpu.threads is 2.5"),
        ("cpu.memory_bytes_per_s", -1, "cpu.memory_bytes_per_s"),
        ("cpu.memory_bytes_per_s", "fast", "cpu.memory_bytes_per_s"),
        ("cpu.memory_bytes_per_s", float("nan"), "cpu.memory_bytes_per_s"),
        ("cpu.peak_flops_per_s.int8", 1, "cpu.peak_flops_per_s.int8 is not a known key"),
        ("cpu.efficiency.linear.eff_memory", 0, "cpu.efficiency.linear.eff_memory"),
        ("cpu.efficiency.linear.fixed_s", True, "cpu.efficiency.linear.fixed_s"),
        ("cpu.samples.linear", [{"dtype": "int3"}], "cpu.samples.linear[0]"),
        ("cpu.samples.linear", {}, "cpu.samples.linear is not a list"),
        ("link", None, "link"),
        ("link.eff_h2d", ..., "link.eff_h2d is missing"),
        ("gpu.name", 3, "gpu.name"),
        ("sources.cpu", 3, "sources.cpu"),
        ("fingerprint", [], "fingerprint is not an object"),
    ],
)
def test_each_mistake_is_named_in_one_line(shipped: dict[str, Any], path: str, value: object, says: str) -> None:
    with pytest.raises(ProfileError) as caught:
        HardwareProfile.from_json(changed(shipped, path, value), "mine.json")
    message = str(caught.value)
    assert says in message and "mine.json" in message and "\n" not in message


def test_files_that_are_not_profiles(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(ProfileError, match=r"broken\.json"):
        HardwareProfile.load(tmp_path / "broken.json")
    with pytest.raises(ProfileError, match="a100-icl, h100-spr"):
        HardwareProfile.load("no-such-profile")


def test_a_failed_save_leaves_the_old_file_and_no_other(
    shipped: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = HardwareProfile.from_json(shipped)
    path = tmp_path / "p.json"
    profile.save(path)
    before = path.read_text()

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ProfileError, match="No space left"):
        profile.save(path)
    assert path.read_text() == before and os.listdir(tmp_path) == ["p.json"]


def numbers(data: object, key: str = "") -> list[str]:
    """Dotted keys of all numbers in a JSON value."""
    if isinstance(data, dict):
        return [found for name, value in data.items() for found in numbers(value, f"{key}.{name}".lstrip("."))]
    return [key] if isinstance(data, (int, float)) and not isinstance(data, bool) else []


@pytest.mark.parametrize("name", ["a100-icl", "h100-spr"])
def test_every_shipped_number_has_a_source(name: str) -> None:
    assert name in shipped_profiles()
    profile = HardwareProfile.load(name)
    assert profile.kind == "nominal"
    for key in numbers(profile.to_json()):
        assert any(key == known or key.startswith(known + ".") for known in profile.sources), key


def test_the_papers_servers() -> None:
    a100, h100 = HardwareProfile.load("a100-icl"), HardwareProfile.load("h100-spr")
    assert a100.gpu is not None and h100.gpu is not None and h100.link is not None
    assert a100.cpu.peak_flops_per_s["bfloat16"] == 9.0e12 and h100.cpu.peak_flops_per_s["bfloat16"] == 144.2e12
    assert a100.gpu.memory_bytes == 40e9 and h100.cpu.memory_bytes == 512e9 and h100.link.h2d_bytes_per_s == 64e9
