"""Sizes, FLOPs and bytes of a ModelSpec by hand arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexinfer.spec import ModelSpec
from flexinfer.spec.hf_config import spec_from_config

Configs = Mapping[str, dict[str, Any]]


@pytest.fixture(scope="session")
def llama(configs: Configs) -> ModelSpec:
    """d 32, 4 heads and 2 kv heads of 8, ffn 48, vocabulary 100, 3 layers, float32."""
    return spec_from_config(configs["llama"], "tiny", "x")


def test_bytes_by_hand(llama: ModelSpec) -> None:
    attention = 32 * 32 * 2 + 32 * 16 * 2 + 32
    mlp = 3 * 32 * 48 + 32
    assert llama.block_bytes("attention") == 4 * attention and llama.block_bytes("mlp") == 4 * mlp
    assert llama.layer_bytes == 4 * (attention + mlp)
    assert llama.total_bytes == 4 * (3 * (attention + mlp) + 2 * 100 * 32 + 32)
    assert llama.kv_bytes_per_token_layer == 2 * 16 * 4 and llama.kv_bytes_per_token == 3 * 2 * 16 * 4


def test_tied_head_is_listed_and_counted_once(llama: ModelSpec) -> None:
    tied = replace(llama, tied_head=True)
    assert tied.block_bytes("head") == llama.block_bytes("head")
    assert tied.total_params == llama.total_params - 100 * 32


def test_linear_flops_leave_gathers_out(llama: ModelSpec, configs: Configs) -> None:
    assert llama.block_linear_flops("embed", 5) == 0
    assert llama.block_linear_flops("mlp", 5) == 2 * 5 * 3 * 32 * 48
    projected = spec_from_config({**configs["opt"], "word_embed_proj_dim": 16}, "tiny", "x")
    assert projected.block_linear_flops("embed", 5) == 2 * 5 * 16 * 32
    assert projected.block_linear_flops("head", 1) == 2 * (16 * 32 + 100 * 16)


@given(new=st.integers(1, 40), cached=st.integers(0, 40), window=st.none() | st.integers(1, 30))
def test_attended_tokens_is_the_sum_it_stands_for(llama: ModelSpec, new: int, cached: int, window: int | None) -> None:
    spec = replace(llama, windows=(window,) * 3)
    each = [position + 1 if window is None else min(window, position + 1) for position in range(cached, cached + new)]
    assert spec.attended_tokens(0, new, cached) == sum(each)
    assert spec.attention_flops(0, new, cached) == 4 * 32 * sum(each)
    assert spec.kv_read_bytes(0, cached + new) == llama.kv_bytes_per_token_layer * each[-1]


def test_blocks_in_the_order_of_the_forward_pass(llama: ModelSpec) -> None:
    assert list(replace(llama, num_layers=1, windows=(None,)).blocks()) == [
        (None, "embed"),
        (0, "attention"),
        (0, "mlp"),
        (None, "head"),
    ]


def test_contradictions_raise(llama: ModelSpec) -> None:
    with pytest.raises(ValueError, match="windows"):
        replace(llama, windows=(None,))
    with pytest.raises(ValueError, match="dtype"):
        replace(llama, weight_dtype="int8")
