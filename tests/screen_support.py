"""A garrison command on a terminal of its own, which a test types into and reads."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import struct
import termios
import time
from collections.abc import Sequence

from support import DEADLINE, PROGRAM, Place


class Screen:
    """A command on a terminal of its own."""

    def __init__(self, place: Place, *arguments: str, columns: int = 100, rows: int = 30,
                 program: Sequence[str] = PROGRAM, **env: str) -> None:
        self.seen = b""
        self.code: int | None = None
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            with contextlib.suppress(BaseException):
                os.chdir(place.root)
                os.execve(program[0], [*program, *arguments], {**place.env, "TERM": "xterm", **env})
            os._exit(127)
        self.resize(columns, rows)

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self, seconds: float = 0.1) -> bool:
        """Take what is there; False once the other end is closed."""
        if not select.select([self.fd], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            return False
        self.seen += data
        assert b"Traceback" not in self.seen, self.seen
        return bool(data)

    def until(self, *words: str) -> str:
        """Wait until all `words` were shown since the last call; returns what was shown."""
        end = time.monotonic() + DEADLINE
        while not all(word.encode() in self.seen for word in words):
            assert self.read() or all(word.encode() in self.seen for word in words), self.seen
            assert time.monotonic() < end, self.seen
        shown, self.seen = self.seen.decode(errors="replace"), b""
        return shown

    def type(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    def close(self) -> None:
        """Close the terminal under the command."""
        os.close(self.fd)
        self.fd = -1

    def end(self) -> tuple[int, str]:
        """Wait for the command's end: its exit code and what it showed last."""
        while self.fd >= 0 and self.read(1.0):
            pass
        _, status = os.waitpid(self.pid, 0)
        if self.fd >= 0:
            self.close()
        return os.waitstatus_to_exitcode(status), self.seen.decode(errors="replace")

    def leave(self, keys: str) -> tuple[int, str]:
        """Press `keys` until that ends it: tmux takes keys that come faster than a user types for pasted text."""
        end = time.monotonic() + DEADLINE
        pressed = 0.0
        while self.read():
            assert time.monotonic() < end, self.seen
            if time.monotonic() - pressed > 1:
                self.type(keys)
                pressed = time.monotonic()
        return self.end()
