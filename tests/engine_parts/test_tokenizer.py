"""Tokenizers of folders and of GGUF files, against transformers' own reading of the same files."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import pytest
import transformers
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from flexinfer.engine.gguf_tokenizer import build_tokenizer, merges_from_scores
from flexinfer.engine.tokenizer import Tokenizer, load_tokenizer
from flexinfer.errors import ModelError, UserError

SPACE = "\u2581"
TEXTS = [
    "Once upon a time",
    "It's 1984, isn't it?  12345 things",
    "a\n\n1. b\n  - c\t\td   ",
    "caf\u00e9 na\u00efve \u4f60\u597d \U0001f680\U0001f469\u200d\U0001f680",
    " leading, trailing ",
    "x=f(y)**2; // HELLO WorldWide don'T",
    "<s>special<|end|> to<tool>kens",
]
GGUF_TOKENS = json.loads((Path(__file__).parent / "gguf_tokens.json").read_text())
"""Ids of TEXTS by transformers 5.24, for each pre-tokenizer, with the vocabulary below."""

TEMPLATE = (
    "{% for m in messages %}{{ '<s>' + m['role'] + ': ' + m['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


def byte_vocabulary() -> tuple[list[str], list[str]]:
    """Bytes, a few merges, special tokens: a toy of the gpt2 kind."""
    space, newline = "\u0120", "\u010a"
    pairs = [
        "t h",
        "th e",
        "i n",
        f"{space} a",
        f"{space} t",
        f"{space}t h",
        "o n",
        "1 2",
        "12 3",
        f"{newline} {newline}",
    ]
    pairs += [f"{space} {space}", "' s", "n '", "e n"]
    tokens = ["<s>", "<|end|>", *sorted(pre_tokenizers.ByteLevel.alphabet()), *(p.replace(" ", "") for p in pairs)]
    return [*tokens, "zebra", "<tool>"], pairs


def write_gguf(path: Path, kind: str, pre: str | None = None, **scalars) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    if kind == "gpt2":
        tokens, merges = byte_vocabulary()
        writer.add_token_types([3, 3, *[1] * (len(tokens) - 3), 4])
        writer.add_token_merges(merges)
    else:
        letters = sorted({c for text in TEXTS for c in text if c.isascii() and c.strip()})
        words = [SPACE, *letters, "th", "the", SPACE + "t", SPACE + "a", "ti", "me", SPACE + "ti", SPACE * 2, "on"]
        tokens = ["<unk>", "<s>", "<|end|>", *(f"<0x{i:02X}>" for i in range(256)), *words]
        writer.add_token_types([2, 3, 3, *[6] * 256, *[1] * len(words)])
        writer.add_token_scores([0.0] * 259 + [-float(i) for i in range(len(words))])
        writer.add_unk_token_id(0)
    writer.add_tokenizer_model(kind)
    writer.add_token_list(tokens)
    writer.add_bos_token_id(tokens.index("<s>"))
    writer.add_eos_token_id(tokens.index("<|end|>"))
    writer.add_chat_template(TEMPLATE)
    # What transformers wants of an architecture before it reads the tokenizer
    writer.add_context_length(64)
    writer.add_embedding_length(8)
    writer.add_block_count(1)
    writer.add_feed_forward_length(8)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    if pre:
        writer.add_tokenizer_pre(pre)
    for name, value in scalars.items():
        writer.add_key_value(f"tokenizer.ggml.{name}", value, gguf.GGUFValueType.BOOL)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("pre", GGUF_TOKENS)
def test_gguf_tokens_of_bytes_are_transformers_own(tmp_path, pre):
    """transformers before 5 takes no notice of `pre`: what 5 makes of the same file is stored."""
    path = write_gguf(tmp_path / "m.gguf", "gpt2", pre, add_bos_token=False)
    ours = load_tokenizer(path)
    assert [ours.encode(text) for text in TEXTS] == GGUF_TOKENS[pre]
    if int(transformers.__version__.partition(".")[0]) >= 5:
        theirs = AutoTokenizer.from_pretrained(str(tmp_path), gguf_file="m.gguf")
        assert [theirs.encode(text, add_special_tokens=False) for text in TEXTS] == GGUF_TOKENS[pre]


def test_gguf_tokens_of_sentencepiece_are_transformers_own(tmp_path):
    ours = load_tokenizer(write_gguf(tmp_path / "m.gguf", "llama", add_bos_token=False))
    theirs = AutoTokenizer.from_pretrained(str(tmp_path), gguf_file="m.gguf")
    for text in TEXTS:
        if not ("<s>" in text or text.startswith(" ")):  # SentencePiece, llama.cpp and we put a space before these too
            assert ours.encode(text) == theirs.encode(text, add_special_tokens=False), text


@pytest.mark.parametrize(("kind", "pre"), [("gpt2", "gpt-2"), ("gpt2", "smollm"), ("llama", None)])
def test_text_comes_back(tmp_path, kind, pre):
    tokenizer = load_tokenizer(write_gguf(tmp_path / "m.gguf", kind, pre))
    for text in TEXTS[:-1]:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_tokens_stay_whole_and_have_no_text(tmp_path):
    tokenizer = load_tokenizer(write_gguf(tmp_path / "m.gguf", "gpt2", "gpt-2"))
    ids = tokenizer.encode("<s>a<|end|><tool>b")
    assert ids[0] == 0 and 1 in ids and ids[-2] == len(tokenizer.backend) - 1, "the file's own added token is whole too"
    assert tokenizer.decode(ids) == "a<tool>b"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<s>a<|end|><tool>b"
    assert tokenizer.eos_token_ids == (1,)


@pytest.mark.parametrize(
    ("kind", "pre", "flags", "bos"),
    [
        ("gpt2", "gpt-2", {}, False),
        ("gpt2", "gpt-2", {"add_bos_token": True}, True),
        ("gpt2", "llama-bpe", {}, True),
        ("gpt2", "llama-bpe", {"add_bos_token": False}, False),
        ("llama", None, {}, True),
        ("llama", None, {"add_bos_token": False}, False),
    ],
)
def test_bos_is_added_as_the_file_or_its_kind_says(tmp_path, kind, pre, flags, bos):
    tokenizer = load_tokenizer(write_gguf(tmp_path / "m.gguf", kind, pre, **flags))
    ids = tokenizer.encode("the")
    assert (ids[0] == tokenizer.backend.bos_token_id) == bos
    assert tokenizer.encode("the", add_special_tokens=False) == (ids[1:] if bos else ids)


def test_digits_are_single_tokens_where_the_vocabulary_was_made_so(tmp_path):
    tokenizer = load_tokenizer(write_gguf(tmp_path / "m.gguf", "gpt2", "smollm"))
    assert [tokenizer.decode([token]) for token in tokenizer.encode("  123")] == ["  ", "1", "2", "3"]


def test_a_word_that_is_a_token_is_taken_whole_where_the_vocabulary_was_made_so(tmp_path):
    """No merges lead to "zebra": other kinds spell it out."""
    counts = [
        len(load_tokenizer(write_gguf(tmp_path / f"{pre}.gguf", "gpt2", pre, add_bos_token=False)).encode("zebra"))
        for pre in ("llama-bpe", "tekken", "qwen2", "gpt-2")
    ]
    assert counts == [1, 1, 5, 5]


def test_merges_follow_from_scores():
    tokens, scores = ["a", "b", "ab", "abb", "bb"], [0, 0, -2, -1, -3]
    assert merges_from_scores(tokens, scores) == [("a", "bb"), ("ab", "b"), ("a", "b"), ("b", "b")]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"tokenizer.ggml.pre": "novel"}, "'novel'.*gpt-2"),
        ({"tokenizer.ggml.model": "bert"}, "'bert'"),
        ({"tokenizer.ggml.tokens": []}, "no vocabulary"),
        ({"tokenizer.ggml.model": "llama"}, "0 tokenizer scores"),
    ],
)
def test_what_is_not_known_is_refused_by_name(change, named):
    metadata = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a"], **change}
    with pytest.raises(ModelError, match=named):
        build_tokenizer(metadata, Path("m.gguf"))


def test_a_file_without_a_vocabulary_has_no_tokenizer(tmp_path):
    """Such a model still takes token ids."""
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_bos_token_id(1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert load_tokenizer(tmp_path / "m.gguf") is None


def test_a_truncated_header_is_named(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", "gpt2", "gpt-2")
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(ModelError, match=r"m\.gguf"):
        load_tokenizer(path)


def save_folder(path: Path, **options) -> Path:
    tokens, merges = byte_vocabulary()
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.token_type": [3, 3],
    }
    tokenizer = build_tokenizer(metadata, path)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", **options).save_pretrained(path)
    return path


def test_a_folder_is_read_by_transformers_without_cleaning_its_text(tmp_path):
    tokenizer = load_tokenizer(save_folder(tmp_path, clean_up_tokenization_spaces=True))
    text = "a , b . it 's n't"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.eos_token_ids == (1,) and not tokenizer.has_chat_template


def test_a_folder_without_tokenizer_files_has_none(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert load_tokenizer(tmp_path) is None


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_broken_json_is_named(tmp_path, name):
    (save_folder(tmp_path) / name).write_text('{"a": ')
    with pytest.raises(ModelError, match=name):
        load_tokenizer(tmp_path)


def test_code_in_a_folder_is_not_run(tmp_path):
    save_folder(tmp_path)
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\n")
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config.update(tokenizer_class="Evil", auto_map={"AutoTokenizer": [None, "evil.Evil"]})
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError):
        load_tokenizer(tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(("text", "named"), [("", "empty"), ("a\ud800", "UTF-8"), (3, "int")])
def test_prompts_that_are_not_text_are_refused(tmp_path, text, named):
    tokenizer = load_tokenizer(write_gguf(tmp_path / "m.gguf", "gpt2", "gpt-2"))
    with pytest.raises(UserError, match=named):
        tokenizer.encode(text)


def test_a_conversation_is_laid_out_by_the_models_template(tmp_path):
    tokenizer = load_tokenizer(write_gguf(tmp_path / "m.gguf", "gpt2", "llama-bpe"))
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "the"}])
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<s>user: the<|end|>assistant: "
    assert ids.count(0) == 1, "the template writes the BOS, and no second one is added"


def test_a_template_that_objects_is_a_user_error(tmp_path):
    tokenizer = load_tokenizer(save_folder(tmp_path, chat_template="{{ raise_exception('roles must alternate') }}"))
    with pytest.raises(UserError, match="roles must alternate"):
        tokenizer.apply_chat_template([{"role": "user", "content": "x"}])
    assert isinstance(tokenizer, Tokenizer)


def test_a_model_without_a_template_says_so(tmp_path):
    with pytest.raises(UserError, match="no chat template"):
        load_tokenizer(save_folder(tmp_path)).apply_chat_template([{"role": "user", "content": "x"}])


def test_the_demo_models_tokens(demo_model):
    tokenizer = load_tokenizer(demo_model)
    assert tokenizer.encode("Once upon a time") == [6403, 1980, 253, 655]
    assert tokenizer.eos_token_ids == (2,)
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}])
    assert ids[:4] == [1, 9690, 198, 2683] and ids[-5:] == [198, 1, 520, 9531, 198]
