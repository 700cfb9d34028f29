"""Plans of a home: `plans/ID` with the record, the graph as DOT, and the planner's attempts with what they cost."""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.errors import AlreadyAlive, NotFound, Refused
from garrison.records import atomic, record
from garrison.records.costs import PLANS, spent_by
from garrison.records.life_lock import hold
from garrison.records.names import check_run, to_run_stem
from garrison.records.record import Record, stated
from garrison.run.request import LaunchRequest
from garrison.system import failpoint
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Iterator

PLANNER = "planner"
"""Stands for a node in the costs of a plan."""
RECORD, GRAPH, LOCK = "plan.json", "plan.dot", "owner.lock"


class PlanStage(StrEnum):
    """How far a plan is."""

    PLANNING = "planning"
    ASKED = "asked"
    """Its questions are open."""
    PROPOSED = "proposed"
    """It waits for approval."""
    DROPPED = "dropped"
    LAUNCHED = "launched"


class PlanAnswer(Value):
    """What the user has said to a question of the planner."""

    question: str
    answer: str


class PlanRecord(Record):
    """A plan, as it is in its file."""

    id: str
    goal: str
    repo: str
    commit: str
    """Commit of the repository that the planner reads."""
    planner: str
    created_at: str
    here: str = ""
    """Folder of the repository in which it was asked for."""
    command: str = ""
    """The user's command that plans, in place of an agent."""
    check: str = ""
    """The user's command that checks the goal; '' for an agent."""
    agent: str = ""
    """Agent of tasks that name none."""
    stage: PlanStage = stated(PlanStage.PLANNING)
    tries: int = 0
    """Started attempts of the planner."""
    questions: tuple[str, ...] = ()
    answers: tuple[PlanAnswer, ...] = ()
    notes: tuple[str, ...] = ()
    """Warnings, and what was left out of the plan."""
    approved: float | None = None
    """US dollars that the user has approved at first; None for no limit, or not yet."""
    planned: float = 0.0
    """US dollars that planning had cost until then."""
    replans: int = 0
    """Times that it was mended."""
    mended: str = ""
    """Failed run for which its graph has been mended, '' for none."""
    runs: tuple[str, ...] = ()
    request: LaunchRequest | None = None
    """Options of its launch; None until it is approved."""
    mends: bool = True
    """False if another command launches it, which has its own way with a failure."""


class Plans:
    """The plans of a home."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def folder(self, name: str) -> Path:
        return self.home / PLANS / name

    def begin(self, made: PlanRecord) -> PlanRecord:
        """Write a new plan, with an id made of its goal."""
        while True:
            name = f"{to_run_stem(made.goal)}-{secrets.token_hex(2)}"
            folder = self.folder(name)
            atomic.make_directory(folder.parent)
            try:  # the folder claims the id: two plans of one goal at once get two
                folder.mkdir(mode=0o700)
            except FileExistsError:
                continue
            return self.write(record.from_data(PlanRecord, {**record.to_dict(made), "id": name}))

    def write(self, plan: PlanRecord) -> PlanRecord:
        """Make a plan's record durable; return it."""
        atomic.write(self.folder(plan.id) / RECORD, record.encode(plan))
        failpoint.here(f"plan:{plan.stage}")
        return plan

    def read(self, name: str) -> PlanRecord:
        """Return a plan; NotFound, with those that there are, if it is not there."""
        path = self.folder(check_run(name)) / RECORD
        data = atomic.read(path)
        if data is None:
            known = ", ".join(plan.id for plan in self.list()[:5])
            raise NotFound(f"there is no plan {name}; " + (f"there is {known}" if known else
                                                          "`garrison plan GOAL` makes one"))
        return record.decode(PlanRecord, data, path)

    def list(self) -> list[PlanRecord]:
        """Return all plans, the latest first."""
        found = [record.decode(PlanRecord, data, path) for name in atomic.list_names(self.home / PLANS)
                 if (data := atomic.read(path := self.home / PLANS / name / RECORD)) is not None]
        return sorted(found, key=lambda plan: plan.created_at, reverse=True)

    @contextmanager
    def held(self, name: str) -> Iterator[None]:
        """Work on a plan alone; AlreadyAlive if another process does."""
        with hold(self.folder(name) / LOCK) as lock:
            if lock is None:
                raise AlreadyAlive(f"another process works on it: plan {name}; wait until that has ended")
            yield

    def read_graph(self, name: str) -> str:
        """Return a plan's DOT; Refused if it has none yet."""
        data = atomic.read(self.folder(name) / GRAPH)
        if data is None:
            raise Refused(f"plan {name} has no tasks yet; `garrison plan --continue {name}` continues it")
        return data.decode()

    def write_graph(self, name: str, text: str) -> None:
        atomic.write(self.folder(name) / GRAPH, text.encode())
        failpoint.here("plan:graph")

    def spent(self, name: str) -> float:
        """Return the US dollars that planning has cost so far, as far as that is known."""
        return spent_by(self.home, f"{PLANS}/{name}")
