"""A tiny model on a shipped machine, and what a fault must not leave behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


def engine_threads(most: int | None = None) -> list[str]:
    """The names of the engines' and streams' threads. With `most`, one that is just ending may take a moment."""
    deadline = time.monotonic() + 5
    while True:
        names = [thread.name for thread in threading.enumerate() if thread.name.startswith("flexinfer")]
        if most is None or len(names) <= most or time.monotonic() > deadline:
            return names
        time.sleep(0.005)


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    assert engine_threads() == []
    yield
    assert engine_threads(most=0) == []


@pytest.fixture
def threads() -> Callable[..., list[str]]:
    """See engine_threads."""
    return engine_threads


@pytest.fixture
def load(tiny_model: Path, shipped_profile: None) -> Iterator[Callable[..., Any]]:
    """Loads the tiny model, unless told otherwise on the emulated device with all streamed; closes it at the end."""
    from flexinfer import FlexInfer

    opened = []
    streamed = {"device": "emulated", "strategy": "offload", "gpu_layers": 0, "gpu_memory": "1MiB"}

    def start(**options: Any) -> FlexInfer:
        opened.append(FlexInfer.from_pretrained(tiny_model, **(options or streamed)))
        return opened[-1]

    yield start
    for model in opened:
        model.close()
