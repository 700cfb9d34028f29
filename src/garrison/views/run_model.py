"""Read model of a run: replay its journals into the state of run, nodes, processes and merge queue. Pure.

Every view of a run (`status`, `top`, the page, metrics) is derived from a `RunModel`; nothing else replays journals for
display. Records of one journal are applied in order; several journals may interleave in any order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from garrison.errors import GarrisonError
from garrison.merge.entry import HAS_LANDED, MergeEntry
from garrison.merge.state import QueueState
from garrison.pipeline.node_status import ACTIVE, IMPL_COMPLETE, VALIDATED
from garrison.records.events import (
    ChildDied,
    ChildParked,
    ChildSpawned,
    FactRecorded,
    JobStarted,
    ProcessOpened,
    RunnerSignal,
)
from garrison.records.names import INTEGRATION, Key, integration_branch
from garrison.run.guardian_view import find_parked
from garrison.run.state import RunState
from garrison.supervise.restart import Death
from garrison.system.clock import from_iso
from garrison.values import Value
from garrison.views.event_log import GUARDIAN, NODE_ROLES, QUEUE, RUNNER, StoredRecord

LATEST = 50
"""Maximum number of lifecycle events in `RunModel.latest`."""
CANNOT_REPLAY = (GarrisonError, LookupError, TypeError, ValueError)
"""Errors that replaying a record of another version or of a damaged journal may raise."""


class Lifecycle(Value):
    """Death, respawn or parking of a process, identified by (kind, agent, incarnation)."""

    at: str
    kind: str
    """`died`, `respawned` or `parked`."""
    agent: str
    """Full name."""
    incarnation: int = msgspec.field(name="life")
    why: str


@dataclass
class RunModel:
    """State of one run, replayed from its journals."""

    run: str
    state: RunState = field(default_factory=RunState)
    queues: dict[str, QueueState] = field(default_factory=dict)
    """Folder of a merge queue → its state."""
    queue_folders: dict[str, str] = field(default_factory=dict)
    """Target → folder of its merge queue, for queues with entries of this run."""
    lifecycle: dict[tuple[str, str, int], Lifecycle] = field(default_factory=dict)
    """Deaths, respawns and parkings, each once, in reading order."""
    died: dict[str, int] = field(default_factory=dict)
    """Node → incarnations of its runner and agent that died, in all its attempts."""
    worked: dict[str, list[float]] = field(default_factory=dict)
    """Node → duration in seconds of the agent's work in each successful attempt, in order."""
    failures: dict[str, str] = field(default_factory=dict)
    """Node → why its runner gave it up (for an ad-hoc run, only runners know)."""
    problems: list[str] = field(default_factory=list)
    """Records that could not be replayed."""
    corrupt: str = ""
    """Why the guardian's journal cannot be trusted, '' while it can."""
    _deaths: dict[tuple[str, int], dict[int, Death]] = field(default_factory=dict)
    """(full name, attempt) → incarnation → its death, from the journals of launcher and runners."""
    _started: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Node → its current attempt, and when that started."""
    _over: dict[str, int] = field(default_factory=dict)
    """Node → attempt given up by its runner or cancelled by the user."""
    _jobs: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Node → attempt and name of its runner's current job."""

    def apply(self, record: StoredRecord) -> Lifecycle | None:
        """Replay the next record of its journal; return the lifecycle event that it is the first to report.

        A record that cannot be replayed is listed in `problems`; others still count.
        """
        try:
            return self._apply(record)
        except CANNOT_REPLAY as error:
            self.report(record, error)
            if record.journal == GUARDIAN:
                # the guardian refuses to continue from such a journal; in other journals only a detail is missing
                self.corrupt = self.corrupt or (str(error) if isinstance(error, GarrisonError) else self.problems[-1])
            return None

    def report(self, record: StoredRecord, error: Exception) -> None:
        """List a record that cannot be shown, once."""
        problem = f"record {record.entry.seq} of {record.journal} cannot be shown: "
        if not (self.problems and self.problems[-1].startswith(problem)):
            self.problems.append(f"{problem}{error!r:.200}")

    def _apply(self, record: StoredRecord) -> Lifecycle | None:
        if record.journal == QUEUE:
            self._apply_queue(record)
            return None
        event = lifecycle_of(record)
        key = Key.parse(event.agent) if event else None  # invalid names are reported, not stored
        if record.journal == GUARDIAN:
            if record.event is not None:
                self.state.apply_event(record.event, record.entry.at)
            self._measure(record.entry.data)
        else:
            self._apply_process(record)
        if event is None or key is None or (event.kind, event.agent, event.incarnation) in self.lifecycle:
            return None
        self.lifecycle[event.kind, event.agent, event.incarnation] = event
        # once each: a supervisor killed after recording a death may record it again
        if event.kind == "died" and key.role in NODE_ROLES:
            self.died[key.name] = self.died.get(key.name, 0) + 1
        return event

    def _measure(self, data: Mapping[str, Any]) -> None:
        """Record when a node's agent starts, and the duration of its work."""
        change = data.get("effect") or data
        name = change.get("node", "")
        node = self.state.nodes.get(name)
        if node is None or "status" not in change:
            return
        if node.status == ACTIVE:
            if self._started.get(name, (0, ""))[0] != node.attempt:
                self._started[name] = (node.attempt, node.since)
            return
        attempt, since = self._started.pop(name, (0, ""))
        # only successful attempts tell how long the work takes; those ended early would distort that
        if attempt == node.attempt and node.status in (IMPL_COMPLETE, VALIDATED):
            self.worked.setdefault(name, []).append(max(0.0, from_iso(node.since) - from_iso(since)))

    def _apply_queue(self, record: StoredRecord) -> None:
        state = self.queues.setdefault(record.queue, QueueState())
        state.apply(record.entry)
        state.outcomes.clear()  # needed only for guardians
        if record.entry.kind == "enq" and record.entry.data.get("run") == self.run:
            self.queue_folders[str(record.entry.data["target"])] = record.queue

    def _apply_process(self, record: StoredRecord) -> None:
        node = record.journal.removeprefix(RUNNER)
        match record.event:
            case ChildDied() as death:
                deaths = self._deaths.setdefault((death.full, death.attempt), {})
                # the first record counts: a repeated one has a later time and would move the death within its window
                deaths.setdefault(death.incarnation, Death.of(death))
            case JobStarted() as job:
                self._jobs[node] = (job.attempt, job.name)
            case ProcessOpened():
                self._jobs.pop(node, None)
            case FactRecorded(name="failed") as fact:
                self.failures[node] = str(fact.value)
                self._over[node] = fact.attempt
            case RunnerSignal() as signal if signal.cancel:
                self._over[node] = signal.attempt
            case FactRecorded() as fact if fact.name == self._jobs.get(node, (0, ""))[1]:
                del self._jobs[node]

    # ---- reading

    @property
    def followed(self) -> dict[str, int]:
        """Return edge (its index in the graph, as text) → how often it was followed in the replayed flow."""
        flow = self.state.flow
        return {str(index): count for index, count in flow.followed.items()} if flow is not None else {}

    def is_over(self, node: str, attempt: int) -> bool:
        """Return whether an attempt of a node is over, even if its processes are still ending."""
        return self._over.get(node) == attempt

    @property
    def queue_folder(self) -> str:
        """Return the folder of the merge queue that has this run's nodes; '' before the first entry."""
        own = self.queue_folders.get(integration_branch(self.run))
        return own or next(iter(self.queue_folders.values()), "")

    @property
    def landing_folder(self) -> str:
        """Return the folder of the queue through which the whole run lands, '' if none."""
        return next((folder for folder in self.queue_folders.values() if folder != self.queue_folder), "")

    @property
    def queue(self) -> QueueState | None:
        """Return the merge queue that contains the nodes of this run; None before the first entry."""
        return self.queues.get(self.queue_folder)

    @property
    def landing_entry(self) -> MergeEntry | None:
        """Return the latest merge entry of the whole run; None if none."""
        queue = self.queues.get(self.landing_folder)
        entries = queue.entries_of(self.run, INTEGRATION) if queue else []
        return entries[-1] if entries else None

    def why_parked(self, node: str) -> str | None:
        """Return why a node is parked, by the user or by the restart policy; None if it is not."""
        if node in self.state.held:
            return self.state.held[node]
        parked = find_parked(self.state, node)
        return parked.why if parked is not None else None

    def job(self, node: str, attempt: int) -> str:
        """Return the current job (set-up, acceptance or validator) of a node's runner in an attempt, '' if none."""
        running = self._jobs.get(node, (0, ""))
        return running[1] if running[0] == attempt else ""

    def agent_deaths(self, node: str, attempt: int) -> list[Death]:
        """Return the deaths of a node's agent in an attempt, as journaled by its runner."""
        return list(self._deaths.get((Key("orchestrator", node, self.run).full, attempt), {}).values())

    def deaths(self) -> dict[str, list[Death]]:
        """Return the deaths that count against a limit (those of the current attempt), by full name."""
        counted = {full: list(deaths) for full, deaths in self.state.deaths.items()}
        for (full, attempt), deaths in self._deaths.items():
            key = Key.parse(full)
            node = self.state.nodes.get(key.name) if key.role in NODE_ROLES else None
            if node is None or node.attempt == attempt:
                counted[full] = [*counted.get(full, []), *deaths.values()]
        return counted

    def latest(self) -> list[Lifecycle]:
        return sorted(self.lifecycle.values(), key=lambda event: event.at, reverse=True)[:LATEST]

    def touched(self, record: StoredRecord) -> list[str] | None:
        """Return the nodes that a record of a run's or process's journal may change; None for all."""
        data = record.entry.data
        full = str(data.get("full", ""))
        names = [str(data[key]) for key in ("node", "hold", "unhold") if data.get(key)]
        if full:
            agent = Key.parse(full)
            names.append(agent.role if agent.role == "processor" else agent.name)
        is_wide = record.entry.kind == "snapshot" or "resume" in data or "processor" in names
        return None if is_wide else list(dict.fromkeys(names))

    def merge_entry(self, record: StoredRecord) -> MergeEntry | None:
        """Return the merge entry of this run that a queue's record is about; None for other runs' entries."""
        state = self.queues.get(record.queue)
        entry = state.entries.get(str(record.entry.data.get("entry", ""))) if state else None
        return entry if entry and entry.run == self.run else None

    def last_landing(self, node: str) -> MergeEntry | None:
        """Return the last landed entry of a node, even if undone since; None if none."""
        entries = self.queue.entries_of(self.run, node) if self.queue else []
        return next((entry for entry in reversed(entries) if entry.status in HAS_LANDED), None)

    def place_in_queue(self, node: str, attempt: int) -> tuple[MergeEntry | None, int]:
        """Return a node's merge entry of that attempt, and the number of unfinished ones before it."""
        queue = self.queue
        entries = [entry for entry in queue.entries_of(self.run, node) if entry.attempt == attempt] if queue else []
        if queue is None or not entries:
            return None, 0
        return entries[-1], sum(1 for entry in queue.unfinished() if entry.seq < entries[-1].seq)


def lifecycle_of(record: StoredRecord) -> Lifecycle | None:
    """Return the death, respawn or parking that a record reports; None for others, and for first starts. Pure."""
    match record.event:
        case ChildDied() as event:
            kind = "died"
        case ChildSpawned() as event if event.is_respawn:
            kind = "respawned"
        case ChildParked() as event:
            kind = "parked"
        case _:
            return None
    return Lifecycle(record.entry.at, kind, event.full, event.incarnation, event.why)
