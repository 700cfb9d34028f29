"""Failures of a call to a forge, distinguished by what the caller does next."""

from __future__ import annotations

from garrison.errors import GarrisonError


class ForgeError(GarrisonError):
    """Base of all failures of a forge; the message names the call, never the token."""


class ForgeUnreachable(ForgeError):
    """No answer, or a 5xx. The call may have been carried out: check before repeating it."""


class RateLimited(ForgeError):
    """The forge refuses further requests until a time; nothing was done."""

    def __init__(self, message: str, until: float) -> None:
        super().__init__(message)
        self.until = until
        """Seconds since 1970."""


class Unauthorized(ForgeError):
    """The token is missing, invalid or lacks a scope."""

    def __init__(self, message: str, scope: str = "") -> None:
        super().__init__(message)
        self.scope = scope
        """The scope or permission that is missing; empty if the token itself is refused."""


class ForgeNotFound(ForgeError):
    """No such object, or the token may not see it."""


class ForgeRefused(ForgeError):
    """The forge rejected the request: branch protection, a closed pull request, a rule. `reason` is its own text."""

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason or message


class Stale(ForgeError):
    """The pull request's head is not the expected commit; nothing was done."""

    def __init__(self, expected: str, actual: str) -> None:
        super().__init__(f"the pull request's head is {actual[:12] or 'another'}, not {expected[:12]}: read it again")
        self.expected, self.actual = expected, actual
        """Commits; `actual` is empty if the forge does not say."""
