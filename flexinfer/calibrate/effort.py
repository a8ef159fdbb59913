"""How much is measured: shapes, row counts and the time for each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Heads:
    """Query heads, kv heads and head_dim of an attention."""

    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class Effort:
    """matrices: (out, in) of linear. rows: its row counts. decode: (batch, context). prefill: prompt lengths.

    case_s: seconds for one case. slow_s: what is expected to take longer than this for one call is left out.
    """

    dtypes: tuple[str, ...]
    matrices: tuple[tuple[int, int], ...]
    rows: tuple[int, ...]
    heads: tuple[Heads, ...]
    decode: tuple[tuple[int, int], ...]
    prefill: tuple[int, ...]
    case_s: float
    slow_s: float = 1.0


GROUPED, PLAIN = Heads(16, 4, 64), Heads(16, 16, 64)

# Small, a small model's projection, a middling one's MLP, and the head of a small vocabulary: time per element falls by
# ten between the first and the last. Rows 2 and 4 both: float32 changes its method between them here.
QUICK = Effort(
    dtypes=("float32", "bfloat16"),
    matrices=((256, 512), (1024, 1024), (2048, 4096), (8192, 4096)),
    rows=(1, 2, 4, 8, 32, 128, 512),
    heads=(GROUPED, PLAIN),
    decode=((1, 64), (1, 512), (4, 1024)),
    prefill=(16, 64, 256, 1024),
    case_s=0.06,
)
ONE_THREAD = Effort(
    dtypes=("float32", "bfloat16"),
    matrices=((256, 512), (1024, 1024), (2048, 4096)),
    rows=(1, 4, 32, 128, 512),
    heads=(GROUPED,),
    decode=((1, 64), (1, 512), (4, 1024)),
    prefill=(64, 512),
    case_s=0.04,
)
HALF = Effort(
    dtypes=("float16",),
    matrices=((256, 512), (2048, 4096)),
    rows=(1, 8, 128),
    heads=(GROUPED,),
    decode=((1, 512),),
    prefill=(128,),
    case_s=0.04,
)
"""float16 has no fast path on most CPUs: a few points say whether it is usable."""

GPU = Effort(
    dtypes=("float32", "bfloat16", "float16"),
    matrices=((256, 512), (1024, 1024), (4096, 4096), (8192, 8192)),
    rows=(1, 8, 32, 128, 512, 2048),
    heads=(GROUPED, PLAIN),
    decode=((1, 64), (1, 1024), (8, 2048)),
    prefill=(16, 128, 1024, 4096),
    case_s=0.02,
)
