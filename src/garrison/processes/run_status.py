"""Status of a run: from its journal, its living processes and its merge entries, and whether it is over.

Where the status comes from: the guardian journals `run` records (`guardian/process.py _change_run`; without a guardian
`launcher/process.py _write_stopped`), `run_state.py RunState` replays them, `read_run_state` here reads a run's
journal, and `RunStatus` adds what only the home shows: `clean` and `doctor` ask it whether a run is over.
`views/run_view.py run_status` decides the status that status, top, web and metrics show, from the same state.

`RunStatus` decides and is pure. A run whose records cannot be read does not count as over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from garrison.errors import GarrisonError, RecordError
from garrison.merge.queue import QueueReader
from garrison.processes.run_state import RunState, replay_run
from garrison.records.identity import Identity
from garrison.records.journal import read_all
from garrison.records.life_lock import is_held
from garrison.records.run import list_runs

if TYPE_CHECKING:
    from garrison.processes.runtime import Runtime
    from garrison.records.run import Launch

FINAL = frozenset({"done", "failed"})


def read_run_state(runtime: Runtime, run: str) -> RunState:
    """Return a run's state, replayed from its journal."""
    return replay_run(read_all(runtime.files(run).journal))


@dataclass(frozen=True)
class RunStatus:
    """One run as it is now; `status` is `unreadable` if a record or journal of it cannot be read."""

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
    """True if it failed only because some of its nodes are parked: their work waits for a person."""

    @property
    def adhoc(self) -> bool:
        """Return whether it is one node started by hand, without a guardian."""
        return self.launch is not None and self.launch.adhoc

    @property
    def over(self) -> bool:
        """Return whether none of its processes is alive and nothing more will happen to it."""
        if self.living or self.waiting:
            return False
        return self.was_registered if self.adhoc else self.status in FINAL and not self.resumable

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
        if self.status == "unreadable":
            return f"run {self.run} cannot be read; `garrison doctor` says why"
        why = " with parked nodes" if self.resumable else ""
        return f"run {self.run} is {self.status}{why} and can continue; `garrison launch --resume {self.run}`"


def run_statuses(runtime: Runtime) -> dict[str, RunStatus]:
    """Return the status of every run of the home by id, oldest first."""
    processes = _processes(runtime)
    waiting = _waiting_entries(runtime)
    return {run: _run_status(runtime, run, processes.get(run, {}), tuple(waiting.get(run, ())))
            for run in list_runs(runtime.home)}


def running_runs(runtime: Runtime) -> set[str]:
    """Return the runs with a living process; an unreadable record counts as one."""
    return {run for run, processes in _processes(runtime, when_unreadable=True).items() if any(processes.values())}


def _run_status(runtime: Runtime, run: str, processes: dict[str, bool], waiting: tuple[str, ...]) -> RunStatus:
    living = tuple(full for full, is_alive in processes.items() if is_alive)
    try:
        launch = runtime.launch(run)
        entries = read_all(runtime.files(run).journal)
        state = replay_run(entries)
    except (GarrisonError, ValueError, KeyError):
        return RunStatus(run, "unreadable", None, living, bool(processes), waiting)
    ended_at = entries[-1].at if entries else launch.created_at
    return RunStatus(run, state.status, launch, living, bool(processes), waiting, ended_at,
                     resumable=state.status in FINAL and not state.over)


def _processes(runtime: Runtime, *, when_unreadable: bool | None = None) -> dict[str, dict[str, bool]]:
    """Return run → full name of each of its processes → whether it is alive.

    An unreadable record counts as `when_unreadable`; None: as alive if its life lock is held.
    """
    processes: dict[str, dict[str, bool]] = {}
    for key in runtime.store.keys(Identity):
        try:
            identity = runtime.store.read(Identity, key)
            is_alive = identity is not None and runtime.observer.judge(identity).living
        except RecordError:
            is_alive = is_held(runtime.store.life_path(key)) if when_unreadable is None else when_unreadable
        processes.setdefault(key.run, {})[key.full] = is_alive
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
