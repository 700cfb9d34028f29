"""A person in a session's place: the session is put down, the interactive CLI runs on it, and it goes on afterwards.

What says that a person is there is a lock, so that whatever becomes of the takeover, the orchestrator goes on. The CLI
dies with the takeover, and one that is slow to die is ended by whoever resumes.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from garrison.agents.claude import decide, leftover, person, program, prompts, transcripts
from garrison.agents.claude.decide import Ending
from garrison.agents.claude.files import append_line, encode, read_json
from garrison.errors import NotFound, Refused
from garrison.records.life import LifeLock
from garrison.system import processes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from garrison.agents.claude.files import ClaudeFiles
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
    return [str(program.WRAPPER), "--resume", session, *model, "--permission-mode", "default", "--setting-sources", ""]


def argv_beside(settings: ClaudeSettings, words: str) -> list[str]:
    """The interactive CLI with a session of its own that begins with these words."""
    model = ["--model", settings.model] if settings.model else []
    return [str(program.WRAPPER), *model, "--permission-mode", "default", "--setting-sources", "", words]


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
    append_line(files.endings, vars(Ending(decide.PERSON, time.time(), "a person worked in its place")))
    return run(argv_beside(settings, words), env, cwd, lambda _pid: None)


def check(node: str, files: ClaudeFiles) -> str:
    """The session that can be taken over; NotFound or Refused if there is none."""
    body = read_json(files.session)
    if body is None:
        raise NotFound(f"{node} has no session yet; `garrison status` shows what it does")
    endings = files.read_endings()
    if (endings and endings[-1].kind == decide.REPORTED) or (files.folder.parent / "result.json").exists():
        raise Refused(f"{node} has reported its result; there is nothing left to take over")
    return str(body["id"])


@contextmanager
def held(node: str, files: ClaudeFiles, since: str, wait: Callable[[], None], lock_file: Path) -> Iterator[None]:
    """Hold the session: others are told who has it, and nobody else has its `lock_file`. `wait` is called while it is
    put down."""
    claim = _take(files.takeover, _INSTANT)
    if claim is None:
        found = person.holder(files)
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
    leftover.end(files)
    if transcripts.prepare(config, files.transcripts, session) == "unknown":
        raise Refused(f"nothing was said in the session of {node} yet; try again in a moment")
    append_line(files.endings, vars(Ending(decide.PERSON, time.time(), "a person took the session over")))
    try:
        return run(argv(settings, session), env, cwd, lambda pid: leftover.note(files, pid, 0))
    finally:
        transcripts.prepare(config, files.transcripts, session)


def run_here(argv: Sequence[str], env: Mapping[str, str], cwd: Path, began: Callable[[int], None]) -> int:
    """Run a program in our own terminal."""
    child = subprocess.Popen(list(argv), env=dict(env), cwd=cwd)
    began(child.pid)
    return child.wait()


def _take(path: Path, seconds: float) -> LifeLock | None:
    until = time.monotonic() + seconds
    while (lock := LifeLock.try_take(path)) is None and time.monotonic() < until:
        time.sleep(0.05)
    return lock
