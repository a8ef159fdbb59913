"""Of all OpenMP runtimes in the process, torch's own is the one whose threads are borrowed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from flexinfer import kernels
from flexinfer.kernels.team import gomp_of_torch, team_size

HOME = Path(torch.__file__).parent


def mapped(*paths: object) -> str:
    return "".join(f"7f00-7f01 r-xp 00000000 08:01 1234   {path}\n" for path in ("/lib/libc.so.6", *paths))


@pytest.mark.parametrize(
    ("paths", "want"),
    [
        ((), None),
        (("/usr/lib/libgomp.so.1",), "/usr/lib/libgomp.so.1"),
        ((HOME / "lib/libgomp.so.1", "/env/scikit_learn.libs/libgomp-a.so"), str(HOME / "lib/libgomp.so.1")),
        ((HOME.parent / "torch.libs/libgomp-b.so", "/x/libgomp.so"), str(HOME.parent / "torch.libs/libgomp-b.so")),
        (("/a/libgomp.so", "/b/libgomp.so"), None),
    ],
)
def test_which_runtime_is_torchs(paths: tuple[object, ...], want: str | None) -> None:
    assert gomp_of_torch(mapped(*paths)) == want


def test_the_team_is_as_large_as_torchs() -> None:
    torch.set_num_threads(3)
    assert team_size() == (3 if team_size() else 0)


def test_calls_on_borrowed_and_own_threads_agree() -> None:
    inputs = (torch.randn(2, 4, 64), torch.randn(2, 2, 900, 64), torch.randn(2, 2, 900, 64))
    lengths = torch.tensor([900, 511], dtype=torch.int32)
    torch.set_num_threads(3)
    borrowed = [kernels.decode_attention(*inputs, lengths, 0.1, threads=threads) for threads in (1, 2, 3)]
    own = kernels.decode_attention(*inputs, lengths, 0.1, threads=4)  # more than torch has
    assert all(torch.equal(own, result) for result in borrowed)
