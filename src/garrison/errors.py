"""Errors: every refusal that garrison can raise, as one small hierarchy.

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
    """End of a log that explains it, shown below the message."""


class UsageError(GarrisonError):
    """Malformed call (bad name, unknown option value); exit code 2."""

    exit_code = 2


class Refused(GarrisonError):
    """A well-formed request that garrison will not carry out now; the message says what would help."""


class Shortage(GarrisonError):
    """Lack of processes, memory or descriptors for a start. It is temporary, and no failure of the work."""


class Hindered(GarrisonError):
    """Something outside the work is missing or cannot be used, and the caller waits for it: the user may mend it."""


class NotFound(GarrisonError):
    """No record, node, entry or session of that name."""


class RecordError(GarrisonError):
    """A record on disk that garrison cannot use; it is left as it is, byte for byte, and others are still used."""


class PreflightRed(Refused):
    """Set-up or gate is not green on the bare target; `tail` is the end of its log.

    `reason` says why, without what to do; `result` is that of the verdict, `setup` for the set-up.
    """

    def __init__(self, message: str, tail: str, reason: str = "", result: str = "",
                 refused_hosts: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.tail, self.reason, self.result, self.refused_hosts = tail, reason, result, refused_hosts


class ForeignImports(Refused):
    """The gate's Python would test a checkout of the repository other than the merged tree."""


class RecordCorrupt(RecordError):
    """A record cannot be read as what it should be. Only its owner or `doctor --fix` moves it away."""

    def __init__(self, path: object, why: str) -> None:
        super().__init__(f"corrupt record {path}: {why}; it was left in place; `garrison doctor` says what mends it")
        self.path = str(path)
        self.why = why


class RecordUnreadable(RecordError):
    """A record or its folder is not a file or folder, or may not be read; it is not corrupt."""

    def __init__(self, path: object, why: str) -> None:
        super().__init__(f"cannot use {path}: {why}; it was left in place; move it away or repair access to it")


class NewerSchema(RecordError):
    """A record was written by a newer garrison; it is not corrupt and stays untouched."""

    def __init__(self, path: object, found: int, known: int) -> None:
        super().__init__(f"{path} has schema {found}, this garrison knows {known}; use the newer garrison")


class Fenced(GarrisonError):
    """A write by an incarnation or writer that has a successor; the caller stops at once and writes nothing."""


class LockLost(GarrisonError):
    """The life lock's file was removed or replaced under its holder; the holder stops gracefully."""


class AlreadyAlive(Refused):
    """A living process already has this name in this run."""


class ForbiddenTransition(Refused):
    """A lifecycle table does not list this step; nothing was changed."""

    def __init__(self, what: str, old: str, new: str, allowed: Iterable[str]) -> None:
        names = ", ".join(sorted(allowed)) or "nothing (it is final)"
        super().__init__(f"{what} cannot go from {old} to {new}; allowed from {old}: {names}")
        self.old, self.new = old, new
