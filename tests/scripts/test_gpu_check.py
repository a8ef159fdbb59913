"""The GPU check runs from end to end on the emulated device, so that it works when a GPU is lent."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_check"


@pytest.mark.slow
def test_the_rehearsal_finds_every_pair_equal_and_times_every_system() -> None:
    command = [sys.executable, str(SCRIPT), "--device", "emulated", "--size", "tiny", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert len(report["parity"]) == 60
    assert all(row["equal"] and row["bytes_as_planned"] and row["peak_as_planned"] for row in report["parity"])
    assert {row["system"] for row in report["times"]} == {"auto", "flexgen-style", "offload", "split", "cpu"}
    assert all(row["predicted_ttft_s"] > 0 and row["ttft_s"] > 0 for row in report["times"])
