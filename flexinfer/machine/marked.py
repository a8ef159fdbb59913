"""Marked tensors: CPU tensors that stand for GPU memory, and refuse to meet CPU tensors in one op."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from flexinfer.errors import EngineError


class EmulatedTensor(torch.Tensor):
    """A tensor of the emulated GPU. Results of ops on it are marked too.

    Raises EngineError when an op gets a plain CPU tensor beside it, as CUDA would; tensors without dimensions
    pass, as they do there.
    """

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        _refuse_plain(func, args)
        _refuse_plain(func, kwargs.values())
        with torch._C.DisableTorchFunctionSubclass():
            return _mark(func(*args, **kwargs))


def _refuse_plain(func: Callable[..., Any], values: Iterable[Any]) -> None:
    for value in values:
        if isinstance(value, (list, tuple)):
            _refuse_plain(func, value)
        elif isinstance(value, torch.Tensor) and not isinstance(value, EmulatedTensor) and value.dim() > 0:
            name = getattr(func, "__name__", str(func))
            raise EngineError(
                f"{name}: expected all tensors on one device, and got a CPU tensor of shape {tuple(value.shape)} "
                "beside tensors of the emulated GPU"
            )


def _mark(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value if isinstance(value, EmulatedTensor) else value.as_subclass(EmulatedTensor)
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple(_mark(v) for v in value)
    return [_mark(v) for v in value] if isinstance(value, list) else value


def mark(tensor: torch.Tensor) -> EmulatedTensor:
    """The same memory as GPU memory."""
    return tensor.as_subclass(EmulatedTensor)


def unmark(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as CPU memory: for the link alone."""
    return tensor.as_subclass(torch.Tensor)
