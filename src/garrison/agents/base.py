"""Agent interface: an assignment goes in, work is polled, an outcome comes out."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypedDict

import msgspec

from garrison.records import atomic
from garrison.sandbox.place import EXCHANGE, Mount
from garrison.system import untrusted
from garrison.values import Value

if TYPE_CHECKING:

    from garrison.agents.briefing import EarlierDeath, WorkState
    from garrison.records.run import Task
    from garrison.sandbox.place import Place


class ReportedResult(Protocol):
    """Result that the agent reports through its socket."""

    takes_result: bool
    """Set by an agent that reports its result there; not by a Claude session, which reports by a tool."""
    result: AgentReport
    """The last reported result, empty for none."""
    ask_later: Callable[[str], None] | None
    """Set by a session whose agent does not wait for an answer: receives the question; the answer is a later prompt."""

    def recall(self) -> None:
        """Adopt the result that was reported to an earlier incarnation, whose agent had ended."""

    def forget(self) -> None:
        """Forget the result that was reported to an earlier incarnation."""


ANSWERED, MESSAGES = "answered.jsonl", "claude/messages.jsonl"
"""Files of an attempt's folder with the user's answers to its agent and messages to its session."""
NOTES, RESULT, EXIT = "notes.txt", "agent-result.json", "exit"
REPLIES, FEEDBACK = "replies.md", "feedback.md"
"""Files of the exchange that garrison reads."""
WAITING = "waiting"
"""File, of an attempt and of its session, that says what its agent waits for."""
SIGNALS = "signals.jsonl"
"""File of an attempt with user-defined signals (`X-…`) to its agent, one per line."""
REFUSAL_LOG = "refusal.log"
"""File of an attempt with the output of the gate or acceptance command that refused the previous one."""
MAX_NOTES = 4000
"""Bytes at the end of an agent's notes that are read."""
NO_REPORT = "its agent made no report: judged by its commits and acceptance alone"
"""Reason given for work whose agent ended without a report."""
WORKER, VALIDATOR = "worker", "validator"
"""Roles of an agent: it does a node's work, or judges it."""


def look_nowhere() -> WorkState:
    from garrison.agents.briefing import NO_PROGRESS  # 15 records that a guardian, which imports this, never creates

    return NO_PROGRESS


