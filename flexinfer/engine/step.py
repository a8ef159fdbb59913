"""What changes from step to step: tokens, lengths, and the packed inputs that follow from them.

Legend: B batch, S new tokens, T KV capacity, K kv heads, H head_dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from flexinfer.cache import Group, typed_view
from flexinfer.models.attention import causal_mask
from flexinfer.models.rope import RopeRows, rope_rows
from flexinfer.schedule.inputs import Field, mask_name
from flexinfer.spec.model_spec import ModelSpec


@dataclass(frozen=True)
class StepParams:
    """One step of a batch. Sequence b holds starts[b] tokens and adds counts[b], padded on the right to `new`."""

    starts: tuple[int, ...]
    counts: tuple[int, ...]
    new: int
    step: int

    @property
    def end(self) -> int:
        """One past the last cache row that the step touches in any sequence."""
        return max(self.starts) + self.new

    @property
    def uniform(self) -> bool:
        return len(set(self.starts)) == 1

    def row_groups(self) -> list[tuple[Group, int]]:
        """(sequences, their first new row): one group when all start at the same row, else one a sequence."""
        if self.uniform:
            return [(Group(0, len(self.starts)), self.starts[0])]
        return [(Group(index, 1), start) for index, start in enumerate(self.starts)]

    def following(self) -> StepParams:
        """The decode step after this one."""
        starts = tuple(start + count for start, count in zip(self.starts, self.counts, strict=True))
        return StepParams(starts, (1,) * len(starts), 1, self.step + 1)


def prefill_params(prompts: Sequence[Sequence[int]], cached: Sequence[int]) -> StepParams:
    counts = tuple(len(prompt) for prompt in prompts)
    return StepParams(tuple(cached), counts, max(counts), 0)


class StepInputs:
    """The packed inputs of one phase on one device, as typed views of its buffer."""

    def __init__(self, buffer: torch.Tensor, fields: Sequence[Field]) -> None:
        self.buffer = buffer
        self._views = {f.name: _view(buffer, f) for f in fields}

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._views[name]

    def mask(self, window: int | None) -> torch.Tensor | None:
        """Boolean [B, S, T] for layers with this window, or None where the phase has no use for one."""
        return self._views.get(mask_name(window))

    def rope(self, group: Group) -> RopeRows | None:
        if "cos" not in self._views:
            return None
        return RopeRows(group.of(self._views["cos"]), group.of(self._views["sin"]))


def _view(buffer: torch.Tensor, f: Field) -> torch.Tensor:
    return typed_view(buffer, f.offset, f.shape, getattr(torch, f.dtype))


@dataclass
class TokenFeed:
    """The tokens of the coming step, [B][count]: prompts first, then what was sampled."""

    tokens: list[list[int]] = field(default_factory=list)

    def padded(self, new: int) -> torch.Tensor:
        """[B, new]. A row is filled up with its own last token: of any other, nothing says that it computes finitely,
        and what is masked is multiplied by zero."""
        return torch.tensor([row + row[-1:] * (new - len(row)) for row in self.tokens], dtype=torch.int64)


def fill_inputs(inputs: StepInputs, spec: ModelSpec, capacity: int, params: StepParams, feed: TokenFeed) -> None:
    """Writes every field of the host's inputs for one step."""
    starts_B = torch.tensor(params.starts, dtype=torch.int64)
    counts_B = torch.tensor(params.counts, dtype=torch.int64)
    batch, new = len(params.starts), params.new
    positions_BS = starts_B[:, None] + torch.arange(new)
    inputs["tokens"].copy_(feed.padded(new))
    inputs["positions"].copy_(positions_BS)
    heads = torch.arange(batch * spec.num_kv_heads).view(batch, spec.num_kv_heads, 1)
    inputs["rows"].copy_(heads * capacity + positions_BS[:, None])
    lengths_B = starts_B + counts_B
    inputs["lengths"].copy_(lengths_B)
    inputs["last"].copy_(torch.arange(batch) * new + counts_B - 1)
    if spec.rope:
        rows = rope_rows(spec, positions_BS, lengths_B)
        inputs["cos"].copy_(rows.cos_BSH)
        inputs["sin"].copy_(rows.sin_BSH)
    for window in dict.fromkeys(spec.windows):
        mask = inputs.mask(window)
        if mask is not None:
            mask.copy_(causal_mask(starts_B, new, capacity, window))
