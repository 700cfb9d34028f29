"""Pseudo terminal: the terminal of an agent's program, whose other end this process has.

The program's launcher opens it where the program runs and passes its other end through a socket (`DESCRIPTOR`). A
thread then copies the program's output to the log and to the terminal of this process, and input from there to the
program: git may keep the main loop busy for longer than a typing user can wait. When this process dies, the kernel
hangs the terminal up, and the program's session with it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import socket
import struct
import sys
import termios
import threading
import time
import tty
from pathlib import Path
from typing import Any

SIZE = (24, 80)
"""Rows and columns if this process has no terminal."""
_BLOCK = 1 << 16
_MAX_TYPED = 1 << 16
"""Most buffered input bytes for a program that does not read; more are dropped."""
MAX_SHOWN = 1 << 20
"""Most buffered output bytes for a stalled terminal; more are dropped, but are in the log."""
_DRAIN = 2.0
"""Seconds to wait for the last output of a program that has ended."""
_FLUSH = 0.5
"""Seconds to wait for a stalled terminal to show it."""


class PseudoTerminal:
    """This process's end of an agent's terminal; created in the main thread, before the program starts."""

    def __init__(self, log: Path, *, is_lent: bool) -> None:
        """Open it; with `is_lent` the terminal of this process belongs to the program from now on."""
        self._log = log
        self._screen = open_own_terminal() if is_lent else None
        """The terminal of this process, where the user types and reads."""
        self._socket, passed = socket.socketpair()
        with passed:  # above the single-digit descriptors, which a sandbox's shell lines use
            self._passed = socket.socket(fileno=fcntl.fcntl(passed, fcntl.F_DUPFD_CLOEXEC, 10))
        self._wake, self._waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._master: int | None = None
        self._typed = self._unshown = b""
        self._is_closing = False
        self._saved: Any = None
        self._old_handler: Any = None
        self._thread = threading.Thread(target=self._run, name="garrison-terminal", daemon=True)

    @property
    def descriptor(self) -> int:
        """Return the socket through which the launcher passes the other end."""
        return self._passed.fileno()

    @property
    def size(self) -> tuple[int, int]:
        """Return rows and columns of this process's terminal."""
        if self._screen is not None:
            with contextlib.suppress(OSError):
                rows, columns, _, _ = struct.unpack("4H", fcntl.ioctl(self._screen, termios.TIOCGWINSZ, bytes(8)))
                if rows and columns:
                    return rows, columns
        return SIZE

    @property
    def is_shown(self) -> bool:
        """Return whether the program's output appears on this process's terminal, and keys reach the program."""
        return self._screen is not None

    def begin(self) -> None:
        """Start to copy, once the launcher has been started."""
        self._passed.close()
        if self._screen is not None:
            with contextlib.suppress(termios.error):
                self._saved = termios.tcgetattr(self._screen)
                tty.setraw(self._screen, termios.TCSANOW)  # Ctrl-C is for the program
            self._old_handler = signal.signal(signal.SIGWINCH, lambda *_: self._resize())
        self._thread.start()

    def close(self) -> None:
        """Copy the remaining output of a program that has ended, and give the terminal back. Idempotent."""
        if self._wake < 0:
            return
        self._passed.close()
        if self._thread.ident is not None:
            self._is_closing = True
            os.write(self._waker, b"x")
            self._thread.join(_DRAIN)
            if self._thread.is_alive():  # something keeps the terminal open; the thread ends with this process
                return
        if self._screen is not None:
            if self._old_handler is not None:
                signal.signal(signal.SIGWINCH, self._old_handler)
            if self._saved is not None:
                with contextlib.suppress(termios.error):
                    termios.tcsetattr(self._screen, termios.TCSANOW, self._saved)
            os.close(self._screen)
        for descriptor in (self._wake, self._waker, *([] if self._master is None else [self._master])):
            os.close(descriptor)
        self._socket.close()
        self._wake, self._master = -1, None

    def _resize(self) -> None:
        if self._master is not None:
            with contextlib.suppress(OSError):
                fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("4H", *self.size, 0, 0))

    # ---- in the thread

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            self._master = self._receive()
            if self._master is None:
                return
            os.set_blocking(self._master, False)
            self._resize()
            with self._log.open("ab", buffering=0) as log:
                while self._copy(self._master, log):
                    pass
        self._flush()

    def _receive(self) -> int | None:
        """Wait for the other end; None if the launcher exited without passing one, or waiting is pointless."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll()}
        if self._socket.fileno() not in ready:
            return None
        _, descriptors, _, _ = socket.recv_fds(self._socket, 1, 1, socket.MSG_CMSG_CLOEXEC)
        self._socket.close()  # nothing else is received from there: it belongs to the agent by now
        return descriptors[0] if descriptors else None

    def _copy(self, master: int, log: Any) -> bool:
        """Wait and copy once in each direction; return whether there may be more."""
        poll = select.poll()
        poll.register(master, select.POLLIN | (select.POLLOUT if self._typed else 0))
        if not self._is_closing:
            poll.register(self._wake, select.POLLIN)
        if self._screen is not None:
            wanted = (0 if self._is_closing else select.POLLIN) | (select.POLLOUT if self._unshown else 0)
            poll.register(self._screen, wanted)
        ready = dict(poll.poll(0 if self._is_closing else None))
        if self._screen is not None and self._screen in ready:
            self._serve_screen(ready[self._screen])
        if self._typed and ready.get(master, 0) & select.POLLOUT:
            with contextlib.suppress(BlockingIOError):
                self._typed = self._typed[os.write(master, self._typed):]
        if ready.get(master, 0) & (select.POLLIN | select.POLLHUP | select.POLLERR):
            block = _read(master)
            if block:
                log.write(block)
                self._show(block)
            return bool(block)
        return not self._is_closing

    def _serve_screen(self, events: int) -> None:
        assert self._screen is not None
        if events & (select.POLLHUP | select.POLLERR | select.POLLNVAL):
            self._forget_screen()
            return
        if events & select.POLLIN:
            self._typed = (self._typed + _read(self._screen))[:_MAX_TYPED]
        if events & select.POLLOUT:
            self._show(b"")

    def _show(self, block: bytes) -> None:
        """Write to the screen what it accepts now; a stalled terminal must not stop the program."""
        if self._screen is None:
            return
        self._unshown = (self._unshown + block)[-MAX_SHOWN:]
        try:
            self._unshown = self._unshown[os.write(self._screen, self._unshown):]
        except BlockingIOError:
            return
        except OSError:
            self._forget_screen()

    def _flush(self) -> None:
        """Show the last output, unless the terminal is stalled."""
        end = time.monotonic() + _FLUSH
        while self._unshown and self._screen is not None and time.monotonic() < end:
            select.select([], [self._screen], [], _FLUSH)
            self._show(b"")

    def _forget_screen(self) -> None:
        """Continue without the terminal, which is gone."""
        screen, self._screen = self._screen, None
        if screen is not None:
            os.close(screen)


def open_own_terminal() -> int | None:
    """Open the terminal of this process a second time, so that non-blocking mode affects only this descriptor."""
    if not (sys.stdin is not None and os.isatty(0) and os.isatty(1)):
        return None
    try:
        return os.open(os.ttyname(0), os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None


def _read(descriptor: int) -> bytes:
    """Return the available bytes; nothing at the end, which a terminal reports as an error."""
    try:
        return os.read(descriptor, _BLOCK)
    except OSError:
        return b""
