"""Files of an attempt's sessions, in `claude/` below the attempt's folder, and a connection's job in `order.json`.

| file | content | written by |
|---|---|---|
| `session.json` | the session, earlier ones, and which other one it continues (`SessionRecord`) | orchestrator; an
  ACP agent's connection |
| `order.json` | the job of the current connection | orchestrator |
| `prompts.jsonl` | each connection's first message, with the system prompt if it changed | orchestrator |
| `process.json` | pid and start ticks of the CLI | connection |
| `stream.jsonl` | every event, with time and incarnation | connection |
| `usage.jsonl` | tokens and costs (`records.costs`) | connection |
| `windows.json` | what is left of a subscription's windows (`records.costs`) | connection |
| `endings.jsonl` | how each connection ended (`policy.ConnectionEnd`) | connection, else orchestrator |
| `report.json` | the agent's `report_result` or `report_verdict` | connection |
| `question.json`, `answer.json` | the last question and its answer (`questions`) | connection; orchestrator |
| `lifted.json` | the user's answer to a failure that only the user can resolve | orchestrator |
| `permissions.json` | tool calls that the user has allowed or refused (`questions`) | connection |
| `messages.jsonl`, `delivered.json` | the user's messages to the session, and how many were delivered (`messages`) |
  `garrison tell`; connection |
| `unreported` | exists if the agent ended without a report and only its work was judged | orchestrator |
| `waiting` | one line: what it waits for, while it waits | orchestrator, connection |
| `config/` | the CLI's configuration folder while it has no sandbox | the CLI |
| `trouble` | one line: a problem while it works, such as an overloaded API | connection |
| `outage.json` | what all agents of its account wait for (`outages.Outage`) | orchestrator |
| `reserved.json` | US dollars that the call in progress may cost (`records.budget`) | connection |
| `transcripts/` | a copy of the CLI's transcripts (`transcripts`) | connection, `garrison takeover` |
| `session.lock` | held while a CLI runs on the session | connection, `garrison takeover` |
| `conversation.txt`, `answers.json` | of an agent that runs as a garrison session: the model's last prompt;
  the answers to its calls of `ask_guardian` | `node.session_attempt` |
| `../session/` | of such an agent: the garrison session | `node.session_attempt` |
| `../takeover.json` | the user's takeover, locked while it lasts; a change there wakes the orchestrator |
  `garrison takeover` |
"""

from __future__ import annotations

from pathlib import Path

from garrison.agents.base import MESSAGES, WAITING
from garrison.agents.conversation import policy
from garrison.agents.conversation.policy import ConnectionEnd
from garrison.records import atomic
from garrison.records.budget import SESSION_LOCK
from garrison.records.costs import read_usage
from garrison.records.json_io import append_line, read_json, read_lines, write_json
from garrison.records.record import from_data
from garrison.values import Value, fields_of


class _File:
    """Path below the attempt's folder, computed on demand: a view of a thousand nodes needs few of each."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, files: AttemptFiles, _kind: type[AttemptFiles]) -> Path:
        return files.attempt / self.name


class SessionRecord(Value):
    """Current session of an attempt, with counts of its earlier ones."""

    id: str
    begun: int = 1
    """Number of the attempt's connection that started it."""
    past: str = ""
    """Session of an earlier node that this one continues as its own session."""
    answered: bool = False
    """Set once it has written or done anything: one that died earlier may not have got its prompt."""
    earlier: int = 0
    """Sessions of the attempt before it."""
    lost: int = 0
    """Earlier sessions that the agent failed to continue."""
    mends: bool = False
    """Set if it is the session of the previous refused attempt, which continues."""


class AttemptFiles:
    """Paths of one attempt's files."""

    folder = _File("claude")
    session = _File("claude/session.json")
    order = _File("claude/order.json")
    prompts = _File("claude/prompts.jsonl")
    process = _File("claude/process.json")
    stream = _File("claude/stream.jsonl")
    usage = _File("claude/usage.jsonl")
    endings = _File("claude/endings.jsonl")
    report = _File("claude/report.json")
    question = _File("claude/question.json")
    answer = _File("claude/answer.json")
    lifted = _File("claude/lifted.json")
    unreported = _File("claude/unreported")
    waiting = _File(f"claude/{WAITING}")
    transcripts = _File("claude/transcripts")
    config = _File("claude/config")
    lock = _File(f"claude/{SESSION_LOCK}")
    trouble = _File("claude/trouble")
    outage = _File("claude/outage.json")
    permissions = _File("claude/permissions.json")
    messages = _File(MESSAGES)
    delivered = _File("claude/delivered.json")
    conversation = _File("claude/conversation.txt")
    answers = _File("claude/answers.json")
    result = _File("result.json")
    garrison_session = _File("session")
    takeover = _File("takeover.json")

    def __init__(self, attempt: Path) -> None:
        self.attempt = attempt

    def make(self) -> None:
        """Create the folder."""
        atomic.make_directory(self.folder)

    def read_session(self) -> SessionRecord | None:
        """Return the current session; None if none has started."""
        body = read_json(self.session)
        return from_data(SessionRecord, body) if body else None

    def write_session(self, record: SessionRecord) -> None:
        """Record the current session."""
        write_json(self.session, fields_of(record))

    @property
    def session_id(self) -> str:
        """Return the id of the current session; '' for none."""
        record = self.read_session()
        return record.id if record is not None else ""

    def find_mender(self) -> str:
        """Return the id of the session that can continue after the refusal of its work; '' to use a fresh one."""
        record = self.read_session()
        calls = [each for each in read_usage(self.usage) if each.kind == "call"] if self.usage.exists() else []
        last = calls[-1] if calls else None
        tokens = last.input + last.cache_read + last.cache_write + last.output if last is not None else 0
        can_mend = record is not None and policy.can_mend(self.read_endings(), tokens=tokens, is_resumed=record.mends)
        return record.id if record is not None and can_mend else ""

    def add_prompt(self, kind: str, message: str, system: str, *, incarnation: int, at: float) -> None:
        """Record what a connection is about to send; the system prompt only if it changed."""
        known = next((line["system"] for line in reversed(read_lines(self.prompts)) if line.get("system")), "")
        append_line(self.prompts, {"at": at, "life": incarnation, "kind": kind, "message": message,
                                    **({"system": system} if system != known else {})})

    def read_endings(self) -> list[ConnectionEnd]:
        """Return how the connections ended so far; a torn last line is skipped."""
        return [ConnectionEnd(**body) for body in read_lines(self.endings)]

    def add_ending(self, ending: ConnectionEnd) -> None:
        """Record how a connection ended."""
        # In one write, so a kill leaves the whole ending or none, and then the orchestrator adds one itself.
        append_line(self.endings, fields_of(ending))
