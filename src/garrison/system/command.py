"""Commands: run a program to its end (`run`, in asyncio `run_to_end`), or as a job that an event loop polls (`Job`).

None can prompt the user, each has its own session, and a time limit kills everything in it.

A `Job` has a log file, and the life marker in its environment. After its end nothing of it keeps running: what is left
in its session, below it or with its marker gets TERM, then KILL, in steps that `poll` drives. `wake_at` says when to
call `poll`; `pidfd` wakes a loop when it ends.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from garrison.ends import End
from garrison.errors import GarrisonError, Refused
from garrison.system import forks, process_control, processes, terminal_text, untrusted
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from subprocess import Popen

    from garrison.system.processes import Child, ProcessId

GRACE = 5.0
"""Seconds between TERM and KILL."""
_STEP = 0.1
"""Seconds between two polls while a job is being ended."""
_GIVE_UP = 10.0
"""Seconds after KILL until a job that does not die (blocked in the kernel) is reported as ended anyway."""


class Job:
    """A running command. Made by `start`; `poll` until it gives a result."""

    def __init__(self, child: Child, marker: str, *, started: float, timeout_s: float | None, grace: float,
                 outputs: Sequence[Path] = ()) -> None:
        self._outputs = outputs
        self._child, self._marker, self._grace = child, marker, grace
        self._started = self._polled = started
        self._deadline = None if timeout_s is None else started + timeout_s
        self._timed_out = False
        self._code: int | None = None
        self._ended = started
        self._stopping_since: float | None = None
        self._terminated: set[ProcessId] = set()
        """Processes that were sent SIGTERM."""
        self._result: End | None = None

    @classmethod
    def start(cls, command: str | Sequence[str], *, env: Mapping[str, str], cwd: str | Path, log: Path,
              timeout_s: float | None, grace: float = GRACE, now: float | None = None, stdin: int | None = None,
              stdout: Path | None = None, extra_fds: Sequence[int] = ()) -> Job:
        """Start `command` (a string for `sh -c`, or an argv) with exactly `env`, output appended to `log`.

        `now` is a monotonic time; for `stdin`, `stdout` and `extra_fds` see `processes.spawn`. GarrisonError if an
        argv's program or `cwd` is missing.
        """
        argv = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        if stdin is None and stdout is None and not extra_fds:  # as a copy, if it is a program of garrison's
            child = forks.start(argv, env=env, cwd=cwd, log=log)
        else:
            child = processes.spawn(argv, env=env, cwd=cwd, log=log, stdin=stdin, stdout=stdout, extra_fds=extra_fds)
        return cls(child, env.get(processes.MARKER, ""), started=time.monotonic() if now is None else now,
                   timeout_s=timeout_s, grace=grace, outputs=(log,) if stdout is None else (log, stdout))

    @property
    def pidfd(self) -> int:
        """Return a descriptor that is readable once the command has ended; -1 after the result was given."""
        return self._child.pidfd

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def ticks(self) -> int:
        """Return the command's start ticks."""
        return self._child.ticks

    @property
    def marker(self) -> str:
        return self._marker

    @property
    def wake_at(self) -> float | None:
        """Return the monotonic time at which `poll` must be called even if nothing ends; None if there is none."""
        if self._result is not None:
            return None
        return self._deadline if self._stopping_since is None else self._polled + _STEP

    def close(self) -> None:
        """Close the handle; the command keeps running."""
        self._child.close()

    def kill(self, now: float | None = None) -> None:
        """End it: TERM now, KILL after the grace period. Returns at once; `poll` does the rest and returns the
        result."""
        if self._result is None and self._stopping_since is None:
            self._stopping_since = self._polled = time.monotonic() if now is None else now
            self._signal(signal.SIGTERM)

    def poll(self, now: float) -> End | None:
        """Do one step at the monotonic time `now`; return how it ended once nothing of the job is left, else None."""
        if self._result is not None:
            return self._result
        self._read_exit_code(now)
        if self._stopping_since is None:
            if self._code is None and (self._deadline is None or now < self._deadline):
                return None
            self._timed_out = self._code is None
            if self._code is not None and not self._members():
                return self._finish()
            self._stopping_since = now
        return self._stop(now, self._stopping_since)

    def _read_exit_code(self, now: float) -> None:
        """Record the exit code once there is one; a child whose status was collected elsewhere counts as killed."""
        self._polled = now
        if self._code is not None:
            return
        self._ended = now
        self._code = processes.exit_code(self._child.pid, self._child.ticks)
        if self._code is None:
            process = processes.probe(self._child.pid)
            if process is None or process.ticks != self._child.ticks:
                self._code = -signal.SIGKILL

    def _stop(self, now: float, since: float) -> End | None:
        kill_from = since + self._grace
        left = self._signal(signal.SIGKILL if now >= kill_from else signal.SIGTERM)
        if self._code is not None and (not left or now >= kill_from + _GIVE_UP):
            return self._finish()
        return None

    def _signal(self, number: int) -> list[ProcessId]:
        """Signal all members, with TERM at most once; return them."""
        members = self._members()
        for process in members:
            if number == signal.SIGTERM and process in self._terminated:
                continue
            self._terminated.add(process)
            if number == signal.SIGTERM and processes.is_sandbox(process.pid):
                continue
            with suppress(GarrisonError):  # another user's process; the time limit ends the wait
                # A stopped process receives TERM only once continued.
                if processes.send(process.pid, process.ticks, number) and number == signal.SIGTERM:
                    processes.send(process.pid, process.ticks, signal.SIGCONT)
        return members

    def _members(self) -> list[ProcessId]:
        """Return the remaining processes of the job, by descent, session or marker, and orphans that became our
        children."""
        root = self._child.id
        return process_control.find_remaining(root, self._marker, {root, *self._terminated},
                                        only_below=self._marker == os.environ.get(processes.MARKER))

    def _finish(self) -> End:
        for output in self._outputs:  # the command had it open, and may have made it executable for others
            untrusted.mend_output(output)
        self._child.close()
        code = -signal.SIGKILL if self._code is None else self._code
        self._result = End(code, self._timed_out, max(0.0, self._ended - self._started))
        return self._result


