"""The count of time that threads waited for a CPU."""

from __future__ import annotations

from pathlib import Path

from flexinfer.host import RunQueue


def thread(root: Path, number: int, text: str) -> Path:
    path = root / f"proc/self/task/{number}/schedstat"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def test_waiting_of_all_threads_is_added(tmp_path: Path) -> None:
    first = thread(tmp_path, 7, "123456 2000000000 5\n")
    thread(tmp_path, 8, "99 500000000 1\n")
    with RunQueue(tmp_path) as queue:
        assert queue.seconds() == 2.5
        first.write_text("123456 3000000000 6\n")
        assert queue.seconds() == 3.5


def test_threads_without_counts_are_left_out(tmp_path: Path) -> None:
    thread(tmp_path, 7, "0 1000000000 1\n")
    thread(tmp_path, 8, "\n")
    (tmp_path / "proc/self/task/9").mkdir()
    with RunQueue(tmp_path) as queue:
        assert queue.seconds() == 1.0


def test_no_counts_at_all(tmp_path: Path) -> None:
    with RunQueue(tmp_path) as queue:
        assert queue.seconds() == 0.0


def test_this_process_never_counts_backwards() -> None:
    with RunQueue() as queue:
        before = queue.seconds()
        assert sum(range(10**5)) > 0
        assert queue.seconds() >= before