class Assignment(Value):
    """Work of one incarnation in an attempt: the task, where to work, and the exact environment of its processes."""

    task: Task
    worktree: Path
    folder: Path
    """Folder of the attempt: prompt.md, context.json, output.log, result.json, and `exchange`."""
    environment: Mapping[str, str]
    incarnation: int = 1
    deaths: tuple[EarlierDeath, ...] = ()
    """How earlier incarnations of this attempt died, oldest first."""
    look: Callable[[], WorkState] = look_nowhere
    """Read what is committed and uncommitted in the worktree now."""
    can_run: bool = False
    """Set if it may run commands although it only judges: nothing that they write is kept."""
    lands: str = ""
    """Sentence about what happens to the agent's branch."""
    confinement: str = ""
    """The sandbox's restrictions, as a part of the prompt; '' without one."""
    left: str = ""
    """Sentence about the rest of its limits, '' without any."""
    instructions: str = ""
    """The repository's own instructions, as part of a system prompt; '' for none."""
    folder_instructions: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Folder of the repository → its own instructions, which the agent gets on first access."""
    read_repository: Callable[[], Mapping[str, str]] = dict
    """Read the repository's own settings for agents from the branch's base commit: path → text."""
    attempts: Path | None = None
    """Folder of all attempts of the run, with their sessions' transcripts."""
    network_variables: frozenset[str] = frozenset()
    """Names of variables that its network decides, whatever a profile sets."""
    place: Place | None = None
    """Place of its processes in the sandbox; None: they are not confined."""
    lends_terminal: bool = False
    """Set if this process's terminal, if any, is only for the agent's program."""
    programs: tuple[str, ...] = ()
    """Programs that were on the PATH when the run was launched: a missing one is waited for."""
    refused: Path | None = None
    """Folder of the refused attempt whose session continues in this one; None: start a fresh one."""
    rework: str = ""
    """Message to that session, which knows the task."""
    account: str = ""
    """Fingerprint of the account at its model's API; '' if it shares no outages."""
    reports: ReportedResult | None = None
    """Receiver of a result that the agent reports through its socket; None without a socket."""

    @property
    def tree(self) -> Path:
        """Return the path of the worktree inside the sandbox of the agent's program."""
        return self.worktree if self.place is None else self.place.inside

    @property
    def start(self) -> Path:
        """Return the folder of the worktree where the agent's program starts."""
        return self.worktree / self.task.subfolder

    @property
    def context_file(self) -> Path:
        """Return the file with the pipeline's context as a JSON object; it exists if the run has a context."""
        return self.folder / "context.json"

    def write_context(self, context: Mapping[str, object]) -> None:
        """Write the pipeline's context to `context_file`."""
        atomic.write(self.context_file, (json.dumps(context, indent=2) + "\n").encode())

    @property
    def prompt_file(self) -> Path:
        """Return the file with the agent's prompt, which includes the wisdom of earlier incarnations."""
        return self.folder / "prompt.md"

    def write_prompt(self, text: str) -> None:
        """Write the prompt; a lone surrogate, which another agent's report may contain, becomes `?`."""
        atomic.write(self.prompt_file, text.encode(errors="replace"))

    def read_prompt(self) -> str:
        """Return the prompt; undecodable bytes are replaced."""
        return self.prompt_file.read_text(errors="replace")

    @property
    def refusal_log(self) -> Path:
        """Return the copy of the log of what refused the previous attempt; it exists if there is one."""
        return self.folder / REFUSAL_LOG

    @property
    def signals_file(self) -> Path:
        """Return the file with user-defined signals to the agent; it exists if there is an agent to read it."""
        return self.folder / SIGNALS

    @property
    def diff_file(self) -> Path:
        return self.folder / "change.diff"

    @property
    def output(self) -> Path:
        return self.folder / "output.log"

    @property
    def exchange(self) -> Path:
        """Return the folder where the agent may write files for garrison; nothing in it is trusted."""
        return self.folder / EXCHANGE

    @property
    def exit_file(self) -> Path:
        """Return the file where the node's own command leaves its exit code."""
        return self.exchange / EXIT

    @property
    def notes(self) -> Path:
        """Return the file where an agent may leave notes for its successor."""
        return self.exchange / NOTES

    @property
    def result_file(self) -> Path:
        """Return the file where an agent may report its own result."""
        return self.exchange / RESULT

    def read_notes(self) -> str:
        return read_notes(self.folder)

    def mounts(self) -> tuple[Mount, ...]:
        """Return the parts of the attempt's folder that a confined agent sees, once written; create `exchange`."""
        atomic.make_directory(self.exchange)
        shown = (path for path in (self.prompt_file, self.context_file, self.refusal_log, self.diff_file,
                                   self.signals_file, self.folder / FEEDBACK)
                 if path.exists())
        return (*(Mount(path, path) for path in shown), Mount(self.exchange, self.exchange, writable=True))


MAX_REPLIES = 100_000
"""Most bytes of an attempt's answers to comments."""
_REPLY = re.compile(r"#{1,4}\s+(?:comment\s+)?`?([\w.-]+(?::\w+)?)`?\s*:?\s*", re.IGNORECASE)


def read_attempt_replies(folder: Path) -> dict[str, str]:
    """Return the agent's answers to comments in an attempt's folder, by id; OSError, GarrisonError."""
    return parse_replies(untrusted.read_end(folder / EXCHANGE, REPLIES, MAX_REPLIES))


def parse_replies(text: str) -> dict[str, str]:
    """Return an agent's answers by the comment's id: each under a heading with the id."""
    found, current = dict[str, list[str]](), ""
    for line in text.splitlines():
        heading = _REPLY.fullmatch(line)
        if heading is not None:
            current = heading[1]
            found[current] = []
        elif current:
            found[current].append(line)
    return {name: words for name, lines in found.items() if (words := "\n".join(lines).strip())}


def read_notes(folder: Path) -> str:
    """Return the end of the notes of an attempt's agent; earlier versions kept them in the attempt's folder itself."""
    return untrusted.read_end(folder / EXCHANGE, NOTES, MAX_NOTES) or untrusted.read_end(folder, NOTES, MAX_NOTES)


class AgentReport(TypedDict, total=False):
    """Report by an agent for its pipeline, as `result` parses it; also the field `said` of a result record."""

    status: str
    preferred_label: str
    suggested_next_ids: list[str]
    context_updates: dict[str, object]
    notes: str
    failure_reason: str
    failure_class: str
    word: str
    """Word that an edge tests for, reported instead of a status."""


