"""What a generation returns. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from flexinfer.plan import Times
from flexinfer.planning import ChosenPlan


@dataclass(frozen=True)
class Output:
    """One sequence. `token_ids` are the new ones, the stop token included; `text` is without it and stop strings."""

    prompt_tokens: int
    token_ids: tuple[int, ...]
    text: str
    finish_reason: Literal["stop", "length"]

    def to_json(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "new_tokens": len(self.token_ids),
            "token_ids": list(self.token_ids),
            "text": self.text,
            "finish_reason": self.finish_reason,
        }


@dataclass(frozen=True)
class GenerateResult:
    """Outputs in the order of the prompts, the measured times, and the plan that was followed.

    seed: what random choices were made with; the same request with this seed gives the same tokens.
    """

    outputs: Sequence[Output]
    metrics: Times
    plan: ChosenPlan
    seed: int

    @property
    def texts(self) -> list[str]:
        return [output.text for output in self.outputs]

    @property
    def token_ids(self) -> list[list[int]]:
        return [list(output.token_ids) for output in self.outputs]

    def to_json(self) -> dict[str, Any]:
        """flexinfer.run/1."""
        return {
            "schema": "flexinfer.run/1",
            "outputs": [output.to_json() for output in self.outputs],
            "plan": self.plan.choice.chosen.to_json(),
            "predicted": self.plan.predicted.to_json(),
            "measured": self.metrics.to_json(),
            "seed": self.seed,
        }
