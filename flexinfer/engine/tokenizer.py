"""Text to token ids and back, chat templates included. Imports no torch, and never runs code from a model's folder."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from flexinfer.errors import FlexInferError, ModelError, UserError
from flexinfer.json_file import one_line, read_json

_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")
"""A folder with none of these has no tokenizer: tokenizer_config.json alone holds no vocabulary."""

Message = Mapping[str, str]

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def _from_the_models_files(what: str) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Decorates what hands a model's files, or what was made of them, to the tokenizer libraries.

    Those are written for files as they should be, and have no exceptions of their own for others: from Rust come bare
    ones, from Python whatever the first wrong value leads to. Raises ModelError for each, which begins with `what`.
    """

    def decorate(call: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        @functools.wraps(call)
        def checked(*arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
            try:
                return call(*arguments, **named)
            except (FlexInferError, MemoryError):
                raise
            except Exception as error:  # see above: there is no narrower class
                raise ModelError(f"{what}: {one_line(error)}") from error

        return checked

    return decorate


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

    @_from_the_models_files("this model's tokenizer fails")
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

    @_from_the_models_files("this model's tokenizer fails")
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
        if not self.has_chat_template:
            raise UserError("this model has no chat template; give plain prompts with `run`")
        return self.encode(self._conversation(messages), add_special_tokens=False)

    @_from_the_models_files("the model's chat template refuses this conversation")
    def _conversation(self, messages: Sequence[Message]) -> str:
        return str(
            self.backend.apply_chat_template(
                [dict(message) for message in messages], tokenize=False, add_generation_prompt=True
            )
        )


def load_tokenizer(path: str | Path) -> Tokenizer | None:
    """The tokenizer of a folder or a .gguf file; None for one that has none. Raises ModelError."""
    path = Path(path)
    if path.is_file():
        return _from_gguf(path)
    if any((path / name).is_file() for name in _FILES):
        return _from_folder(path)
    files = sorted(path.glob("*.gguf"))
    return _from_gguf(files[0]) if len(files) == 1 and not (path / "config.json").exists() else None


@_from_the_models_files("this model's tokenizer does not load")
def _from_folder(path: Path) -> Tokenizer:
    from transformers import AutoTokenizer

    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        if (path / name).is_file():
            read_json(path / name)  # names the file and the line, as the libraries do not
    return Tokenizer(AutoTokenizer.from_pretrained(str(path), trust_remote_code=False, local_files_only=True))


@_from_the_models_files("this model's tokenizer does not load")
def _from_gguf(file: Path) -> Tokenizer | None:
    from transformers import PreTrainedTokenizerFast

    from flexinfer.engine.gguf_tokenizer import build_tokenizer, end_token_ids, read_metadata

    metadata = read_metadata(file)
    tokens = metadata.get("tokenizer.ggml.tokens")
    if tokens is None:
        return None
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
