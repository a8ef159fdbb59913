"""What the commands print, where, and what they exit with."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flexinfer.cli.main import main

ON_CPU = ("--device", "cpu")


@pytest.fixture
def flexinfer(capfd):
    """Runs a command in this process: (exit code, stdout, stderr)."""

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(a) for a in arguments])
        captured = capfd.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    yield run
    logger = logging.getLogger("flexinfer")
    logger.handlers, logger.propagate = [], True
    logger.setLevel(logging.NOTSET)


def one_line(text: str) -> str:
    lines = text.strip().splitlines()
    assert len(lines) == 1, text
    return lines[0]


def test_run_streams_text_to_stdout_and_the_rest_to_stderr(flexinfer, tiny_model):
    code, out, err = flexinfer("run", tiny_model, "--prompt", "hello", "--max-new-tokens", "6", "--ignore-eos", *ON_CPU)
    assert code == 0 and out.endswith("\n") and out.strip()
    assert "cpu/cpu" in err and "<- chosen" in err, "the plan"
    assert "predicted" in err and "measured" in err and "ratio" in err and "time to first token" in err
    _, report, _ = flexinfer(
        "run", tiny_model, "--prompt", "hello", "--max-new-tokens", "6", "--ignore-eos", *ON_CPU, "--json"
    )
    assert json.loads(report.splitlines()[-1])["outputs"][0]["text"] == out.removesuffix("\n")


def test_run_json_is_one_object_with_the_contracts_keys(flexinfer, tiny_model):
    code, out, _ = flexinfer(
        "run", tiny_model, "--prompt", "ab", "--prompt", "c", "--max-new-tokens", "3", "--ignore-eos", "--json",
        "--device", "emulated", "--gpu-memory", "1MiB", "--link-bandwidth", "1GB/s",
        "--prefill", "offload", "--decode", "cpu",
    )  # fmt: skip
    report = json.loads(out)
    assert code == 0 and report["schema"] == "flexinfer.run/1"
    times = {"ttft_s", "tpot_s", "e2e_s", "h2d_bytes", "d2h_bytes", "gpu_peak_bytes", "cpu_peak_bytes"}
    assert times <= set(report["predicted"]) and times | {"rss_peak_bytes"} <= set(report["measured"])
    assert [o["prompt_tokens"] for o in report["outputs"]] == [2, 1]
    assert set(report["outputs"][0]) == {"prompt_tokens", "new_tokens", "token_ids", "text", "finish_reason"}
    assert report["plan"]["name"] == "offload/cpu" and report["measured"]["h2d_bytes"] > 0


def test_several_prompts_are_printed_in_order(flexinfer, tiny_model):
    code, out, _ = flexinfer("run", tiny_model, "--prompt", "a", "--prompt", "b", "--max-new-tokens", "2", *ON_CPU)
    assert code == 0 and "--- 1 of 2" in out and "--- 2 of 2" in out


def test_prompts_from_files_ids_and_stdin_are_the_same_prompt(flexinfer, tiny_model, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"hello\n")))
    (tmp_path / "prompt.txt").write_text("hello\n")
    common = ("--max-new-tokens", "4", "--ignore-eos", "--json", *ON_CPU)
    ids = ",".join(str(i) for i in prompt_ids(tiny_model, "hello"))
    got = [
        json.loads(flexinfer("run", tiny_model, *given, *common)[1])["outputs"][0]["token_ids"]
        for given in (
            ("--prompt", "hello"),
            ("--prompt-file", tmp_path / "prompt.txt"),
            ("--prompt-file", "-"),
            ("--prompt-ids", ids),
        )
    ]
    assert got[0] == got[1] == got[2] == got[3]


def prompt_ids(model: Path, text: str) -> list[int]:
    from flexinfer.engine.tokenizer import load_tokenizer

    return load_tokenizer(model).encode(text)


def test_chat_wraps_prompts_in_the_template(flexinfer, tiny_model):
    code, out, _ = flexinfer("run", tiny_model, "--prompt", "hi", "--chat", "--max-new-tokens", "1", "--json", *ON_CPU)
    assert code == 0 and json.loads(out)["outputs"][0]["prompt_tokens"] == len("user:hi;assistant:")


def test_a_folder_without_a_tokenizer_runs_on_ids(flexinfer, tiny_model, tmp_path):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).symlink_to(tiny_model / name)
    code, out, _ = flexinfer("run", tmp_path, "--prompt-ids", "1,2,3", "--max-new-tokens", "3", "--ignore-eos", *ON_CPU)
    assert code == 0 and len(one_line(out).split(",")) == 3
    code, out, _ = flexinfer("run", tmp_path, "--prompt-ids", "1", "--max-new-tokens", "1", "--json", *ON_CPU)
    assert code == 0 and json.loads(out)["outputs"][0]["text"] == ""
    code, _, err = flexinfer("run", tmp_path, "--prompt", "x", *ON_CPU)
    assert code == 2 and "no tokenizer" in one_line(err)


def test_a_seed_repeats_a_draw(flexinfer, tiny_model):
    sampling = ("--temperature", "1.5", "--top-k", "50", "--top-p", "0.95", "--min-p", "0.001", "--seed", "3")
    common = ("run", tiny_model, "--prompt", "x", "--max-new-tokens", "12", "--ignore-eos", "--json", *ON_CPU)
    first, second = (json.loads(flexinfer(*common, *sampling)[1])["outputs"] for _ in range(2))
    assert first == second
    assert json.loads(flexinfer(*common)[1])["outputs"] != first


def test_trace_is_written_whole(flexinfer, tiny_model, tmp_path):
    path = tmp_path / "trace.json"
    code, _, _ = flexinfer("run", tiny_model, "--prompt", "x", "--max-new-tokens", "2", *ON_CPU, "--trace", path)
    events = json.loads(path.read_text())["traceEvents"]
    assert code == 0 and any(event["ph"] == "X" and event["cat"] == "cpu" for event in events)
    assert [p.name for p in tmp_path.iterdir()] == ["trace.json"]


@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_a_full_disk_under_stdout_exits_2(flexinfer, tiny_model, monkeypatch, as_json):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr("sys.stdout", full)
        code, _, err = flexinfer("run", tiny_model, "--prompt", "x", "--max-new-tokens", "9", *ON_CPU, *as_json)
    assert code == 2
    assert err.strip().splitlines()[-1] == "flexinfer: the output cannot be written: No space left on device"


def test_a_reader_that_leaves_ends_the_run(flexinfer, tiny_model, monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    arguments = ("--prompt", "x", "--max-new-tokens", "4k", "--ignore-eos", *ON_CPU)
    with os.fdopen(writer, "w") as closed:
        monkeypatch.setattr("sys.stdout", closed)
        code, _, err = flexinfer("run", tiny_model, *arguments)
    assert code == 2 and "Broken pipe" in err.strip().splitlines()[-1] and "Traceback" not in err


def test_a_prompt_that_is_not_text_is_refused(flexinfer, tiny_model, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"caf\xff")))
    code, _, err = flexinfer("run", tiny_model, "--prompt-file", "-", *ON_CPU)
    assert code == 2 and "prompt file - is not UTF-8" in one_line(err)


@pytest.mark.parametrize("target", ["/dev/full", "/no/such/folder/t.json", "{folder}", "/proc/t.json"])
def test_a_trace_that_cannot_be_written_exits_2(flexinfer, tiny_model, tmp_path, target):
    path = target.format(folder=tmp_path)
    code, _, err = flexinfer("run", tiny_model, "--prompt", "x", "--max-new-tokens", "2", *ON_CPU, "--trace", path)
    assert code == 2 and "cannot be written" in err.strip().splitlines()[-1]
    assert list(tmp_path.iterdir()) == []
    ran = "measured" in err
    assert not ran, "nothing is shown as a success"


def test_a_failed_run_leaves_no_trace_file(flexinfer, tiny_model, tmp_path):
    path = tmp_path / "trace.json"
    path.write_text("old")
    code, _, _ = flexinfer("run", tiny_model, "--prompt", "", *ON_CPU, "--trace", path)
    assert code == 2 and path.read_text() == "old" and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--prompt", ""), "empty"),
        ((), "no prompt"),
        (("--prompt", "x", "--strategy", "warp"), "warp"),
        (("--prompt", "x", "--device", "abacus"), "abacus"),
        (("--prompt", "x", "--device", "cuda:99"), "cuda:99"),
        (("--prompt", "x", "--max-new-tokens", "0"), "0"),
        (("--prompt", "x", "--max-new-tokens", "-3"), "-3"),
        (("--prompt", "x", "--max-new-tokens", "5000"), "4096"),
        (("--prompt", "x" * 5000), "5000 tokens"),
        (("--prompt", "x", "--gpu-layers", "-1"), "-1"),
        (("--prompt", "x", "--gpu-memory", "0"), "0"),
        (("--prompt", "x", "--cpu-memory", "big"), "big"),
        (("--prompt", "x", "--link-bandwidth", "8GB/s"), "link_bandwidth"),
        (("--prompt", "x", "--threads", "0"), "0"),
        (("--prompt", "x", "--dtype", "int8"), "int8"),
        (("--prompt", "x", "--temperature", "-1"), "temperature"),
        (("--prompt", "x", "--temperature", "nan"), "temperature"),
        (("--prompt", "x", "--top-k", "0"), "top-k"),
        (("--prompt", "x", "--top-p", "1.5"), "top_p"),
        (("--prompt", "x", "--seed", "-1"), "seed"),
        (("--prompt", "x", "--stop", ""), "stop string"),
        (("--prompt-ids", "1,b"), "1,2,3"),
        (("--prompt-ids", "999"), "999"),
        (("--prompt-ids", "1", "--prompt", "x"), "not both"),
        (("--prompt-file", "/no/such/file"), "/no/such/file"),
        (("--prompt", "x", "--profile", "/no/such.json"), "/no/such.json"),
        (("--prompt", "x", "--bogus"), "--bogus"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(flexinfer, tiny_model, arguments, named):
    where = () if "--device" in arguments else ON_CPU
    code, out, err = flexinfer("run", tiny_model, *arguments, *where)
    assert code == 2 and out == ""
    assert named in one_line(err)


def test_bad_models_are_one_line_and_exit_2(flexinfer, tmp_path):
    for model, named in (
        ("/no/such/model", "/no/such/model"),
        ("opt-66b", "sizes only"),
        (tmp_path, str(tmp_path)),
    ):
        code, _, err = flexinfer("run", model, "--prompt", "x")
        assert code == 2 and named in one_line(err)


def test_nan_in_weights_is_one_line_naming_the_tensor(flexinfer, tiny_model, tmp_path):
    import torch
    from safetensors.torch import load_file, save_file

    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).symlink_to(tiny_model / name)
    tensors = load_file(tiny_model / "model.safetensors")
    broken = next(name for name in tensors if "mlp" in name)
    tensors[broken][0, 0] = torch.nan
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    code, _, err = flexinfer("run", tmp_path, "--prompt", "x", "--max-new-tokens", "2", *ON_CPU, "--json")
    assert code in (1, 2) and broken in one_line(err)


def test_what_does_not_fit_exits_3_with_the_sum(flexinfer, tiny_model):
    code, _, err = flexinfer(
        "run", tiny_model, "--prompt", "x", "--device", "emulated", "--gpu-memory", "10KiB", "--strategy", "gpu"
    )
    assert code == 3 and "GPU" in one_line(err) and "KiB" in err


def test_a_bug_of_ours_is_one_line_and_exit_1(flexinfer, tiny_model, monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("boom\nsecond line")

    monkeypatch.setattr("flexinfer.api.FlexInfer.run", fails)
    arguments = ("run", tiny_model, "--prompt", "x", *ON_CPU, "--json")
    code, out, err = flexinfer(*arguments)
    assert code == 1 and out == "" and one_line(err) == "flexinfer: internal error: RuntimeError: boom (-v shows where)"
    code, _, err = flexinfer(*arguments, "-v")
    assert code == 1 and "Traceback" in err and "boom" in err


def test_an_engines_exception_is_one_line_and_exit_1(flexinfer, tiny_model, monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("boom")

    monkeypatch.setattr("flexinfer.models.opset.CpuOps.activation", fails)
    code, _, err = flexinfer("run", tiny_model, "--prompt", "x", *ON_CPU, "--json")
    assert code == 1 and "boom" in one_line(err) and "mlp" in err


def test_filters_without_a_temperature_are_pointed_out(flexinfer, tiny_model):
    code, _, err = flexinfer(
        "run", tiny_model, "--prompt", "x", "--top-p", "0.5", "--max-new-tokens", "1", "--json", *ON_CPU
    )
    assert code == 0 and "top_p has no effect at temperature 0" in err


# -- plan, doctor, calibrate ----------------------------------------------------------------------------------------


def test_plan_prints_and_gives_json(flexinfer):
    common = ("plan", "opt-66b", "--batch", "1", "--prompt-len", "512", "--new-tokens", "128", "--hardware", "h100-spr")
    code, out, err = flexinfer(*common)
    assert code == 0 and "<- chosen" in out and err == ""
    report = json.loads(flexinfer(*common, "--json")[1])
    assert report["schema"] == "flexinfer.plan/1" and report["chosen"]["why"]
    assert report["chosen"]["e2e_s"] == min(c["e2e_s"] for c in report["candidates"] if c["fits"])


def test_plan_takes_a_local_model_and_the_common_options(flexinfer, tiny_model):
    code, out, _ = flexinfer(
        "plan", tiny_model, "--prompt-len", "1k", "--strategy", "split", "--gpu-layers", "2", "--json"
    )
    report = json.loads(out)
    assert code == 0 and report["chosen"]["name"] == "split/split" and report["chosen"]["gpu_layers"] == 2
    assert report["workload"]["prompt_len"] == 1000
    code, out, _ = flexinfer("plan", tiny_model, *ON_CPU, "--json")
    assert json.loads(out)["hardware"]["gpu"] is None


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("opt-67b",), "opt-67b"),
        (("opt-125m", "--batch", "0"), "0"),
        (("opt-125m", "--prompt-len", "3000"), "2048"),
        (("opt-125m", "--prompt-len", "2000", "--new-tokens", "100"), "at most 49"),
        (("opt-125m", "--hardware", "a100-icl", "--profile", "h100-spr"), "one of them"),
        (("opt-125m", "--hardware", "cray-1"), "cray-1"),
        (("opt-125m", "--gpu-layers", "13"), "12 layers"),
    ],
)
def test_plan_refuses_what_cannot_be(flexinfer, arguments, named):
    code, out, err = flexinfer("plan", *arguments)
    assert code == 2 and out == "" and named in one_line(err)


def test_plan_that_does_not_fit_exits_3(flexinfer):
    code, _, err = flexinfer("plan", "opt-175b", "--hardware", "a100-icl", "--strategy", "gpu")
    assert code == 3 and "GPU" in one_line(err)


@pytest.mark.parametrize(
    "arguments", [["--help"], ["run", "--help"], ["plan", "opt-66b", "--hardware", "h100-spr", "--json"]]
)
def test_help_and_plan_import_no_torch(arguments):
    code = (
        "import sys\nfrom flexinfer.cli.main import main\n"
        f"try: main({arguments!r})\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "heavy = {'torch', 'transformers', 'sklearn'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_doctor_reports(flexinfer):
    code, out, _ = flexinfer("doctor", "--json")
    report = json.loads(out)
    assert code == 0 and report["schema"] == "flexinfer.doctor/1" and "torch" in report and "problems" in report


def test_calibrate_writes_what_it_measures(flexinfer, tmp_path, monkeypatch):
    from flexinfer.estimator import HardwareProfile

    measured = HardwareProfile.load("a100-icl")
    asked = []
    monkeypatch.setattr(
        "flexinfer.calibrate.quick_profile", lambda threads, on_progress: asked.append(threads) or measured
    )
    path = tmp_path / "mine.json"
    code, out, err = flexinfer("calibrate", "--quick", "--threads", "3", "--output", path, "--json")
    assert code == 0 and asked == [3] and HardwareProfile.load(path) == measured
    assert json.loads(out.splitlines()[-1]) == measured.to_json()
    code, _, err = flexinfer("calibrate", "--device", "emulated")
    assert code == 2 and "emulated" in one_line(err)
    code, _, err = flexinfer("calibrate", "--output", "/proc/x.json")
    assert code == 2 and "/proc/x.json" in one_line(err) and asked == [3], "nothing is measured for a place like that"


def test_a_bad_environment_variable_is_one_line(flexinfer, tiny_model, monkeypatch):
    monkeypatch.setenv("FLEXINFER_GPU_MEMORY", "plenty")
    code, _, err = flexinfer("plan", tiny_model)
    assert code == 2 and "FLEXINFER_GPU_MEMORY" in one_line(err)


def test_version_and_no_command(flexinfer):
    from flexinfer import __version__

    assert flexinfer("--version") == (0, f"flexinfer, version {__version__}\n", "")
    code, out, err = flexinfer()
    assert code == 0 and "calibrate" in out and err == ""
    code, _, err = flexinfer("fly")
    assert code == 2 and "fly" in one_line(err)
