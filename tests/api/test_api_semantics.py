"""Generation semantics on an engine whose model is known: the next token is the last one plus one."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models
from transformers import PreTrainedTokenizerFast, TextIteratorStreamer

from flexinfer.api import FlexInfer
from flexinfer.engine.tokenizer import Tokenizer
from flexinfer.errors import EngineError, UserError
from flexinfer.estimator import HardwareProfile
from flexinfer.options import LoadOptions
from flexinfer.plan import Times
from flexinfer.spec.model_spec import ModelSpec

LETTERS = "abcdefghijklmnopqrstuvwxyz"
SPEC = ModelSpec(
    name="counter",
    family="llama",
    hidden_size=8,
    num_layers=2,
    num_heads=1,
    num_kv_heads=1,
    head_dim=8,
    ffn_size=8,
    vocab_size=27,
    max_positions=64,
    weight_dtype="float32",
    activation="silu",
    gated_mlp=True,
    norm="rms",
    norm_eps=1e-5,
    eos_token_ids=(25,),
)


class CountingEngine:
    """Stands for Engine. With `fails_at` an op fails in that step."""

    def __init__(self, fails_at: int | None = None, flat: bool = False) -> None:
        self.fails_at, self.flat = fails_at, flat
        self.prepared = 0
        self.steps = 0
        self.step_s = 0.0

    def prepare(self, plan, workload) -> None:
        self.prepared += 1

    def generate(self, plan, workload, prompts, pick, on_tokens):
        assert workload.prompt_len == max(map(len, prompts)) and workload.batch == len(prompts)
        last = [prompt[-1] for prompt in prompts]
        for step in range(workload.new_tokens):
            time.sleep(self.step_s)
            if step == self.fails_at:
                raise EngineError("layer 1 mlp failed on the CPU: RuntimeError: boom")
            self.steps = step + 1
            logits_BV = torch.ones(len(prompts), SPEC.vocab_size)
            if not self.flat:
                logits_BV[range(len(prompts)), [(token + 1) % 26 for token in last]] = 9.0
            last = pick(logits_BV, step)
            if all(on_tokens(step, last)):
                break
        times = Times(0.1, 0.1, 0.2, 0.0, 0, 0, 0, 1, 2)
        return type("RunResult", (), {"times": times, "steps": self.steps})()

    def close(self) -> None:
        pass


def letter_tokenizer() -> Tokenizer:
    backend = Backend(models.BPE(vocab={c: i for i, c in enumerate([*LETTERS, "<pad>"])}, merges=[]))
    backend.decoder = decoders.Fuse()
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>"))


@pytest.fixture
def model() -> FlexInfer:
    options = LoadOptions.resolve().on("cpu")
    profile = replace(HardwareProfile.load("a100-icl"), gpu=None, link=None)
    counter = FlexInfer(Path("/nowhere"), SPEC, letter_tokenizer(), options, profile)
    counter._engine = CountingEngine()
    return counter


def test_text_in_text_out(model):
    out = model.generate(["abc", "x"], max_new_tokens=4)
    assert out.texts == ["defg", "y"], "x is followed by y, then z, which ends it and has no text"
    assert out.token_ids == [[3, 4, 5, 6], [24, 25]]
    assert [o.finish_reason for o in out.outputs] == ["length", "stop"]
    assert [o.prompt_tokens for o in out.outputs] == [3, 1]
    assert out.metrics.ttft_s == 0.1 and out.metrics.rss_peak_bytes == 2
    assert out.plan.name == "cpu/cpu" and out.plan.predicted.ttft_s > 0
    assert model.generate("abc", max_new_tokens=1).texts == ["d"]


def test_the_result_as_json(model):
    report = model.generate("w", max_new_tokens=9, seed=4).to_json()
    assert report["schema"] == "flexinfer.run/1" and report["seed"] == 4
    assert report["outputs"] == [
        {"prompt_tokens": 1, "new_tokens": 3, "token_ids": [23, 24, 25], "text": "xy", "finish_reason": "stop"}
    ]
    assert report["plan"]["name"] == "cpu/cpu" and report["measured"]["rss_peak_bytes"] == 2
    assert set(report["predicted"]) == set(report["measured"]) - {"rss_peak_bytes"}


def test_generation_ends_with_the_last_sequence(model):
    model.generate(["x", "w"], max_new_tokens=50)
    assert model._engine.steps == 3


def test_ignore_eos_goes_on(model):
    out = model.generate("x", max_new_tokens=4, ignore_eos=True)
    assert out.texts == ["yzab"] and out.outputs[0].finish_reason == "length"


def test_stop_strings_cut(model):
    out = model.generate(["abc", "j"], max_new_tokens=6, stop=["fg", "zz"])
    assert out.texts == ["de", "klmnop"]
    assert model.generate("abc", max_new_tokens=6, stop="d").texts == [""]


def test_uneven_ids_and_the_default_length(model):
    out = model.generate(input_ids=[[0, 1], [5]], max_new_tokens=2)
    assert out.token_ids == [[2, 3], [6, 7]]
    assert model.generate([[0, 1], [5]], max_new_tokens=2).token_ids == out.token_ids
    assert len(model.generate("a", ignore_eos=True).token_ids[0]) == 64, "the default is cut to the window"


def test_draws_are_the_same_alone_and_in_a_batch(model):
    model._engine.flat = True
    sampling = {"max_new_tokens": 8, "temperature": 1.0, "seed": 7, "ignore_eos": True}
    together = model.generate(["ab", "xyz", "ab"], **sampling).token_ids
    assert model.generate(["xyz"], **sampling).token_ids == [together[1]]
    assert model.generate(["ab", "ab"], **sampling).token_ids == [together[0], together[2]]
    assert together[0] != together[2], "copies of one prompt differ"
    assert model.generate(["ab"], **{**sampling, "seed": 8}).token_ids != [together[0]]


def test_a_drawn_seed_is_reported_and_repeats(model):
    model._engine.flat = True
    first = model.generate("ab", max_new_tokens=12, temperature=1.0, ignore_eos=True)
    assert (
        model.generate("ab", max_new_tokens=12, temperature=1.0, ignore_eos=True, seed=first.seed).texts == first.texts
    )


def test_the_repetition_penalty_sees_prompt_and_answer(model):
    out = model.generate(input_ids=[[3, 2]], max_new_tokens=2, repetition_penalty=100.0)
    assert out.token_ids[0][0] != 3, "3 would follow 2, but the prompt has it"


# -- transformers' names ------------------------------------------------------------------------------------------


def test_a_tensor_in_gives_a_tensor_out(model):
    ids, mask = torch.tensor([[26, 26, 1], [4, 23, 23]]), torch.tensor([[0, 0, 1], [1, 1, 1]])
    out = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=3)
    assert isinstance(out, torch.Tensor)
    assert out.tolist() == [[26, 26, 1, 2, 3, 4], [4, 23, 23, 24, 25, 26]]
    assert out.token_ids == [[2, 3, 4], [24, 25]] and out.texts == ["cde", "y"]
    assert out.metrics.e2e_s == 0.2 and out.plan.name == "cpu/cpu"
    assert model.generate(ids[:1, 2:], max_new_tokens=1).tolist() == [[1, 2]], "the first argument may be ids too"
    assert model.generate(input_ids=ids, max_new_tokens=3, pad_token_id=0).tolist()[1][-1] == 0


def test_eos_token_id_replaces_the_models_own(model):
    assert model.generate("x", max_new_tokens=5, eos_token_id=[1, 2]).texts == ["yza"]
    assert model.generate("a", max_new_tokens=5, eos_token_id=2).token_ids == [[1, 2]]


def test_do_sample_and_max_length(model):
    model._engine.flat = True
    greedy = model.generate("abc", max_length=6, do_sample=False, temperature=0.7)
    assert greedy.token_ids == [[0, 0, 0]], "greedy on equal logits"
    drawn = model.generate("abc", max_new_tokens=20, do_sample=True, ignore_eos=True, seed=1)
    assert len(set(drawn.token_ids[0])) > 5


def test_a_transformers_streamer_hears_prompt_tokens_and_end(model):
    class Recorder:
        def __init__(self):
            self.heard = []

        def put(self, value):
            self.heard.append(value.tolist())

        def end(self):
            self.heard.append("end")

    recorder = Recorder()
    model.generate("ab", max_new_tokens=2, streamer=recorder)
    assert recorder.heard == [[[0, 1]], [2], [3], "end"]
    model._engine.fails_at = 1
    with pytest.raises(EngineError):
        model.generate("ab", max_new_tokens=2, streamer=recorder)
    assert recorder.heard[-1] == "end", "a reader in another thread does not wait for ever"
    with pytest.raises(UserError, match="one prompt"):
        model.generate(["a", "b"], max_new_tokens=2, streamer=recorder)
    with pytest.raises(UserError, match="put"):
        model.generate("a", max_new_tokens=2, streamer=3)


def test_transformers_own_streamer_works(model):
    streamer = TextIteratorStreamer(model.tokenizer, skip_prompt=True, timeout=10)
    thread = threading.Thread(target=model.generate, args=("abc",), kwargs={"max_new_tokens": 4, "streamer": streamer})
    thread.start()
    assert "".join(streamer) == "defg"
    thread.join()


@pytest.mark.parametrize("call", ["generate", "stream", "request"])
def test_unknown_keywords_are_named(model, call):
    with pytest.raises(UserError, match="num_beams.*max_new_tokens") as caught:
        getattr(model, call)("a", num_beams=4)
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        ({"prompts": ""}, "empty"),
        ({"prompts": []}, "no prompt"),
        ({"prompts": ["a", ""]}, "empty"),
        ({}, "prompts as text or as input_ids"),
        ({"prompts": "a", "input_ids": [[1]]}, "one of the two"),
        ({"prompts": "a", "attention_mask": [[1]]}, "attention_mask"),
        ({"input_ids": [[]]}, "empty"),
        ({"input_ids": [[99]]}, "99"),
        ({"prompts": "a", "max_new_tokens": 0}, "max_new_tokens"),
        ({"prompts": "a", "max_new_tokens": 65}, "at most 64"),
        ({"prompts": "a" * 65}, "65 tokens.*64"),
        ({"prompts": "a", "temperature": -1}, "temperature"),
        ({"prompts": "a", "stop": ""}, "stop string"),
        ({"prompts": "a", "max_length": 5, "max_new_tokens": 5}, "not both"),
        ({"prompts": "aaa", "max_length": 2}, "the prompt alone has 3 tokens"),
        ({"prompts": "a", "eos_token_id": "b"}, "eos_token_id"),
        ({"prompts": "a", "chat": True}, "no chat template"),
        ({"prompts": 3}, "prompts"),
    ],
)
def test_bad_requests_are_refused_with_one_line(model, call, named):
    with pytest.raises(UserError, match=named) as caught:
        model.generate(**call)
    assert "\n" not in str(caught.value)
    assert model._engine.prepared == 0


def test_without_a_tokenizer_ids_work_and_text_is_refused(model):
    model.tokenizer = None
    out = model.generate(input_ids=[[1]], max_new_tokens=2)
    assert out.token_ids == [[2, 3]] and out.texts == [""]
    for refused in (
        lambda: model.generate("a"),
        lambda: model.stream(input_ids=[[1]]),
        lambda: model.generate(input_ids=[[1]], stop="a"),
    ):
        with pytest.raises(UserError, match="tokenizer"):
            refused()


# -- stream -------------------------------------------------------------------------------------------------------


def stream_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "flexinfer-stream"]


def test_pieces_add_up_and_the_thread_ends(model):
    pieces = list(model.stream("abc", max_new_tokens=4))
    assert pieces == ["d", "e", "f", "g"] and not stream_threads()


def test_stop_strings_hold_text_back_in_a_stream(model):
    assert list(model.stream("abc", max_new_tokens=9, stop="fgh")) == ["d", "e"]


def test_what_goes_wrong_reaches_the_consumer(model):
    model._engine.fails_at = 2
    seen = []
    with pytest.raises(EngineError, match="boom"):
        seen.extend(model.stream("abc", max_new_tokens=9))
    assert not stream_threads()
    model._engine.fails_at = None
    assert model.generate("a", max_new_tokens=1).texts == ["b"], "the model can be used again"


def test_leaving_a_stream_stops_it(model):
    model._engine.step_s = 0.01
    stream = model.stream("a", max_new_tokens=60, ignore_eos=True)
    assert next(stream) == "b"
    stream.close()
    assert not stream_threads() and model._engine.steps < 60


def test_one_request_at_a_time(model):
    model._engine.step_s = 0.01
    stream = model.stream("a", max_new_tokens=60, ignore_eos=True)
    next(stream)
    with pytest.raises(UserError, match="generating already"):
        model.generate("b", max_new_tokens=1)
    stream.close()
    assert model.generate("b", max_new_tokens=1).texts == ["c"]


def test_a_stream_is_checked_when_it_is_made(model):
    with pytest.raises(UserError, match="max_new_tokens"):
        model.stream("a", max_new_tokens=0)
    with pytest.raises(UserError, match="one prompt"):
        model.stream(["a", "b"])


# -- plan ---------------------------------------------------------------------------------------------------------


def test_a_plan_has_the_candidates_fields(model):
    plan = model.plan(batch=2, prompt_len=8, new_tokens=4)
    report = plan.to_json()
    assert report["schema"] == "flexinfer.plan/1"
    assert report["workload"] == {"batch": 2, "prompt_len": 8, "new_tokens": 4, "cached_tokens": 0}
    for name, value in report["chosen"].items():
        if name not in ("prefill", "decode"):
            assert getattr(plan, name) == value, name
    assert plan.prefill.strategy == report["chosen"]["prefill"]["strategy"] == "cpu"
    assert plan.candidates[0].name == plan.name and plan.name in plan.explain()
    assert [c.to_json() for c in plan.candidates] == report["candidates"]


def test_a_plan_past_the_window_is_refused(model):
    with pytest.raises(UserError, match="at most 5 new"):
        model.plan(prompt_len=60, new_tokens=6)
    with pytest.raises(UserError, match="batch"):
        model.plan(batch=0)
