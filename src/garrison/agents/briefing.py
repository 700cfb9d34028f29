"""Briefing: everything that a prompt tells an agent in addition to its task. Pure records.

`node.briefing` reads it from the run's files and the repository, `prompt` formats it. What an agent or a program wrote
(subjects of commits, paths, notes, output) is unchanged here; `prompt` quotes it.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from garrison.ends import RefusedBy
from garrison.values import Value


class Reporting(StrEnum):
    """Way in which an agent reports how its task ended."""

    TOOLS = "tools"
    """It calls garrison's tools, described in its system prompt."""
    EXIT_CODE = "exit code"
    RESULT_FILE = "result file"
    LAST_MESSAGE = "last message"
    """Its program prints its messages as a stream, and chooses its own exit code."""


class StartFrom(StrEnum):
    """Start of an attempt after a refused one."""

    FRESH = "fresh"
    MERGE = "merge"
    CONTINUE = "continue"


class TargetChange(Value):
    """A commit of the target branch; `node` and `task` say whose work it is, `author` if it is not from a node."""

    commit: str
    subject: str
    node: str = ""
    task: str = ""
    author: str = ""
    asked: str = ""
    """Text of that task."""


class LandedWork(Value):
    """Work of an upstream node, contained in the worktree."""

    node: str
    task: str
    commit: str
    files: tuple[str, ...] = ()


class FileConflict(Value):
    """A file in conflict, with the commits that changed it on the target since the branch started."""

    name: str
    changes: tuple[TargetChange, ...] = ()
    hunks: str = ""
    """Its conflicts, from marker to marker, with a few lines of context."""


class Sibling(Value):
    """Task of another working agent, and the files that it may change or has changed."""

    node: str
    task: str = ""
    files: tuple[str, ...] = ()


class Criterion(Value):
    """One criterion of a validator's verdict."""

    text: str
    met: bool
    evidence: str


class PersonsWord(Value):
    """What the user has said about a task, which is binding for each later attempt and its validator."""

    text: str
    question: str = ""
    """The agent's question that this answers, if any."""
    source: str = ""
    """Where it was said, such as `in the review of attempt 1`; '' for a message to the agent."""
    at: str = ""
    """When, as an ISO date; '' if unknown."""


class EndedBy(StrEnum):
    """How an attempt's agent finished."""

    REPORTED = "reported success"
    EXIT_CODE = "ended with exit code 0"
    SILENT = "ended without a report"


class EarlierRefusal(Value):
    """Why the previous attempt was refused, and what is left of it. Empty fields are unknown or do not apply.
    """

    by: RefusedBy
    attempt: int
    """The refused attempt."""
    reason: str
    command: str = ""
    how: str = ""
    """How the command ended, such as `exit code 1`."""
    note: str = ""
    """Further lines of its report, such as which files were not tested."""
    output: str = ""
    """End of what the command printed."""
    log: str = ""
    """Path of its whole output, which the agent can read; '' if it is gone."""
    failing: tuple[str, ...] = ()
    criteria: tuple[Criterion, ...] = ()
    """Criteria that a validator found not met."""
    target: str = ""
    tip: str = ""
    """Commit of the target with which the branch was tested or merged."""
    base: str = ""
    """Commit of the target where the branch started."""
    landed: tuple[TargetChange, ...] = ()
    """Commits that landed between the two, newest first."""
    more_landed: int = 0
    claim: str = ""
    """Report or last message of the refused attempt's agent."""
    ended: EndedBy = EndedBy.REPORTED
    rescue: str = ""
    """Ref that contains the refused work."""
    stat: str = ""
    """Diffstat of the refused work."""
    notes: str = ""
    """Notes of its agent."""
    earlier: tuple[str, ...] = ()
    """Refusals of earlier attempts, one per line."""
    start: StartFrom = StartFrom.FRESH
    conflicts: tuple[FileConflict, ...] = ()
    """Files in conflict: with markers now (`StartFrom.MERGE`), else without."""
    merged: str = ""
    """Commit of the target that is merged into the branch now (`StartFrom.MERGE`)."""
    label: str = ""
    """Name of the target in the conflict markers."""
    feedback: str = ""
    """Quoted comments and checks of the pull request, if the node was sent back for them."""
    feedback_file: str = ""
    """Path of the full text for the agent, if it is long."""
    comments: tuple[str, ...] = ()
    """Ids of the comments that await an answer."""
    replies_file: str = ""
    """Path of the file for the answers."""


class WorkState(Value):
    """State of a worktree: its commits since `base`, newest first, and its uncommitted changes, as `git status` lists
    them."""

    base: str = ""
    commits: tuple[str, ...] = ()
    more_commits: int = 0
    uncommitted: tuple[str, ...] = ()
    more_uncommitted: int = 0


NO_PROGRESS = WorkState()


class EarlierDeath(Value):
    """Death of an earlier process of the same attempt; `at` is in seconds since 1970."""

    at: float
    how: str


class Interruption(Value):
    """Facts for an agent that continues after an interruption."""

    how: str
    """Cause of the interruption, as a clause."""
    deaths: int = 1
    """Deaths in this attempt so far; 0: nothing died."""
    in_flight: tuple[str, ...] = ()
    """Tool calls that the interruption cut off."""
    output: str = ""
    """End of what the interrupted program printed."""
    progress: WorkState = NO_PROGRESS
    notes: str = ""
    predecessors: tuple[str, ...] = ()
    """Other agents that worked on it earlier in this attempt."""


class LandingTerms(Value):
    """How the work lands: on which branch, and which commands must pass first; an empty `target`: it does not."""

    target: str = ""
    gate: str = ""
    run_target: str = ""
    """Branch on which the whole run lands at its end, '' if each node lands by itself."""
    run_gate: str = ""
    approval: bool = False
    """Set if the user must approve it."""


class Briefing(Value):
    """Everything for the prompt of one attempt."""

    branch: str = ""
    landing: LandingTerms = LandingTerms()
    validated: bool = False
    """Set if another agent judges the work."""
    landed: tuple[LandedWork, ...] = ()
    more_landed: int = 0
    siblings: tuple[Sibling, ...] = ()
    more_siblings: int = 0
    attempts: int = 0
    """Most attempts of the task, including refused ones; 0: unknown."""
    left: str = ""
    """Sentence about the rest of the other limits."""
    decided: tuple[PersonsWord, ...] = ()
    refusal: EarlierRefusal | None = None
    interruption: Interruption | None = None
    reporting: Reporting = Reporting.TOOLS
    notes_file: str = ""
    result_file: str = ""
    confinement: str = ""
    """The sandbox's restrictions; '' without one."""
    lessons: str = ""
    """Section with the user's private lessons; '' for none."""


class Judgement(Value):
    """Everything for the prompt of a validator."""

    branch: str = ""
    base: str = ""
    head: str = ""
    target: str = ""
    stat: str = ""
    diff: str = ""
    """The whole difference, '' if it is too long for a prompt."""
    diff_file: str = ""
    """Path of the whole difference, which the validator can read."""
    accepted: str = ""
    """Acceptance command that has passed, '' for none."""
    claim: str = ""
    """Report of the worker."""
    evidence: tuple[str, ...] = msgspec.field(default=())
    decided: tuple[PersonsWord, ...] = ()
    criteria: tuple[Criterion, ...] = ()
    """Criteria of the validators of earlier attempts."""
    can_run: bool = False
    """Set if the validator may run commands, in a sandbox."""
