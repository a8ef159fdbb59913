"""The tensors of ModelSpec under the names that checkpoint files give them.

Hugging Face files name a tensor by its path in the module tree, which each family spells its own way; GGUF files have
one set of names for all. Checkpoints of a bare decoder leave the outer prefix away, so the prefix is read off the file.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from typing import Literal

from flexinfer.spec.model_spec import Block, ModelSpec

Place = tuple[int | None, Block, str]
"""(layer or None, block, canonical name)"""

_LLAMA = {
    "embed": {"tokens": "embed_tokens"},
    "attention": {
        "norm": "layers.{}.input_layernorm",
        "q": "layers.{}.self_attn.q_proj",
        "k": "layers.{}.self_attn.k_proj",
        "v": "layers.{}.self_attn.v_proj",
        "o": "layers.{}.self_attn.o_proj",
        "q_norm": "layers.{}.self_attn.q_norm",
        "k_norm": "layers.{}.self_attn.k_norm",
    },
    "mlp": {
        "norm": "layers.{}.post_attention_layernorm",
        "gate": "layers.{}.mlp.gate_proj",
        "up": "layers.{}.mlp.up_proj",
        "down": "layers.{}.mlp.down_proj",
    },
    "head": {"norm": "norm"},
}
_OPT = {
    "embed": {"tokens": "embed_tokens", "positions": "embed_positions", "project": "project_in"},
    "attention": {
        "norm": "layers.{}.self_attn_layer_norm",
        "q": "layers.{}.self_attn.q_proj",
        "k": "layers.{}.self_attn.k_proj",
        "v": "layers.{}.self_attn.v_proj",
        "o": "layers.{}.self_attn.out_proj",
    },
    "mlp": {"norm": "layers.{}.final_layer_norm", "up": "layers.{}.fc1", "down": "layers.{}.fc2"},
    "head": {"norm": "final_layer_norm", "project": "project_out"},
}
_GGUF = {
    "embed": {"tokens": "token_embd"},
    "attention": {
        "norm": "blk.{}.attn_norm",
        "q": "blk.{}.attn_q",
        "k": "blk.{}.attn_k",
        "v": "blk.{}.attn_v",
        "o": "blk.{}.attn_output",
        "q_norm": "blk.{}.attn_q_norm",
        "k_norm": "blk.{}.attn_k_norm",
    },
    "mlp": {"norm": "blk.{}.ffn_norm", "gate": "blk.{}.ffn_gate", "up": "blk.{}.ffn_up", "down": "blk.{}.ffn_down"},
    "head": {"norm": "output_norm"},
}
_PREFIXES = {"llama": ("model.", ""), "opt": ("model.decoder.", "decoder.", "")}
_OUT = {"hf": "lm_head.weight", "gguf": "output.weight"}

_HF_EXTRAS = re.compile(
    r".*rotary_emb\.(inv_freq|cos_cached|sin_cached)"  # computed from the configuration
    r"|.*\.(attn|attention|self_attn)\.(masked_)?bias"  # causal masks saved as buffers
    r"|(.*\.)?position_ids"
    r"|(.*\.)?decoder\.version"  # OPT's converter left it behind
)
ROPE_FACTORS = "rope_freqs.weight"
"""GGUF's rotary frequency factors: allowed, and held against the specification by the loader."""


def checkpoint_names(spec: ModelSpec, format: Literal["hf", "gguf"], stored: Container[str] = ()) -> dict[Place, str]:
    """Name in the file of every tensor of `spec`; a tied head's out.weight is absent.

    `stored` are the names that the file has: they decide between spellings (with and without the outer prefix, OPT's
    older name of the final norm). Without them the usual spelling is given.
    """
    table = _table(spec, format)
    prefix = "" if format == "gguf" else _prefix(spec, stored)
    names = {}
    for layer, block in spec.blocks():
        for tensor in spec.block_tensors(block):
            if (block, tensor.name) == ("head", "out.weight"):
                continue
            part, _, kind = tensor.name.rpartition(".")
            names[layer, block, tensor.name] = f"{prefix}{table[block][part].format(layer)}.{kind}"
    if not spec.tied_head:
        names[None, "head", "out.weight"] = _OUT[format]
    return _with_old_final_norm(names, prefix, stored) if spec.family == "opt" else names


def _table(spec: ModelSpec, format: Literal["hf", "gguf"]) -> Mapping[Block, Mapping[str, str]]:
    if format == "gguf":
        return _GGUF  # type: ignore[return-value]  # dict keys are str to the checker, Block to us
    return _OPT if spec.family == "opt" else _LLAMA  # type: ignore[return-value]


def _prefix(spec: ModelSpec, stored: Container[str]) -> str:
    prefixes = _PREFIXES["opt" if spec.family == "opt" else "llama"]
    return next((p for p in prefixes if f"{p}embed_tokens.weight" in stored), prefixes[0])


def _with_old_final_norm(names: dict[Place, str], prefix: str, stored: Container[str]) -> dict[Place, str]:
    """Early conversions of OPT call the decoder's last norm layer_norm."""
    old = f"{prefix}layer_norm."
    if f"{old}weight" not in stored:
        return names
    new = f"{prefix}final_layer_norm."
    return {place: old + name.removeprefix(new) if name.startswith(new) else name for place, name in names.items()}


def tied_copy_name(format: Literal["hf", "gguf"]) -> str:
    """Name under which a file may store a tied head a second time."""
    return _OUT[format]


def is_harmless_extra(name: str, format: Literal["hf", "gguf"]) -> bool:
    """A tensor that is no parameter: a buffer that is computed from the configuration, or a leftover version tag."""
    return name == ROPE_FACTORS if format == "gguf" else _HF_EXTRAS.fullmatch(name) is not None


def interleaved_heads(spec: ModelSpec, architecture: str | None) -> dict[str, int]:
    """GGUF tensors whose rows lie interleaved, with their head counts: q and k of the LLaMA architecture."""
    if architecture != "llama":
        return {}
    heads = {"q": spec.num_heads, "k": spec.num_kv_heads}
    return {
        name: heads[canonical[0]]
        for (_, block, canonical), name in checkpoint_names(spec, "gguf").items()
        if block == "attention" and canonical in ("q.weight", "k.weight", "q.bias", "k.bias")
    }
