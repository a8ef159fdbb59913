"""What only a process of its own shows: Ctrl-C in the middle of streaming."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

LONG = ("--prompt", "hello", "--max-new-tokens", "4k", "--ignore-eos")


def start(model, *arguments: str) -> subprocess.Popen:
    command = [sys.executable, "-c", "from flexinfer.cli.main import main; main()", "run", str(model), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.parametrize("device", ["cpu", "emulated"])
def test_ctrl_c_while_streaming_ends_at_once_with_130(tiny_model, tmp_path, device):
    trace = tmp_path / "trace.json"
    strategy = ("--strategy", "cpu" if device == "cpu" else "offload")
    process = start(tiny_model, *LONG, "--device", device, *strategy, "--trace", str(trace))
    assert process.stdout.read(3), "it streams"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=10)
    assert process.returncode == 130
    assert err.decode().strip().splitlines()[-1] == "flexinfer: interrupted" and "Traceback" not in err.decode()
    assert list(tmp_path.iterdir()) == [], "no half-written trace"
