"""The target's queue, for runs that land as a whole: it decides their entries at random, and checks what lands.

The simulated processor works the queue of the nodes. This one is worked by someone else (another run's processor may
be), so that its verdicts come at any moment: while the guardian is dead, before it has read the entry, after a resume.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.simulator.violation import Violation

from garrison.run.guardian_view import LandingView
from garrison.run.merge_client import MergeStatus
from garrison.run.state import LANDED, NO_CHANGE, REQUESTED

if TYPE_CHECKING:
    from tests.simulator.world import Run, World

PACE = 0.02
"""Share of the steps of a seed in which an entry is decided."""


@dataclass
class TargetEntry:
    """The entry of one request of a run."""

    run: str
    attempt: int
    oid: str
    status: str = "queued"


class TargetQueue:
    def __init__(self, world: World, seed: int) -> None:
        self.world, self.rng = world, random.Random(seed + 0.5)
        self.entries: dict[tuple[str, int, str], TargetEntry] = {}
        self.landed: list[tuple[str, str]] = []

    def view(self, run: Run) -> LandingView:
        """Return what a guardian observes of its run's landing."""
        merges = [key for key in self.world.check.landings if key[0] == run.id]
        count = sum(self.world.check.landings[key] for key in merges)
        last = next((entry for entry in reversed(self.entries.values()) if entry.run == run.id), None)
        merge = None if last is None else MergeStatus(last.attempt, last.status, last.status, "c" + last.oid, "main")
        return LandingView(f"{run.id} with {count} merges", bool(merges), merge)

    def enqueue(self, run: str, attempt: int, oid: str) -> None:
        """Add an entry; that of the same request is the same one. It must have been journaled, durably."""
        journal = self.world.runs[run].journal
        requests = [(entry.data["attempt"], entry.data["oid"]) for entry in journal.entries[: journal.synced]
                    if entry.kind == "landing" and entry.data["status"] == REQUESTED]
        snapshots = [entry.data["landing"] for entry in journal.entries if entry.kind == "snapshot"]
        requests += [(landing.get("attempt"), landing.get("oid")) for landing in snapshots]
        if (attempt, oid) not in requests:
            raise Violation(f"{run} was enqueued in attempt {attempt} at {oid!r}, which was not journaled: {requests}")
        self.entries.setdefault((run, attempt, oid), TargetEntry(run, attempt, oid))

    def step(self) -> None:
        """Decide the entry that waits longest, now and then."""
        waiting = next((entry for entry in self.entries.values() if entry.status == "queued"), None)
        if waiting is None or self.rng.random() > PACE:
            return
        waiting.status = self.rng.choice(["landed", "landed", "rejected", "conflict"])
        self.world.note(f"target: {waiting.run} attempt {waiting.attempt} {waiting.status}")
        if waiting.status == "landed":
            if any(run == waiting.run for run, _ in self.landed):
                raise Violation(f"{waiting.run} landed twice")
            self.landed.append((waiting.run, waiting.oid))

    def check_record(self, run: str, data: dict[str, Any]) -> None:
        """Check a record of a run's landing: it says of this request what the queue decided about it."""
        decided = {entry.status for (name, attempt, _), entry in self.entries.items()
                   if (name, attempt) == (run, data["attempt"])}
        expected = {"landed": {"landed"}, "refused": {"rejected", "conflict"}, "failed": {"rejected", "conflict"}}
        if data["status"] in expected and not decided & expected[data["status"]]:
            raise Violation(f"the landing of {run} was called {data['status']} in attempt {data['attempt']}: {decided}")

    def check_end(self, run: Run) -> None:
        """Check that a run is done if, and only if, it landed, and as its last node left it."""
        shadow = self.world.check.shadows[run.id]
        landed = [oid for name, oid in self.landed if name == run.id]
        if shadow.status == "done" and shadow.landing.status == LANDED and landed != [self.view(run).tip]:
            raise Violation(f"{run.id} is done as {self.view(run).tip!r}, and {landed} landed")
        if shadow.status == "done" and shadow.landing.status not in (LANDED, NO_CHANGE):
            raise Violation(f"{run.id} is done, and its landing {shadow.landing}")
        if landed and shadow.status != "done":
            raise Violation(f"{run.id} is {shadow.status}, and landed")
