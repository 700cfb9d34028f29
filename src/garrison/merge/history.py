"""History of a queue: the landings with what was tested for each, and the gate logs of a run, from its journal.

Each landing is derived from its record and from the verdict that allowed it; a gap between two landings is a move of
the target that the queue did not make. Only logs of what is over are listed: the log of a waiting entry, and the one
that explains a pause, still belong to the queue.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from garrison.errors import GarrisonError
from garrison.merge.entry import FINAL
from garrison.merge.state import QueueState
from garrison.records import atomic, journal

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from garrison.records.journal import Entry as Record


@dataclass(frozen=True)
class Tested:
    """A green verdict: of which tree, when, by which gate, where its log is; `seq` is its record's number."""

    tree: str
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
    reason: str = ""
    tested: Tested | None = None
    together: int = 1
    """Entries that landed with it in one swap; the tree of the last one was tested."""

    def to_dict(self) -> dict[str, Any]:
        """JSON's shape; `foreign` says that the queue did not do it."""
        return {**asdict(self), "foreign": not self.entry}

    def describe(self) -> str:
        """What let it land, in one line."""
        if not self.entry:
            return "moved by somebody else"
        if self.reason:
            return self.reason
        others = f", with {self.together - 1} more" if self.together > 1 else ""
        return f"tree {self.tested.tree[:10]} by {self.tested.gate!r}{others}" if self.tested else "no gate"


def read_history(path: Path) -> list[Landing]:
    """The landings of the journal at `path`, the eldest first."""
    return landings(journal.read_history(path))


def landings(records: Iterable[Record]) -> list[Landing]:
    """As `read_history`, from the records."""
    told, found = _Told(), list[Landing]()
    for record in records:
        told.fold(record)
        if record.kind == "landed":
            landing = told.landing(record)
            if found and landing.old not in (found[-1].commit, found[-1].old):
                found.append(Landing(record.at, landing.old, found[-1].commit))
            found.append(landing)
    return found


class _Told:
    """What the records have told so far."""

    def __init__(self) -> None:
        self.state = QueueState()
        self._gates: dict[str, str] = {}
        self._trees: dict[str, Tested] = {}
        self._tested: dict[str, Tested] = {}
        self._together = 1

    def fold(self, record: Record) -> None:
        """Fold one record."""
        self.state.apply(record)
        data = record.data
        if record.kind in ("config", "snapshot") and self.state.config:
            self._gates[self.state.config.command_key] = self.state.config.gate or ""
        elif record.kind == "landing":
            self._together = len(data.get("entries", ())) or 1
        elif record.kind == "verdict" and data["result"] == "green":
            key = data["command"].partition("-")[0]
            if data["tree"] not in self._trees or not data.get("reused"):
                self._trees[data["tree"]] = Tested(data["tree"], record.seq, record.at, self._gates.get(key, key),
                                                   data["log"])
            self._tested |= dict.fromkeys(data.get("entries") or [data["entry"]], self._trees[data["tree"]])

    def landing(self, record: Record) -> Landing:
        """What a `landed` record tells."""
        entry, config = self.state.entry(record.data["entry"]), self.state.config
        told = Landing(record.at, entry.commit, record.data["old"], entry.id, entry.node, entry.run, entry.branch,
                       entry.strategy, entry.oid, entry.reason)
        if entry.reason or config is None or config.no_gate:
            return told
        return replace(told, tested=self._tested.get(entry.id), together=self._together)


def gate_logs_of_run(home: Path, run: str) -> list[Path]:
    """The logs of all gates and set-ups that a run's pre-flight and its entries had; none of a queue that cannot be
    read."""
    found: list[Path] = []
    for path in sorted((home / "merge-queue").glob("*/*/journal.jsonl")):
        folder = path.parent / "logs"
        if names := atomic.list_names(folder):
            own, spared = _known(path, run)
            found += [folder / name for name in names
                      if name.partition(".")[0] in own and str(folder / name) not in spared]
    return found


def _known(path: Path, run: str) -> tuple[set[str], set[str]]:
    """How the run's logs begin, and which are still needed."""
    own, state = {f"preflight-{run}"}, QueueState()
    try:
        for record in journal.read_history(path):
            state.apply(record)
            if record.kind == "enq" and record.data.get("run") == run:
                own.add(record.data["entry"])
    except (GarrisonError, LookupError, TypeError, ValueError):  # for the doctor
        return set(), set()
    waiting = {entry.id for entry in state.entries.values() if entry.status not in FINAL}
    return own - waiting, {state.pause.log} if state.pause is not None else set()
