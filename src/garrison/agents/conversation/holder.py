"""Holder of a session: the program that runs it, or the user who has taken it over; never more than one.

Two programs would write to the same transcript without noticing, so the recorded one must be gone before a session is
resumed. A takeover holds a lock while it runs, so the orchestrator continues however the takeover ends.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from garrison.agents.conversation import policy
from garrison.errors import NotFound, Refused
from garrison.records.json_io import encode, read_json, write_json
from garrison.records.life_lock import LifeLock, is_held
from garrison.system import processes, untrusted
from garrison.system.clock import wait_until
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from garrison.agents.conversation.files import AttemptFiles

_STEPS = ((signal.SIGTERM, 3.0), (signal.SIGKILL, 2.0))
"""Signals to an orphan, and the seconds to wait after each: on TERM the CLI ends its tools and saves its transcript."""
_CLAIM_TIMEOUT = 1.0
"""Seconds until a lock that another process only tests is free again."""
_SUSPEND_TIMEOUT = 30.0
"""Seconds for the session to be suspended."""
_MAX_CONVERSATION = 64 << 20
"""Most bytes of a conversation that can be taken over."""


# ---- its program


def record_process(files: AttemptFiles, pid: int, incarnation: int) -> None:
    """Record the CLI that runs now; incarnation 0 if the user started it."""
    process = processes.probe(pid)
    if process is not None:
        write_json(files.process, {"pid": pid, "ticks": process.ticks, "boot": processes.boot_id(),
                                   "life": incarnation})


def end_orphan(files: AttemptFiles) -> None:
    """End the recorded CLI if it still runs, and delete the record."""
    recorded = read_json(files.process)
    if recorded is None:
        return
    # After a reboot the recorded pid, even with its start ticks, may belong to another process.
    for number, seconds in _STEPS if processes.same_boot(str(recorded.get("boot", ""))) else ():
        if not processes.send(recorded["pid"], recorded["ticks"], number):
            break
        wait_until(lambda: not processes.is_running(recorded["pid"], recorded["ticks"]), seconds, 0.01)
    files.process.unlink(missing_ok=True)


# ---- the user


class Person(Value):
    """Process of a takeover; pid 0 while it has not recorded itself."""

    pid: int = 0
    ticks: int = 0
    since: str = ""

    def describe(self) -> str:
        return f"while it is taken over (process {self.pid}, since {self.since})" if self.pid else \
            "while it is taken over"


def person_of(files: AttemptFiles) -> Person | None:
    """Return the takeover of the session, if any."""
    if not is_held(files.takeover):
        return None
    body = read_json(files.takeover)
    return Person(int(body["pid"]), int(body["ticks"]), str(body["since"])) if isinstance(body, dict) else Person()


def process_of_person(files: AttemptFiles) -> tuple[int, int] | None:
    """Return pid and start ticks of the takeover's process; None without one, or while it has not recorded itself."""
    person = person_of(files)
    return (person.pid, person.ticks) if person is not None and person.pid else None


def session_of(node: str, files: AttemptFiles) -> str:
    """Return the session that can be taken over; NotFound or Refused if there is none."""
    session = files.session_id
    if not session:
        raise NotFound(f"{node} has no session yet; `garrison status` shows its state")
    endings = files.read_endings()
    if (endings and endings[-1].kind == policy.REPORTED) or files.result.exists():
        raise Refused(f"{node} has reported its result; there is nothing left to take over")
    return session


def conversation_of(node: str, files: AttemptFiles) -> str:
    """Return the conversation with the session's model so far; NotFound or Refused if it cannot be taken over."""
    if files.report.exists() or files.result.exists():
        raise Refused(f"{node} has reported its result; there is nothing left to take over")
    conversation = untrusted.read_text(files.folder, files.conversation.name, _MAX_CONVERSATION)
    if not conversation:
        raise NotFound(f"{node} has not called its model yet; `garrison status` shows its state")
    return conversation


@contextmanager
def taken_over(node: str, files: AttemptFiles, since: str, wait: Callable[[], None],
               lock_file: Path) -> Iterator[None]:
    """Hold the session for the user.

    Args:
        since: time of the takeover, for `status`.
        wait: called while the session is being suspended.
        lock_file: lock of the session, which only one process may run.
    """
    # The claim comes first: it tells the orchestrator to end its program, which holds the other lock.
    claim = _lock(files.takeover, _CLAIM_TIMEOUT)
    if claim is None:
        person = person_of(files)
        raise Refused(f"{node} has been taken over already" + (f", process {person.pid}" if person else ""))
    this = processes.probe(os.getpid())
    assert this is not None
    # Written in place: a file renamed over it would not be the locked one.
    files.takeover.write_bytes(encode({"pid": this.pid, "ticks": this.ticks, "since": since}))
    session = None
    try:
        wait()
        # Both programs append to one transcript; the lock is free only once the agent's program has ended.
        session = _lock(lock_file, _SUSPEND_TIMEOUT)
        if session is None:
            raise Refused(f"the session of {node} was not suspended within {_SUSPEND_TIMEOUT:.0f} s; nothing was "
                          "changed")
        yield
    finally:
        for lock in (session, claim):
            if lock is not None:
                lock.release()


def _lock(path: Path, seconds: float) -> LifeLock | None:
    until = time.monotonic() + seconds
    while (lock := LifeLock.try_acquire(path)) is None and time.monotonic() < until:
        time.sleep(0.05)
    return lock
