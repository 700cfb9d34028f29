"""Job watch: detect whether a gate, set-up, acceptance, validator or tool hangs, by the rules for agents.

Its owner polls a job anyway and calls `inspect`; the process tree is read every few seconds only. Time in which the
owner itself was suspended does not count.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING

from garrison.records import log_retention
from garrison.supervise.hang_detector import Evidence, EvidenceTimes, Hang, WatchClock, find_job_hang
from garrison.system import processes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from garrison.system.processes import ProcessId

SCAN_INTERVAL = 15.0
"""Seconds between two scans of a job's process tree, at most; a twentieth of its limit if that is less."""


class JobWatch:
    """Watches one job: the process `root` and its descendants that carry `marker` or none.

    Args:
        timeout: seconds without any movement after which a job with a stopped process hangs.
        silence: seconds of silence after which any job hangs; None: only its own timeout bounds it.
        logs: files that the job's output goes to; each may take `max_log` bytes on the disk.
        limit: the job's own timeout; a short one needs more frequent scans.
    """

    def __init__(self, root: ProcessId, marker: str, timeout: float, *, silence: float | None = None,
                 logs: Sequence[Path] = (), limit: float = math.inf,
                 max_log: int = log_retention.MAX_GROWING_BYTES) -> None:
        self.root, self.marker, self.timeout, self.silence, self.logs = root, marker, timeout, silence, logs
        self.max_log = max_log
        self.interval = min(SCAN_INTERVAL, min(timeout, silence or timeout, limit) / 20)
        self.is_stopped: bool | None = None
        """True if a process of the job was stopped at the last scan; None before it."""
        self._clock = WatchClock(min(max(2 * self.interval, 2.0), timeout / 4))
        self._times = EvidenceTimes(0.0)
        self.due = 0.0
        """Monotonic time of the next scan."""
        self._scans = 0

    def inspect(self, now: float) -> Hang | None:
        """Return why the job hangs, None if it does not; `now` is in monotonic seconds."""
        if now < self.due:
            return None
        self.due = now + self.interval
        self._scans += 1
        for log in self.logs:
            # Nothing else checks the log of a job while it grows.
            log_retention.bound_log(log, self.max_log)
        at, times = self._clock.advance(now), self._times
        own = processes.probe(self.root.pid)
        if own is None or own.ticks != self.root.ticks or own.zombie:
            return None
        tree = [own, *processes.descendants(self.root.pid, self.marker)]
        stopped = sum(process.state in ("T", "t") for process in tree)
        self.is_stopped = stopped > 0
        times.note("work", (sum(process.cpu for process in tree), tuple(sorted(process.pid for process in tree))), at)
        times.hold_until_missed("unstopped", not stopped, at)
        times.note("output", self._output_size(), at)
        evidence = Evidence(0, times.ages(at), below=len(tree), stopped=stopped,
                            blocked=sum(process.state == "D" for process in tree), watched=at)
        # One scan shows no change; two do.
        return find_job_hang(evidence, self.timeout, self.silence) if self._scans > 1 else None

    def _output_size(self) -> int:
        size = 0
        for log in self.logs:
            with suppress(OSError):
                size += log.stat().st_size
        return size


# ---- lost time -------------------------------------------------------------------------------------------------------

# Lost time: how long a job could not run while its clock continued. Pure.
#
# A time limit is about the job's own slowness. It proves nothing about a job that was stopped (SIGSTOP), on a suspended
# machine, or on a machine so busy that the watcher itself did not run.

SHARE = 0.1
"""Share of its limit that a job must have lost for its time-out to prove nothing."""
MIN_CAP = 5.0
"""Usual seconds between two polls of a job."""


class LostTime:
    """Counts the seconds that a job with this time limit lost."""

    def __init__(self, limit: float) -> None:
        self.limit, self.seconds = limit, 0.0
        self._cap = max(MIN_CAP, limit * SHARE)
        self._last: tuple[float, float] | None = None
        self._was_stopped = False

    def note(self, now: float, suspended: float, stopped: bool | None) -> None:
        """Count the time since the last poll.

        Args:
            now: monotonic seconds, which do not pass while the machine is suspended.
            suspended: seconds that the machine has been suspended, since any fixed time.
            stopped: whether a process of the job is stopped; None: not checked, as before.
        """
        is_stopped = self._was_stopped if stopped is None else stopped
        if self._last is not None:
            passed = max(0.0, now - self._last[0])
            self.seconds += max(0.0, suspended - self._last[1])
            self.seconds += passed if self._was_stopped else max(0.0, passed - self._cap)
        self._last, self._was_stopped = (now, suspended), is_stopped

    @property
    def is_decisive(self) -> bool:
        """Return whether the job lost so much of its time that a time-out proves nothing."""
        return self.seconds >= self.limit * SHARE
