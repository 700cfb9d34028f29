"""Trace the calls of one package in every Python process of an environment. Standard library only; used by stories.py.

`start(folder, package)` is called by a `.pth` file at interpreter start. Each process writes two files into `folder`,
named after its pid and start time: `.calls` (fixed-size records, one a call) and `.names` (its command line and the
functions it has called). A record is written at once: a process may be killed at any moment.

Traced are functions defined in files below `package`, when they are entered for the first time: resuming a generator or
coroutine is not a call. What runs while a module is imported is marked, so that a reader can leave it out.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
import sys
import threading
import time
from types import CodeType, FrameType
from typing import Any

RECORD = struct.Struct("<QIIB7x")
"""Wall-clock time in ns, called function, calling function (NO_CALLER if none), flags."""
NO_CALLER = 0xFFFFFFFF
IMPORTING = 1
_FIRST_DESCRIPTOR = 700
"""High, so that a program that closes or counts its low descriptors does not meet ours."""
_RESUME_AT_START = 0


class Tracer:
    """Writes one record a call. `stacks` holds the package's functions under way, one stack a thread."""

    def __init__(self, folder: str, package: str) -> None:
        self.folder, self.prefix = folder, f"{package}/"
        self.numbers: dict[int, int] = {}
        """Id of a code object → its number."""
        self.codes: list[CodeType] = []
        self.stacks: dict[int, list[tuple[int, bool]]] = {}
        self.open()

    def open(self) -> None:
        """Start the files of this process; again in a forked child."""
        stem = f"{self.folder}/{os.getpid()}-{time.monotonic_ns()}"
        self.calls, self.names = (_open_high(f"{stem}.{kind}") for kind in ("calls", "names"))
        with open("/proc/self/cmdline", "rb") as file:  # noqa: PTH123  # pathlib would cost each process an import
            argv = file.read().decode(errors="replace").split("\0")[:-1]
        self._write_name({"pid": os.getpid(), "ppid": os.getppid(), "argv": argv, "at": time.time_ns(),
                          "life": os.environ.get("GARRISON_LIFE", "")})
        for code in self.codes:  # a forked child continues with its parent's numbers
            self._write_function(code)

    def _write_name(self, data: dict[str, Any]) -> None:
        os.write(self.names, json.dumps(data).encode() + b"\n")

    def _write_function(self, code: CodeType) -> None:
        self._write_name({"file": code.co_filename[len(self.prefix):], "line": code.co_firstlineno,
                          "function": getattr(code, "co_qualname", code.co_name)})

    def is_ours(self, code: CodeType) -> bool:
        """Return whether a function belongs to the package."""
        return code.co_filename.startswith(self.prefix)

    def enter(self, code: CodeType, *, main: bool, fresh: bool) -> None:
        """Record that a function of the package was entered (`fresh`), or resumed."""
        number = self.numbers.get(id(code))
        if number is None:
            number = self.numbers[id(code)] = len(self.codes)
            self.codes.append(code)
            self._write_function(code)
        stack = self.stacks.setdefault(threading.get_ident(), [])
        caller, importing = stack[-1] if stack else (NO_CALLER, False)
        importing = importing or (code.co_name == "<module>" and not main)
        if fresh:
            os.write(self.calls, RECORD.pack(time.time_ns(), number, caller, IMPORTING if importing else 0))
        stack.append((number, importing))

    def leave(self) -> None:
        """Record that the function entered last has returned, yielded or raised."""
        stack = self.stacks.get(threading.get_ident())
        if stack:
            stack.pop()

    def profile(self, frame: FrameType, event: str, _: object) -> None:
        """Serve as `sys.setprofile`'s function (Python 3.11)."""
        code = frame.f_code
        if not self.is_ours(code):
            return
        if event == "call":
            fresh = frame.f_lasti < 0 or code.co_code[frame.f_lasti + 1] == _RESUME_AT_START
            self.enter(code, main=frame.f_globals.get("__name__") == "__main__", fresh=fresh)
        elif event == "return":
            self.leave()


def _open_high(path: str) -> int:
    low = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        return fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _FIRST_DESCRIPTOR)
    finally:
        os.close(low)


class Monitor:
    """Lets `sys.monitoring` call the tracer (Python 3.12 and later). Events of other code are switched off."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer
        self.monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
        tool, events = self.monitoring.PROFILER_ID, self.monitoring.events
        self.monitoring.use_tool_id(tool, "stories")
        callbacks = {
            events.PY_START: self.start, events.PY_RESUME: self.resume, events.PY_THROW: self.throw,
            events.PY_RETURN: self.leave, events.PY_YIELD: self.leave, events.PY_UNWIND: self.unwind}
        for event, callback in callbacks.items():
            self.monitoring.register_callback(tool, event, callback)
        self.monitoring.set_events(tool, sum(callbacks))

    def start(self, code: CodeType, _: int) -> Any:
        """Record that a function starts."""
        if not self.tracer.is_ours(code):
            return self.monitoring.DISABLE
        return self.tracer.enter(code, main=sys._getframe(1).f_globals.get("__name__") == "__main__", fresh=True)

    def resume(self, code: CodeType, _: int) -> Any:
        """Record that a generator or coroutine continues."""
        return self.throw(code) if self.tracer.is_ours(code) else self.monitoring.DISABLE

    def leave(self, code: CodeType, _: int, __: object) -> Any:
        """Record that a function returns or yields."""
        return self.tracer.leave() if self.tracer.is_ours(code) else self.monitoring.DISABLE

    def throw(self, code: CodeType, *_: object) -> None:
        """Record an exception thrown into a generator; this event cannot be switched off."""
        if self.tracer.is_ours(code):
            self.tracer.enter(code, main=False, fresh=False)

    def unwind(self, code: CodeType, *_: object) -> None:
        """Record that a function raises; this event cannot be switched off."""
        if self.tracer.is_ours(code):
            self.tracer.leave()


def start(folder: str, package: str) -> None:
    """Trace this process, its threads and its forked children from now on."""
    tracer = Tracer(folder, package)
    os.register_at_fork(after_in_child=tracer.open)
    if sys.version_info >= (3, 12):
        Monitor(tracer)
    else:
        threading.setprofile(tracer.profile)
        sys.setprofile(tracer.profile)
