"""Decode attention against its definition in double precision, on every variant and on the torch fallback.

Shapes: B sequences, N query heads, K kv heads, T capacity, H head dim.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flexinfer import kernels
from flexinfer.kernels import attention
from flexinfer.kernels.levels import LEVELS, level

VARIANTS = ("generic", "avx2", "avx512", "torch")
# Of a float32 sum, and of the rounding of the output where it is narrower
TOLERANCE = {torch.float32: 3e-6, torch.bfloat16: 6e-3, torch.float16: 8e-4}


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs the test on one variant of the library, or on torch as if there were no library."""
    name: str = request.param
    if name == "torch":
        monkeypatch.setattr(attention, "library", lambda: None)
        return name
    if not kernels.native():
        pytest.skip("the native library was not built: no C++ compiler")
    monkeypatch.setenv("FLEXINFER_ISA", name)
    if LEVELS[level()] != name:
        pytest.skip(f"this CPU has no {name}")
    return name


def by_definition(
    q_BNH: torch.Tensor,
    k_BKTH: torch.Tensor,
    v_BKTH: torch.Tensor,
    lengths_B: torch.Tensor,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks_N: torch.Tensor | None = None,
) -> torch.Tensor:
    """Head by head in float64, one softmax over everything."""
    (batch, heads, _), kv_heads = q_BNH.shape, k_BKTH.shape[1]
    out_BNH = torch.zeros(q_BNH.shape, dtype=torch.float64)
    for b in range(batch):
        end = int(lengths_B[b])
        rows = slice(max(0, end - window) if window else 0, end)
        for n in range(heads):
            k_TH, v_TH = (x_BKTH[b, n * kv_heads // heads, rows].double() for x_BKTH in (k_BKTH, v_BKTH))
            scores_T = scale * (k_TH @ q_BNH[b, n].double())
            if softcap:
                scores_T = softcap * torch.tanh(scores_T / softcap)
            if sinks_N is not None:
                scores_T = torch.cat([scores_T, sinks_N[n : n + 1].double()])
                v_TH = torch.cat([v_TH, torch.zeros(1, v_TH.shape[1], dtype=torch.float64)])
            out_BNH[b, n] = scores_T.softmax(0) @ v_TH
    return out_BNH


def drawn(
    B: int, N: int, K: int, T: int, H: int, dtype: torch.dtype, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """q in float32, K and V in dtype with NaN behind each sequence's length, and the lengths."""
    generator = torch.Generator().manual_seed(seed)
    q_BNH = torch.randn(B, N, H, generator=generator)
    k_BKTH, v_BKTH = (torch.randn(B, K, T, H, generator=generator).to(dtype) for _ in range(2))
    lengths_B = torch.randint(1, T + 1, (B,), generator=generator, dtype=torch.int32)
    for b, length in enumerate(lengths_B.tolist()):
        k_BKTH[b, :, length:] = float("nan")
        v_BKTH[b, :, length:] = float("nan")
    return q_BNH, k_BKTH, v_BKTH, lengths_B


def assert_close(got: torch.Tensor, want: torch.Tensor) -> None:
    error = float((got.double() - want).norm() / want.norm())
    assert error < TOLERANCE[got.dtype], f"relative error {error:.1e}"


SHAPES = [
    (1, 4, 4, 700, 128),  # no groups, three runs
    (3, 9, 3, 257, 64),  # groups of three, a run of one token
    (2, 8, 1, 33, 80),  # one kv head, dims that fill no four vectors
    (2, 7, 1, 70, 96),  # a group that four does not divide
    (5, 4, 4, 1, 96),  # one token
    (2, 6, 3, 90, 5),  # less than one vector
    (1, 2, 2, 300, 33),  # one element behind the last vector
    (1, 16, 2, 64, 256),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES)
def test_is_softmax_times_v(variant: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    q_BNH, k_BKTH, v_BKTH, lengths_B = drawn(*shape, dtype)
    scale = shape[-1] ** -0.5
    assert_close(
        kernels.decode_attention(q_BNH, k_BKTH, v_BKTH, lengths_B, scale),
        by_definition(q_BNH, k_BKTH, v_BKTH, lengths_B, scale),
    )


@pytest.mark.parametrize("q_dtype", [torch.bfloat16, torch.float16])
def test_output_has_the_dtype_of_q(variant: str, q_dtype: torch.dtype) -> None:
    q_BNH, k_BKTH, v_BKTH, lengths_B = drawn(2, 6, 2, 100, 64, torch.float32)
    q_BNH = q_BNH.to(q_dtype)
    got = kernels.decode_attention(q_BNH, k_BKTH, v_BKTH, lengths_B, 0.125)
    assert got.dtype == q_dtype
    assert_close(got, by_definition(q_BNH, k_BKTH, v_BKTH, lengths_B, 0.125))


@pytest.mark.parametrize(
    "options",
    [
        {"window": 1},
        {"window": 40},
        {"window": 10_000},
        {"softcap": 0.7},
        {"sinks_N": torch.linspace(-3, 6, 6)},
        {"window": 300, "softcap": 2.0, "sinks_N": torch.full((6,), 2.5)},
    ],
    ids=lambda options: "+".join(options),
)
def test_window_softcap_and_sinks(variant: str, options: dict[str, object]) -> None:
    inputs = drawn(3, 6, 2, 600, 48, torch.float32)
    got = kernels.decode_attention(*inputs, 0.3, **options)  # type: ignore[arg-type]  # drawn from a table
    assert_close(got, by_definition(*inputs, 0.3, **options))  # type: ignore[arg-type]


@given(
    shape=st.tuples(*(st.integers(1, limit) for limit in (3, 5, 3, 600, 70))),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    window=st.none() | st.integers(1, 700),
    threads=st.integers(1, 4),
    seed=st.integers(0, 2**31),
)
def test_any_shape(
    shape: tuple[int, int, int, int, int], dtype: torch.dtype, window: int | None, threads: int, seed: int
) -> None:
    B, group, K, T, H = shape
    inputs = drawn(B, group * K, K, T, H, dtype, seed)
    got = kernels.decode_attention(*inputs, H**-0.5, window, threads=threads)
    assert_close(got, by_definition(*inputs, H**-0.5, window))


def test_large_and_equal_scores(variant: str) -> None:
    q_BNH, k_BKTH, v_BKTH, lengths_B = drawn(1, 2, 2, 300, 64, torch.float32)
    assert_close(
        kernels.decode_attention(q_BNH * 1e3, k_BKTH, v_BKTH, lengths_B, 1.0),
        by_definition(q_BNH * 1e3, k_BKTH, v_BKTH, lengths_B, 1.0),
    )
    zeros = torch.zeros_like(q_BNH)
    got = kernels.decode_attention(zeros, k_BKTH, v_BKTH, lengths_B, 1.0)
    torch.testing.assert_close(got[0], v_BKTH[0, :, : int(lengths_B[0])].mean(1))


@pytest.mark.parametrize("where", ["q", "k", "v"])
def test_nan_reaches_the_result(variant: str, where: str) -> None:
    q_BNH, k_BKTH, v_BKTH, lengths_B = drawn(1, 2, 2, 50, 64, torch.float32)
    {"q": q_BNH[0, 1], "k": k_BKTH[0, 1, 0], "v": v_BKTH[0, 1, 0]}[where][3] = float("nan")
    got = kernels.decode_attention(q_BNH, k_BKTH, v_BKTH, lengths_B, 1.0)
    assert got[0, 0].isfinite().all()
    assert got[0, 1].isnan().any()


@pytest.mark.parametrize("bits", [0x0001, 0x03FF, 0x0400, 0x7BFF, 0x8001, 0xFBFF], ids=hex)
def test_float16_is_read_exactly(variant: str, bits: int) -> None:
    v_BKTH = torch.tensor([bits], dtype=torch.uint16).view(torch.float16).expand(1, 1, 1, 16).contiguous()
    one = torch.ones(1, dtype=torch.int32)
    got = kernels.decode_attention(torch.zeros(1, 1, 16), torch.zeros_like(v_BKTH), v_BKTH, one, 1.0)
    assert torch.equal(got[0, 0], v_BKTH[0, 0, 0].float())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_output_is_rounded_as_torch_rounds(variant: str, dtype: torch.dtype) -> None:
    special = torch.tensor([0.0, -0.0, 1e-8, 5.97e-8, 3e-5, 65519.0, 65520.0, -7e4, 1 / 3, 1.00390625, 1.01171875])
    values = torch.cat([special, torch.logspace(-9, 5, 501), -torch.logspace(-9, 5, 512)])
    one = torch.ones(1, dtype=torch.int32)
    v_BKTH = values.view(1, 1, 1, -1)
    got = kernels.decode_attention(torch.zeros_like(v_BKTH[0], dtype=dtype), v_BKTH, v_BKTH, one, 1.0)
    assert torch.equal(got[0, 0], values.to(dtype))


def test_same_bits_for_any_threads_and_batch(variant: str) -> None:
    q_BNH, k_BKTH, v_BKTH, lengths_B = drawn(4, 6, 2, 900, 64, torch.bfloat16)
    batch = kernels.decode_attention(q_BNH, k_BKTH, v_BKTH, lengths_B, 0.1, threads=1)
    for threads in (2, 3, 7):
        assert torch.equal(batch, kernels.decode_attention(q_BNH, k_BKTH, v_BKTH, lengths_B, 0.1, threads=threads))
    for b in range(4):
        alone = (q_BNH[b : b + 1], k_BKTH[b : b + 1], v_BKTH[b : b + 1], lengths_B[b : b + 1])
        assert torch.equal(batch[b : b + 1], kernels.decode_attention(*alone, 0.1))


@pytest.mark.parametrize("threads", [1, 3])
def test_callers_do_not_disturb_one_another(threads: int) -> None:
    cases = [drawn(2, 4, 2, 300 + 40 * i, 64, torch.float32, seed=i) for i in range(6)]
    want = [kernels.decode_attention(*case, 0.1, threads=1) for case in cases]

    def repeated(i: int) -> bool:
        return all(torch.equal(kernels.decode_attention(*cases[i], 0.1, threads=threads), want[i]) for _ in range(40))

    with ThreadPoolExecutor(len(cases)) as callers:
        assert all(callers.map(repeated, range(len(cases))))


def test_works_in_a_forked_child() -> None:
    case = drawn(2, 4, 2, 700, 64, torch.float32)
    want = kernels.decode_attention(*case, 0.1, threads=3)
    context = torch.multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    child = context.Process(
        target=lambda: results.put(bool(torch.equal(kernels.decode_attention(*case, 0.1, threads=3), want)))
    )
    child.start()
    child.join(30)
    assert child.exitcode == 0
    assert results.get()


def test_an_empty_batch_gives_an_empty_result() -> None:
    assert kernels.decode_attention(*(x[:0] for x in drawn(1, 2, 2, 4, 8, torch.float32)), 1.0).shape == (0, 2, 8)


def _replaced(index: int, change: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
    inputs = list(drawn(2, 4, 2, 10, 8, torch.float32))
    inputs[index] = change(inputs[index])
    return inputs


@pytest.mark.parametrize(
    ("index", "change", "message"),
    [
        (0, lambda q: q.double(), "q_BNH: got torch.float64, wanted torch.float32 or"),
        (0, lambda q: q[0], r"q_BNH: got shape \(4, 8\), wanted 3 dimensions"),
        (0, lambda q: q[:, :3].contiguous(), "k_BKTH: got 2 kv heads, wanted a number that divides the 3"),
        (0, lambda q: q.to("meta"), "q_BNH: got a tensor on meta, wanted one on the cpu"),
        (1, lambda k: k.transpose(2, 3).contiguous(), r"k_BKTH: got shape \(2, 2, 8, 10\), wanted \(2, 2, 8, 8\)"),
        (1, lambda k: k[:, :, ::2], "k_BKTH: got strides"),
        (2, lambda v: v.bfloat16(), "v_BKTH: got torch.bfloat16, wanted torch.float32"),
        (2, lambda v: v[:, :, :9].contiguous(), r"v_BKTH: got shape \(2, 2, 9, 8\), wanted \(2, 2, 10, 8\)"),
        (3, lambda lengths: lengths.long(), "lengths_B: got torch.int64, wanted torch.int32"),
        (3, lambda lengths: lengths[:1], r"lengths_B: got shape \(1,\), wanted \(2,\)"),
        (3, lambda lengths: torch.tensor([4, 0]).int(), "lengths_B: got 0 for sequence 1, wanted 1 to 10"),
        (3, lambda lengths: torch.tensor([11, 1]).int(), "lengths_B: got 11 for sequence 0, wanted 1 to 10"),
    ],
)
def test_wrong_tensors_are_named(
    variant: str, index: int, change: Callable[[torch.Tensor], torch.Tensor], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        kernels.decode_attention(*_replaced(index, change), 1.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "window: got 0"),
        ({"softcap": -1.0}, "softcap: got -1.0"),
        ({"softcap": float("nan")}, "softcap: got nan"),
        ({"threads": 0}, "threads: got 0, wanted 1 to 1024"),
        ({"threads": 10**6}, "threads: got 1000000, wanted 1 to 1024"),
        ({"sinks_N": torch.zeros(3)}, r"sinks_N: got shape \(3,\), wanted \(4,\)"),
        ({"sinks_N": torch.zeros(4).half()}, "sinks_N: got torch.float16"),
    ],
)
def test_wrong_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kernels.decode_attention(*drawn(2, 4, 2, 10, 8, torch.float32), 1.0, **options)  # type: ignore[arg-type]


def test_a_tensor_that_stands_for_other_memory_is_refused() -> None:
    class Marked(torch.Tensor):
        pass

    inputs = _replaced(0, lambda q: q.as_subclass(Marked))
    with pytest.raises(ValueError, match="q_BNH: got Marked, wanted a plain torch tensor"):
        kernels.decode_attention(*inputs, 1.0)
