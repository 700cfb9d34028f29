"""Takeover of a session by the user: suspend it, run the interactive CLI on it, let the agent continue afterwards.

`garrison takeover` holds a lock while it runs, so the orchestrator continues however the takeover ends. The CLI dies
with the takeover; one that is slow to die is ended before the session is resumed.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from garrison.agents.claude import cli_process, policy, prompts, questions, transcripts
from garrison.agents.claude.policy import Ending
from garrison.errors import NotFound, Refused
from garrison.records.json_io import encode, read_json
from garrison.records.life_lock import LifeLock, is_held
from garrison.system import processes, untrusted
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from garrison.agents.claude.attempt_files import AttemptFiles
    from garrison.agents.claude.settings import ClaudeSettings

_CLAIM_TIMEOUT = 1.0
"""Seconds for a lock that only seems held, because another process tests it, to be free again."""
_MAX_CONVERSATION = 64 << 20
"""Bytes of a conversation that can be taken over."""
_SUSPEND_TIMEOUT = 30.0
"""Seconds for the session to be suspended."""


class Person(Value):
    """Process of a takeover; pid 0 while it has not recorded itself."""

    pid: int = 0
    ticks: int = 0
    since: str = ""

    def describe(self) -> str:
        return f"while it is held by a person (takeover, process {self.pid}, since {self.since})" if self.pid else \
            "while it is held by a person"


class RunCli(Protocol):
    """Runs the CLI to its end, reports its pid to `started`, and returns its exit code."""

    def __call__(self, argv: Sequence[str], env: Mapping[str, str], cwd: Path, started: Callable[[int], None]) -> int:
        """Run it."""


def holder(files: AttemptFiles) -> Person | None:
    """Return the person who has taken the session over, if any."""
    if not is_held(files.takeover):
        return None
    body = read_json(files.takeover)
    return Person(int(body["pid"]), int(body["ticks"]), str(body["since"])) if isinstance(body, dict) else Person()


def process(files: AttemptFiles) -> tuple[int, int] | None:
    """Return pid and start ticks of the takeover's process; None without one, or while it has not recorded itself."""
    person = holder(files)
    return (person.pid, person.ticks) if person is not None and person.pid else None


@contextmanager
def taken_over(node: str, files: AttemptFiles, since: str, wait: Callable[[], None],
               lock_file: Path) -> Iterator[None]:
    """Hold the session for the user.

    Args:
        since: time of the takeover, for `status`.
        wait: called while the session is being suspended.
        lock_file: lock of the session, which only one process may run.
    """
    claim = _lock(files.takeover, _CLAIM_TIMEOUT)
    if claim is None:
        person = holder(files)
        raise Refused(f"{node} has been taken over already" + (f", process {person.pid}" if person else ""))
    this = processes.probe(os.getpid())
    assert this is not None
    # Written in place: a file renamed over it would not be the locked one.
    files.takeover.write_bytes(encode({"pid": this.pid, "ticks": this.ticks, "since": since}))
    session = None
    try:
        wait()
        session = _lock(lock_file, _SUSPEND_TIMEOUT)
        if session is None:
            raise Refused(f"the session of {node} was not suspended within {_SUSPEND_TIMEOUT:.0f} s; nothing was "
                          "changed")
        yield
    finally:
        for lock in (session, claim):
            if lock is not None:
                lock.release()


# ---- a Claude session


def session_of(node: str, files: AttemptFiles) -> str:
    """Return the session that can be taken over; NotFound or Refused if there is none."""
    body = read_json(files.session)
    if body is None:
        raise NotFound(f"{node} has no session yet; `garrison status` shows what it does")
    endings = files.read_endings()
    if (endings and endings[-1].kind == policy.REPORTED) or files.result.exists():
        raise Refused(f"{node} has reported its result; there is nothing left to take over")
    return str(body["id"])


def resume_cli(node: str, files: AttemptFiles, config: Path, settings: ClaudeSettings, env: Mapping[str, str],
               cwd: Path, run: RunCli) -> int:
    """Run the interactive CLI on the held session to its end; return its exit code."""
    session = session_of(node, files)  # it may have reported while it was being suspended
    cli_process.end_orphan(files)
    if own := (read_json(files.order) or {}).get("config"):  # the agent's CLI has its own folder
        if own == str(files.config):  # not in a sandbox, whose agent may have planted links there
            transcripts.save(files.config, files.transcripts, session)
        transcripts.remove_own(config, session)
    project = transcripts.project_of(cwd)
    if transcripts.prepare(config, files.transcripts, session, project) == "unknown":
        raise Refused(f"the session of {node} has no messages yet; try again in a moment")
    files.add_ending(Ending(policy.PERSON, time.time(), "a person took the session over"))
    try:
        return run(resume_argv(settings, session), env, cwd, lambda pid: cli_process.record_process(files, pid, 0))
    finally:
        transcripts.prepare(config, files.transcripts, session, project)
        questions.settle(files, "The user has taken the session over; what they said is above.")


def resume_argv(settings: ClaudeSettings, session: str) -> list[str]:
    """Return the interactive CLI on a session, through the wrapper with which it dies with us."""
    return [str(cli_process.WRAPPER), "--resume", session, *_cli_options(settings)]


# ---- an agent that runs as a garrison session


def conversation_of(node: str, files: AttemptFiles) -> str:
    """Return the conversation with the session's model so far; NotFound or Refused if it cannot be taken over."""
    if files.report.exists() or files.result.exists():
        raise Refused(f"{node} has reported its result; there is nothing left to take over")
    conversation = untrusted.read_text(files.folder, files.conversation.name, _MAX_CONVERSATION)
    if not conversation:
        raise NotFound(f"{node} has asked its model nothing yet; `garrison status` shows what it does")
    return conversation


def run_beside(node: str, files: AttemptFiles, settings: ClaudeSettings, env: Mapping[str, str], cwd: Path,
               run: RunCli) -> int:
    """Run the interactive CLI in the place of a held garrison session to its end; return its exit code.

    It begins with the conversation so far. The agent does not see what is written in it, only the changed worktree.
    """
    message = prompts.conversation_for_person(conversation_of(node, files))
    files.add_ending(Ending(policy.PERSON, time.time(), "a person worked in its place"))
    return run(fresh_argv(settings, message), env, cwd, lambda _pid: None)


def fresh_argv(settings: ClaudeSettings, message: str) -> list[str]:
    """Return the interactive CLI with its own session that begins with this message."""
    return [str(cli_process.WRAPPER), *_cli_options(settings), message]


def run_in_terminal(argv: Sequence[str], env: Mapping[str, str], cwd: Path, started: Callable[[int], None]) -> int:
    """Run a program in our own terminal; return its exit code."""
    child = subprocess.Popen(list(argv), env=dict(env), cwd=cwd)
    started(child.pid)
    return child.wait()


def _cli_options(settings: ClaudeSettings) -> list[str]:
    model = ["--model", settings.model] if settings.model else []
    return [*model, "--permission-mode", "default", "--setting-sources", ""]


def _lock(path: Path, seconds: float) -> LifeLock | None:
    until = time.monotonic() + seconds
    while (lock := LifeLock.try_acquire(path)) is None and time.monotonic() < until:
        time.sleep(0.05)
    return lock
