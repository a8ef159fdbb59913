"""Every tensor accounted for before anything is computed: each parameter mapped exactly once, nothing left over.

Damaged, missing and stale files are told apart by the headers and the index; here the names, shapes and types that
they gave are held against ModelSpec.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from flexinfer.errors import ModelError
from flexinfer.spec.model_spec import ModelSpec
from flexinfer.weights.entry import TensorEntry, plural
from flexinfer.weights.index import CheckpointIndex
from flexinfer.weights.names import Place, checkpoint_names, is_harmless_extra, tied_copy_name

_PLAIN = frozenset({"F64", "F32", "F16", "BF16"})


@dataclass(frozen=True)
class Bindings:
    """Where each parameter lies. `tied_copy` is a second copy of a tied head, to be compared with the embedding."""

    entries: Mapping[Place, TensorEntry]
    tied_copy: TensorEntry | None

    @property
    def stored_bytes(self) -> int:
        return sum(entry.nbytes for entry in self.entries.values())


def bind(index: CheckpointIndex, spec: ModelSpec) -> Bindings:
    """Pair every parameter of `spec` with its entry. Raises ModelError naming what is missing, extra or misshapen."""
    names_as: Literal["hf", "gguf"] = "gguf" if index.format == "gguf" else "hf"
    names = checkpoint_names(spec, names_as, index.entries)
    _check_missing(index, spec, names)
    tied_name = tied_copy_name(names_as) if spec.tied_head else None
    known = {*names.values(), tied_name}
    unexpected = [n for n in index.entries if n not in known and not is_harmless_extra(n, names_as)]
    if unexpected:
        entry = index.entries[unexpected[0]]
        raise ModelError(
            f"{entry.where}{plural(len(unexpected) - 1)} is not part of {spec.name}; "
            "the configuration and the weights do not belong together, fetch both from one place"
        )
    entries = {place: index.entries[name] for place, name in names.items()}
    _check_forms(entries, spec, index.format)
    return Bindings(entries, index.entries.get(tied_name) if tied_name else None)


def _check_missing(index: CheckpointIndex, spec: ModelSpec, names: Mapping[Place, str]) -> None:
    missing = [name for name in names.values() if name not in index.entries]
    if not missing:
        return
    hint = "fetch the weights again"
    if missing == [names.get((None, "head", "out.weight"))]:
        hint = (
            "if its head is tied to the embedding, set tie_word_embeddings in config.json; else fetch the weights again"
        )
    raise ModelError(f"{missing[0]}{plural(len(missing) - 1)} of {spec.name} is missing from {index.path}; {hint}")


def _check_forms(entries: Mapping[Place, TensorEntry], spec: ModelSpec, format: str) -> None:
    for (_, block, canonical), entry in entries.items():
        wanted = next(t.shape for t in spec.block_tensors(block) if t.name == canonical)
        if entry.shape != wanted:
            raise ModelError(
                f"{entry.where} has shape {list(entry.shape)} where {spec.name} has {list(wanted)}; "
                "the configuration and the weights do not belong together, fetch both from one place"
            )
        if format != "gguf" and entry.dtype not in _PLAIN:
            raise ModelError(
                f"{entry.where} is stored as {entry.dtype}; FlexInfer reads float32, float16 and bfloat16 weights"
            )
