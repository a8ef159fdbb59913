"""What only a process of its own shows: Ctrl-C in the middle of streaming, full and closed outputs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence

import pytest


def start(model, *arguments: str, stdout=subprocess.PIPE) -> subprocess.Popen:
    command = [sys.executable, "-c", "from flexinfer.cli.main import main; main()", "run", str(model), *arguments]
    return subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE)


def long_run(*more: str) -> Sequence[str]:
    return ("--prompt", "hello", "--max-new-tokens", "4k", "--ignore-eos", "--device", "cpu", *more)


@pytest.mark.parametrize("device", ["cpu", "emulated"])
def test_ctrl_c_while_streaming_ends_at_once_with_130(tiny_model, tmp_path, device):
    trace = tmp_path / "trace.json"
    strategy = ("--strategy", "cpu" if device == "cpu" else "offload")
    process = start(tiny_model, *long_run("--device", device, *strategy, "--trace", str(trace)))
    assert process.stdout.read(3), "it streams"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=10)
    assert process.returncode == 130
    assert err.decode().strip().splitlines()[-1] == "flexinfer: interrupted" and "Traceback" not in err.decode()
    assert list(tmp_path.iterdir()) == [], "no half-written trace"


def test_a_full_output_exits_2(tiny_model):
    with open("/dev/full", "w") as full:
        process = start(tiny_model, "--prompt", "x", "--max-new-tokens", "2", "--device", "cpu", "--json", stdout=full)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert err.decode().strip().splitlines()[-1] == "flexinfer: the output cannot be written: No space left on device"


def test_a_reader_that_leaves_ends_the_run(tiny_model):
    process = start(tiny_model, *long_run())
    assert process.stdout.read(1)
    process.stdout.close()
    err = process.stderr.read().decode()
    assert process.wait(timeout=10) == 2 and "Broken pipe" in err and "Traceback" not in err


def test_a_prompt_may_come_from_stdin(tiny_model):
    reader, writer = os.pipe()
    os.write(writer, b"caf\xff")
    os.close(writer)
    command = [sys.executable, "-c", "from flexinfer.cli.main import main; main()", "run", str(tiny_model)]
    done = subprocess.run([*command, "--prompt-file", "-", "--device", "cpu"], stdin=reader, capture_output=True)
    os.close(reader)
    assert done.returncode == 2 and b"prompt file - is not UTF-8" in done.stderr
