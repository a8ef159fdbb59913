"""Models that are closed, dropped or listened to by streamers that fail."""

from __future__ import annotations

import gc
import os
import threading
import time

import pytest

from flexinfer.errors import UserError
from flexinfer.host import rss_bytes

LIMITS = {"max_new_tokens": 6, "ignore_eos": True}
LONG = {"max_new_tokens": 4000, "ignore_eos": True}


@pytest.mark.parametrize("call", [lambda m: m.generate("x"), lambda m: list(m.stream("x")), lambda m: m.load()])
def test_a_closed_model_says_so(load, call):
    model = load(device="cpu")
    model.close()
    model.close()
    with pytest.raises(UserError, match="this model is closed; load it again"):
        call(model)


@pytest.mark.parametrize("options", [{}, {"device": "cpu"}], ids=["emulated", "cpu"])
def test_closing_a_model_ends_its_stream(load, threads, options):
    model = load(**options)
    pieces = model.stream("hello", **LONG)
    next(pieces)
    model.close()
    with pytest.raises(UserError, match="closed"):
        list(pieces)
    assert threads() == []


def test_a_generation_in_another_thread_fails_when_the_model_is_closed(load):
    model, said = load(), []

    def generate() -> None:
        try:
            model.generate("hello", **LONG)
        except UserError as error:
            said.append(str(error))

    thread = threading.Thread(target=generate)
    thread.start()
    while model._engine is None or model._engine.machine.traffic["h2d"] == 0:
        time.sleep(0.001)
    model.close()
    thread.join(timeout=10)
    assert said == ["this model is closed; load it again"]


def test_a_streamer_cannot_close_the_model_that_it_listens_to(load):
    class Closing:
        count = 0

        def put(self, value) -> None:
            self.count += 1
            if self.count == 3:
                model.close()

        def end(self) -> None:
            pass

    model = load(device="cpu")
    with pytest.raises(UserError, match="middle of its own generation"):
        model.generate("hello", streamer=Closing(), **LIMITS)
    assert len(model.generate("hello", **LIMITS).token_ids[0]) == 6


@pytest.mark.parametrize("at", [1, 2, 4])
def test_a_streamer_that_fails_is_ended_and_changes_nothing(load, at):
    class Failing:
        puts = ends = 0

        def put(self, value) -> None:
            self.puts += 1
            if self.puts == at:
                raise RuntimeError("from the streamer")

        def end(self) -> None:
            self.ends += 1

    model, streamer = load(), Failing()
    expected = model.generate("hello", **LIMITS).token_ids
    with pytest.raises(RuntimeError, match="from the streamer"):
        model.generate("hello", streamer=streamer, **LIMITS)
    assert streamer.ends == 1, "no reader waits for ever"
    assert model.generate("hello", **LIMITS).token_ids == expected


def test_a_model_that_nobody_closed_ends_its_threads(tiny_model, shipped_profile, threads):
    from flexinfer import FlexInfer

    model = FlexInfer.from_pretrained(tiny_model, device="emulated", strategy="offload", gpu_layers=0)
    model.generate("hello", **LIMITS)
    assert threads() != []
    del model
    gc.collect()
    assert threads() == []


def test_loading_again_and_again_gives_one_plan_and_takes_no_more_memory(load):
    plans, answers, resident = set(), set(), []
    for _ in range(6):
        model = load()
        result = model.generate("hello", **LIMITS)
        plans.add(repr(result.plan.plan))
        answers.add(str(result.token_ids))
        model.close()
        gc.collect()
        resident.append(rss_bytes() or 0)
    assert len(plans) == len(answers) == 1
    assert resident[-1] - resident[1] < 4 * 2**20
    assert len(os.listdir("/proc/self/fd")) < 200


def test_a_stream_takes_no_streamer(load):
    with pytest.raises(UserError, match="stream yields the text itself"):
        load(device="cpu").stream("hello", streamer=object())
