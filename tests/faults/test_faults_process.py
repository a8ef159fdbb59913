"""What surrounds a command: closed and full streams, signals at any moment, and what the system refuses."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time

import pytest

from flexinfer.cli.main import main
from flexinfer.cli.process import EXPLAINED_S, Interrupts

PLAN = ("plan", "opt-125m", "--hardware", "a100-icl")
START = "from flexinfer.cli.main import main; main()"


def run_shell(redirections: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = f'exec "$0" -c "{START}" "$@" {redirections}'
    return subprocess.run(["sh", "-c", command, sys.executable, *arguments], capture_output=True, text=True, timeout=60)


def ended(arguments: tuple[str, ...]) -> int:
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    return int(stop.value.code or 0)


@pytest.mark.parametrize("arguments", [PLAN, ("--help",)])
def test_a_closed_stdout_is_an_output_that_cannot_be_written(arguments):
    done = run_shell(">&-", *arguments)
    assert done.returncode == 2
    assert done.stderr == "flexinfer: the output cannot be written: Bad file descriptor\n"


def test_results_survive_a_stderr_that_is_closed_or_full():
    for redirection in ("2>&-", "2>/dev/full"):
        done = run_shell(redirection, *PLAN, "--json")
        assert done.returncode == 0 and '"flexinfer.plan/1"' in done.stdout
        assert run_shell(redirection, "plan", "opt-67b").returncode == 2, "the code still says it"


def test_closed_streams_give_their_numbers_to_no_file():
    code = f"import sys\nfrom flexinfer.cli.process import open_streams\nopen_streams()\nf = open({os.devnull!r})\n"
    code += "sys.exit(f.fileno() if f.fileno() > 2 and sys.stdin.read() == '' else 0)"
    done = subprocess.run(["sh", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, code])
    assert done.returncode > 2


@pytest.mark.parametrize("arguments", [("--help",), ("run", "--help"), ("--version",), ()])
def test_help_into_a_full_disk_exits_2(arguments, capfd, monkeypatch):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr("sys.stdout", full)
        assert ended(arguments) == 2
    assert capfd.readouterr().err == "flexinfer: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            PermissionError(errno.EACCES, "Permission denied", "model/config.json"),
            "model/config.json: Permission denied",
        ),
        (OSError(errno.EIO, "Input/output error"), "Input/output error"),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), "the output cannot be written: Broken pipe"),
    ],
)
def test_what_the_system_refuses_is_named_and_exits_2(error, line, capfd, monkeypatch):
    monkeypatch.setattr("flexinfer.cli.plan.model_spec", lambda *_: (_ for _ in ()).throw(error))
    assert ended(PLAN) == 2
    captured = capfd.readouterr()
    assert captured.out == "" and captured.err == f"flexinfer: {line}\n"


def test_no_memory_exits_3(capfd, monkeypatch):
    monkeypatch.setattr("flexinfer.cli.plan.model_spec", lambda *_: (_ for _ in ()).throw(MemoryError()))
    assert ended(PLAN) == 3
    assert "no memory left" in capfd.readouterr().err


def test_ctrl_c_while_the_commands_are_imported_exits_130():
    code = (
        "import signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'flexinfer.cli.options': signal.raise_signal(signal.SIGINT)\n"
        f"sys.meta_path.insert(0, Finder())\n{START}"
    )
    done = subprocess.run([sys.executable, "-c", code, *PLAN], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "flexinfer: interrupted\n")


def test_an_import_that_ctrl_c_broke_off_is_an_interruption(capfd, monkeypatch):
    def swallows(*_):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ImportError("cannot load module more than once per process") from None

    monkeypatch.setattr("flexinfer.cli.plan.model_spec", swallows)
    assert ended(PLAN) == 130
    assert capfd.readouterr().err == "flexinfer: interrupted\n"


def test_only_what_fails_right_after_ctrl_c_is_its_consequence(monkeypatch):
    interrupts = Interrupts()
    assert not interrupts.explain_an_error()
    with pytest.raises(KeyboardInterrupt):
        interrupts(signal.SIGINT, None)
    assert interrupts.explain_an_error()
    later = time.monotonic() + EXPLAINED_S
    monkeypatch.setattr("flexinfer.cli.process.time.monotonic", lambda: later)
    assert not interrupts.explain_an_error()


def test_handlers_are_the_callers_again_afterwards(capfd):
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    assert ended(("--version",)) == 0
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


def test_a_command_that_is_told_to_end_leaves_no_half_file(tmp_path, capfd, monkeypatch, tiny_model, shipped_profile):
    monkeypatch.setattr("flexinfer.api.FlexInfer.run", lambda *_, **__: signal.raise_signal(signal.SIGTERM))
    trace = str(tmp_path / "trace.json")
    code = ended(("run", str(tiny_model), "--prompt", "x", "--device", "cpu", "--json", "--trace", trace))
    assert code == 128 + signal.SIGTERM and os.listdir(tmp_path) == []
    assert capfd.readouterr().err == "flexinfer: terminated\n"


def test_a_conversation_ends_when_its_answers_have_nowhere_to_go(capfd, monkeypatch, tiny_model, shipped_profile):
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO("hi\nthere\n"))
    with open("/dev/full", "w") as full:
        monkeypatch.setattr("sys.stdout", full)
        assert ended(("chat", str(tiny_model), "--device", "cpu", "--max-new-tokens", "3", "--ignore-eos")) == 2
    assert capfd.readouterr().err == "flexinfer: the output cannot be written: No space left on device\n"


def test_the_package_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "flexinfer", "--version"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.startswith("flexinfer, version ")


def test_an_op_that_does_not_end_keeps_no_process_from_ending(tiny_model, profile_file):
    code = (
        "import os, signal, sys, threading, torch\n"
        "import flexinfer.machine.threaded as threaded\n"
        "from flexinfer.models.opset import TorchOps\n"
        "threaded.GIVE_UP_S, matrix = 0.1, torch.randn(3000, 3000)\n"
        "def activation(*_):\n"
        "    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "    while True: matrix @ matrix\n"
        "TorchOps.activation = activation\n"
        f"{START}"
    )
    run = ("run", str(tiny_model), "--prompt", "x", "--device", "emulated", "--strategy", "offload", "--json")
    environment = {**os.environ, "FLEXINFER_PROFILE": str(profile_file), "FLEXINFER_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, *run], capture_output=True, text=True, timeout=60, env=environment
    )
    assert done.returncode == 130 and done.stdout == ""
    assert done.stderr.splitlines()[-1] == "flexinfer: interrupted"
