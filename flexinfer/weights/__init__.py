"""A checkpoint's tensors: found, accounted for, and held under the names of ModelSpec.

`resolve_model` and the index need no torch; `load_weights` and `WeightStore` import it when first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from flexinfer.weights.resolve import resolve_model

if TYPE_CHECKING:
    from flexinfer.weights.load import load_weights
    from flexinfer.weights.store import WeightStore

_LAZY = {"load_weights": "flexinfer.weights.load", "WeightStore": "flexinfer.weights.store"}

__all__ = ["WeightStore", "load_weights", "resolve_model"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
