"""Rotary tables against transformers' own, near the start and at position 60,000, and properties of each type."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
import transformers
from transformers import AutoConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from flexinfer.models.rope import RopeRows, inverse_frequencies, rope_rows, rotate
from flexinfer.spec import ModelSpec, RopeSpec
from flexinfer.spec.hf_config import spec_from_config

FAR = 60_000
BEFORE_5 = int(transformers.__version__.partition(".")[0]) < 5
SCALINGS: dict[str, dict[str, Any] | None] = {
    "default": None,
    "linear": {"rope_type": "linear", "factor": 8.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    "yarn_mscale": {
        "rope_type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": 4096,
        "mscale": 1.0,
        "mscale_all_dim": 0.7,
    },
    "yarn_attention_factor": {
        "rope_type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": 4096,
        "attention_factor": 0.8,
        "beta_fast": 20.0,
        "beta_slow": 2.0,
        "truncate": False,
    },
}


def both(name: str, theta: float) -> tuple[Any, ModelSpec]:
    values = {
        "model_type": "llama",
        "hidden_size": 256,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "vocab_size": 32,
        "max_position_embeddings": 32768,
        "rope_theta": theta,
        "rope_scaling": SCALINGS[name],
    }
    return reference(values), spec_from_config(values, name, "test")


def reference(values: dict[str, Any]) -> LlamaRotaryEmbedding:
    """transformers' tables. For yarn, those before 5 read the factor off the positions, and round the ramp's ends
    whatever `truncate` says: they are given the positions that make the factor, and the ends unrounded."""
    scaling = dict(values["rope_scaling"] or {})
    config = AutoConfig.for_model(**{**values, "rope_scaling": scaling or None})
    if not (BEFORE_5 and scaling.get("rope_type") == "yarn"):
        return LlamaRotaryEmbedding(config)
    config.max_position_embeddings = int(scaling["factor"] * scaling["original_max_position_embeddings"])
    unrounded = {} if scaling.get("truncate", True) else {"floor": float, "ceil": float}
    with mock.patch("transformers.modeling_rope_utils.math", SimpleNamespace(**{**vars(math), **unrounded})):
        return LlamaRotaryEmbedding(config)


@pytest.mark.parametrize("theta", [10000.0, 500000.0])
@pytest.mark.parametrize("name", SCALINGS)
def test_tables_equal_transformers_at_position_60000(name: str, theta: float) -> None:
    theirs, spec = both(name, theta)
    for first in (0, FAR):
        positions_BS = torch.arange(first, first + 7).unsqueeze(0)
        want_cos, want_sin = theirs(torch.empty(1, dtype=torch.float32), positions_BS)
        got = rope_rows(spec, positions_BS, torch.tensor([first + 7]))
        torch.testing.assert_close(got.cos_BSH, want_cos, atol=1e-6, rtol=0)
        torch.testing.assert_close(got.sin_BSH, want_sin, atol=1e-6, rtol=0)


def test_types_differ_from_one_another_far_out() -> None:
    """Guards the test above: a type that were ignored would still agree with itself near position 0."""
    tables = []
    for name in SCALINGS:
        _, spec = both(name, 10000.0)
        tables.append(rope_rows(spec, torch.tensor([[FAR]]), torch.tensor([FAR + 1])).cos_BSH)
    for i, one in enumerate(tables):
        for other in tables[i + 1 :]:
            assert (one - other).abs().max() > 0.01


def test_dynamic_scaling_goes_by_each_sequences_own_length() -> None:
    _, spec = both("dynamic", 10000.0)
    positions_BS, lengths_B = torch.tensor([[100], [50_000]]), torch.tensor([101, 50_001])
    batch = rope_rows(spec, positions_BS, lengths_B)
    for b in range(2):
        alone = rope_rows(spec, positions_BS[b : b + 1], lengths_B[b : b + 1])
        assert torch.equal(batch.cos_BSH[b], alone.cos_BSH[0])
    _, plain = both("default", 10000.0)
    within = rope_rows(plain, positions_BS, lengths_B)
    assert torch.equal(batch.cos_BSH[0], within.cos_BSH[0]), "unscaled within the original window"
    assert not torch.equal(batch.cos_BSH[1], within.cos_BSH[1])


def test_frequency_factors_of_a_gguf_file_equal_the_llama3_type() -> None:
    """A GGUF file states llama3 scaling as one divisor a frequency."""
    _, llama3 = both("llama3", 500000.0)
    _, plain = both("default", 500000.0)
    positions_BS, lengths_B = torch.tensor([[FAR]]), torch.tensor([FAR + 1])
    assert llama3.rope and plain.rope
    divisors = inverse_frequencies(plain.rope, 128, lengths_B) / inverse_frequencies(llama3.rope, 128, lengths_B)
    by_factors = replace(plain, rope=RopeSpec(theta=500000.0, freq_factors=tuple(divisors.tolist())))
    want, got = rope_rows(llama3, positions_BS, lengths_B), rope_rows(by_factors, positions_BS, lengths_B)
    torch.testing.assert_close(got.cos_BSH, want.cos_BSH, atol=1e-2, rtol=0)  # one rounding more, times 60,000
    assert divisors.max() > 30


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotation_turns_pairs_and_keeps_lengths(dtype: torch.dtype) -> None:
    _, spec = both("default", 10000.0)
    rows = rope_rows(spec, torch.tensor([[0, 5, 1000]]), torch.tensor([1001]))
    x = torch.randn(1, 2, 3, 128).to(dtype)
    turned = rotate(x, rows)
    assert turned.dtype == dtype and turned.is_contiguous()
    assert torch.equal(turned[:, :, 0], x[:, :, 0]), "position 0 is not turned"
    pairs, was = turned.float().unflatten(-1, (2, 64)), x.float().unflatten(-1, (2, 64))
    torch.testing.assert_close(pairs.norm(dim=-2), was.norm(dim=-2), atol=2e-2, rtol=1e-2)
    angle = torch.atan2(pairs[0, 0, 1, 1, 0], pairs[0, 0, 1, 0, 0]) - torch.atan2(
        was[0, 0, 1, 1, 0], was[0, 0, 1, 0, 0]
    )
    assert abs((angle.item() - 5.0 + torch.pi) % (2 * torch.pi) - torch.pi) < 0.05, "pair 0 turns one radian a position"


def test_scores_depend_on_distance_only() -> None:
    _, spec = both("yarn", 10000.0)
    q, k = torch.randn(1, 1, 1, 128), torch.randn(1, 1, 1, 128)

    def at(position: int) -> RopeRows:
        return rope_rows(spec, torch.tensor([[position]]), torch.tensor([position + 1]))

    near = (rotate(q, at(12)) * rotate(k, at(7))).sum()
    far = (rotate(q, at(512)) * rotate(k, at(507))).sum()
    torch.testing.assert_close(near, far, atol=1e-2, rtol=1e-3)
