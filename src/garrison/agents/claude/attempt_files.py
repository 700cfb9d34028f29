"""Files of an attempt's sessions, in `claude/` below the attempt's folder, and a connection's job in `order.json`.

| file | content | written by |
|---|---|---|
| `session.json` | the session's id, how many were started, and which other one it continues; of an ACP agent also those
  before it (`acp.session_record`) | orchestrator; an ACP agent's connection |
| `order.json` | the job of the present connection | orchestrator |
| `prompts.jsonl` | each connection's first message, with the system prompt if that is another one | orchestrator |
| `process.json` | pid and start ticks of the CLI | connection |
| `stream.jsonl` | every event, with time and incarnation | connection |
| `usage.jsonl` | tokens and costs (`budget`) | connection |
| `windows.json` | what the windows of a subscription have left (`records.costs`) | connection |
| `endings.jsonl` | how each connection ended (`policy.Ending`) | connection, else orchestrator |
| `report.json` | the agent's `report_result` or `report_verdict` | connection |
| `question.json`, `answer.json` | the last question and its answer (`questions`) | connection; orchestrator |
| `lifted.json` | the user's answer to a failure that only the user can resolve | orchestrator |
| `permissions.json` | tool calls that the user has allowed or refused (`permissions`) | connection |
| `messages.jsonl`, `delivered.json` | what the user told the session, and how much of it has arrived (`messages`) |
  `garrison tell`; connection |
| `unreported` | exists if the agent ended without a report and its work alone was judged | orchestrator |
| `waiting` | one line: what it waits for, while it waits | orchestrator, connection |
| `config/` | the CLI's configuration folder while it has no sandbox | the CLI |
| `trouble` | one line: what goes wrong while it works, such as an overloaded API | connection |
| `outage.json` | what it waits for with all agents of its account (`outages.Outage`) | orchestrator |
| `reserved.json` | US dollars that the call in progress may cost (`reservations`) | connection |
| `transcripts/` | a copy of the CLI's transcripts (`transcripts`) | connection, `garrison takeover` |
| `session.lock` | held while a CLI runs on the session | connection, `garrison takeover` |
| `conversation.txt`, `answers.json` | of an agent that runs as a garrison session: the model's last prompt; the answers
  its calls of `ask_guardian` were given | `node.session_attempt` |
| `../session/` | of such an agent: the garrison session | `node.session_attempt` |
| `../takeover.json` | the person who took the session over, locked meanwhile; there its change wakes the orchestrator |
  `garrison takeover` |
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from garrison.agents.base import MESSAGES, WAITING, WORKER
from garrison.agents.claude import policy
from garrison.agents.claude.policy import Ending
from garrison.agents.claude.settings import ClaudeSettings
from garrison.records import atomic
from garrison.records.budget import SESSION_LOCK
from garrison.records.costs import read_usage
from garrison.records.json_io import append_line, read_json, read_lines
from garrison.values import Value, fields_of


class _File:
    """Path below the attempt's folder, made when it is asked for: a view of a thousand nodes asks for few of each."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, files: AttemptFiles, _kind: type[AttemptFiles]) -> Path:
        return files.attempt / self.name


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

    def parent_session(self) -> str:
        """Return the id of the earlier node's session that this attempt's continues; '' for none."""
        return str((read_json(self.session) or {}).get("past", ""))

    @property
    def mends(self) -> bool:
        """Return whether the present session is that of the refused attempt before, which continues."""
        return bool((read_json(self.session) or {}).get("mends"))

    def find_mender(self) -> str:
        """Return the id of the session that can continue with the refusal of its work; '' if a fresh one should."""
        kept = read_json(self.session) or {}
        calls = [record for record in read_usage(self.usage) if record.kind == "call"] if self.usage.exists() else []
        last = calls[-1] if calls else None
        tokens = last.input + last.cache_read + last.cache_write + last.output if last is not None else 0
        can_mend = policy.can_mend(self.read_endings(), tokens=tokens, is_resumed=bool(kept.get("mends")))
        return str(kept.get("id", "")) if can_mend else ""

    def add_prompt(self, kind: str, message: str, system: str, *, incarnation: int, at: float) -> None:
        """Record what a connection is about to send; the system prompt only if it changed."""
        known = next((line["system"] for line in reversed(read_lines(self.prompts)) if line.get("system")), "")
        append_line(self.prompts, {"at": at, "life": incarnation, "kind": kind, "message": message,
                                    **({"system": system} if system != known else {})})

    def read_endings(self) -> list[Ending]:
        """Return how the connections ended so far; a torn last line is skipped."""
        return [Ending(**body) for body in read_lines(self.endings)]

    def add_ending(self, ending: Ending) -> None:
        """Record how a connection ended."""
        append_line(self.endings, fields_of(ending))


class ConnectionJob(Value):
    """One connection: the session to begin or resume, and its first message."""

    home: str
    run: str
    node: str
    attempt: int
    incarnation: int = msgspec.field(name="life")
    worktree: str = msgspec.field(name="tree")
    folder: str
    """Folder of the attempt."""
    session: str
    resume: bool
    prompt: str
    system_prompt: str = msgspec.field(name="system")
    """Appended to the CLI's own."""
    settings: ClaudeSettings = msgspec.field(default_factory=ClaudeSettings)
    role: str = msgspec.field(default=WORKER, name="part")
    """WORKER or VALIDATOR: selects garrison's tools."""
    parent_session: str = msgspec.field(default="", name="past")
    """Session of an earlier node that this one continues as its own session."""
    attempts: str = ""
    """Folder below which the parent session's transcript was kept."""
    config: str = ""
    """The CLI's configuration folder; '' for the home's, where earlier editions had it."""
    inside: str = ""
    """Path of the worktree in the CLI's sandbox; '' for the path outside."""

    folders: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Folder of the repository → its instructions, which the session gets once it looks into it."""

    repository: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Files of the repository's `.claude/`, and its `.mcp.json`, where the profile takes them: path → text."""

    outages: tuple[str, ...] = ()
    """Files of which one exists while an outage of the account is known."""

    @property
    def has_transcript(self) -> bool:
        """Return whether the CLI resumes a transcript: the session's own, or one forked from the parent session."""
        return self.resume or bool(self.parent_session)

    @property
    def attempt_folder(self) -> Path:
        return Path(self.folder)
