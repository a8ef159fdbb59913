"""Files are written whole or not at all, and what is no regular file is never replaced."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from flexinfer.errors import ProfileError, UserError
from flexinfer.estimator import HardwareProfile
from flexinfer.whole_file import WholeFile


def test_a_profile_saved_to_a_pipe_leaves_the_pipe_in_place(tmp_path):
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    HardwareProfile.load("a100-icl").save(pipe)
    reader.join(timeout=10)
    assert stat.S_ISFIFO(pipe.stat().st_mode) and '"flexinfer.hardware/1"' in read[0]
    assert os.listdir(tmp_path) == ["pipe"]


def test_a_link_stays_and_what_it_names_is_replaced(tmp_path):
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    target.write_text("old")
    link.symlink_to(target)
    profile = HardwareProfile.load("a100-icl")
    profile.save(link)
    assert link.is_symlink() and HardwareProfile.load(target) == profile


def test_an_error_while_writing_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file.json"
    path.write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="file.json cannot be written: No space left"), WholeFile(path) as file:
        file.write("new")
    with pytest.raises(ProfileError, match="file.json cannot be written: No space left"):
        HardwareProfile.load("a100-icl").save(path)
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["file.json"]


def test_what_a_killed_process_left_is_in_nobodys_way(tmp_path):
    for _ in range(2):
        WholeFile(tmp_path / "t.json")  # dropped without close, as by a kill
    with WholeFile(tmp_path / "t.json") as file:
        file.write("whole")
    assert (tmp_path / "t.json").read_text() == "whole"


def test_others_may_read_a_file_as_the_umask_allows(tmp_path):
    before = os.umask(0o022)
    try:
        HardwareProfile.load("a100-icl").save(tmp_path / "p.json")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "p.json").stat().st_mode) == 0o644


@pytest.mark.parametrize(("name", "said"), [("", "its name is empty"), ("/", "it is a folder"), ("/no/x", "No such")])
def test_a_place_that_cannot_be_written_is_named_at_once(name, said):
    with pytest.raises(UserError, match=f"cannot be written: {said}"):
        WholeFile(name)
    assert Path("/").is_dir()


def test_a_file_that_is_read_only_stays_as_it_is(tmp_path, monkeypatch):
    path = tmp_path / "t.json"
    path.write_text("kept")
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda p, mode: Path(p) != path and allowed(p, mode))  # root may write anything
    with pytest.raises(UserError, match="t.json cannot be written: it is read-only"):
        WholeFile(path)
    assert path.read_text() == "kept" and os.listdir(tmp_path) == ["t.json"]
