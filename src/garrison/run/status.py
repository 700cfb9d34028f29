"""Status of a run: one word and a reason, from its journal, its processes and its open waits.

`decide_status` is the only function that decides it, and is pure. Everything that shows or uses the status of a
run calls it: `status`, `top`, the page and metrics (`views/run_view.py`), `clean`, `doctor` and `up` (`RunStatus`).

The guardian journals `run` records (`guardian.py _change_run`; without a guardian `launcher.py _write_status`),
`state.py RunState` replays them. A journal cannot show that all its writers are dead; so its
status counts only while a process of the run is alive, or once the run has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from garrison.ends import SETTLED, Departure
from garrison.errors import GarrisonError, RecordError
from garrison.merge.queue import QueueReader
from garrison.records.hook import Hook
from garrison.records.identity import Identity
from garrison.records.journal import read_all
from garrison.records.life_lock import is_held
from garrison.records.names import Key
from garrison.records.run import list_runs
from garrison.run.state import ENDED, RunState, replay_run
from garrison.values import Value

if TYPE_CHECKING:
    from pathlib import Path

    from garrison.processes.runtime import Runtime
    from garrison.records.run import Launch
    from garrison.records.store import Store


class Status(StrEnum):
    """Every word for the status of a run, in every view."""

    NEW = "new"
    """Its guardian has not started."""
    RUNNING = "running"
    WAITING = "waiting"
    """It runs, and continues only after the user's answer or decision, or a signal from outside."""
    PARKED = "parked"
    """Its guardian kept dying; nothing restarts it before its probe or the user."""
    INTERRUPTED = "interrupted"
    """It has not ended, and none of its processes is alive."""
    STOPPED = "stopped"
    DONE = "done"
    FAILED = "failed"
    CORRUPT = "corrupt"
    """Its records cannot be read."""


FINAL = frozenset({Status.DONE, Status.FAILED})

UNFINISHED = frozenset({Status.NEW, Status.RUNNING, Status.WAITING, Status.PARKED, Status.INTERRUPTED})
"""Statuses of a run that has neither ended nor been stopped."""


class ProcessFacts(Protocol):
    """Facts about one process on which the status of its run depends."""

    @property
    def role(self) -> str:
        """Role in the run."""

    @property
    def status(self) -> str:
        """Recorded status."""

    @property
    def living(self) -> bool:
        """True if it is, or may be, alive."""

    @property
    def why(self) -> str:
        """Reason of its status or verdict."""

    @property
    def departure(self) -> Departure | None:
        """How it ended by itself; None if it did not."""


class ProcessFact(NamedTuple):
    """One process of a run, as `decide_status` needs it."""

    role: str
    status: str
    living: bool
    why: str = ""
    departure: Departure | None = None


class StatusReason(NamedTuple):
    """Status of a run, and why; the reason is empty only if the status needs none."""

    status: Status
    reason: str = ""


def decide_status(state: RunState, processes: Sequence[ProcessFacts] | None, *, adhoc: bool = False,
                  failure: str = "", corrupt: str = "", waits_for: Sequence[str] = ()) -> StatusReason:
    """Return the status of a run. Pure.

    Args:
        state: the run by its journal.
        processes: its processes; None if they are unknown: the journal decides alone.
        adhoc: True for one node without a guardian: the status is its runner's.
        failure: why the runner of such a node failed it.
        corrupt: why its records cannot be read, '' if they can.
        waits_for: what it waits for, if only the user or a signal from outside can make it continue.
    """
    if corrupt:
        return StatusReason(Status.CORRUPT, corrupt)
    if adhoc:
        return _status_of_adhoc(processes or (), failure)
    if state.status in ENDED:
        return _journaled(state)
    if processes is not None and (missing := _unattended(state, processes)):
        return missing
    if waits_for:
        return StatusReason(Status.WAITING, f"waits for {'; '.join(waits_for)}")
    return _journaled(state)


def _journaled(state: RunState) -> StatusReason:
    try:
        return StatusReason(Status(state.status), state.reason)
    except ValueError:
        return StatusReason(Status.CORRUPT, f"its journal says {state.status!r}, which this version does not know")


def _unattended(state: RunState, processes: Sequence[ProcessFacts]) -> StatusReason | None:
    """Return the status of an unfinished run that no process continues; None if one does. Pure."""
    guardian = next((process for process in processes if process.role == "guardian"), None)
    if guardian is not None and guardian.status == Status.PARKED and not any(
            process.living for process in processes if process.role == "launch"):
        return StatusReason(Status.PARKED, f"its guardian is parked: {guardian.why}")
    if any(process.living for process in processes):
        return None
    if state.status == Status.PARKED:
        return StatusReason(Status.PARKED, state.reason)
    if state.status == Status.NEW and not processes:
        return StatusReason(Status.NEW)
    launcher = next((process for process in processes if process.role == "launch"), None)
    why = f" (launcher: {launcher.why})" if launcher is not None and launcher.why else ""
    return StatusReason(Status.INTERRUPTED, f"none of its processes is alive{why}")


def _status_of_adhoc(processes: Sequence[ProcessFacts], failure: str) -> StatusReason:
    """Return the status of a run without a guardian: its runner's, else its orchestrator's. Pure."""
    by_role = {process.role: process for process in processes}
    main = by_role.get("runner") or by_role.get("orchestrator")
    if main is None:
        return StatusReason(Status.NEW)
    if main.living:
        return StatusReason(Status.RUNNING)
    if main.status == Status.PARKED:
        return StatusReason(Status.PARKED, f"its {main.role} is parked: {main.why}")
    if main.departure in SETTLED:
        status = Status(str(main.departure))
        why = failure if status is Status.FAILED and failure else f"its {main.role} {status}"
        return StatusReason(status, "" if status is Status.DONE else why)
    if main.departure not in (None, Departure.ORPHANED):
        return StatusReason(Status.STOPPED, f"its {main.role} ended: {main.why}")
    return StatusReason(Status.INTERRUPTED, f"its {main.role} is not alive: {main.why}")


