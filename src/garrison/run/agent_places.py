"""Places: how many agents work at once over all runs of a home (`[limits] agents` in config.toml).

Each guardian keeps one record, `places/RUN.json` in the home: the nodes of its run that have a place, and those that
wait for one. Under one lock it counts the places in the records of all runs, and takes its share of the free ones. A
record counts only while a process of its run is alive, so a killed run frees its places. A free place goes to the run
with the fewest places, then to the one that has waited longest: a large run does not starve the others.

A place is taken before a node starts and before the runner of a started node is restarted, as after a resume;
it is released when the node no longer works. If the limit is lowered, running agents are not stopped.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from garrison.config import config_path, read_config
from garrison.errors import GarrisonError
from garrison.records import atomic, record
from garrison.records import run as run_records
from garrison.records.life_lock import is_held
from garrison.records.names import Key
from garrison.system.stamps import file_stamp
from garrison.values import Value, replace

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from garrison.records.store import Store


class RunPlaces(Value):
    """Places of one run, as its guardian last recorded them."""

    run_id: str
    guardian: str
    """Name of its guardian's role."""
    nodes: list[str] = msgspec.field(default_factory=list)
    """Nodes with a place."""
    waiting: list[str] = msgspec.field(default_factory=list)
    """Nodes that wait for one."""
    since: float = 0.0
    """When they started to wait, in seconds since 1970."""
    at_work: int = 0
    """Places taken over all runs."""
    limit: int = 0

    def describe(self) -> str:
        return f"waits for a free place: {self.at_work} of {self.limit} agents at work ([limits] agents)"


def folder_of(home: Path) -> Path:
    return home / "places"


def record_of(home: Path, run: str) -> Path:
    return folder_of(home) / f"{run}.json"


def read_own(home: Path, run: str) -> RunPlaces | None:
    """Read the record of a run; None without one."""
    return run_records.load(RunPlaces, record_of(home, run))


def count_granted(limit: int, own: RunPlaces, others: Sequence[RunPlaces]) -> int:
    """Return how many of its waiting nodes a run may start now; `others`: the records that count. Pure."""
    free = limit - len(own.nodes) - sum(len(other.nodes) for other in others)
    having = {each.run_id: len(each.nodes) for each in (own, *others)}
    asking = {each.run_id: len(each.waiting) for each in (own, *others)}
    since = {each.run_id: each.since for each in (own, *others)}
    granted = 0
    for _ in range(free):
        able = [run for run, count in asking.items() if count]
        if not able:
            break
        first = min(able, key=lambda run: (having[run], since[run], run))
        having[first] += 1
        asking[first] -= 1
        granted += first == own.run_id
    return granted


class AgentPlaces(msgspec.Struct):
    """The places of one run, for one incarnation of its guardian."""

    store: Store
    guardian: Key
    limit: int | None = None
    granted: set[str] = msgspec.field(default_factory=set)
    """Nodes with a place that this incarnation took or found at work."""
    _own: RunPlaces | None = None
    _stamp: object = ()

    @property
    def watched(self) -> list[str]:
        return [str(config_path(self.store.home)), *([str(self.folder)] if self.limit is not None else [])]

    @property
    def folder(self) -> Path:
        return folder_of(self.store.home)

    @property
    def is_waiting(self) -> bool:
        own = self._own
        return own is not None and bool(own.waiting)

    def are_limited(self) -> bool:
        """Return whether config.toml limits the agents of all runs; give all places back if it no longer does."""
        self._read_limit()
        if self.limit is None and self._own is not None:
            self.leave()
        return self.limit is not None

    def share(self, busy: Sequence[str], wanted: Sequence[str], now: float) -> Collection[str] | None:
        """Take places for the nodes at work, and free ones for those that are to start; None without a limit.

        Args:
            busy: nodes at work.
            wanted: nodes that are to start, or to continue, in this order.
            now: seconds since 1970.
        """
        if not self.are_limited():
            return None
        assert self.limit is not None
        kept = [*busy, *(name for name in wanted if name in self.granted and name not in busy)]
        more = [name for name in wanted if name not in kept]
        own = self._own
        if own is None or more or own.waiting or sorted(own.nodes) != sorted(kept) or own.limit != self.limit:
            self._record(kept, more, now)
        self.granted = set(self._own.nodes) if self._own is not None else set()
        return self.granted

    def leave(self) -> None:
        """Give all places back."""
        record_of(self.store.home, self.guardian.run).unlink(missing_ok=True)
        self._own, self.granted = None, set()

    def _record(self, kept: list[str], more: list[str], now: float) -> None:
        assert self.limit is not None
        atomic.make_directory(self.folder)
        with atomic.locked(self.folder / ".lock"):  # two guardians that count at once would both take the last place
            others = self._others()
            before = self._own
            since = before.since if before is not None and before.waiting and more else now
            asked = RunPlaces(self.guardian.run, self.guardian.name, kept, more, since)
            count = count_granted(self.limit, asked, others)
            nodes, waiting = [*kept, *more[:count]], more[count:]
            own = replace(asked, nodes=nodes, waiting=waiting, since=now if count else since, limit=self.limit,
                          at_work=len(nodes) + sum(len(other.nodes) for other in others))
            if own != before:
                # Not durable: after a power cut no process of the run is alive, so the record does not count.
                atomic.write(record_of(self.store.home, own.run_id), record.encode(own), durable=False)
            self._own = own

    def _others(self) -> list[RunPlaces]:
        """Read the records of the other runs that have a living process."""
        found = []
        for name in atomic.list_names(self.folder):
            if not name.endswith(".json") or name.startswith(".") or name == f"{self.guardian.run}.json":
                continue
            with suppress(GarrisonError):  # a damaged one counts no place; its guardian rewrites it
                other = run_records.load(RunPlaces, self.folder / name)
                if other is not None:
                    found.append(self._living_part(other))
        return [other for other in found if other.nodes or other.waiting]

    def _living_part(self, other: RunPlaces) -> RunPlaces:
        if self._lives("guardian", other.guardian, other.run_id):
            return other
        nodes = [name for name in other.nodes if any(
            self._lives(role, name, other.run_id) for role in ("runner", "orchestrator"))]
        return replace(other, nodes=nodes, waiting=[])

    def _lives(self, role: str, name: str, run: str) -> bool:
        return is_held(self.store.life_path(Key(role, name, run)))

    def _read_limit(self) -> None:
        """Follow config.toml; while it cannot be read, the last limit applies."""
        stamp = file_stamp(config_path(self.store.home))
        if stamp != self._stamp:
            self._stamp = stamp
            with suppress(GarrisonError, OSError):
                self.limit = read_config(self.store.home).limits().agents
