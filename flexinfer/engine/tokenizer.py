"""Text to token ids and back, chat templates included. Imports no torch, and never runs code from a model's folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flexinfer.errors import ModelError, UserError

_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")
"""A folder with none of these has no tokenizer: tokenizer_config.json alone holds no vocabulary."""

Message = Mapping[str, str]


class Tokenizer:
    """One model's tokenizer. `backend` is the transformers tokenizer below it."""

    def __init__(self, backend: Any, eos_token_ids: Iterable[int] = ()) -> None:
        self.backend = backend
        own = () if backend.eos_token_id is None else (backend.eos_token_id,)
        self.eos_token_ids: tuple[int, ...] = tuple(dict.fromkeys((*own, *eos_token_ids)))

    @property
    def pad_token_id(self) -> int | None:
        pad: int | None = self.backend.pad_token_id
        return pad

    @property
    def has_chat_template(self) -> bool:
        return bool(self.backend.chat_template)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids, with the BOS that the model expects. Raises UserError for an empty prompt and broken Unicode."""
        if not isinstance(text, str):
            raise UserError(f"a prompt is text, not {type(text).__name__}; give token ids as input_ids")
        if not text:
            raise UserError("the prompt is empty; give it at least one character")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise UserError(f"the prompt is not valid UTF-8 at character {error.start}") from None
        ids = self.backend(text, add_special_tokens=add_special_tokens, verbose=False)["input_ids"]
        if not ids:
            raise UserError(f"the prompt {text!r} gives no tokens")
        return [int(token) for token in ids]

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True, **_ignored: Any) -> str:
        """Text of the ids as it is, without the clean-up of spaces that some configurations ask for: that is not
        reversible, and what was streamed could no longer be a prefix of it."""
        return str(
            self.backend.decode(
                [int(token) for token in ids],
                skip_special_tokens=skip_special_tokens,
                clean_up_tokenization_spaces=False,
            )
        )

    def apply_chat_template(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a conversation, up to where the assistant's answer begins. Raises UserError."""
        import jinja2

        if not self.has_chat_template:
            raise UserError("this model has no chat template; give plain prompts with `run`")
        try:
            text = self.backend.apply_chat_template(
                [dict(message) for message in messages], tokenize=False, add_generation_prompt=True
            )
        except jinja2.TemplateError as error:
            raise UserError(f"the model's chat template refuses this conversation: {error}") from None
        return self.encode(text, add_special_tokens=False)


def load_tokenizer(path: str | Path) -> Tokenizer | None:
    """The tokenizer of a folder or a .gguf file; None for a folder that has none. Raises ModelError."""
    path = Path(path)
    if path.is_file():
        return _from_gguf(path)
    if any((path / name).is_file() for name in _FILES):
        return _from_folder(path)
    files = sorted(path.glob("*.gguf"))
    return _from_gguf(files[0]) if len(files) == 1 and not (path / "config.json").exists() else None


def _from_folder(path: Path) -> Tokenizer:
    from transformers import AutoTokenizer

    _check_json(path)
    try:
        backend = AutoTokenizer.from_pretrained(str(path), trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError, ImportError, AttributeError) as error:
        raise ModelError(f"the tokenizer in {path} does not load: {_first_line(error)}") from None
    return Tokenizer(backend)


def _check_json(path: Path) -> None:
    """Broken JSON named by file and line: the tokenizers library raises a bare Exception for it."""
    for file in (path / "tokenizer.json", path / "tokenizer_config.json", path / "special_tokens_map.json"):
        if file.is_file():
            try:
                json.loads(file.read_bytes())
            except ValueError as error:
                raise ModelError(f"{file} is not valid JSON ({_first_line(error)}); fetch it again") from None


def _from_gguf(file: Path) -> Tokenizer:
    from transformers import PreTrainedTokenizerFast

    from flexinfer.engine.gguf_tokenizer import build_tokenizer, end_token_ids, read_metadata

    metadata = read_metadata(file)
    tokens = metadata.get("tokenizer.ggml.tokens", ())
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    indices = {short: metadata.get(f"tokenizer.ggml.{name}_token_id") for short, name in names.items()}
    for short, index in indices.items():
        if index is not None and not 0 <= index < len(tokens):
            raise ModelError(f"{file} has a corrupt header: {short} token {index} of {len(tokens)}")
    backend = PreTrainedTokenizerFast(
        tokenizer_object=build_tokenizer(metadata, file),
        clean_up_tokenization_spaces=False,
        **{f"{short}_token": tokens[index] for short, index in indices.items() if index is not None},
    )
    backend.chat_template = metadata.get("tokenizer.chat_template")
    return Tokenizer(backend, end_token_ids(metadata))


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
