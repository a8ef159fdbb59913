"""Numbers, files and options as careless people write them, and as other libraries hand them over."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from flexinfer import settings
from flexinfer.engine.prompt import parse_ids
from flexinfer.errors import UserError
from flexinfer.options import LoadOptions
from flexinfer.spec import Workload
from flexinfer.units import as_real, as_whole, parse_count, parse_number, parse_rate, parse_size, parse_whole

GREEDY = {"max_new_tokens": 3, "ignore_eos": True}


@pytest.mark.parametrize(
    ("text", "count"),
    [("512", 512), ("1k", 1000), ("25.6K", 25600), ("1.001k", 1001), ("1e3", 1000), (" 7 ", 7), ("8.0", 8)],
)
def test_counts(text, count):
    assert parse_count(text) == count


@pytest.mark.parametrize("text", ["", "k", "1_0", "nan", "inf", "\u0663", "1e9999", "0x10", "1,2", "-", "1k2", "--1"])
def test_what_is_no_count(text):
    with pytest.raises(UserError, match="is not a number"):
        parse_count(text)


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "0.0005k", "1e30", "1e999"])
def test_counts_that_nothing_can_have(text):
    with pytest.raises(UserError, match="is not a positive whole number|is too large"):
        parse_count(text)


@pytest.mark.parametrize("text", ["1_0", "\u0663", "1.0", "", "1 2", "0x1"])
def test_ids_and_whole_numbers_are_plain_digits(text):
    with pytest.raises(UserError):
        parse_whole(text)
    with pytest.raises(UserError, match="is not a list of token ids"):
        parse_ids(f"1,{text}")


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1_0", "1k", "x", "", "1e999"])
def test_what_is_no_number(text):
    with pytest.raises(UserError, match="is not a number"):
        parse_number(text)
    assert parse_number("-0.5") == -0.5


@pytest.mark.parametrize("text", ["0.5", "1e-9", "0.0001KiB"])
def test_a_size_of_less_than_a_byte_is_refused_as_it_was_written(text):
    with pytest.raises(UserError, match=f"'{text}' is less than a byte"):
        parse_size(text)


@pytest.mark.parametrize("value", [np.int64(3), np.uint8(3), torch.tensor(3), 3])
def test_whole_numbers_of_any_type(value):
    assert as_whole(value) == 3 and type(as_whole(value)) is int
    assert Workload(value, value, value).batch == 3
    assert parse_size(value) == 3 and settings.parse_layers(value) == 3 and settings.parse_threads(value) == 3


@pytest.mark.parametrize("value", [True, 3.0, "3", None, np.float64(3), np.bool_(True), [3]])
def test_what_is_no_whole_number(value):
    assert as_whole(value) is None
    with pytest.raises(UserError, match="batch is .*; it must be a whole number of at least 1"):
        Workload(value, 1, 1)


def test_real_numbers_of_any_type():
    assert as_real(np.float32(0.5)) == 0.5 and type(as_real(np.float64(0.5))) is float
    assert parse_rate(np.float32(8)) == 8.0
    assert [as_real(value) for value in (True, "1", None, float("nan"), np.float32("inf"))] == [None] * 5


@pytest.mark.parametrize("threads", [100_000, "1e6", "1025"])
def test_more_threads_than_a_runtime_survives_are_refused(threads, monkeypatch):
    with pytest.raises(UserError, match="too many; give at most 1024"):
        LoadOptions.resolve(threads=threads)
    monkeypatch.setenv("FLEXINFER_THREADS", str(threads))
    with pytest.raises(UserError, match="FLEXINFER_THREADS: .*too many"):
        settings.check_environment()


@pytest.mark.parametrize("profile", ["", 5, {}, b"x"])
def test_a_profile_is_named_by_text_or_a_path(profile):
    with pytest.raises(UserError, match="is not the name of a file"):
        LoadOptions.resolve(profile=profile)
    assert LoadOptions.resolve(profile=Path("a")).profile == "a"


# -- what generate takes ----------------------------------------------------------------------------------------------


@pytest.fixture
def model(load):
    return load(device="cpu")


@pytest.mark.parametrize(
    "prompts",
    [
        [[5, 6]],
        [5, 6],
        (5, 6),
        range(5, 7),
        np.array([5, 6]),
        np.array([[5, 6]], dtype=np.uint16),
        [np.int64(5), np.int32(6)],
        [[np.int64(5), 6]],
        [np.array([5, 6])],
        [torch.tensor([5, 6])],
    ],
)
def test_ids_in_every_form_are_the_same_prompt(model, prompts):
    expected = model.generate(input_ids=[[5, 6]], **GREEDY).token_ids
    assert model.generate(prompts, **GREEDY).token_ids == expected
    assert model.generate(input_ids=prompts, **GREEDY).token_ids == expected


@pytest.mark.parametrize(
    "prompts",
    [b"hi", {"a"}, {"input_ids": [[1]]}, 5, 1.5, [True, False], np.array([1.5]), np.array(1), [["a"]], [5, "a"]],
)
def test_what_is_neither_text_nor_ids_is_refused(model, prompts):
    with pytest.raises(UserError):
        model.generate(prompts, **GREEDY)


def test_a_tokenizers_output_is_unpacked(model):
    encoded = model.tokenizer.backend(["hello", "a"])
    expected = model.generate(["hello", "a"], **GREEDY).token_ids
    assert model.generate(**encoded, **GREEDY).token_ids == expected
    with pytest.raises(UserError, match=r"generate\(\*\*it\)"):
        model.generate(encoded, **GREEDY)


def test_a_tensor_without_values_is_refused(model):
    with pytest.raises(UserError, match="input_ids: .*meta"):
        model.generate(torch.zeros(1, 2, dtype=torch.long, device="meta"), **GREEDY)


@pytest.mark.parametrize(
    "mask", [[[0, 1, 1]], [[False, True, True]], [[0.0, 1.0, 1.0]], torch.tensor([[0, 1, 1]]), np.array([[0, 1, 1]])]
)
def test_padding_on_the_left_is_left_out(model, mask):
    expected = model.generate(input_ids=[[5, 6]], **GREEDY).token_ids
    assert model.generate(input_ids=[[0, 5, 6]], attention_mask=mask, **GREEDY).token_ids == expected


@pytest.mark.parametrize("mask", [[[-1e9, 0, 0]], [[2, 1, 1]], [[-1, 0, 0]], [[float("nan"), 1, 1]], "x", 1, [["1"]]])
def test_a_mask_of_other_numbers_is_refused(model, mask):
    with pytest.raises(UserError, match="attention_mask must be lists of"):
        model.generate(input_ids=[[0, 5, 6]], attention_mask=mask, **GREEDY)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("do_sample", "no"), ("do_sample", 1), ("ignore_eos", "no"), ("chat", "x"), ("stop", 5), ("stop", b"x"),
        ("pad_token_id", "x"), ("pad_token_id", -1), ("eos_token_id", 257), ("eos_token_id", [1, 10**9]),
        ("max_length", "x"), ("max_length", 2), ("max_length", True), ("temperature", "hot"), ("top_k", 1.5),
    ],
)  # fmt: skip
def test_an_option_of_the_wrong_kind_is_named(model, name, value):
    with pytest.raises(UserError, match=name):
        model.generate("hello", **{name: value})


def test_numbers_of_numpy_and_torch_are_numbers(model):
    plain = model.generate("hello", max_new_tokens=3, temperature=0.5, top_k=5, top_p=0.9, seed=3, eos_token_id=[7])
    other = model.generate(
        "hello", max_new_tokens=np.int64(3), temperature=np.float32(0.5), top_k=np.int32(5), top_p=np.float64(0.9),
        seed=np.uint64(3), eos_token_id=torch.tensor([7]),
    )  # fmt: skip
    assert plain.token_ids == other.token_ids and type(other.seed) is int
    assert model.plan(batch=np.int64(2), prompt_len=np.int64(5)).to_json()["workload"]["batch"] == 2


def test_a_penalty_that_no_logit_survives_is_bad_input(model):
    with pytest.raises(UserError, match="repetition_penalty 1e-300 makes logits overflow"):
        model.generate("hello", repetition_penalty=1e-300)


@pytest.mark.parametrize("path", [None, 5, b"model", ""])
def test_a_model_is_named_by_text_or_a_path(path):
    from flexinfer import FlexInfer

    with pytest.raises(UserError):
        FlexInfer.from_pretrained(path)


def test_torchs_own_names_and_none_leave_nothing_to_guess(load):
    assert load(device=torch.device("cpu"), dtype=torch.bfloat16).spec.weight_dtype == "bfloat16"
    assert load(device="cpu", dtype=None, strategy=None, profile=None).spec.weight_dtype == "float32"


# -- on the command line ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan", "opt-125m", "--hardware", ""),
        ("plan", "opt-125m", "--profile", ""),
        ("run", "x", "--prompt", "x", "--trace", ""),
        ("run", "x", "--prompt-file", ""),
        ("calibrate", "--output", ""),
    ],
)
def test_an_empty_name_is_not_taken_for_none(arguments, capfd):
    from flexinfer.cli.main import main

    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert ended.value.code == 2
    assert f"Invalid value for '{arguments[-2]}': '' is not the name of a file" in capfd.readouterr().err


def test_the_mark_that_editors_begin_a_file_with_is_no_text(tmp_path):
    from flexinfer.cli.run import _read

    path = tmp_path / "prompt.txt"
    path.write_bytes(b"\xef\xbb\xbfhello\r\n")
    assert _read(str(path)) == "hello"
