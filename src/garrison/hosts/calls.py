"""Calls of an orchestrator that wait for another process or machine: in threads, or as child processes.

A call that starts a program is a child process: the orchestrator's loop reaps every child, and would take the exit
code from a thread that starts one. An unanswered call is repeated.
"""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from garrison.errors import GarrisonError
from garrison.system.command import Job, read_tail

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

RETRY_SECONDS = 1.0
"""Time before an unanswered call is repeated."""


class _Task(Protocol):
    """A running call."""

    def poll(self, now: float) -> bool:
        """Return whether it has succeeded; GarrisonError if it has failed."""
        ...

    @property
    def answer(self) -> Any:
        ...


class _ThreadCall:
    def __init__(self, future: Future[Any]) -> None:
        self._future = future
        self.answer: Any = None

    def poll(self, _now: float) -> bool:
        if self._future.done():
            self.answer = self._future.result()
            return True
        return False


class _ChildCall:
    answer = None

    def __init__(self, job: Job, log: Path, since: int) -> None:
        self.job, self._log, self._since = job, log, since

    def poll(self, now: float) -> bool:
        result = self.job.poll(now)
        if result is None:
            return False
        if not result.ok:
            raise GarrisonError(read_tail(self._log, 1, since=self._since) or f"exit code {result.code}")
        return True


class HostCall:
    """A named call."""

    def __init__(self, start: Callable[[float], _Task], due: float, done: Callable[[Any], None]) -> None:
        self._start, self._done = start, done
        self.due: float | None = due
        self.began: float | None = None
        self._task: _Task | None = None
        self.is_open = True

    @property
    def child(self) -> Job | None:
        """Return its process, None if it has none."""
        return self._task.job if isinstance(self._task, _ChildCall) else None

    def take(self, now: float, report: Callable[[str], None]) -> None:
        """Start it if it is due; take its answer if there is one."""
        if self._task is None and self.is_open and self.due is not None and now >= self.due:
            self.began, self.due = now, None
            self._task = self._start(now)
        if self._task is None:
            return
        try:
            if not self._task.poll(now):
                return
        except GarrisonError as error:
            self._task, self.due = None, now + RETRY_SECONDS
            report(str(error))
            return
        answer, self._task, self.is_open = self._task.answer, None, False
        self._done(answer)


class Calls:
    """Calls of one orchestrator, one of each name at a time.

    Args:
        report: called with the reason why a call was not answered.
    """

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._threads = ThreadPoolExecutor(3, "remote")
        self._wakeup = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._calls: dict[str, HostCall] = {}

    @property
    def descriptors(self) -> list[int]:
        return [self._wakeup, *(call.child.pidfd for call in self._calls.values() if call.child is not None)]

    @property
    def wake_at(self) -> float | None:
        times = [call.due if call.child is None else call.child.wake_at for call in self._calls.values()]
        return min((at for at in times if at is not None), default=None)

    def is_open(self, name: str) -> bool:
        return name in self._calls and self._calls[name].is_open

    def poll(self, now: float) -> None:
        """Start due calls, and take the answers that have arrived."""
        # Drained before the poll: an answer that arrives in between wakes the loop again. In the other order the wake
        # would be lost, and the answer taken only at the next timer.
        with suppress(BlockingIOError):
            os.eventfd_read(self._wakeup)
        for call in list(self._calls.values()):
            call.take(now, self._report)

    def call(self, name: str, now: float, work: Callable[[], Any], done: Callable[[Any], Any], *,
             every: float = 0.0, after: float = 0.0) -> None:
        """Run a function in a thread, unless a call of that name is running.

        Args:
            every: least seconds from the start of the previous call of that name.
            after: seconds from now.
        """
        self._begin(name, now, lambda _: _ThreadCall(self._submit(work)), done, every, after)

    def run(self, name: str, now: float, argv: Sequence[str], done: Callable[[Any], Any], *, env: Mapping[str, str],
            cwd: Path, log: Path, timeout: float, every: float = 0.0) -> None:
        """Run a command as a child process, likewise; the last line of its log is the reason if it fails."""
        def start(at: float) -> _ChildCall:
            since = log.stat().st_size if log.exists() else 0
            return _ChildCall(Job.start(argv, env=env, cwd=cwd, log=log, timeout_s=timeout, now=at), log, since)

        self._begin(name, now, start, done, every, 0.0)

    def _begin(self, name: str, now: float, start: Callable[[float], _Task], done: Callable[[Any], Any], every: float,
               after: float) -> None:
        before = self._calls.get(name)
        if before is not None and before.is_open:
            return
        earliest = before.began + every if before is not None and before.began is not None else now
        self._calls[name] = call = HostCall(start, max(now + after, earliest), done)
        call.take(now, self._report)

    def _submit(self, work: Callable[[], Any]) -> Future[Any]:
        future = self._threads.submit(work)
        future.add_done_callback(lambda _: self.wake())
        return future

    def wake(self) -> None:
        """Wake the loop."""
        with suppress(OSError, ValueError):
            os.eventfd_write(self._wakeup, 1)

    def close(self) -> None:
        """Abandon the running calls."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for call in self._calls.values():
            if call.child is not None:
                call.child.close()
