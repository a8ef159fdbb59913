"""Workload: the shape of one request, as the planner sees it. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from flexinfer.units import check_whole


@dataclass(frozen=True)
class Workload:
    """`batch` sequences of `prompt_len` new tokens each, on top of `cached_tokens` already in the KV cache.

    Uneven batches are planned for the longest prompt. The last of `new_tokens` is never fed back, so the KV
    cache holds cached + prompt + new - 1 tokens at most.
    """

    batch: int
    prompt_len: int
    new_tokens: int
    cached_tokens: int = 0

    def __post_init__(self) -> None:
        for name, least in (("batch", 1), ("prompt_len", 1), ("new_tokens", 1), ("cached_tokens", 0)):
            object.__setattr__(self, name, check_whole(name, getattr(self, name), least))

    @property
    def kv_capacity(self) -> int:
        """Tokens a sequence's KV must hold at the end."""
        return self.cached_tokens + self.prompt_len + self.new_tokens - 1

    @property
    def decode_steps(self) -> int:
        """Forward passes after prefill: the first token comes from prefill itself."""
        return self.new_tokens - 1
