"""What one step of the processor came to: it did something, or it waits. Pure."""

from __future__ import annotations

from garrison.light import dataclass

RETRY_SECONDS = 1.0
"""How often what is blocked is looked at again."""


@dataclass(frozen=True)
class Progress:
    """Something was done; step again at once."""

    what: str
    entry: str = ""


@dataclass(frozen=True)
class Wait:
    """Nothing to do now. `kind`: empty, gate, paused, no_gate, no_room, blocked, no_target, ref_locked.

    Step again when `fd` (a pidfd, -1: none) is readable, when the journal grew, or after `seconds`.
    """

    kind: str
    reason: str = ""
    fd: int = -1
    seconds: float = RETRY_SECONDS
