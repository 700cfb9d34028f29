"""Dispatcher: the seam between a run and its workers.

The run's side submits, cancels, sends and watches; a worker claims, sends heartbeats and completes. A backend keeps
what was submitted while either side is away. All backends pass one contract suite (`tests/contract/test_dispatch.py`).

What every backend guarantees:

- An attempt has at most one current claim. A heartbeat, a result or a message of an earlier one is refused.
- A claim ends with a result, or when no heartbeat arrived for the attempt's lease, never earlier. Only then may
  another worker claim the attempt.
- Submitting, cancelling and sending are idempotent: a run that was killed between act and record repeats them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from garrison.errors import GarrisonError, Refused

if TYPE_CHECKING:
    from garrison.dispatch.records import (
        Answer,
        AttemptId,
        AttemptResult,
        AttemptView,
        Claim,
        Message,
        NodeAttempt,
        Token,
    )


class StaleToken(Refused):
    """A result with the token of a claim that is not current; nothing was accepted."""

    def __init__(self, token: Token) -> None:
        super().__init__(f"claim {token.claim} of {token.id} is no longer current; its result was refused")


class Unreachable(GarrisonError):
    """The dispatcher did not answer; whether it did what was asked is not known."""


class Dispatcher(Protocol):
    """Backend that brings attempts to workers and results back."""

    # ---- the run's side

    def submit(self, attempt: NodeAttempt) -> None:
        """Offer an attempt to the workers of its queue; one that was submitted before stays as it is."""
        ...

    def cancel(self, attempt: AttemptId, why: str) -> None:
        """Cancel an attempt: at once if no worker has it, else when its worker ends it or its lease ends."""
        ...

    def send(self, attempt: AttemptId, message: Message) -> None:
        """Send the attempt's worker a message; the answer to a heartbeat delivers it."""
        ...

    def watch(self, attempt: AttemptId, seen: AttemptView | None = None, timeout: float = 0.0) -> AttemptView:
        """Return the attempt's state; wait up to `timeout` seconds for one that differs from `seen`."""
        ...

    # ---- a worker's side

    def claim(self, timeout: float) -> Claim | None:
        """Claim an attempt; None if none was offered within `timeout` seconds.

        A claim does not yet allow any work: its lease begins with the first heartbeat that is answered.
        """
        ...

    def heartbeat(self, token: Token, progress: str = "") -> Answer:
        """Renew the lease, report progress, and return what the worker must do; Unreachable without an answer."""
        ...

    def is_called(self, token: Token) -> bool:
        """Return whether it is known already that the next heartbeat brings an order or a message. Asks nobody."""
        ...

    def complete(self, token: Token, result: AttemptResult) -> None:
        """Complete the attempt; StaleToken if the claim is not current, Unreachable without an answer."""
        ...
