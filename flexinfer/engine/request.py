"""From the keywords of generate, ours and transformers', to one checked Request. Imports no torch."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from flexinfer.engine.prompt import (
    check_prompts,
    check_vocabulary,
    encode_prompts,
    is_array,
    new_tokens_within,
    prompts_from_ids,
)
from flexinfer.engine.sampling import SamplingParams
from flexinfer.engine.stopping import StopRules, as_token_ids
from flexinfer.engine.tokenizer import Tokenizer
from flexinfer.errors import UserError
from flexinfer.spec import ModelSpec, Workload
from flexinfer.units import as_whole, check_whole

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Request:
    """What is asked for: prompts as ids, when they end, how tokens are chosen."""

    prompts: Sequence[Sequence[int]]
    rules: StopRules
    sampling: SamplingParams

    @property
    def workload(self) -> Workload:
        """The shape that is planned: uneven prompts count as the longest."""
        return Workload(len(self.prompts), max(map(len, self.prompts)), self.rules.max_new_tokens)


@dataclass(frozen=True)
class GenerateOptions:
    """The keywords of FlexInfer.generate, as given. None: not set."""

    max_new_tokens: int | None = None
    max_length: int | None = None
    temperature: float | None = None
    do_sample: bool | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    ignore_eos: bool = False
    eos_token_id: int | Sequence[int] | None = None
    pad_token_id: int | None = None

    def sampling(self) -> SamplingParams:
        """Greedy unless a temperature is set or do_sample asks for 1.0. Without a seed, one is drawn."""
        params = SamplingParams(
            temperature=self._temperature(),
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=1.0 if self.repetition_penalty is None else self.repetition_penalty,
            seed=secrets.randbits(32) if self.seed is None else self.seed,
        )
        if params.idle_filters:
            log.warning("%s has no effect at temperature 0; set a temperature", ", ".join(params.idle_filters))
        return params

    def _temperature(self) -> float:
        if check_flag("do_sample", self.do_sample) is False and self.temperature:
            log.warning("do_sample is False: temperature %s has no effect", self.temperature)
            return 0.0
        if self.temperature is not None:
            return self.temperature
        return 1.0 if self.do_sample else 0.0

    def rules(self, prompt_len: int, spec: ModelSpec, stop_ids: Iterable[int]) -> StopRules:
        """When sequences end. eos_token_id replaces the model's own stop set, ignore_eos empties it."""
        own = stop_ids if self.eos_token_id is None else as_token_ids(self.eos_token_id, "eos_token_id")
        if self.eos_token_id is not None and max(own, default=0) >= spec.vocab_size:
            raise UserError(f"eos_token_id is {self.eos_token_id!r}; {spec.name} knows ids 0 to {spec.vocab_size - 1}")
        return StopRules(
            max_new_tokens=new_tokens_within(prompt_len, self._new_tokens(prompt_len), spec),
            token_ids=frozenset(() if check_flag("ignore_eos", self.ignore_eos) else own),
            strings=self._stop_strings(),
        )

    def _new_tokens(self, prompt_len: int) -> int | None:
        if self.max_length is None:
            return self.max_new_tokens
        if self.max_new_tokens is not None:
            raise UserError("give max_new_tokens or max_length, not both")
        length = check_whole("max_length", self.max_length, 1)
        if length <= prompt_len:
            raise UserError(f"max_length is {length}, and the prompt alone has {prompt_len} tokens; set max_new_tokens")
        return length - prompt_len

    def _stop_strings(self) -> tuple[str, ...]:
        if self.stop is None or isinstance(self.stop, str):
            return () if self.stop is None else (self.stop,)
        if isinstance(self.stop, bytes) or not isinstance(self.stop, Iterable):
            raise UserError(f"stop is {self.stop!r}; it must be text or a list of texts")
        return tuple(self.stop)

    def padding(self) -> int | None:
        """The id that fills up a tensor of results; None where it is left to the tokenizer. Raises UserError."""
        return None if self.pad_token_id is None else check_whole("pad_token_id", self.pad_token_id, 0)


def build_request(
    prompts: Any,
    input_ids: Any,
    attention_mask: Any,
    options: GenerateOptions,
    spec: ModelSpec,
    tokenizer: Tokenizer | None,
    stop_ids: Iterable[int],
    chat: bool = False,
) -> Request:
    """Prompts are texts or ids, never both. Raises UserError for anything that the model cannot take."""
    if (prompts is None) == (input_ids is None):
        raise UserError("give prompts as text or as input_ids: one of the two")
    if prompts is not None and is_ids(prompts):
        prompts, input_ids = None, prompts
    if input_ids is not None:
        ids = prompts_from_ids(input_ids, attention_mask)
    else:
        if attention_mask is not None:
            raise UserError("attention_mask goes with input_ids, not with texts")
        ids = encode_prompts(tokenizer, _texts(prompts), bool(check_flag("chat", chat)))
        check_vocabulary(ids, spec)
    check_prompts(ids, spec)
    options.padding()
    rules = options.rules(max(map(len, ids)), spec, stop_ids)
    if rules.strings and tokenizer is None:
        raise UserError("stop strings need a tokenizer, and this model has none; use eos_token_id")
    return Request(ids, rules, options.sampling())


def _texts(prompts: Any) -> list[str]:
    if isinstance(prompts, str):
        return [prompts]
    if isinstance(prompts, Mapping):
        raise UserError("prompts must be text or a list of texts; what a tokenizer returns is given as generate(**it)")
    if isinstance(prompts, (bytes, bytearray, Set)) or not isinstance(prompts, Iterable):
        raise UserError(f"prompts must be text or a list of texts, not {type(prompts).__name__}")
    return list(prompts)


def is_ids(prompts: Any) -> bool:
    """Ids in the place of texts: a tensor or an array, a list of ids, or lists of them."""
    if isinstance(prompts, (str, bytes, bytearray)):
        return False
    if is_array(prompts):
        return True
    listed = isinstance(prompts, Sequence)
    first = prompts[0] if listed and prompts else None
    return isinstance(first, (list, tuple)) or is_array(first) or as_whole(first) is not None


def check_flag(name: str, value: Any) -> bool | None:
    """The value where it is a bool, or None. Raises UserError: of other types each would mean something else."""
    if value is None or isinstance(value, bool):
        return value
    raise UserError(f"{name} is {value!r}; it must be True or False")
