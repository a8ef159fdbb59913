"""The clocks of a pass: whole runs by multiplication are what stepping every layer gives."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexinfer.estimator.pipeline import Clock, LayerTimes, Slots, run_layers, step_layer


def slots(layer: LayerTimes, count: int) -> tuple[Slots, Slots]:
    loads = [s for s in (layer.load_attention_s, layer.load_mlp_s) if s]
    return Slots(2, loads * count, False), Slots(2, [layer.load_kv_s] * count if layer.streams_kv else [], False)


def walk(layer: LayerTimes, count: int, by_hand: bool) -> float:
    clock = Clock()
    weights, kv = slots(layer, count)
    weights.prime(clock)
    kv.prime(clock)
    if by_hand:
        for _ in range(count):
            step_layer(clock, layer, weights, kv)
    else:
        run_layers(clock, count, layer, weights, kv)
    return clock.now


@given(st.data())
def test_a_run_by_multiplication_is_the_run_by_steps(data: st.DataObject) -> None:
    flags = {"streams_kv", "delegated"}
    seconds = {f.name: data.draw(st.integers(0, 9), f.name) * 1.0 for f in fields(LayerTimes) if f.name not in flags}
    layer = LayerTimes(**seconds, **{name: data.draw(st.booleans(), name) for name in flags})
    count = data.draw(st.integers(1, 40))
    stepped, multiplied = walk(layer, count, True), walk(layer, count, False)
    # a run that has not settled after four layers may be off by a layer's time, not by a share of the run
    assert multiplied == pytest.approx(stepped, rel=0.01, abs=sum(seconds.values()))


@pytest.mark.parametrize(
    ("attention", "mlp", "load_attention", "load_mlp"),
    [(1, 2, 5, 10), (5, 10, 1, 2), (3, 3, 4, 2), (1, 9, 9, 1), (2, 4, 2, 4)],
)
def test_streaming_overlaps_each_load_with_the_block_before(
    attention: float, mlp: float, load_attention: float, load_mlp: float
) -> None:
    """Two slots: the MLP's weights come while attention computes, the next layer's attention while the MLP does."""
    layer = LayerTimes(attention, mlp, load_attention_s=load_attention, load_mlp_s=load_mlp)
    period = max(attention, load_mlp) + max(mlp, load_attention)
    assert walk(layer, 30, False) - walk(layer, 20, False) == pytest.approx(10 * period)


def test_the_context_queues_behind_the_weights_on_the_link() -> None:
    """A delegated attention's context waits for the MLP's load, which was issued before it."""
    layer = LayerTimes(
        1, 1, load_attention_s=1, load_mlp_s=50, delegated=True, send_qkv_s=1, attend_s=5, context_s=2, output_s=3
    )
    assert walk(layer, 30, False) - walk(layer, 20, False) == pytest.approx(10 * (50 + 2 + 3 + 1))


def test_decode_issues_the_next_steps_first_loads_in_this_step() -> None:
    layer = LayerTimes(1, 1, load_attention_s=4, load_mlp_s=4)
    clock, weights, kv = Clock(), Slots(2, [4.0] * 6, True), Slots(2, [], True)
    weights.prime(clock)
    run_layers(clock, 3, layer, weights, kv)
    clock.work(100)  # head and sampling: time for the first two loads of the next step
    weights.restart()
    before = clock.now
    step_layer(clock, layer, weights, kv)
    assert clock.now - before == 2
