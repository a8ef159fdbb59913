"""The real model: a few tensors against transformers' own reading of the file, and all of them against the plan."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from flexinfer.spec import load_spec
from flexinfer.weights import WeightStore, load_weights
from flexinfer.weights.gguf_index import read_gguf_index


@pytest.fixture(scope="module")
def store(demo_model: Path) -> WeightStore:
    return load_weights(demo_model, load_spec(demo_model, "float32"))


@pytest.mark.parametrize("layer,name", [(0, "q"), (17, "k"), (29, "v")])
def test_attention_rows_as_transformers_reads_them(store: WeightStore, demo_model: Path, layer: int, name: str) -> None:
    """transformers' reader, asked for one tensor: the package's dequantizer and its own un-permutation."""
    import gguf
    from transformers.modeling_gguf_pytorch_utils import LlamaTensorProcessor

    entry = read_gguf_index(demo_model)[1][f"blk.{layer}.attn_{name}.weight"]
    assert entry.dtype == "Q4_1"
    packed = np.fromfile(demo_model, np.uint8, entry.nbytes, offset=entry.offset).reshape(entry.shape[0], -1)
    values = gguf.quants.dequantize(packed, gguf.GGMLQuantizationType.Q4_1)
    config = {"num_attention_heads": 9, "num_key_value_heads": 3}
    theirs = LlamaTensorProcessor(config=config).process(weights=values, name=entry.name).weights
    assert torch.equal(store.block(layer, "attention")[f"{name}.weight"], torch.from_numpy(theirs))


def test_everything_is_placed_and_the_head_is_tied(store: WeightStore, demo_model: Path) -> None:
    spec = load_spec(demo_model, "float32")
    assert store.nbytes == spec.total_bytes == 134515008 * 4
    assert store.block(None, "head")["out.weight"] is store.block(None, "embed")["tokens.weight"]
