"""The seam's types: an assignment goes in, work is polled, an outcome comes out."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from garrison.records import atomic

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from garrison.records.run import Task


@dataclass(frozen=True)
class Assignment:
    """One life's work at one attempt: the task, where to work, and the exact environment of its processes."""

    task: Task
    tree: Path
    folder: Path
    """The attempt's folder: prompt.md, output.log, notes.txt, result.json."""
    environment: Mapping[str, str]
    incarnation: int = 1
    wisdom: str = ""
    """What earlier lives of this attempt learned; empty in its first."""
    controllers: tuple[tuple[str, str], ...] = ()
    """Who directs the agent, and in what: (full name, control type), nearest first."""
    attempts: Path | None = None
    """Below it lie all attempts of the run, and what they kept of their sessions."""

    @property
    def context_file(self) -> Path:
        """The pipeline's context as a JSON object, where the run has one."""
        return self.folder / "context.json"

    def tell_context(self, context: Mapping[str, Any]) -> None:
        """Write the pipeline's context into that file."""
        atomic.write(self.context_file, (json.dumps(context, indent=2) + "\n").encode())

    @property
    def prompt_file(self) -> Path:
        """What the agent is asked, with the wisdom of earlier lives."""
        return self.folder / "prompt.md"

    @property
    def output(self) -> Path:
        """Where everything the agent prints goes."""
        return self.folder / "output.log"

    @property
    def notes(self) -> Path:
        """Where an agent may leave notes for its successor."""
        return self.folder / "notes.txt"


@dataclass(frozen=True)
class Outcome:
    """How the work ended; `status` is success or fail, `reason` is empty on success."""

    status: str
    reason: str = ""
    exit_code: int | None = None
    killed: bool = False
    """Whether a signal ended it, its own crash or somebody's: no verdict on the work, which a successor takes up."""
    said: Mapping[str, Any] = field(default_factory=dict)
    """What the agent itself says for the pipeline (see `agents.result`); empty if it says nothing."""


@dataclass(frozen=True)
class Question:
    """Something only a person can settle; `id` tells it from the one before."""

    id: str
    text: str


class Work(Protocol):
    """Work under way."""

    def poll(self, now: float) -> Outcome | None:
        """The outcome once it has ended and nothing of it is left running; `now` is monotonic seconds."""
        ...

    def stop(self, now: float) -> None:
        """Ask it to end; `poll` gives the outcome."""
        ...

    def process(self) -> tuple[int, int] | None:
        """(pid, start ticks) whose end should wake the loop."""
        ...

    def wake_at(self) -> float | None:
        """When `poll` wants to be called at the latest, monotonic seconds."""
        ...

    @property
    def session(self) -> str | None:
        """The id of a session that a successor can resume, if there is one."""
        return None

    @property
    def phase(self) -> str | None:
        """What the agent itself says of its phase, if it does."""
        return None

    @property
    def question(self) -> Question | None:
        """What it waits for a person to answer, if it does."""
        return None

    def answer(self, question: str, text: str) -> None:
        """Give the answer to the question of that id; nobody has asked one here."""
        return


class Agent(Protocol):
    """Starts work."""

    name: str

    def start(self, assignment: Assignment, now: float) -> Work:
        """Begin; GarrisonError if it cannot."""
        ...


@dataclass(frozen=True)
class Profile:
    """A command agent as the configuration names it: argv template, variables it may see, what counts as success."""

    name: str
    argv: tuple[str, ...] = ()
    """Words with {prompt_file} {prompt} {tree} {node} {run} {attempt} {result_file} {command} put in."""
    env: tuple[str, ...] = ()
    success: str = "exit_zero"
    """`exit_zero`, or `result_file`: the program itself writes GARRISON_RESULT_FILE with {"status": "success"}."""