def read_tail(path: Path, lines: int = 20, bytes: int = 8000, since: int = 0) -> str:
    """Return the last `lines` lines within the last `bytes` bytes of a file as clean text; '' if there is no file.

    Terminal escapes and control characters are dropped, undecodable bytes replaced; a carriage return starts a line.
    Nothing before byte `since` is read: another program printed that.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = max(since, size - bytes)
            file.seek(start)
            raw = file.read(bytes)
    except FileNotFoundError:
        return ""
    tail = terminal_text.clean_lines(raw.decode(errors="replace"))
    if start > since and len(tail) > 1:
        del tail[0]  # its start was cut off
    return "\n".join(tail[-lines:])


class Done(Value):
    """A program that has run to its end."""

    code: int | None
    """Exit code, negative for a signal; None if it was not started, or did not end in time."""
    out: str = ""
    err: str = ""
    why: str = ""
    """Why it has no code."""
    timed_out: bool = False

    @property
    def ok(self) -> bool:
        return self.code == 0

    @property
    def last_error(self) -> str:
        """Return the last line of its stderr, else how it ended."""
        lines = self.err.strip().splitlines()
        return self.why or (lines[-1].strip() if lines else f"exit code {self.code}")


def run(argv: Sequence[str], seconds: float | None, *, env: Mapping[str, str] | None = None, cwd: str | Path = "/",
        text: str | bytes | None = None, errors: str = "replace") -> Done:
    """Run a program, given `text` or nothing, and return how it ended; after `seconds`, if any, its group is killed.

    Args:
        env: its whole environment; None: ours.
        errors: how to decode bytes in its output that are not UTF-8, as for `bytes.decode`.
    """
    import subprocess  # script commands run nothing, and need not load it

    try:
        child = subprocess.Popen(
            argv, env=None if env is None else dict(env), cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL if text is None else subprocess.PIPE, start_new_session=True)
    except OSError as error:
        return Done(None, why=f"{argv[0]}: {error.strerror}")
    given = text.encode(errors="surrogateescape") if isinstance(text, str) else text
    try:
        out, err = child.communicate(given, seconds)
    except BaseException as error:  # also on Ctrl-C, which the child does not get, in its own session
        processes.signal_group(child)
        child.wait()
        for stream in (child.stdin, child.stdout, child.stderr):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        if isinstance(error, subprocess.TimeoutExpired):
            name = argv[0].rpartition("/")[2]
            return Done(None, why=f"{name} did not end within {seconds:g} s", timed_out=True)
        raise
    return Done(child.returncode, out.decode(errors=errors), err.decode(errors=errors))


async def run_to_end(argv: Sequence[str], seconds: float, env: Mapping[str, str], *, cwd: str | None = None,
                     text: str = "") -> tuple[int, str, str]:
    """Run a command with `text` as its input; return (exit code, stdout, stderr).

    After `seconds` it is killed: Refused.
    """
    import asyncio  # saves 20 ms in processes without an asyncio loop

    process = await asyncio.create_subprocess_exec(
        *argv, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env=dict(env), cwd=cwd, start_new_session=True)
    try:
        async with asyncio.timeout(seconds):
            out, err = await process.communicate(text.encode("utf-8", "replace"))
    except TimeoutError:
        process.kill()
        await process.wait()
        raise Refused(f"`{argv[0].rpartition('/')[2]}` took longer than {seconds:.0f} s; `garrison status` shows the "
                      "result") from None
    return process.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace")


def start_detached(argv: Sequence[str], log: Path, *, env: Mapping[str, str] | None = None,
                   cwd: str | Path = "/") -> Popen[bytes]:
    """Start a program that outlives us, with its output appended to a log."""
    import subprocess

    with log.open("ab") as output:
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env, cwd=cwd,
                                start_new_session=True)
