"""FlexInfer: run language models that do not fit the GPU, planned per phase and priced before they run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flexinfer.api import FlexInfer as FlexInfer

__version__ = "0.1.0"
__all__ = ["FlexInfer", "__version__"]


def __getattr__(name: str) -> Any:
    # Imported on first use: planning needs no torch, and torch takes seconds to import.
    if name == "FlexInfer":
        from flexinfer.api import FlexInfer

        return FlexInfer
    raise AttributeError(f"module 'flexinfer' has no attribute {name!r}")
