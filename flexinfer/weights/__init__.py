"""A checkpoint's tensors: found, accounted for, and held under the names of ModelSpec.

`resolve_model` and the index need no torch; what else is named here imports it when first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from flexinfer.weights.resolve import resolve_model

if TYPE_CHECKING:
    from flexinfer.weights.load import check_weights, load_weights
    from flexinfer.weights.store import WeightStore

_LAZY = {
    "check_weights": "flexinfer.weights.load",
    "load_weights": "flexinfer.weights.load",
    "WeightStore": "flexinfer.weights.store",
}

__all__ = ["WeightStore", "check_weights", "load_weights", "resolve_model"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
