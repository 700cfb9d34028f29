"""What landed and what was tested for it, from a queue's journal. Pure but for reading the file.

The rule of this room: nothing here is remembered; each landing is told from the record of it and from the verdict that
let it, and a gap between two landings is a move that the queue did not make.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from garrison.merge.state import QueueState
from garrison.records import journal

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from garrison.records.journal import Entry as Record


@dataclass(frozen=True)
class Tested:
    """A green verdict: when, by which gate, where its log is; `seq` is its record's number."""

    seq: int
    at: str
    gate: str
    log: str


@dataclass(frozen=True)
class Landing:
    """A value the target took. Without an `entry` somebody else moved it there."""

    at: str
    commit: str
    old: str = ""
    entry: str = ""
    node: str = ""
    run: str = ""
    branch: str = ""
    strategy: str = ""
    oid: str = ""
    tree: str = ""
    reason: str = ""
    tested: Tested | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON's shape; `foreign` says that the queue did not do it."""
        return {**asdict(self), "foreign": not self.entry}

    def told(self) -> str:
        """What let it land, in one line."""
        if not self.entry:
            return "moved by somebody else"
        if self.reason:
            return self.reason
        return f"tree {self.tree[:10]} by {self.tested.gate!r}" if self.tested else "no gate"


def read_history(path: Path) -> list[Landing]:
    """The landings of the journal at `path`, the eldest first."""
    return landings(journal.read_all(path))


def landings(records: Iterable[Record]) -> list[Landing]:
    """As `read_history`, from the records."""
    state, found = QueueState(), list[Landing]()
    green, gates = dict[str, Tested](), dict[str, str]()
    for record in records:
        state.apply(record)
        if record.kind == "config" and state.config:
            gates[state.config.command_key] = state.config.gate or ""
        elif record.kind == "verdict" and record.data["result"] == "green" and not record.data.get("reused"):
            key = record.data["command"]
            green[record.data["tree"]] = Tested(record.seq, record.at, gates.get(key, key), record.data["log"])
        elif record.kind == "landed":
            found += _landed(state, record, green, found[-1] if found else None)
    return found


def _landed(state: QueueState, record: Record, green: dict[str, Tested], last: Landing | None) -> list[Landing]:
    entry, old = state.entry(record.data["entry"]), record.data["old"]
    told = Landing(record.at, entry.commit, old, entry.id, entry.node, entry.run, entry.branch, entry.strategy,
                   entry.oid, reason=entry.reason)
    if not entry.reason:
        gated = state.config is not None and not state.config.no_gate
        told = replace(told, tree=entry.tree, tested=green.get(entry.tree) if gated else None)
    if last and last.commit != old:
        return [Landing(record.at, old, last.commit), told]
    return [told]
