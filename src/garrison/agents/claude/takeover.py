"""Takeover of a session by a person: suspend it, run the interactive CLI on it, let the agent continue afterwards.

`garrison takeover` holds a lock while it runs, so the orchestrator continues however the takeover ends. The CLI dies
with the takeover; one that is slow to die is ended before the session is resumed.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from garrison.agents.claude import cli_process, policy, prompts, transcripts
from garrison.agents.claude.attempt_files import append_line, encode, read_json
from garrison.agents.claude.policy import Ending
from garrison.errors import NotFound, Refused
from garrison.records.life_lock import LifeLock, is_held
from garrison.system import processes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from garrison.agents.claude.attempt_files import ClaudeFiles
    from garrison.agents.claude.settings import ClaudeSettings


_INSTANT = 1.0
"""Seconds in which a lock that only seems held (somebody looks at it) is free again."""
_PUT_DOWN = 30.0
"""Seconds to wait for the session to be put down."""


class Run(Protocol):
    """Runs the CLI to its end: argv, environment, where, and what is told its pid; gives its exit code."""

    def __call__(self, argv: Sequence[str], env: Mapping[str, str], cwd: Path, began: Callable[[int], None]) -> int:
        """Run it."""


def argv(settings: ClaudeSettings, session: str) -> list[str]:
    """The interactive CLI on a session, through the wrapper that ends it with us."""
    model = ["--model", settings.model] if settings.model else []
    return [str(cli_process.WRAPPER), "--resume", session, *model, "--permission-mode", "default",
            "--setting-sources", ""]


def argv_beside(settings: ClaudeSettings, words: str) -> list[str]:
    """The interactive CLI with a session of its own that begins with these words."""
    model = ["--model", settings.model] if settings.model else []
    return [str(cli_process.WRAPPER), *model, "--permission-mode", "default", "--setting-sources", "", words]


def check_beside(node: str, files: ClaudeFiles) -> str:
    """What was said so far to an agent that is a session of garrison's; NotFound or Refused as `check`."""
    if files.report.exists() or (files.folder.parent / "result.json").exists():
        raise Refused(f"{node} has reported its result; there is nothing left to take over")
    try:
        return files.conversation.read_text(errors="replace")
    except FileNotFoundError as error:
        raise NotFound(f"{node} has asked its model nothing yet; `garrison status` shows what it does") from error


def work_beside(node: str, files: ClaudeFiles, settings: ClaudeSettings, env: Mapping[str, str], cwd: Path,
                run: Run) -> int:
    """Run the interactive CLI in the place of a held session of garrison's, to its end; returns its exit code.

    It knows the conversation; what is said in it stays with the person, what is done stands in the tree.
    """
    words = prompts.taken_over(check_beside(node, files))
    append_line(files.endings, vars(Ending(policy.PERSON, time.time(), "a person worked in its place")))
    return run(argv_beside(settings, words), env, cwd, lambda _pid: None)


def check(node: str, files: ClaudeFiles) -> str:
    """The session that can be taken over; NotFound or Refused if there is none."""
    body = read_json(files.session)
    if body is None:
        raise NotFound(f"{node} has no session yet; `garrison status` shows what it does")
    endings = files.read_endings()
    if (endings and endings[-1].kind == policy.REPORTED) or (files.folder.parent / "result.json").exists():
        raise Refused(f"{node} has reported its result; there is nothing left to take over")
    return str(body["id"])


@contextmanager
def held(node: str, files: ClaudeFiles, since: str, wait: Callable[[], None], lock_file: Path) -> Iterator[None]:
    """Hold the session: others are told who has it, and nobody else has its `lock_file`. `wait` is called while it is
    put down."""
    claim = _take(files.takeover, _INSTANT)
    if claim is None:
        found = holder(files)
        raise Refused(f"somebody has taken {node} over already" + (f", process {found.pid}" if found else ""))
    own = processes.probe(os.getpid())
    assert own is not None
    # In place: a file put in its stead would not be the one that is locked.
    files.takeover.write_bytes(encode({"pid": own.pid, "ticks": own.ticks, "since": since}))
    lock = None
    try:
        wait()
        lock = _take(lock_file, _PUT_DOWN)
        if lock is None:
            raise Refused(f"the session of {node} was not put down within {_PUT_DOWN:.0f} s; nothing was changed")
        yield
    finally:
        for one in (lock, claim):
            if one is not None:
                one.release()


def hand_over(node: str, files: ClaudeFiles, config: Path, settings: ClaudeSettings, env: Mapping[str, str], cwd: Path,
              run: Run) -> int:
    """Run the interactive CLI on the held session, to its end; returns its exit code."""
    session = check(node, files)  # it may have reported while it was put down
    cli_process.end_orphan(files)
    if transcripts.prepare(config, files.transcripts, session) == "unknown":
        raise Refused(f"nothing was said in the session of {node} yet; try again in a moment")
    append_line(files.endings, vars(Ending(policy.PERSON, time.time(), "a person took the session over")))
    try:
        return run(argv(settings, session), env, cwd, lambda pid: cli_process.record_process(files, pid, 0))
    finally:
        transcripts.prepare(config, files.transcripts, session)


def run_here(argv: Sequence[str], env: Mapping[str, str], cwd: Path, began: Callable[[int], None]) -> int:
    """Run a program in our own terminal."""
    child = subprocess.Popen(list(argv), env=dict(env), cwd=cwd)
    began(child.pid)
    return child.wait()


def _take(path: Path, seconds: float) -> LifeLock | None:
    until = time.monotonic() + seconds
    while (lock := LifeLock.try_acquire(path)) is None and time.monotonic() < until:
        time.sleep(0.05)
    return lock


@dataclass(frozen=True)
class Person:
    """The process of a takeover; pid 0 while it has not said who it is."""

    pid: int = 0
    ticks: int = 0
    since: str = ""

    def words(self) -> str:
        """For `waiting`."""
        return f"while it is held by a person (takeover, process {self.pid}, since {self.since})" if self.pid else \
            "while it is held by a person"


def process(files: ClaudeFiles) -> tuple[int, int] | None:
    """Pid and start ticks of whoever has the session in hand; None if nobody has, or has not said so."""
    held = holder(files)
    return (held.pid, held.ticks) if held is not None and held.pid else None


def holder(files: ClaudeFiles) -> Person | None:
    """Who has the session in hand now; None if nobody has."""
    if not is_held(files.takeover):
        return None
    body = read_json(files.takeover)
    return Person(int(body["pid"]), int(body["ticks"]), str(body["since"])) if isinstance(body, dict) else Person()
