"""What follows a failure: which are worth another try, and when. Pure.

The rule of this room: a failure that asking again may mend (network, rate limit, overload, a slow start) is tried three
more times, after 1, 2 and 4 seconds; one that cannot get better by itself (a refused key, an account that cannot pay, a
request the API calls invalid) is not tried again. The classes are those of `agents.claude.failures`.
"""

from __future__ import annotations

from garrison.agents.claude import failures as why
from garrison.agents.graph.model import AgentFailure, AgentGraphError
from garrison.errors import Refused, UsageError

DELAYS = (1.0, 2.0, 4.0)
"""Seconds before the second, third and fourth try."""
PERMANENT = frozenset({why.AUTHENTICATION, why.BILLING, why.BUDGET, why.INVALID, why.CONTEXT, why.TOO_LONG,
                       why.REFUSED, why.UNKNOWN_SESSION, why.MAX_TURNS})
_NEVER = (AgentGraphError, UsageError, Refused, TypeError, ValueError, KeyError, AttributeError, NotImplementedError,
          ImportError, FileNotFoundError, PermissionError)
"""Mistakes of the caller or the installation; the same call meets them again."""


def is_transient(error: BaseException) -> bool:
    """Whether another try may succeed."""
    if isinstance(error, AgentFailure):
        return why.classify(error.status, str(error), error.error) not in PERMANENT
    if isinstance(error, _NEVER) or type(error).__name__ == "CLINotFoundError":
        return False
    if isinstance(error, TimeoutError | OSError):
        return True
    return why.classify(None, str(error)) not in PERMANENT


def delay_after(attempt: int, error: BaseException) -> float | None:
    """Seconds until the next try, after `attempt` tries (from 1) of which the last ended in `error`; None: give up."""
    if attempt > len(DELAYS) or not is_transient(error):
        return None
    return DELAYS[attempt - 1]


def words(error: BaseException) -> str:
    """The error as one line for a status."""
    said = " ".join(str(error).split())[:500]
    return f"{type(error).__name__}: {said}" if said and not isinstance(error, AgentFailure) else (
        said or type(error).__name__)
