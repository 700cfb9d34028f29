"""How a run stands: is it over, does anything of it live, may it go on? For whoever cleans up after runs.

The rule of this room: `Standing` decides and is pure; `standing` reads records and journals, and takes a run whose
records cannot be read for one that is not over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from garrison.errors import GarrisonError, RecordError
from garrison.merge.queue import QueueReader
from garrison.processes.preflight import read_run_state
from garrison.records.identity import Identity
from garrison.records.journal import read_all
from garrison.records.life_lock import is_held
from garrison.records.run import list_runs

if TYPE_CHECKING:
    from garrison.processes.runtime import Runtime
    from garrison.records.run import Launch

FINAL = frozenset({"done", "failed"})


@dataclass(frozen=True)
class RunStatus:
    """One run, as it is now; `status` is `unreadable` where a record or journal of it cannot be read."""

    run: str
    status: str
    launch: Launch | None = None
    living: tuple[str, ...] = ()
    """Full names of the layers that live, or may live where nobody can see."""
    known: bool = True
    """Whether anything of the run was ever registered."""
    waiting: tuple[str, ...] = ()
    """Merge entries of it that something will still happen to."""
    ended_at: str = ""
    """When it was last heard of, ISO 8601 UTC."""
    resumable: bool = False
    """Whether it failed only because nodes of it are parked (`RunState.over`): their work waits for a person."""

    @property
    def adhoc(self) -> bool:
        """Whether it is one node by hand, without a guardian."""
        return self.launch is not None and self.launch.adhoc

    @property
    def over(self) -> bool:
        """Whether nothing of it lives and nothing more will happen to it."""
        if self.living or self.waiting:
            return False
        return self.known if self.adhoc else self.status in FINAL and not self.resumable

    @property
    def objection(self) -> str:
        """Why nothing of it may be removed, in words with what to do; '' if it is over."""
        if self.living:
            return f"run {self.run} lives ({', '.join(self.living[:3])}); `garrison stop {self.run}` first"
        if self.over:
            return ""
        if self.waiting:
            return (f"run {self.run} waits in the merge queue ({', '.join(self.waiting[:3])}); "
                    "`garrison merge-queue process` or `cancel` first")
        if self.status == "unreadable":
            return f"run {self.run} cannot be read; `garrison doctor` says why"
        why = " with parked nodes" if self.resumable else ""
        return f"run {self.run} is {self.status}{why} and can go on; `garrison launch --resume {self.run}`"


def run_statuses(world: Runtime) -> dict[str, RunStatus]:
    """Every run of the home, by id, oldest first."""
    living = _living(world)
    waiting = _waiting(world)
    return {run: _standing(world, run, living.get(run, []),
                           tuple(waiting.get(run, ()))) for run in list_runs(world.home)}


def _standing(world: Runtime, run: str, living: list[tuple[str, bool]], waiting: tuple[str, ...]) -> RunStatus:
    alive = tuple(full for full, lives in living if lives)
    try:
        launch = world.launch(run)
        state = read_run_state(world, run)
        entries = read_all(world.files(run).journal)
    except (GarrisonError, ValueError, KeyError):
        return RunStatus(run, "unreadable", None, alive, bool(living), waiting)
    ended = entries[-1].at if entries else launch.created_at
    resumable = state.status in FINAL and not state.over
    return RunStatus(run, state.status, launch, alive, bool(living), waiting, ended, resumable)


def _living(world: Runtime) -> dict[str, list[tuple[str, bool]]]:
    """Run → its layers, and whether each lives; where a record cannot be read, its life lock says so."""
    found: dict[str, list[tuple[str, bool]]] = {}
    for key in world.store.keys(Identity):
        try:
            identity = world.store.read(Identity, key)
            lives = identity is not None and world.observer.judge(identity).living
        except RecordError:
            lives = is_held(world.store.life_path(key))
        found.setdefault(key.run, []).append((key.full, lives))
    return found


def _waiting(world: Runtime) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in (world.home / "merge-queue").glob("*/*/journal.jsonl"):
        try:
            unfinished = QueueReader(path.parent).refresh().unfinished()
        except (GarrisonError, ValueError, KeyError):
            continue  # doctor tells of it
        for entry in unfinished:
            found.setdefault(entry.run, []).append(entry.id)
    return found
