"""Stop tokens from three places, stop strings over token borders, counts; and one sequence's bookkeeping."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexinfer.engine.sequence import SequenceOutput
from flexinfer.engine.stopping import StopRules, StopStrings, as_token_ids, stop_token_ids
from flexinfer.errors import ModelError, UserError


def letters(ids) -> str:
    return "".join(chr(97 + i) for i in ids)


def test_the_stop_set_is_a_union(tmp_path):
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 8]}))
    assert stop_token_ids(tmp_path, (8, 9), (1,)) == {1, 7, 8, 9}
    gguf = tmp_path / "model.gguf"
    gguf.touch()
    assert stop_token_ids(gguf, (1,)) == {1, 7, 8}
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 7}))
    assert stop_token_ids(tmp_path) == {7}
    (tmp_path / "generation_config.json").unlink()
    assert stop_token_ids(tmp_path) == set()


@pytest.mark.parametrize("content", ["{", "[1]"])
def test_a_broken_generation_config_is_named(tmp_path, content):
    (tmp_path / "generation_config.json").write_text(content)
    with pytest.raises(ModelError, match=r"generation_config\.json"):
        stop_token_ids(tmp_path)


@pytest.mark.parametrize("value", ["2", -1, True, [1, None], 1.5])
def test_token_ids_are_whole_numbers(value):
    with pytest.raises(UserError, match="eos_token_id"):
        as_token_ids(value, "eos_token_id")


@given(
    st.text("abc", max_size=20),
    st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.integers(0, 20), max_size=6),
)
def test_stop_strings_cut_where_the_first_is_complete_however_the_text_arrives(text, strings, cuts):
    places = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    pieces = [text[a:b] for a, b in zip(places, places[1:], strict=False)]
    stops, shown = StopStrings(strings), ""
    for piece in pieces:
        shown += stops.push(piece)
        assert not any(s in shown for s in strings)
    shown += stops.flush()
    found = any(s in text for s in strings)
    assert stops.found == found
    if found:
        assert text.startswith(shown)
        assert any(text[len(shown) :].startswith(s) for s in strings)
    else:
        assert shown == text


def test_what_may_start_a_stop_string_is_held_back():
    stops = StopStrings(["<end>"])
    assert [stops.push(p) for p in ["a<", "e", "x<en", "d", ">b"]] == ["a", "", "<ex", "", ""]
    assert stops.found and stops.flush() == ""


@pytest.mark.parametrize("live", [True, False])
def test_a_stop_token_ends_the_sequence_and_has_no_text(live):
    output = SequenceOutput([0], StopRules(10, frozenset({25})), letters, live)
    pieces = [output.push(token) for token in (0, 1, 25, 2)]
    pieces.append(output.finish())
    assert output.token_ids == [0, 1, 25] and output.finish_reason == "stop"
    assert "".join(pieces) == output.text == "ab"
    assert output.history == [0, 0, 1, 25]


@pytest.mark.parametrize("live", [True, False])
def test_a_stop_string_over_two_tokens_is_cut(live):
    output = SequenceOutput([0], StopRules(10, strings=("bc",)), letters, live)
    for token in (0, 1, 2, 3):
        output.push(token)
    output.finish()
    assert output.token_ids == [0, 1, 2] and output.finish_reason == "stop" and output.text == "a"


@pytest.mark.parametrize("live", [True, False])
def test_the_count_ends_a_sequence_and_releases_what_was_held(live):
    output = SequenceOutput([0], StopRules(2, strings=("bcd",)), letters, live)
    pieces = [output.push(token) for token in (0, 1)]
    assert output.finished and output.finish_reason == "length"
    pieces.append(output.finish())
    assert output.text == "".join(pieces) == "ab"
    assert output.finish() == "", "a second finish adds nothing"
    assert output.text == "ab"


def test_a_run_that_ends_early_keeps_what_it_has():
    output = SequenceOutput([0], StopRules(9, strings=("bcd",)), letters, True)
    output.push(1)
    assert output.text == "" and output.finish() == "b" == output.text
    assert output.finish_reason == "length"


def test_without_a_tokenizer_there_is_no_text():
    output = SequenceOutput([0], StopRules(2), None, True)
    assert [output.push(1), output.push(2), output.finish()] == ["", "", ""]
    assert output.text == "" and output.token_ids == [1, 2]


def test_an_empty_token_list_has_no_text():
    output = SequenceOutput([0], StopRules(2), letters, False)
    assert output.finish() == "" and output.token_ids == []


@pytest.mark.parametrize("count", [0, -1, 1.0, True, None])
def test_counts_below_one_are_refused(count):
    with pytest.raises(UserError, match="max_new_tokens"):
        StopRules(count)


@pytest.mark.parametrize("stop", ["", 3])
def test_empty_stop_strings_are_refused(stop):
    with pytest.raises(UserError, match="stop string"):
        StopRules(1, strings=(stop,))
