"""The classes into which a gate's end is put; only `green` lands. Pure."""

from __future__ import annotations

from typing import Literal

Class = Literal["green", "red", "missing", "timeout", "empty", "setup", "lost"]

BROKEN: frozenset[str] = frozenset({"missing", "timeout", "empty", "setup", "lost"})
"""Classes in which the gate itself may be at fault."""
MAX_LOST = 3
"""Gate runs of one tree that may vanish without a verdict before that counts as one."""
