"""Threads spin briefly, unless the user or an imported torch has decided already."""

from __future__ import annotations

import os
import sys

import pytest

from flexinfer.waiting import SPINS, spin_briefly


@pytest.fixture
def before_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    # Set first, so that what the call sets is taken back
    monkeypatch.setenv("GOMP_SPINCOUNT", "")
    monkeypatch.delenv("GOMP_SPINCOUNT")
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)


def test_a_count_is_set_for_libgomp(before_torch: None) -> None:
    spin_briefly()
    assert os.environ["GOMP_SPINCOUNT"] == SPINS


@pytest.mark.parametrize(("name", "value"), [("GOMP_SPINCOUNT", "7"), ("OMP_WAIT_POLICY", "active")])
def test_what_the_user_said_stays(before_torch: None, monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    spin_briefly()
    assert os.environ.get("GOMP_SPINCOUNT") == (value if name == "GOMP_SPINCOUNT" else None)


def test_it_is_too_late_once_torch_is_imported(before_torch: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", sys)
    spin_briefly()
    assert "GOMP_SPINCOUNT" not in os.environ
