"""The processor's points where the tests kill it; how is in `system.failpoint`.

Each durable step of the processor has one before and one after it.
"""

from __future__ import annotations

from garrison.system.failpoint import here

__all__ = ["NAMES", "here"]

NAMES = ("lease", "pinned", "candidate", "test_recorded", "test_started", "verdict_before", "verdict", "landing",
         "swapped", "moving", "moved", "landed_first", "landed", "cleaned", "recover",
         "archived", "compacted")
"""Every point there is."""
