"""How long torch's threads spin at the end of a parallel region before they sleep. To be set before torch is imported.

GNU OpenMP spins for about a millisecond by default. With another busy process on the machine that is ruinous: the
thread that is waited for does not get the core that the waiting one burns. 200 products of 1 x 576 x 1536 on two
threads, two cores, medians of 15: alone 32 ms, and 34 ms with 5000 spins; beside two busy processes 410 ms, and 138 ms.
"""

from __future__ import annotations

import os
import sys

SPINS = "5000"


def spin_briefly() -> None:
    """Sets GOMP_SPINCOUNT, unless the user has said how threads wait, or torch is there already."""
    if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
