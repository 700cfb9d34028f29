"""Classes of deaths: the cause of a process's or session's death decides whether it counts and what follows. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Mapping


class Ruling(Value):
    """Meaning of a class of deaths: whether it `counts` against window and total, and what `follows`."""

    counts: bool
    follows: str
    """backoff · at once · pause (a while, longer each time) · reset (wait until a rate limit resets) · person (park
    until the user acts) · resume (when the user who stopped it resumes it) · never (its work is done)."""
    weight: float = 1.0
    """Part of a death for which one of this class counts."""

    @property
    def restarts(self) -> bool:
        return self.follows in ("backoff", "at once", "pause", "reset")


CRASH, HUNG, CHURN, ORDER, REBOOT, STOP, CLEAN = "crash", "hung", "churn", "order", "reboot", "stop", "clean"
TERMINAL, DAMAGE, FAILOVER = "terminal", "damage", "failover"
MEMORY, HOST, SHORTAGE = "memory", "host", "shortage"
RATE_LIMIT, AUTHENTICATION, BILLING, BUDGET = "rate_limit", "authentication", "billing", "budget"

CLASSES: Mapping[str, Ruling] = {
    CRASH: Ruling(True, "backoff"),
    HUNG: Ruling(True, "backoff"),
    MEMORY: Ruling(True, "backoff", 0.2),  # killed by the kernel for lack of memory: seldom its own fault alone
    HOST: Ruling(True, "backoff", 0.2),  # the host that did its work was lost: seldom its own fault, either
    CHURN: Ruling(False, "at once"),  # its context window was used up; a new session continues
    ORDER: Ruling(False, "at once"),  # killed by the user or a supervisor, to start over
    REBOOT: Ruling(False, "at once"),  # a reboot is not the fault of the process
    TERMINAL: Ruling(False, "at once"),  # its terminal server died, which counts against another session of that server
    SHORTAGE: Ruling(False, "pause"),  # the machine lacked memory or disk for its start: not its fault
    RATE_LIMIT: Ruling(False, "reset"),
    AUTHENTICATION: Ruling(False, "person"),
    BILLING: Ruling(False, "person"),
    BUDGET: Ruling(False, "person"),
    DAMAGE: Ruling(False, "at once"),  # its record was damaged or lost: how it ended is not known
    FAILOVER: Ruling(False, "at once"),  # its agent could not continue, and another one took over
    STOP: Ruling(False, "resume"),
    CLEAN: Ruling(False, "never"),
}
"""Class of a death → its ruling; for processes and Claude sessions alike."""


def ruling(kind: str) -> Ruling:
    """Return the ruling on a class; an unknown one is a crash."""
    return CLASSES.get(kind, CLASSES[CRASH])
