"""The tokenizer that a GGUF file carries in its metadata, built with the tokenizers library. No torch.

Two kinds exist in the families that run here. "gpt2": byte-level BPE, whose merges were learned on text cut by the
regular expression that `tokenizer.ggml.pre` names; another cut gives other tokens, so an unknown name is refused.
"llama": SentencePiece BPE, whose merges are not stored and follow from the scores.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from flexinfer.errors import ModelError
from flexinfer.spec.gguf_header import _SCALARS, _Cursor, _mapped, _parse

Metadata = Mapping[str, Any]

_CONTROL, _USER_DEFINED = 3, 4
_SPACE = "\u2581"

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_WORDS}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_WORDS}|\p{{N}}|{_REST}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_GPT2_LIKE = ("gpt-2", "default")
_DIGIT_BY_DIGIT = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone")
_SPLITS = {
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "smaug-bpe", "dbrx", "pixtral", "falcon3"), _LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _QWEN2),
    "tekken": _TEKKEN,
}
_WHOLE_WORDS_FIRST = {name for name, split in _SPLITS.items() if split in (_LLAMA3, _TEKKEN)}
"""Vocabularies in which a word that is a token is taken whole, merges or not, and whose models expect a BOS."""


class _KeepingCursor(_Cursor):
    """As the header's cursor, but keeps long arrays: the vocabulary is one."""

    def array(self) -> Any:
        kind, count = self.scalar("<I"), self.scalar("<Q")
        if kind not in _SCALARS:
            return [self.value(kind) for _ in range(count)]
        start = self.advance(count * struct.calcsize(_SCALARS[kind]))
        return struct.unpack_from(f"<{count}{_SCALARS[kind][1:]}", self.data, start)


def read_metadata(file: Path) -> Metadata:
    """Every metadata field of a GGUF file, arrays included. Raises ModelError."""
    return _mapped(file, lambda data: _parse(file, _KeepingCursor(data)).metadata)


def build_tokenizer(metadata: Metadata, file: Path) -> Tokenizer:
    """The tokenizers object, special tokens and BOS included. Raises ModelError for a kind that is not known."""
    kind = metadata.get("tokenizer.ggml.model")
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens:
        raise ModelError(f"{file} has no vocabulary (tokenizer.ggml.tokens); give token ids instead of text")
    if kind == "gpt2":
        tokenizer = _byte_level(metadata, tokens, file)
    elif kind == "llama":
        tokenizer = _sentencepiece(metadata, tokens, file)
    else:
        raise ModelError(f"{file}: tokenizer kind {kind!r} is not supported; gpt2 and llama are")
    _mark_special(tokenizer, tokens, metadata.get("tokenizer.ggml.token_type", ()))
    tokenizer.post_processor = _add_bos_and_eos(metadata, tokens)
    return tokenizer


def _byte_level(metadata: Metadata, tokens: Sequence[str], file: Path) -> Tokenizer:
    name = metadata.get("tokenizer.ggml.pre", "default")
    merges = [tuple(pair.split(" ", 1)) for pair in metadata.get("tokenizer.ggml.merges", ())]
    bpe = models.BPE(
        vocab={token: index for index, token in enumerate(tokens)},
        merges=merges,
        ignore_merges=name in _WHOLE_WORDS_FIRST,
    )
    tokenizer = Tokenizer(bpe)
    tokenizer.pre_tokenizer = _split(name, file)
    if _SPLITS.get(name) is _QWEN2:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _split(name: str, file: Path) -> pre_tokenizers.PreTokenizer:
    """How text is cut before merging, by the name that the file gives it."""
    if name in _SPLITS:
        words = pre_tokenizers.Split(Regex(_SPLITS[name]), behavior="isolated")
        return pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if name in _GPT2_LIKE:
        return gpt2
    if name in _DIGIT_BY_DIGIT:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2])
    known = ", ".join(sorted({*_SPLITS, *_GPT2_LIKE, *_DIGIT_BY_DIGIT}))
    raise ModelError(f"{file}: pre-tokenizer {name!r} is not supported; known are {known}")


def _sentencepiece(metadata: Metadata, tokens: Sequence[str], file: Path) -> Tokenizer:
    scores = metadata.get("tokenizer.ggml.scores", ())
    if len(scores) != len(tokens):
        raise ModelError(f"{file}: {len(scores)} tokenizer scores for {len(tokens)} tokens")
    unknown = metadata.get("tokenizer.ggml.unknown_token_id")
    bpe = models.BPE(
        vocab={token: index for index, token in enumerate(tokens)},
        merges=merges_from_scores(tokens, scores),
        unk_token=None if unknown is None else tokens[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(bpe)
    leading = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    spaces = [normalizers.Replace(" ", _SPACE)]
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), *spaces] if leading else spaces)
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if leading else steps)
    return tokenizer


def merges_from_scores(tokens: Sequence[str], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Every pair of tokens that makes a token, the best-scored result first: the order SentencePiece merges in."""
    ids = {token: index for index, token in enumerate(tokens)}
    ranked = []
    for whole, index in ids.items():
        for cut in range(1, len(whole)):
            left, right = ids.get(whole[:cut]), ids.get(whole[cut:])
            if left is not None and right is not None:
                ranked.append((-scores[index], index, left, right))
    return [(tokens[left], tokens[right]) for _, _, left, right in sorted(ranked)]


def _mark_special(tokenizer: Tokenizer, tokens: Sequence[str], types: Sequence[int]) -> None:
    """Control tokens (kept whole, left out of text) and the file's own added ones (kept whole)."""
    marked = list(zip(tokens, types, strict=False))
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t, k in marked if k == _CONTROL])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t, k in marked if k == _USER_DEFINED])


def _add_bos_and_eos(metadata: Metadata, tokens: Sequence[str]) -> processors.PostProcessor:
    """Puts BOS before a text, and EOS after it, where the file says so or its kind always does."""
    name = metadata.get("tokenizer.ggml.pre", "default")
    bos_by_kind = metadata["tokenizer.ggml.model"] == "llama" or name in _WHOLE_WORDS_FIRST
    template, ids = ["$A"], {}
    for part, default in (("bos", bos_by_kind), ("eos", False)):
        index = metadata.get(f"tokenizer.ggml.{part}_token_id")
        if index is None or not metadata.get(f"tokenizer.ggml.add_{part}_token", default):
            continue
        ids[tokens[index]] = index
        template = [tokens[index], *template] if part == "bos" else [*template, tokens[index]]
    return processors.TemplateProcessing(single=template, special_tokens=list(ids.items()))


def end_token_ids(metadata: Metadata) -> tuple[int, ...]:
    """End of sequence, of turn and of message, as far as the file names them."""
    keys = (f"tokenizer.ggml.{part}_token_id" for part in ("eos", "eot", "eom"))
    return tuple(dict.fromkeys(metadata[key] for key in keys if key in metadata))