class WorkResult(Value):
    """Result of the work; `status` is success or fail, `reason` is empty on success."""

    status: str
    reason: str = ""
    exit_code: int | None = None
    killed: bool = False
    """A signal ended it, its own crash or from outside. That is no verdict on the work: a successor continues."""
    failure_kind: str = ""
    """Kind of a failure that decides what follows; see `ends.RefusedBy`."""
    report: AgentReport = msgspec.field(default_factory=AgentReport)
    """Report by the agent itself for the pipeline; empty if there is none."""


class Trouble(Value):
    """Why an agent cannot work."""

    kind: str
    """A class of `agents.trouble`, or one of `failover`."""
    reason: str = ""
    since: float = 0.0
    """Time of the first consecutive failure, in seconds since 1970."""
    until: float = 0.0
    """Time of the next automatic retry, in seconds since 1970; 0: none."""
    resets_at: float | None = None
    """Time at which its limit is reset, if known."""
    given_up: bool = False
    """Set if the attempt fails because of it."""


class PendingQuestion(Value):
    """A question for the user; `id` differs from that of the previous question."""

    id: str
    text: str


class Function(Value):
    """A function that a model may call as a tool.

    `schema` is the JSON schema of its arguments. `call` returns the text of the result; a GarrisonError that it raises
    is returned to the model as the error of the call, and the model continues.
    """

    name: str
    description: str
    schema: Mapping[str, object]
    call: Callable[..., str | Awaitable[str]]


class Work(Protocol):
    """Work in progress, polled until it has an outcome."""

    def poll(self, now: float) -> WorkResult | None:
        """Return the outcome once the work has ended and nothing of it runs; `now` is in monotonic seconds."""
        ...

    def stop(self, now: float) -> None:
        """Start to end the work; `poll` returns the outcome."""
        ...

    def process(self) -> tuple[int, int] | None:
        """Return (pid, start ticks) of the process whose end should wake the loop."""
        ...

    def wake_at(self) -> float | None:
        """Return the monotonic time by which `poll` must be called; None if it need not be."""
        ...

    def forget(self) -> None:
        """Forget how the work ended: it ended without a result, and a successor repeats it."""
        return

    @property
    def session(self) -> str | None:
        return None

    @property
    def phase(self) -> str | None:
        return None

    @property
    def question(self) -> PendingQuestion | None:
        return None

    @property
    def trouble(self) -> Trouble | None:
        """Return why its agent cannot work, while it waits for that to end or has ended because of it."""
        return None

    @property
    def has_keyboard(self) -> bool:
        """Return whether the program uses the terminal of this process, and so prints there directly."""
        return False

    @property
    def watched_files(self) -> tuple[Path, ...]:
        return ()

    def answer(self, question: str, text: str) -> None:
        """Deliver the answer to the question with that id; agents that never ask ignore it."""
        return


class Agent(Protocol):
    """Program that can work on an assignment."""

    name: str

    def start(self, assignment: Assignment, now: float) -> Work:
        """Start the work; GarrisonError if that is impossible."""
        ...


class ConnectionOrder(Value):
    """Common part of the order of a connection for every kind of agent: the session to start or resume, and its first
    message."""

    home: str
    incarnation: int = msgspec.field(name="life")
    worktree: str = msgspec.field(name="tree")
    folder: str
    """Folder of the attempt."""
    session: str
    prompt: str
    system_prompt: str = msgspec.field(default="", name="system")
    """Appended to the program's own system prompt, if it has one."""
    role: str = msgspec.field(default=WORKER, name="part")
    """WORKER or VALIDATOR: selects garrison's tools."""
    inside: str = ""
    """Path of the worktree in the agent's sandbox; '' for the path outside."""
    subfolder: str = ""
    """Folder of the worktree where the program starts, '' for its top."""

    @property
    def start(self) -> str:
        """Return the program's start path outside the sandbox."""
        return str(Path(self.worktree) / self.subfolder)

    @property
    def start_inside(self) -> str:
        """Return the program's start path inside the sandbox."""
        return str(Path(self.inside or self.worktree) / self.subfolder)

    @property
    def attempt_folder(self) -> Path:
        return Path(self.folder)
