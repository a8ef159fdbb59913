"""Decode attention: checks its tensors, then runs the native kernel, or torch's where there is no library.

Shapes: B sequences, N query heads, K kv heads, T capacity of the cache in tokens, H head dim.
"""

from __future__ import annotations

import torch

from flexinfer.kernels import reference
from flexinfer.kernels.levels import level
from flexinfer.kernels.library import check_threads, library
from flexinfer.kernels.team import team_size

_DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}  # Dtype of native/dtypes.h
# A subclass may stand for memory that is not there, such as the emulated device's; its pointer must not be read.
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_OUT_OF_MEMORY = 1  # Status of native/api.h


def decode_attention(
    q_BNH: torch.Tensor,
    k_BKTH: torch.Tensor,
    v_BKTH: torch.Tensor,
    lengths_B: torch.Tensor,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks_N: torch.Tensor | None = None,
    threads: int | None = None,
) -> torch.Tensor:
    """Attention of one new token per sequence over its cached keys and values; o_BNH in q's dtype.

    q, k and v are contiguous CPU tensors in float32, bfloat16 or float16, k and v in the same; sums are float32.
    lengths_B, int32, is what is filled of each sequence, the new token included; rows behind it are never read.
    window: attend to that many of the last tokens only. softcap: scores become softcap * tanh(score / softcap).
    sinks_N, float32: one more score for each head, which takes its share of the softmax and adds no value.
    threads: at most so many; None means as many as torch uses. The result has the same bits for any number of
    threads, and for a sequence alone or in a batch. Raises ValueError naming the argument.
    """
    _check_tensors(q_BNH, k_BKTH, v_BKTH, lengths_B, sinks_N)
    threads = torch.get_num_threads() if threads is None else threads
    _check_numbers(window, softcap, threads)
    lib = library()
    if lib is None:
        _check_lengths(lengths_B, k_BKTH.shape[2])
        return reference.decode_attention(q_BNH, k_BKTH, v_BKTH, lengths_B, scale, window, softcap, sinks_N)
    out_BNH = torch.empty_like(q_BNH)
    (batch, heads, head_dim), (_, kv_heads, capacity, _) = q_BNH.shape, k_BKTH.shape
    status = lib.fx_decode_attention(
        q_BNH.data_ptr(),
        _DTYPES[q_BNH.dtype],
        k_BKTH.data_ptr(),
        v_BKTH.data_ptr(),
        _DTYPES[k_BKTH.dtype],
        lengths_B.data_ptr(),
        None if sinks_N is None else sinks_N.data_ptr(),
        out_BNH.data_ptr(),
        batch,
        heads,
        kv_heads,
        capacity,
        head_dim,
        scale,
        capacity if window is None else window,
        softcap or 0.0,
        level(),
        threads,
        team_size(),
    )
    if status < 0:
        _check_lengths(lengths_B, capacity)
    if status == _OUT_OF_MEMORY:
        raise MemoryError("no memory for the partial sums of decode attention")
    return out_BNH


def _check_tensors(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor, sinks: torch.Tensor | None
) -> None:
    _check_tensor("q_BNH", q, 3, tuple(_DTYPES))
    _check_tensor("k_BKTH", k, 4, tuple(_DTYPES))
    _check_tensor("v_BKTH", v, 4, (k.dtype,))
    _check_tensor("lengths_B", lengths, 1, (torch.int32,))
    (batch, heads, head_dim), (_, kv_heads, capacity, _) = q.shape, k.shape
    if head_dim == 0:
        raise ValueError("q_BNH: got a head dim of 0, wanted at least 1")
    if kv_heads == 0 or heads % kv_heads:
        raise ValueError(f"k_BKTH: got {kv_heads} kv heads, wanted a number that divides the {heads} query heads")
    _check_shape("k_BKTH", k, (batch, kv_heads, capacity, head_dim))
    _check_shape("v_BKTH", v, tuple(k.shape))
    _check_shape("lengths_B", lengths, (batch,))
    if sinks is not None:
        _check_tensor("sinks_N", sinks, 1, (torch.float32,))
        _check_shape("sinks_N", sinks, (heads,))


def _check_tensor(name: str, tensor: torch.Tensor, dims: int, dtypes: tuple[torch.dtype, ...]) -> None:
    if type(tensor) not in _PLAIN:
        raise ValueError(f"{name}: got {type(tensor).__name__}, wanted a plain torch tensor")
    if tensor.device.type != "cpu":
        raise ValueError(f"{name}: got a tensor on {tensor.device}, wanted one on the cpu")
    if tensor.dtype not in dtypes:
        raise ValueError(f"{name}: got {tensor.dtype}, wanted {' or '.join(map(str, dtypes))}")
    if tensor.dim() != dims:
        raise ValueError(f"{name}: got shape {tuple(tensor.shape)}, wanted {dims} dimensions")
    if not tensor.is_contiguous():
        raise ValueError(f"{name}: got strides {tensor.stride()}, wanted a contiguous tensor")


def _check_shape(name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name}: got shape {tuple(tensor.shape)}, wanted {shape}")


def _check_numbers(window: int | None, softcap: float | None, threads: int) -> None:
    if window is not None and window < 1:
        raise ValueError(f"window: got {window}, wanted at least 1, or None")
    if softcap is not None and not softcap > 0:
        raise ValueError(f"softcap: got {softcap}, wanted a positive number, or None")
    check_threads(threads)


def _check_lengths(lengths_B: torch.Tensor, capacity: int) -> None:
    for index, length in enumerate(lengths_B.tolist()):
        if not 1 <= length <= capacity:
            raise ValueError(f"lengths_B: got {length} for sequence {index}, wanted 1 to {capacity}")
