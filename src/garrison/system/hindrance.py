"""Hindrances: what git, the file system and the clock can answer that says nothing about the work, in one table.

A class says what follows. WAIT: what met it is tried again, however long it takes, and a person is told. REPAIR: what
garrison made itself (a worktree, a slot) is made anew, then it is tried again. REFUSE: a person's command ends with the
reason. FAIL: the node does, after `GARRISON_GIT_PATIENCE`. Whatever the table does not know is FAIL.

`Repository.run` asks it for every call of git: one that could not look has not answered, least of all "there is none",
and raises GitError even where a failure is expected. The loop of every process waits on WAIT, as do the merge queue and
what saves work; the commits of a finished agent are brought over again, and the agent is never repeated for that.
"""

from __future__ import annotations

import re
from enum import StrEnum
from errno import EACCES, EAGAIN, EDQUOT, EIO, EMFILE, ENFILE, ENOMEM, ENOSPC, EPERM, EROFS, ETOOMANYREFS
from typing import TYPE_CHECKING

from garrison.errors import Hindered
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Collection


class Course(StrEnum):
    """What follows from an answer."""

    WAIT = "wait"
    REPAIR = "repair"
    REFUSE = "refuse"
    FAIL = "fail"


class Hindrance(Value):
    """One class of answers: how git words it in a line that begins with `fatal:` or `error:`, and its errors."""

    name: str
    course: Course
    what: str
    """What happened, for people."""
    words: str
    """Regular expression of git's words."""
    errnos: Collection[int] = ()
    inside: str = ""
    """Regular expression of what the line must name, too: the same words of a file in a worktree are the agent's."""


_GIT_DIR = r"\.git\b|/worktrees/|/objects/|repository database|\.lock\b|packed-refs|'refs/|temporary file"
TABLE = (
    Hindrance("no room", Course.WAIT, "a disk or a quota is full", "No space left on device|Disk quota exceeded",
              {ENOSPC, EDQUOT}),
    Hindrance("read-only", Course.WAIT, "a file system became read-only", "Read-only file system", {EROFS}),
    Hindrance("no rights", Course.WAIT, "a file of the git directory may not be read or written",
              "Permission denied|Operation not permitted|insufficient permission", {EACCES, EPERM}, _GIT_DIR),
    Hindrance("shortage", Course.WAIT, "memory, processes or descriptors ran out",
              "Cannot allocate memory|Too many open files|[Cc]annot fork|unable to fork|unable to create thread|"
              "Resource temporarily unavailable", {EAGAIN, ENOMEM, EMFILE, ENFILE, ETOOMANYREFS}),
    Hindrance("device", Course.WAIT, "a disk or a network file system does not answer",
              "Input/output error|Stale file handle", {EIO}),
    Hindrance("configuration", Course.WAIT, "git's configuration cannot be read",
              r"bad config |bad (numeric|boolean) config value|could not parse config|"
              "error occurred while reading the configuration|unable to access '[^']*config'",
              inside=r"^(?!.*\.gitmodules)"),
    Hindrance("moved away", Course.WAIT, "the repository or its target branch is not there",
              "the repository is not there"),
    Hindrance("worktree", Course.REPAIR, "what git keeps about a worktree is damaged, or an index is",
              r"worktrees/[^/ ]+/(commondir|gitdir|HEAD|index)\b|"
              r"not a git repository: .*/worktrees/|index file (corrupt|smaller)|bad (index file|signature)|"
              r"unable to read [0-9a-f]{40}|"
              r"invalid gitfile|failed to read .*(commondir|gitdir)|its \.git was rewritten"),
    Hindrance("distrust", Course.REFUSE, "git distrusts the repository, which another user owns",
              "detected dubious ownership|unsafe repository"),
)
_SPOKEN = ("fatal:", "error:")


def find_hindrance(told: str) -> Hindrance | None:
    """Return the class of what git, or an error in its words, told; None if the table does not know it. Pure.

    Only lines of an error count: a warning stands beside an answer that is true.
    """
    lines = [line for line in told.splitlines() if any(word in line for word in _SPOKEN)]
    return next((each for each in TABLE for line in lines
                 if re.search(each.words, line) and re.search(each.inside, line)), None)


def course_of(error: BaseException) -> Course:
    """Return what follows from an error of git or of the file system. Pure.

    An error of the file system that is about rights counts for a file of a git directory alone.
    """
    if isinstance(error, Hindered):
        return Course.WAIT
    if isinstance(error, OSError):
        name = str(error.filename or "")
        return next((each.course for each in TABLE if error.errno in each.errnos
                     and (not each.inside or "/.git/" in name)), Course.FAIL)
    found = find_hindrance(getattr(error, "stderr", "") or str(error))
    return found.course if found is not None else Course.FAIL


def passes(error: BaseException) -> bool:
    """Return whether an error is waited for. Pure."""
    return course_of(error) is Course.WAIT
