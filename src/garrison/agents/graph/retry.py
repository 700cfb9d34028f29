"""Retry policy of agent graphs: which failures are worth another try, and when.

A failure that may pass (network, rate limit, overload, a slow start) is retried three times, after 1, 2 and 4 seconds.
One that cannot pass by itself (a refused key, an account that cannot pay, an invalid request) is not retried.
"""

from __future__ import annotations

from garrison.agents.claude import failures
from garrison.agents.graph.model import AgentFailure, AgentGraphError
from garrison.errors import Refused, UsageError

DELAYS = (1.0, 2.0, 4.0)
"""Seconds before the second, third and fourth try."""
PERMANENT = frozenset({failures.AUTHENTICATION, failures.BILLING, failures.BUDGET, failures.INVALID, failures.CONTEXT,
                       failures.TOO_LONG, failures.REFUSED, failures.UNKNOWN_SESSION, failures.MAX_TURNS})
_MISTAKES = (AgentGraphError, UsageError, Refused, TypeError, ValueError, KeyError, AttributeError, NotImplementedError,
             ImportError, FileNotFoundError, PermissionError)
"""Mistakes of the caller or the installation, which the same call would repeat."""


def is_transient(error: BaseException) -> bool:
    """Return whether another try may succeed."""
    if isinstance(error, AgentFailure):
        return failures.classify(error.status, str(error), error.error) not in PERMANENT
    if isinstance(error, _MISTAKES) or type(error).__name__ == "CLINotFoundError":
        return False
    if isinstance(error, TimeoutError | OSError):
        return True
    return failures.classify(None, str(error)) not in PERMANENT


def delay_after(attempt: int, error: BaseException) -> float | None:
    """Return the seconds until the next try, after try number `attempt` (from 1) failed; None to give up."""
    if attempt > len(DELAYS) or not is_transient(error):
        return None
    return DELAYS[attempt - 1]


def describe(error: BaseException) -> str:
    """Return the error as one line for a status."""
    text = " ".join(str(error).split())[:500]
    if text and not isinstance(error, AgentFailure):
        return f"{type(error).__name__}: {text}"
    return text or type(error).__name__
