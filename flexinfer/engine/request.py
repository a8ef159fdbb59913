"""From the keywords of generate, ours and transformers', to one checked Request. Imports no torch."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from flexinfer.engine.prompt import (
    check_prompts,
    check_vocabulary,
    encode_prompts,
    is_tensor,
    new_tokens_within,
    prompts_from_ids,
)
from flexinfer.engine.sampling import SamplingParams
from flexinfer.engine.stopping import StopRules, as_token_ids
from flexinfer.engine.tokenizer import Tokenizer
from flexinfer.errors import UserError
from flexinfer.spec import ModelSpec, Workload

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
        if self.do_sample is False and self.temperature:
            log.warning("do_sample is False: temperature %s has no effect", self.temperature)
            return 0.0
        if self.temperature is not None:
            return self.temperature
        return 1.0 if self.do_sample else 0.0

    def rules(self, prompt_len: int, spec: ModelSpec, stop_ids: Iterable[int]) -> StopRules:
        """When sequences end. eos_token_id replaces the model's own stop set, ignore_eos empties it."""
        if self.max_new_tokens is not None and self.max_length is not None:
            raise UserError("give max_new_tokens or max_length, not both")
        new_tokens = self.max_new_tokens if self.max_length is None else self.max_length - prompt_len
        own = stop_ids if self.eos_token_id is None else as_token_ids(self.eos_token_id, "eos_token_id")
        stop = [self.stop] if isinstance(self.stop, str) else list(self.stop or ())
        return StopRules(
            max_new_tokens=new_tokens_within(prompt_len, new_tokens, spec),
            token_ids=frozenset(() if self.ignore_eos else own),
            strings=tuple(stop),
        )


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
        ids = encode_prompts(tokenizer, _texts(prompts), chat)
        check_vocabulary(ids, spec)
    check_prompts(ids, spec)
    rules = options.rules(max(map(len, ids)), spec, stop_ids)
    if rules.strings and tokenizer is None:
        raise UserError("stop strings need a tokenizer, and this model has none; use eos_token_id")
    return Request(ids, rules, options.sampling())


def _texts(prompts: Any) -> list[str]:
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, Iterable):
        raise UserError(f"prompts must be text or a list of texts, not {type(prompts).__name__}")
    return list(prompts)


def is_ids(prompts: Any) -> bool:
    """Ids in the place of texts: a tensor, a list of ids, or lists of them."""
    if is_tensor(prompts):
        return True
    first = prompts[0] if isinstance(prompts, Sequence) and not isinstance(prompts, str) and prompts else None
    return isinstance(first, (int, list, tuple))
