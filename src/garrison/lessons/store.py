"""Sources of lessons, and the user's decisions: run records are read, decisions are files of the home.

`lessons/REPOSITORY/ID.json` is a decision, `lessons/REPOSITORY/ID/` an agent's wording of a proposal
(`lessons.wording`), and `lessons/REPOSITORY/private.md` contains the private lines for prompts (`node.instructions`).
Nothing else is stored: proposals are computed from the runs' records each time.
"""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.ends import Effect, LandingNote, RefusedBy, from_fields, with_effect
from garrison.errors import GarrisonError
from garrison.lessons.rule import CHECK, COMMAND, Occurrence, Subject
from garrison.merge.failing_tests import find_failing
from garrison.node.instructions import lessons_folder, private_lessons
from garrison.records import atomic
from garrison.records.events import FactRecorded, PullRequestChanged, decode, read_attempt
from garrison.records.journal import read_all
from garrison.records.record import Record, from_data
from garrison.records.run import LAND_NODE, LAND_NONE, Result, Task, list_runs, load, save
from garrison.run.branch import node_queue
from garrison.run.state import replay_run
from garrison.system.clock import from_iso
from garrison.system.command import read_tail

if TYPE_CHECKING:
    from collections.abc import Iterator

    from garrison.merge.entry import MergeEntry
    from garrison.processes.runtime import Runtime
    from garrison.records.run import Launch
    from garrison.system.git import Git

MOST_NAMES = 3
"""Maximum number of names of a refusal: more failed tests are represented by their command, and more files by none."""
_LOG_LINES, _LOG_BYTES = 20_000, 1 << 20
_SUFFIX = ".json"
WORDING = "wording.json"


class LessonRecord(Record):
    """The user's decision on a lesson."""

    id: str
    by: str
    what: str
    name: str
    text: str
    """Its line for agents."""
    at: str
    """Time of the decision, ISO 8601 UTC."""
    place: str = ""
    """File of the repository with its line; '' for the private file of the home."""
    dropped: bool = False
    written_by: str = ""
    """Agent that worded the text, '' for the rule or the user."""

    @property
    def subject(self) -> Subject:
        return Subject(self.by, self.what, self.name)


class WordingRecord(Record):
    """An agent's wording of a proposal. It is written once, so that the shown text does not change."""

    id: str
    agent: str
    text: str = ""
    """Its line; '' if there is none, so that the rule's applies."""
    trouble: str = ""
    """Why there is none."""


class Lessons:
    """The user's decisions about the lessons of a repository."""

    def __init__(self, home: Path, repository: str) -> None:
        """Open the decisions for the repository with this key (`Git.key`)."""
        self.folder, self.private = lessons_folder(home, repository), private_lessons(home, repository)

    def locked(self) -> AbstractContextManager[None]:
        """Lock decisions on lessons."""
        return atomic.locked(atomic.make_directory(self.folder) / "lock")

    def wording(self) -> AbstractContextManager[None]:
        """Lock the wording of proposals by agents, waiting for another one."""
        return atomic.locked(atomic.make_directory(self.folder) / "wording.lock")

    def list(self) -> list[LessonRecord]:
        """Return all decisions, oldest first."""
        found = [lesson for name in atomic.list_names(self.folder)
                 if name.endswith(_SUFFIX) and (lesson := load(LessonRecord, self.folder / name)) is not None]
        return sorted(found, key=lambda lesson: (lesson.at, lesson.id))

    def write(self, lesson: LessonRecord) -> None:
        save(self.folder / f"{lesson.id}{_SUFFIX}", lesson)

    def folder_of(self, lesson: str) -> Path:
        """Return the folder of the attempts to word a lesson."""
        return self.folder / lesson

    def read_wording(self, lesson: str) -> WordingRecord | None:
        return load(WordingRecord, self.folder_of(lesson) / WORDING)

    def read_private(self) -> str:
        """Return the text of the private file, '' if there is none."""
        return (atomic.read(self.private) or b"").decode(errors="replace")

    def write_private(self, text: str) -> None:
        atomic.write(self.private, text.encode())


# ---- records of runs -------------------------------------------------------------------------------------------------


def read_occurrences(runtime: Runtime, git: Git) -> list[Occurrence]:
    """Return the refusals from all run records of a repository in the home."""
    found = list[Occurrence]()
    for run in list_runs(runtime.home):
        with suppress(GarrisonError, OSError, ValueError, KeyError):  # doctor reports a damaged run
            launch = runtime.launch(run)
            if Path(launch.repo) == git.root and not launch.adhoc:
                found += _Run(runtime, launch, git).occurrences()
    return found


