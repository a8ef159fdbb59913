"""Names of every family in both formats, and the head counts of interleaved tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import gguf
import pytest

from flexinfer.weights.names import checkpoint_names, interleaved_heads, is_harmless_extra


@pytest.mark.parametrize(
    "family", ["llama", "llama-biased", "mistral", "qwen2", "qwen3", "opt", "opt-untied", "opt-350m"]
)
def test_usual_names_are_those_of_transformers(tiny: Callable, family: str) -> None:
    model = tiny(family)
    stored = set(model.model.state_dict())
    names = checkpoint_names(model.spec, "hf")
    assert len(set(names.values())) == len(names)
    assert set(names.values()) == (stored - {"lm_head.weight"} if model.spec.tied_head else stored)


@pytest.mark.parametrize("family,arch", [("llama-biased", "LLAMA"), ("qwen2", "QWEN2"), ("qwen3", "QWEN3")])
def test_gguf_names_are_those_of_the_package(tiny: Callable, family: str, arch: str) -> None:
    """The package maps Hugging Face names to GGUF names: both tables are held against it."""
    spec = replace(tiny(family).spec, tied_head=False)
    mapping = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch], spec.num_layers)
    ours = checkpoint_names(spec, "gguf")
    for place, name in checkpoint_names(spec, "hf").items():
        assert mapping.get_name(name, try_suffixes=(".weight", ".bias")) == ours[place]


def test_a_tied_head_has_no_name(tiny: Callable) -> None:
    for format in ("hf", "gguf"):
        assert (None, "head", "out.weight") not in checkpoint_names(tiny("qwen3").spec, format)
        assert (None, "head", "out.weight") in checkpoint_names(tiny("llama").spec, format)


def test_only_q_and_k_of_the_llama_architecture_are_interleaved(tiny: Callable) -> None:
    spec = tiny("llama-biased").spec
    heads = interleaved_heads(spec, "llama")
    assert heads["blk.0.attn_q.weight"] == heads["blk.1.attn_q.bias"] == 4
    assert heads["blk.0.attn_k.weight"] == heads["blk.1.attn_k.bias"] == 2
    assert len(heads) == 8
    assert interleaved_heads(tiny("qwen2").spec, "qwen2") == {}
    assert interleaved_heads(spec, None) == {}


@pytest.mark.parametrize(
    "name,harmless",
    [
        ("model.layers.0.self_attn.rotary_emb.inv_freq", True),
        ("transformer.h.0.attn.masked_bias", True),
        ("model.layers.3.attention.bias", True),
        ("decoder.version", True),
        ("model.layers.0.self_attn.q_proj.bias", False),
        ("model.layers.0.self_attn.o_proj.bias", False),
        ("model.layers.0.mlp.bias", False),
        ("model.rotary_emb.weight", False),
        ("rope_freqs.weight", False),
    ],
)
def test_extras(name: str, harmless: bool) -> None:
    assert is_harmless_extra(name, "hf") is harmless
