"""Where the tests kill a processor: `GARRISON_FAILPOINT=<name>` makes `here(<name>)` end this process by SIGKILL.

Test only: without the variable nothing happens. Each durable step of the processor has one before and one after it.
"""

from __future__ import annotations

import os
import signal

NAMES = ("lease", "candidate", "test_recorded", "test_started", "verdict_before", "verdict", "landing", "swapped",
         "moving", "moved", "landed", "cleaned", "recover")
"""Every point there is."""


def here(name: str) -> None:
    """Die if this is the point that the environment names."""
    if os.environ.get("GARRISON_FAILPOINT") == name:
        os.kill(os.getpid(), signal.SIGKILL)
