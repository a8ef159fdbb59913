"""Pieces add up to the whole text, and never show half a character."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from flexinfer.engine.detokenizer import Detokenizer
from flexinfer.engine.gguf_tokenizer import build_tokenizer

SPACE = "\u2581"


def byte_level() -> Tokenizer:
    """256 byte tokens, and some of two and three bytes that cut characters in the middle."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    long = [a + b for a in alphabet[::9] for b in alphabet[::7]]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate([*alphabet, *long])}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def sentencepiece() -> Tokenizer:
    """Words with leading spaces, single letters, and bytes for all else."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    pieces = [SPACE, *"abcdehlorw", "he", "ll", "llo", SPACE + "he", SPACE + "w", "or", SPACE + SPACE]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [*words, *pieces],
        "tokenizer.ggml.scores": [0.0] * len(words) + [-float(i) for i in range(len(pieces))],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(pieces),
        "tokenizer.ggml.unknown_token_id": 0,
    }
    return build_tokenizer(metadata, "test.gguf")


KINDS = {"byte_level": byte_level(), "sentencepiece": sentencepiece()}


def decode_with(tokenizer: Tokenizer):
    return lambda ids: tokenizer.decode(list(ids), skip_special_tokens=True)


def pieces_of(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    detokenizer = Detokenizer(decode_with(tokenizer))
    return [*(detokenizer.push(token) for token in ids), detokenizer.flush()]


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text(st.sampled_from("helo wr \n" + "\u00e9\u20ac\u4f60\U0001f469\u200d\U0001f680"), max_size=30))
def test_pieces_of_a_text_add_up_to_it(kind, text):
    tokenizer = KINDS[kind]
    ids = tokenizer.encode(text).ids
    pieces = pieces_of(tokenizer, ids)
    assert "".join(pieces) == decode_with(tokenizer)(ids) == text
    assert "\ufffd" not in "".join(pieces)


@given(st.lists(st.integers(0, KINDS["byte_level"].get_vocab_size() - 1), max_size=40))
def test_any_bytes_give_the_text_of_the_whole(ids):
    tokenizer = KINDS["byte_level"]
    pieces = pieces_of(tokenizer, ids)
    assert "".join(pieces) == decode_with(tokenizer)(ids)


@given(st.lists(st.integers(3, KINDS["sentencepiece"].get_vocab_size() - 1), max_size=40))
def test_broken_bytes_among_words_still_leave_the_words(ids):
    tokenizer = KINDS["sentencepiece"]
    joined = "".join(pieces_of(tokenizer, ids))
    whole = decode_with(tokenizer)(ids)
    assert joined.isascii() == whole.isascii()
    if "\ufffd" not in whole:
        assert joined == whole


def test_an_emoji_appears_once_and_whole():
    tokenizer = KINDS["byte_level"]
    pieces = pieces_of(tokenizer, tokenizer.encode("a\U0001f680b").ids)
    assert pieces == ["a", "", "", "", "\U0001f680", "b", ""]


def test_an_unfinished_character_comes_out_at_the_end():
    tokenizer = KINDS["byte_level"]
    ids = tokenizer.encode("a\U0001f680").ids[:-1]
    assert pieces_of(tokenizer, ids) == ["a", "", "", "", "\ufffd"]


def test_leading_spaces_of_words_are_kept_and_the_first_is_not():
    tokenizer = KINDS["sentencepiece"]
    ids = tokenizer.encode("hello  w").ids
    assert "".join(pieces_of(tokenizer, ids)) == "hello  w"


def test_the_window_stays_short():
    seen = []

    def decode(ids):
        seen.append(len(ids))
        return "".join(chr(97 + i % 26) for i in ids)

    detokenizer = Detokenizer(decode)
    assert "".join(detokenizer.push(i) for i in range(500)) == decode(range(500))
    assert max(seen[:-1]) <= 3
