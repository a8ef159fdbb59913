"""Rotary embedding of a config.json, and the positions it reaches. No torch.

Written by transformers 4 as rope_theta beside rope_scaling, by transformers 5 as one dict rope_parameters.
"""

from __future__ import annotations

from typing import get_args

from flexinfer.spec.config_reader import Config
from flexinfer.spec.hf_refusals import refuse_fixed
from flexinfer.spec.model_spec import RopeSpec, RopeType

_KNOWN = [
    "rope_type",
    "type",
    "rope_theta",
    "factor",
    "original_max_position_embeddings",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "low_freq_factor",
    "high_freq_factor",
    "mscale",
    "mscale_all_dim",
    "truncate",
    "partial_rotary_factor",
    "finetuned",
    "extrapolation_factor",
    "attn_factor",
]


def rope_from_config(config: Config, max_positions: int, default_theta: float = 10000.0) -> RopeSpec:
    """The RopeSpec of a config with `max_position_embeddings` = max_positions. Raises ModelError."""
    values = config.values.get("rope_scaling") or config.values.get("rope_parameters") or {}
    if not isinstance(values, dict):
        raise config.error(f"rope_scaling is {values!r}; it must be an object")
    rope = Config(values, f"{config.where}: {'rope_scaling' if config.has('rope_scaling') else 'rope_parameters'}")
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind not in get_args(RopeType):
        raise rope.error(f"rope type {kind!r} is not supported; supported are {', '.join(get_args(RopeType))}")
    for key in values:
        if key not in _KNOWN:
            raise rope.error(f"{key} is not supported")
    refuse_fixed(rope, partial_rotary_factor=1, extrapolation_factor=1, attn_factor=1)
    theta = rope.number("rope_theta", config.number("rope_theta", default_theta))
    original = max_positions
    for place in (rope, config):  # the outer key wins where both are given, as in transformers
        original = place.count("original_max_position_embeddings", original)
    if kind == "default":
        return RopeSpec(theta=theta)
    if kind == "linear":
        stated = original if original != max_positions else None
        return RopeSpec("linear", theta, rope.number("factor"), stated)
    if kind == "dynamic":
        return _dynamic(rope, theta, original, max_positions)
    return _llama3(rope, theta, original) if kind == "llama3" else _yarn(rope, theta, original, max_positions)


def _dynamic(rope: Config, theta: float, original: int, max_positions: int) -> RopeSpec:
    if original != max_positions:
        raise rope.error(f"dynamic scaling from {original} positions, unlike max_position_embeddings, is not supported")
    return RopeSpec("dynamic", theta, rope.number("factor"), max_positions)


def _llama3(rope: Config, theta: float, original: int) -> RopeSpec:
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    if high <= low:
        raise rope.error(f"high_freq_factor {high:g} must be above low_freq_factor {low:g}")
    return RopeSpec("llama3", theta, rope.number("factor"), original, low_freq_factor=low, high_freq_factor=high)


def _yarn(rope: Config, theta: float, original: int, max_positions: int) -> RopeSpec:
    def optional(key: str) -> float | None:
        return rope.number(key) if rope.values.get(key) else None

    return RopeSpec(
        "yarn",
        theta,
        rope.number("factor", max_positions / original),
        original,
        beta_fast=optional("beta_fast") or 32.0,
        beta_slow=optional("beta_slow") or 1.0,
        attention_factor=rope.number("attention_factor") if rope.has("attention_factor") else None,
        mscale=optional("mscale"),
        mscale_all_dim=optional("mscale_all_dim"),
        truncate=rope.flag("truncate", True),
    )


def effective_positions(rope: RopeSpec, max_positions: int) -> int:
    """Positions that a prompt plus its new tokens may reach.

    default and llama3: max_position_embeddings already is the window in use. linear, dynamic and yarn: by the
    convention of the configs that use them it is the window before scaling, which the factor extends, unless a
    larger one is stated. The original window, where it is stated, is what the factor multiplies.
    """
    if rope.type in ("default", "llama3"):
        return max_positions
    return max(max_positions, int((rope.original_max_positions or max_positions) * rope.factor))
