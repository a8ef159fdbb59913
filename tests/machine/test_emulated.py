"""The emulated GPU: bounded, poisoned, separate, throttled, and loud when something fails."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from flexinfer.errors import DoesNotFitError, EngineError
from flexinfer.machine.arena import Arena
from flexinfer.machine.base import BoundOp
from flexinfer.machine.emulated import EmulatedConfig, EmulatedMachine
from flexinfer.machine.marked import EmulatedTensor, unmark
from flexinfer.schedule.ops import Op


@pytest.fixture
def machine():
    made = EmulatedMachine(EmulatedConfig(1 << 20, 100e6), Arena("CPU", None), tracing=True)
    yield made
    made.close()


def gpu_floats(machine: EmulatedMachine, *shape: int) -> torch.Tensor:
    numel = int(torch.Size(shape).numel())
    return machine.empty("gpu", 4 * numel).view(torch.float32).view(shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_unwritten_and_freed_memory_is_nan(machine: EmulatedMachine, dtype: torch.dtype) -> None:
    tensor = machine.empty("gpu", 64).view(dtype)
    assert torch.isnan(tensor).all()
    tensor.zero_()
    machine.release(tensor)
    assert torch.isnan(tensor).all()


def test_mixing_devices_raises_with_the_op(machine: EmulatedMachine) -> None:
    weight = gpu_floats(machine, 4, 4).zero_()
    with pytest.raises(EngineError, match=r"linear.*CPU tensor of shape \(2, 4\)"):
        torch.nn.functional.linear(torch.ones(2, 4), weight)
    with pytest.raises(EngineError, match="cat"):
        torch.cat([weight, torch.ones(1, 4)])
    assert isinstance(weight + 1.0, EmulatedTensor)
    assert isinstance(weight.view(2, 8).split(4, dim=1)[0], EmulatedTensor)


def test_a_transfer_crosses_the_link_and_takes_its_time(machine: EmulatedMachine) -> None:
    source = torch.arange(250_000, dtype=torch.float32)
    target = gpu_floats(machine, 250_000)
    start = time.perf_counter()
    assert machine.transfer(target, source) == 1_000_000
    assert time.perf_counter() - start >= 0.0099, "1 MB at 100 MB/s"
    back = torch.empty(250_000)
    machine.transfer(back, target)
    assert torch.equal(back, source)


def test_what_is_on_its_way_is_not_there_yet_where_ops_are_delayed() -> None:
    machine = EmulatedMachine(EmulatedConfig(1 << 20, 1e12, jitter_s=0.2), Arena("CPU", None))
    target = gpu_floats(machine, 4).zero_()
    seen: list[bool] = []
    submit(machine, "h2d", lambda p: machine.transfer(target, torch.ones(4)))
    while not torch.equal(unmark(target), torch.ones(4)):
        seen.append(bool(torch.isnan(unmark(target)).all()))
        time.sleep(0.001)
    machine.close()
    assert any(seen)


def test_transfers_within_a_device_or_of_another_shape_raise(machine: EmulatedMachine) -> None:
    target = gpu_floats(machine, 4)
    with pytest.raises(EngineError, match="one device to the other"):
        machine.transfer(target, target)
    with pytest.raises(EngineError, match="transfer"):
        machine.transfer(target, torch.ones(5))


def test_the_arena_is_bounded_and_counts_each_name_once() -> None:
    arena = Arena("GPU", 1000)
    arena.reserve("a", 300)
    with pytest.raises(DoesNotFitError, match=r"GPU memory: b needs .* the limit is 1000 B"):
        arena.reserve("b", 600)
    with pytest.raises(EngineError, match="a is reserved already"):
        arena.reserve("a", 1)
    arena.release("a")
    with pytest.raises(EngineError, match="a is released but was not held"):
        arena.release("a")
    assert arena.peak_bytes == 512, "sizes are rounded up to 256"


def submit(machine: EmulatedMachine, engine, run, after=(), kind="mlp", layer=3):
    return machine.submit(BoundOp(Op(kind, engine, layer=layer, block="mlp"), run), None, after)


def test_an_op_waits_for_what_it_depends_on(machine: EmulatedMachine) -> None:
    order: list[str] = []

    def slow(params: object) -> int:
        time.sleep(0.05)
        order.append("load")
        return 7

    def fast(params: object) -> int:
        order.append("mlp")
        return 0

    loaded = submit(machine, "h2d", slow, kind="load_weights")
    submit(machine, "compute", fast, [loaded])
    machine.drain()
    assert order == ["load", "mlp"]
    assert machine.traffic["h2d"] == 7
    assert {span.engine for span in machine.spans} == {"compute", "h2d"}


def test_an_exception_in_an_engine_reaches_the_caller_with_the_op(machine: EmulatedMachine) -> None:
    def broken(params: object) -> int:
        raise ZeroDivisionError("division by zero")

    ran: list[int] = []
    failed = submit(machine, "h2d", broken)
    submit(machine, "compute", lambda p: ran.append(1) or 0, [failed])
    with pytest.raises(EngineError, match="layer 3 mlp failed: ZeroDivisionError: division by zero"):
        machine.drain()
    assert ran == [], "what depends on a failed op does not run"
    machine.abort()
    submit(machine, "compute", lambda p: ran.append(2) or 0)
    machine.drain()
    assert ran == [2], "the machine can be used again"


def test_closing_leaves_no_thread(machine: EmulatedMachine) -> None:
    submit(machine, "compute", lambda p: 0)
    machine.drain()
    machine.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("flexinfer-")]
