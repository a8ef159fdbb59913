"""No test here measures the machine."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def planned_on_a_shipped_profile(shipped_profile: None) -> None:
    """For every test of the folder."""