class _Run:
    """Records of one run."""

    def __init__(self, runtime: Runtime, launch: Launch, git: Git) -> None:
        self.launch, self.files = launch, runtime.files(launch.run_id)
        self.queue = node_queue(runtime, launch, "lessons", git)
        self.journal = read_all(self.files.journal)
        is_done = replay_run(self.journal).status == "done"
        self.landed = dict[str, float]()
        """Node → last landing of its work, if it reached the base branch."""
        for entry in self.queue.entries() if launch.land == LAND_NODE or (is_done and launch.land != LAND_NONE) else ():
            if entry.run == launch.run_id and entry.status == "landed":
                self.landed[entry.node] = from_iso(entry.landed_at)

    def occurrences(self) -> Iterator[Occurrence]:
        for entry in self.queue.entries():
            if entry.run == self.launch.run_id and entry.status in ("rejected", "conflict") and not entry.moved:
                for subject in _subjects_of_entry(entry):
                    yield self._occurrence(subject, entry.node, entry.attempt, entry.updated_at)
        for node in sorted(atomic.list_names(self.files.root / "nodes")):
            for attempt in range(1, self.files.latest_attempt(node) + 1):
                yield from self._refusals(node, attempt)
        yield from self._remarks()

    def _occurrence(self, subject: Subject, node: str, attempt: int, at: str) -> Occurrence:
        when = from_iso(at)
        return Occurrence(subject, self.launch.run_id, node, attempt, when, self.landed.get(node, 0.0) > when)

    def _refusals(self, node: str, attempt: int) -> Iterator[Occurrence]:
        """Yield the refusals of an attempt by the node's runner."""
        facts = dict[str, FactRecorded]()
        at = ""
        for when, event in read_attempt(self.files.process_journal(f"runner-{node}"), attempt):
            if isinstance(event, FactRecorded):
                facts[event.name] = event
                at = when if event.name == "failed" else at
        if at:
            for subject in self._subjects(node, attempt, facts):
                yield self._occurrence(subject, node, attempt, at)

    def _subjects(self, node: str, attempt: int, facts: dict[str, FactRecorded]) -> Iterator[Subject]:
        folder, by = self.files.attempt(node, attempt), facts["failed"].failure_kind
        if by == RefusedBy.ACCEPTANCE:
            task = load(Task, folder / "task.json")
            if task is not None and task.acceptance and "acceptance" in facts and facts["acceptance"].value != "ok":
                yield from _checks(by, task.acceptance, folder / "acceptance.log")
            elif (judged := facts.get("validator")) is not None and judged.value != "ok" and judged.said:
                yield Subject(RefusedBy.VALIDATOR, "", judged.said)
            return
        result = load(Result, folder / "result.json")
        refusal = from_fields(result.refusal) if result is not None else None
        if refusal is not None and refusal.failure_kind == by:
            names = (refusal.operation,) if refusal.operation else refusal.files or ("",)
            yield from (Subject(by, refusal.kind, name) for name in names[:MOST_NAMES])
        elif by == RefusedBy.GUARD and "changes" in facts:
            notes = from_data(tuple[LandingNote, ...], json.loads(str(facts["changes"].value))["changes"])
            for note in with_effect(notes, Effect.REFUSE):
                yield from (Subject(by, note.kind, name) for name in note.names[:MOST_NAMES] or (note.kind,))

    def _remarks(self) -> Iterator[Occurrence]:
        """Yield the comments of the pull request for which nodes were sent back."""
        returns = dict[str, int]()
        for entry in self.journal:
            if entry.kind == PullRequestChanged.kind and isinstance(event := decode(entry), PullRequestChanged) \
                    and event.flow is not None:
                # the journal does not name the attempt: the first return sent back the first attempt, and so on
                returns[event.node] = returns.get(event.node, 0) + 1
                for text in event.said:
                    yield self._occurrence(Subject(RefusedBy.REVIEW, "", text), event.node, returns[event.node],
                                           entry.at)


def _subjects_of_entry(entry: MergeEntry) -> Iterator[Subject]:
    """Yield the refusals of an entry by its reviewer, a conflict, or the gate."""
    if entry.review:  # the reason contains the comments
        texts = [comment.text for comment in entry.comments] or [entry.review]
        yield from (Subject(RefusedBy.REVIEW, "", text) for text in texts)
    elif entry.status == "conflict":
        yield from (Subject(RefusedBy.CONFLICT, "", name) for name in entry.files[:MOST_NAMES])
    elif entry.gate and entry.verdict not in ("setup", "lost", "missing"):
        yield from _checks(RefusedBy.GATE, entry.gate, Path(entry.log) if entry.log else None)


def _checks(by: RefusedBy | str, command: str, log: Path | None) -> Iterator[Subject]:
    """Yield the failed tests in a command's log, or the command if there are none or many."""
    failing = find_failing(read_tail(log, _LOG_LINES, _LOG_BYTES)) if log is not None else []
    if 0 < len(failing) <= MOST_NAMES:
        yield from (Subject(by, CHECK, name) for name in failing)
    else:
        yield Subject(by, COMMAND, command)
