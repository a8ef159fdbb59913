"""Ctrl-C at any moment, hanging and failing engines: an end in time, nothing left, and later results unchanged."""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from flexinfer.errors import EngineError
from flexinfer.machine import lanes, threaded
from flexinfer.machine.emulated import EmulatedMachine
from flexinfer.machine.lanes import LaneHandle
from flexinfer.machine.threaded import ThreadedMachine
from flexinfer.models.opset import TorchOps

LIMITS = {"max_new_tokens": 12, "ignore_eos": True}
MIXED = {
    "device": "emulated",
    "prefill": "offload",
    "decode": "split",
    "gpu_layers": 1,
    "gpu_memory": "1MiB",
    "link_bandwidth": "10GB/s",
}


@contextmanager
def interrupt_after(seconds: float, again_after: float = 0.0) -> Iterator[None]:
    """Raises KeyboardInterrupt in the main thread between any two of its steps, once or again and again."""

    def raise_it(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, raise_it)
    signal.setitimer(signal.ITIMER_REAL, seconds, again_after)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class InterruptedLock:
    """A lock whose taker is interrupted in the instant after."""

    def __init__(self, lock) -> None:
        self._lock = lock
        self.release = lock.release

    def acquire(self, timeout: float = -1) -> bool:
        self._lock.acquire(timeout=timeout)
        raise KeyboardInterrupt


def test_a_waiter_that_is_broken_off_keeps_nobody_waiting():
    handle = LaneHandle("op", lambda event: None)
    other = threading.Thread(target=handle.wait_issued)
    other.start()
    lock, handle._lock = handle._lock, InterruptedLock(handle._lock)
    threading.Timer(0.05, handle.finish, ["event"]).start()
    with pytest.raises(KeyboardInterrupt):
        handle.wait_issued()
    other.join(timeout=5)
    assert not other.is_alive() and not lock.locked() and handle.wait_issued() == "event"


@pytest.mark.parametrize("again", [0.0, 0.0015], ids=["once", "again and again"])
def test_interruptions_anywhere_change_no_later_result(load, threads, again, monkeypatch):
    # Python reports an interruption of a callback of its garbage collection, and pytest's reporter, which imports and
    # formats, is interrupted in turn
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    model, draw = load(**MIXED), random.Random(7)
    expected = model.generate("hello", **LIMITS).token_ids
    start = time.perf_counter()
    model.generate("hello", **LIMITS)
    length_s = time.perf_counter() - start
    interrupted = 0
    for attempt in range(40):
        try:
            with interrupt_after(draw.uniform(0.0002, length_s), again):
                model.generate("hello", **LIMITS)
        except KeyboardInterrupt:
            interrupted += 1
        if attempt % 4 == 3:
            assert model.generate("hello", **LIMITS).token_ids == expected
        assert len(threads(most=3)) <= 3
    assert interrupted > 5


def test_a_second_ctrl_c_while_the_first_is_dealt_with(load, monkeypatch):
    model = load()
    expected = model.generate("hello", **LIMITS).token_ids
    close = ThreadedMachine.close

    def closes(self) -> None:
        monkeypatch.setattr(ThreadedMachine, "close", close)
        raise KeyboardInterrupt

    def fails(*_: object) -> None:
        monkeypatch.undo()
        monkeypatch.setattr(ThreadedMachine, "close", closes)
        raise KeyboardInterrupt

    monkeypatch.setattr("flexinfer.engine.generation.Generation.on_tokens", fails)
    with pytest.raises(KeyboardInterrupt):
        model.generate("hello", **LIMITS)
    assert model.generate("hello", **LIMITS).token_ids == expected


def test_a_copy_that_would_take_days_is_broken_off_at_once(tiny_model, load):
    slow = load(device="emulated", strategy="offload", gpu_layers=0, gpu_memory="1MiB", link_bandwidth=1.0)
    start = time.perf_counter()
    with pytest.raises(KeyboardInterrupt), interrupt_after(0.3):
        slow.generate("hello", **LIMITS)
    assert time.perf_counter() - start < 3


def test_an_engine_that_hangs_is_an_error_and_is_left_behind(load, threads, monkeypatch, capfd):
    model, release = load(), threading.Event()
    expected = model.generate("hello", **LIMITS).token_ids
    activation = TorchOps.activation

    def hangs(self, *arguments):
        release.wait()
        return activation(self, *arguments)

    monkeypatch.setattr(lanes, "WATCHDOG_S", 0.5)
    monkeypatch.setattr(threaded, "GIVE_UP_S", 0.2)
    monkeypatch.setattr(TorchOps, "activation", hangs)
    with pytest.raises(EngineError, match="nothing moved"):
        model.generate("hello", **LIMITS)
    monkeypatch.setattr(TorchOps, "activation", activation)
    monkeypatch.setattr(lanes, "WATCHDOG_S", 60.0)
    assert model.generate("hello", **LIMITS).token_ids == expected, "with the old thread still in its op"
    release.set()
    assert threads(most=3).count("flexinfer-compute") == 1
    assert model.generate("hello", **LIMITS).token_ids == expected


def test_memory_that_is_released_is_free(load, monkeypatch):
    """Whatever an arena counts as free nobody holds on to: not a bound op, not the thread that ran one."""
    made = []
    empty = EmulatedMachine.empty

    def watched(self, device, nbytes):
        tensor = empty(self, device, nbytes)
        made.append((tensor.untyped_storage()._weak_ref(), device, nbytes))
        return tensor

    def held(device: str) -> int:
        return sum(n for ref, where, n in made if where == device and not torch.UntypedStorage._expired(ref))

    def check(model) -> None:
        for device in ("gpu", "cpu"):
            listed = (t.nbytes for (where, _), t in model._engine.memory._tensors.items() if where == device)
            assert held(device) == sum(listed)

    monkeypatch.setattr(EmulatedMachine, "empty", watched)
    model = load(device="emulated", prefill="offload", decode="cpu", gpu_layers=0, gpu_memory="1MiB")
    decode = "flexinfer.engine.engine._Generation._decode"
    seen = []

    def after_the_switch(self, params):
        seen.append(held("gpu"))
        check(model)
        return 1

    monkeypatch.setattr(decode, after_the_switch)
    model.generate("hello", **LIMITS)
    assert seen == [0], "decode runs on the CPU alone"
    check(model)
    model.close()
    assert held("gpu") == held("cpu") == 0
