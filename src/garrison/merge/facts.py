"""Facts of a queue, as `state` folds them from its journal: under test, landing, owed, paused, to be told. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from garrison.light import dataclass

if TYPE_CHECKING:
    from garrison.merge.entry import Entry


@dataclass(frozen=True)
class Test:
    """A gate run that was begun and not yet judged; `of` is `entry` or `base`. `entry` is the first of `entries`."""

    entry: str
    entries: tuple[str, ...]
    of: str
    number: int
    job: str
    tree: str
    commit: str
    slot: int
    command: str
    log: str
    at: str


@dataclass(frozen=True)
class BaseVerdict:
    """How the bare target did, asked because of `entry`."""

    entry: str
    result: str
    reason: str
    log: str


@dataclass(frozen=True)
class Landing:
    """An intent to swap the target from `old` to `new`, with the entries (and their commits) not yet recorded as
    landed."""

    entries: tuple[str, ...]
    commits: tuple[str, ...]
    old: str
    new: str

    @property
    def entry(self) -> str:
        """The first of them."""
        return self.entries[0]


@dataclass(frozen=True)
class Owed:
    """A checkout that still shows `old` although its branch is at `new`."""

    path: str
    old: str
    new: str


ASKED = "asked"
"""The reason of a pause that a person asked for."""


@dataclass(frozen=True)
class Pause:
    """Why the queue judges nobody now; `tip` is the target's at that moment."""

    reason: str
    detail: str
    tip: str
    log: str = ""

    @property
    def asked(self) -> bool:
        """Whether a person asked for it; then nothing but a person's word lifts it."""
        return self.reason == ASKED

    def told(self) -> str:
        """One line for people, and what they can do."""
        if self.asked:
            return f"the queue is paused: {self.detail}; `garrison merge-queue resume` lets it go on"
        return f"the queue is paused: {self.reason}: {self.detail}"


def payload_of(entry: Entry, kind: str) -> dict[str, Any]:
    """What an outcome of that type tells of the entry."""
    return {"node_id": entry.node, "entry": entry.id, "attempt": entry.attempt, "branch": entry.branch,
            "target": entry.target, "oid": entry.oid, "commit": entry.commit, "status": entry.status,
            "files": list(entry.files), "log": entry.log, "error": entry.reason if kind.endswith("FAILED") else None}


@dataclass(frozen=True)
class Outcome:
    """A fact to signal: `seq` and `at` are its journal record's, so that a second telling is the same file."""

    entry: Entry
    type: str
    seq: int
    at: str
    payload: dict[str, Any]