def read_run_state(runtime: Runtime, run: str) -> RunState:
    return replay_run(read_all(runtime.files(run).journal))


def check_journal_present(store: Store, launch: Launch, state: RunState, journal: Path) -> None:
    """Raise RecordError, naming the journal, if it is empty although the guardian's hook says that the run has
    started."""
    if launch.adhoc or state.status != "new":
        return
    hook = store.read(Hook, Key("guardian", launch.pipeline_id, launch.run_id))
    if hook is not None and hook.phase != "planning":
        raise RecordError(f"the journal {journal} is empty, but run {launch.run_id} has started ({hook.phase}); "
                          f"`garrison resume {launch.run_id}` rebuilds it")


class RunStatus(Value):
    """Present state of a run, to decide what may be removed; a run with unreadable records does not count as over."""

    run: str
    status: str
    launch: Launch | None = None
    living: tuple[str, ...] = ()
    """Full names of its processes that are, or may be, alive."""
    was_registered: bool = True
    """True if any of its processes was ever registered."""
    waiting: tuple[str, ...] = ()
    """Its merge entries that are not final."""
    ended_at: str = ""
    """Time of its last journal record, ISO 8601 UTC."""
    resumable: bool = False
    """True if it failed only because some of its nodes are parked: their work waits for the user."""

    @property
    def adhoc(self) -> bool:
        return self.launch is not None and self.launch.adhoc

    @property
    def over(self) -> bool:
        """Return whether none of its processes is alive and none will be started."""
        if self.living or self.waiting:
            return False
        if self.adhoc:  # `garrison up` continues an interrupted one
            return self.was_registered and self.status != Status.INTERRUPTED
        return self.status in FINAL and not self.resumable

    @property
    def objection(self) -> str:
        """Return why nothing of it may be removed, and what to do; '' if it is over."""
        if self.living:
            return f"run {self.run} is alive ({', '.join(self.living[:3])}); `garrison stop {self.run}` first"
        if self.over:
            return ""
        if self.waiting:
            return (f"run {self.run} is in the merge queue ({', '.join(self.waiting[:3])}); "
                    "`garrison merge-queue process` or `cancel` first")
        if self.status == Status.CORRUPT:
            return f"run {self.run} cannot be read; `garrison doctor` shows why"
        why = ", with parked nodes or without having landed," if self.resumable else ""
        how = "garrison up" if self.adhoc else f"garrison resume {self.run}"
        return f"run {self.run} is {self.status}{why} and can continue; `{how}`"


def run_statuses(runtime: Runtime) -> dict[str, RunStatus]:
    """Return the status of every run of the home by id, oldest first."""
    processes = _processes(runtime)
    waiting = _waiting_entries(runtime)
    return {run: _run_status(runtime, run, processes.get(run, {}), tuple(waiting.get(run, ())))
            for run in list_runs(runtime.home)}


def running_runs(runtime: Runtime) -> set[str]:
    """Return the runs with a living process; an unreadable record counts as one."""
    return {run for run, processes in _processes(runtime, when_unreadable=True).items()
            if any(process.living for process in processes.values())}


def _run_status(runtime: Runtime, run: str, processes: dict[str, ProcessFact],
                waiting: tuple[str, ...]) -> RunStatus:
    living = tuple(full for full, process in processes.items() if process.living)
    try:
        launch = runtime.launch(run)
        entries = read_all(runtime.files(run).journal)
        state = replay_run(entries)
    except (GarrisonError, ValueError, KeyError):
        return RunStatus(run, Status.CORRUPT, None, living, bool(processes), waiting)
    ended_at = entries[-1].at if entries else launch.created_at
    status = decide_status(state, list(processes.values()), adhoc=launch.adhoc).status
    return RunStatus(run, status, launch, living, bool(processes), waiting, ended_at,
                     resumable=state.status in FINAL and not state.over)


def _processes(runtime: Runtime, *, when_unreadable: bool | None = None) -> dict[str, dict[str, ProcessFact]]:
    """Return run → full name → process.

    An unreadable record counts as `when_unreadable`; None: as alive if its life lock is held.
    """
    processes: dict[str, dict[str, ProcessFact]] = {}
    for key in runtime.store.keys(Identity):
        try:
            identity = runtime.store.read(Identity, key)
        except RecordError as error:
            is_alive = is_held(runtime.store.life_path(key)) if when_unreadable is None else when_unreadable
            processes.setdefault(key.run, {})[key.full] = ProcessFact(key.role, Status.CORRUPT, is_alive, str(error))
            continue
        if identity is not None:
            verdict = runtime.observer.judge(identity)
            processes.setdefault(key.run, {})[key.full] = ProcessFact(
                key.role, identity.status, verdict.living, identity.reason or verdict.why,
                identity.departure)
    return processes


def _waiting_entries(runtime: Runtime) -> dict[str, list[str]]:
    """Return run → its merge entries that are not final."""
    waiting: dict[str, list[str]] = {}
    for path in (runtime.home / "merge-queue").glob("*/*/journal.jsonl"):
        try:
            unfinished = QueueReader(path.parent).refresh().unfinished()
        except (GarrisonError, ValueError, KeyError):
            continue  # `garrison doctor` reports it
        for entry in unfinished:
            waiting.setdefault(entry.run, []).append(entry.id)
    return waiting
