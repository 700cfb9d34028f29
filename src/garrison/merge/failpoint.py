"""The points where the tests kill who works on a queue; how is in `system.failpoint`.

Each durable step has one before and one after it.
"""

from __future__ import annotations

from garrison.system.failpoint import here

__all__ = ["ENQUEUE", "NAMES", "REBUILD", "here"]

NAMES = ("lease", "pinned", "candidate", "test_recorded", "test_started", "verdict_before", "verdict", "landing",
         "swapped", "moving", "moved", "landed_first", "landed", "cleaned", "recover",
         "archived", "compacted")
"""Every point of the processor."""
ENQUEUE = ("enq_pinned", "enq_written", "enq")
"""Those of whoever enqueues."""
REBUILD = ("rebuild", "rebuild_kept", "rebuilt")
"""Those of the doctor who rebuilds a lost journal."""
