"""Errors: the hierarchy of refusals that garrison can raise.

An error's message is one line that tells the caller what to do. Its `exit_code` is the exit code of a command that ends
with it (1 refused or failed, 2 bad usage). This module imports nothing of garrison.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class GarrisonError(Exception):
    """Base of all errors that a user may meet; `str(error)` is the line to show."""

    exit_code = 1
    tail = ""
    """End of an explanatory log, shown below the message."""


class UsageError(GarrisonError):
    """Malformed call (bad name, unknown option value); exit code 2."""

    exit_code = 2


class Refused(GarrisonError):
    """Valid request that garrison does not carry out now; the message says what would help."""


class Shortage(GarrisonError):
    """Lack of processes, memory or descriptors for a start: temporary, and not a failure of the work."""


class Hindered(GarrisonError):
    """Something outside the work is missing or unusable, and the caller waits until the user repairs it."""


class NotFound(GarrisonError):
    """No record, node, entry or session of that name."""


class RecordError(GarrisonError):
    """Unusable record on disk, which is left unchanged while others are still used."""


class PreflightRed(Refused):
    """Set-up or gate is not green on the bare target; `tail` is the end of its log.

    `reason` is the cause, without advice; `result` is the verdict's, `setup` for the set-up.
    """

    def __init__(self, message: str, tail: str, reason: str = "", result: str = "",
                 refused_hosts: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.tail, self.reason, self.result, self.refused_hosts = tail, reason, result, refused_hosts


class ForeignImports(Refused):
    """The gate's Python would test a checkout of the repository other than the merged tree."""


class RecordCorrupt(RecordError):
    """A record cannot be parsed. Only its owner or `doctor --fix` moves it away."""

    def __init__(self, path: object, why: str) -> None:
        super().__init__(f"corrupt record {path}: {why}; it was left in place; `garrison doctor` shows the repair")
        self.path = str(path)
        self.why = why


class RecordUnreadable(RecordError):
    """A record or its folder has the wrong file type or is not readable; it is not corrupt."""

    def __init__(self, path: object, why: str) -> None:
        super().__init__(f"cannot use {path}: {why}; it was left in place; move it away or repair access to it")


class NewerSchema(RecordError):
    """A record was written by a newer garrison; it is not corrupt and stays untouched."""

    def __init__(self, path: object, found: int, known: int) -> None:
        super().__init__(f"{path} has schema {found}, this garrison knows {known}; use the newer garrison")


class Fenced(GarrisonError):
    """Write by an incarnation or writer with a successor; the caller stops at once and writes nothing."""


class LockLost(GarrisonError):
    """The life lock's file was removed or replaced under its holder; the holder stops gracefully."""


class AlreadyAlive(Refused):
    """A living process already has this name in this run."""


class ForbiddenTransition(Refused):
    """Step that a lifecycle table does not allow; nothing was changed."""

    def __init__(self, what: str, old: str, new: str, allowed: Iterable[str]) -> None:
        names = ", ".join(sorted(allowed)) or "nothing (it is final)"
        super().__init__(f"{what} cannot go from {old} to {new}; allowed from {old}: {names}")
        self.old, self.new = old, new
