"""Session connection: what the connections of all sessions share, whichever program an agent is.

A connection is the only process on its session (it waits for the session's lock), ends on request, and records
in the attempt's files what happens, what the session waits for, and how it ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path

from garrison.agents.claude import policy
from garrison.agents.claude.attempt_files import AttemptFiles
from garrison.agents.claude.policy import Ending
from garrison.agents.claude.stream import render
from garrison.agents.result import LANDING
from garrison.agents.trouble import LIMITS, TRANSIENT, TroubleKind, judge, local_zone, read_reset
from garrison.records import atomic, costs
from garrison.records.api_answers import NETWORK, ApiAnswer, read_answer
from garrison.records.json_io import append_line
from garrison.records.life_lock import LifeLock
from garrison.system.terminal_text import clean_lines

_LOCK_TIMEOUT = 30.0
"""Seconds to wait for an earlier incarnation's connection to release the session."""
_MAX_REASON = 2000


class SessionConnection:
    """One connection to a session."""

    def __init__(self, attempt: Path, incarnation: int) -> None:
        self.files = AttemptFiles(attempt)
        self._incarnation = incarnation
        self._stop = asyncio.Event()
        self._began = time.time()
        self._lock: LifeLock | None = None
        """Held until this process ends: no other may run the session."""

    @property
    def _answered(self) -> bool:
        raise NotImplementedError

    def _stop_on_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stop.set)

    async def _lock_session(self) -> Ending | None:
        """Wait until no other process runs the session; return the ending if that takes too long, or we are to stop."""
        until = time.monotonic() + _LOCK_TIMEOUT
        while not self._stop.is_set() and time.monotonic() < until:
            self._lock = LifeLock.try_acquire(self.files.lock)
            if self._lock is not None:
                return None
            await asyncio.sleep(0.05)
        return self._ending(policy.STOPPED) if self._stop.is_set() else self._ending(
            TroubleKind.CRASH, "another process still runs the session")

    # ---- endings

    def _ending(self, kind: str, reason: str = "", *, resets_at: float | None = None) -> Ending:
        """Return how the connection ends: by the API's own answer if seen by the proxy, else as the program says."""
        now, status, answer = time.time(), None, self._api_answer()
        if answer is not None and (seen := judge(kind, answer)) is not None:
            reason = reason if kind == seen and reason else answer.describe()
            kind, status, resets_at = seen, answer.status, answer.resets_at or resets_at
        if kind not in LIMITS:
            resets_at = resets_at if kind in TRANSIENT else None
        elif resets_at is None:
            resets_at = read_reset(reason, now, local_zone())
        return Ending(kind, now, shorten(reason), False, resets_at, self._answered, status)

    def _vanished(self, program: str, path: str | None = None, *, was_run: bool) -> Ending | None:
        """Return the ending of a program that has failed at its start and is gone, None if it is there: an update
        replaces it, so it is waited for."""
        if shutil.which(program, path=path) is None:
            return self._ending(TroubleKind.VANISHED, f"{program} is not there any more; waiting until it is back")
        before = self.files.read_endings()[-1:]
        if not was_run and before and before[0].kind == TroubleKind.VANISHED:  # it was gone when we were started
            return self._ending(TroubleKind.VANISHED, f"{program} cannot be run yet; waiting until it can")
        return None

    def _api_answer(self) -> ApiAnswer | None:
        """Return how the API has refused this connection's last call, as the run's proxy has seen it."""
        return read_answer(self.files.attempt / NETWORK, self._began)

    def _reported(self, report: Mapping[str, object]) -> Ending:
        return Ending(policy.REPORTED, time.time(), shorten(str(report["summary"])), report["status"] in LANDING, None,
                      self._answered)

    # ---- what is shown

    def _write(self, event: Mapping[str, object]) -> None:
        """Append an event to the stream, and show it in the output."""
        append_line(self.files.stream, {"at": costs.now(), "life": self._incarnation, **event})
        if text := render(event):
            print(clean(text), flush=True)

    def _note(self, text: str) -> None:
        self._write({"kind": "note", "text": text})

    def _show_wait(self, what: str) -> None:
        """Show what the session waits for, in the output and in `status`."""
        self._note(f"waits {what}")
        atomic.write(self.files.waiting, what.encode(), durable=False)

    def _show_trouble(self, what: str) -> None:
        """Show in `status` what goes wrong while the session works; '' for nothing."""
        if what:
            atomic.write(self.files.trouble, what.encode(), durable=False)
        else:
            self.files.trouble.unlink(missing_ok=True)


def run_to_ending(files: AttemptFiles, run: Callable[[], Coroutine[object, object, Ending]]) -> int:
    """Run a connection and record how it ended; return the process's exit code."""
    try:
        files.add_ending(asyncio.run(run()))
    except OSError as error:  # such as a full disk: a later connection continues
        with contextlib.suppress(OSError):
            os.write(1, f"the connection ends: {error}\n".encode(errors="replace"))
        os._exit(1)  # what is not flushed would print a traceback
    return 0


def clean(text: str) -> str:
    """Remove escape sequences and control characters: an agent's text must not steer the terminal."""
    return "\n".join(clean_lines(text))


def shorten(reason: str) -> str:
    return clean(reason).strip()[:_MAX_REASON]
