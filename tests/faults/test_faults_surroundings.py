"""The machine around a run: folders that cannot be had, devices that are not there, too little memory, lost options."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from flexinfer import FlexInfer
from flexinfer.calibrate import cached_profile, kept_path, peek_profile
from flexinfer.calibrate.store import cache_folder
from flexinfer.cli.main import main
from flexinfer.device import within
from flexinfer.errors import DoesNotFitError, ProfileError, UserError
from flexinfer.estimator import HardwareProfile
from flexinfer.options import LoadOptions
from flexinfer.planner import PlanRequest, search
from flexinfer.spec import Workload, load_spec


@pytest.fixture
def command(capfd):
    """Runs a command: (exit code, stdout, stderr)."""

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(a) for a in arguments])
        captured = capfd.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return run


@pytest.fixture
def measured(monkeypatch) -> list[int]:
    """Measuring is instant, and counted by its threads."""
    asked: list[int] = []

    def quick(threads, on_progress=None):
        asked.append(threads)
        profile = HardwareProfile.load("a100-icl")
        return replace(profile, cpu=replace(profile.cpu, threads=threads))

    monkeypatch.setattr("flexinfer.calibrate.quick.quick_profile", quick)
    monkeypatch.setattr("flexinfer.calibrate.quick_profile", quick)
    return asked


@pytest.fixture
def no_home(monkeypatch) -> None:
    """A user whom the system does not know, as in a container with a number for a user."""
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)


# -- folders ----------------------------------------------------------------------------------------------------------


def test_without_a_home_a_run_measures_and_a_calibration_says_what_to_set(no_home, measured, command, caplog):
    with pytest.raises(ProfileError, match="set FLEXINFER_CACHE_DIR"):
        cache_folder()
    assert cached_profile(3).cpu.threads == 3 and measured == [3]
    assert peek_profile(3) is None
    code, out, err = command("calibrate", "--threads", "3")
    assert code == 2 and out == "" and "set FLEXINFER_CACHE_DIR" in err and measured == [3]
    code, out, _ = command("doctor", "--json")
    assert code == 0 and "set FLEXINFER_CACHE_DIR" in out


def test_a_home_that_nobody_has_is_no_model_and_no_cache(monkeypatch, measured):
    monkeypatch.setenv("FLEXINFER_CACHE_DIR", "~nobody-of-this-name/cache")
    with pytest.raises(ProfileError, match="~nobody-of-this-name/cache has no home"):
        kept_path(2)
    with pytest.raises(UserError, match="~nobody-of-this-name/model"):
        FlexInfer.from_pretrained("~nobody-of-this-name/model")


@pytest.mark.parametrize("place", ["/dev/null/x", "/proc/x", "{file}/x", "{long}"])
def test_a_calibration_that_cannot_be_kept_measures_nothing(place, tmp_path, monkeypatch, measured, command):
    (tmp_path / "file").touch()
    monkeypatch.setenv("FLEXINFER_CACHE_DIR", place.format(file=tmp_path / "file", long=tmp_path / ("x" * 300)))
    code, out, err = command("calibrate")
    assert code == 2 and out == "" and measured == [] and len(err.splitlines()) == 1
    assert cached_profile(2).cpu.threads == 2, "a run goes on without"
    code, _, _ = command("doctor")
    assert code == 0


def test_a_calibration_is_kept_where_runs_look_for_it(tmp_path, monkeypatch, measured, command):
    monkeypatch.setenv("FLEXINFER_CACHE_DIR", str(tmp_path / "new"))
    assert command("calibrate", "--threads", "2")[0] == 0
    assert cached_profile(2).cpu.threads == 2 and measured == [2]
    assert [p.name for p in (tmp_path / "new" / "profiles").iterdir()] == [kept_path(2).name]


@pytest.mark.parametrize("device", ["cuda:99", "abacus", "meta", "emulated"])
def test_a_device_that_is_not_there_is_not_calibrated(device, measured, command):
    code, out, err = command("calibrate", "--device", device)
    assert code == 2 and out == "" and measured == [] and device in err and len(err.splitlines()) == 1


def test_doctor_too_refuses_a_variable_that_nobody_reads(command, monkeypatch):
    monkeypatch.setenv("FLEXINFER_GPU_LAYER", "3")
    code, out, err = command("doctor")
    assert code == 2 and out == "" and "FLEXINFER_GPU_LAYER is not known" in err


def test_a_misspelt_built_in_name_is_recognized(command):
    code, _, err = command("plan", "opt-126m")
    assert code == 2 and "nor the built-in opt-125m" in err


# -- options that would be lost ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--hardware", "a100-icl", "--link-bandwidth", "1GB/s"), "link_bandwidth is for the emulated device"),
        (("--profile", "{cpu}", "--gpu-memory", "1GiB"), "gpu_memory is set, but there is no GPU"),
        (("--hardware", "a100-icl", "--strategy", "cpu", "--gpu-layers", "2"), "strategy cpu leaves the GPU empty"),
    ],
)
def test_a_plan_refuses_options_without_effect(arguments, named, tmp_path, command):
    replace(HardwareProfile.load("a100-icl"), gpu=None, link=None).save(tmp_path / "cpu.json")
    arguments = [a.format(cpu=tmp_path / "cpu.json") for a in arguments]
    code, out, err = command("plan", "opt-125m", *arguments)
    assert code == 2 and out == "" and named in err


def test_threads_that_a_named_machine_does_not_have_are_pointed_out(command):
    code, _, err = command("plan", "opt-125m", "--hardware", "a100-icl", "--threads", "3")
    assert code == 0 and "is for" in err and "3 are used" in err


def test_layers_that_are_asked_for_are_used():
    """No plan keeps them and computes elsewhere."""
    spec, profile = load_spec("opt-125m"), HardwareProfile.load("a100-icl")
    choice = search(spec, Workload(1, 8, 8), profile, PlanRequest(gpu_layers=2))
    assert all(candidate.name != "cpu/cpu" for candidate in choice.candidates)
    assert choice.chosen.plan.gpu_layers == 2


# -- too little memory ------------------------------------------------------------------------------------------------


def advice(error: DoesNotFitError) -> str:
    text = str(error)
    assert "\n" not in text and re.search(r"the (GPU|CPU) needs .* of .* \(", text)
    return text.split("what would fit: ")[1]


def test_no_option_is_advised_that_this_machine_cannot_follow():
    spec, profile = load_spec("opt-125m"), HardwareProfile.load("a100-icl")
    options = within(LoadOptions(device="cpu"), 100 * 2**20)
    request = PlanRequest(
        "cpu", "cpu", cpu_memory_bytes=options.cpu_memory_bytes, cpu_free_bytes=options.cpu_free_bytes
    )
    with pytest.raises(DoesNotFitError) as caught:
        search(spec, Workload(1, 8, 8), profile, request)
    assert re.fullmatch(r".*\d+MiB of CPU memory \(100 MiB are free\)", advice(caught.value))
    assert "--cpu-memory" not in advice(caught.value)


def test_a_limit_of_the_users_own_can_be_raised_to_what_is_advised():
    spec, profile = load_spec("opt-125m"), HardwareProfile.load("a100-icl")
    request = PlanRequest("cpu", "cpu", cpu_memory_bytes=100 * 2**20, cpu_free_bytes=2**30)
    with pytest.raises(DoesNotFitError) as caught:
        search(spec, Workload(1, 8, 8), profile, request)
    (size,) = re.findall(r"--cpu-memory (\d+)MiB", advice(caught.value))
    search(spec, Workload(1, 8, 8), profile, replace(request, cpu_memory_bytes=int(size) * 2**20))


def test_a_process_without_any_memory_left_does_not_fit():
    options = within(LoadOptions(device="cpu"), 0)
    request = PlanRequest(
        "cpu", "cpu", cpu_memory_bytes=options.cpu_memory_bytes, cpu_free_bytes=options.cpu_free_bytes
    )
    with pytest.raises(DoesNotFitError, match="of 1 B"):
        search(load_spec("opt-125m"), Workload(1, 8, 8), HardwareProfile.load("a100-icl"), request)


def test_little_memory_is_found_before_weights_are_read(tiny_model, shipped_profile, monkeypatch, command):
    monkeypatch.setattr("flexinfer.api.memory_limit_bytes", lambda: 50_000)
    monkeypatch.setattr("flexinfer.weights.load.load_weights", None)
    code, out, err = command("run", tiny_model, "--prompt", "x", "--device", "cpu", "--json")
    assert code == 3 and out == "" and "1MiB of CPU memory (48.8 KiB are free)" in err
