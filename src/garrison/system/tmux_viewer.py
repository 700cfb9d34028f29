"""Viewer of a tmux session for a remote screen: it draws the session, and types on request.

A viewer is a read-only client of the home's tmux server in a pseudo terminal of this process. tmux has interpreted the
agent's output; it sends the viewer only what draws its screen, so that none of the agent's escape sequences arrives: no
clipboard, no title, no link. For a slow client tmux does not send everything late: it skips what has scrolled away and
redraws the screen. So nothing is buffered here.

The pseudo terminal has the size of the session's window, which therefore keeps its size however small the other screen
is. Keys are not typed through the client, where tmux's prefix would start tmux commands: `send-keys` sends them to the
pane's program.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import struct
import subprocess
import termios
from collections.abc import Iterator
from contextlib import suppress

from garrison.errors import Refused
from garrison.system.terminal import TerminalSession
from garrison.system.tmux import TmuxTerminal
from garrison.values import Value

BLOCK = 1 << 16
"""Most bytes of one read."""
_PASTED = re.compile("\x1b\\[200~(.*?)\x1b\\[201~", re.DOTALL)
_CURSOR = re.compile("(\x1bO[ABCDHF]|\x1b\\[[ABCDHF]|\0)")
_NAMES = {"A": "Up", "B": "Down", "C": "Right", "D": "Left", "H": "Home", "F": "End", "\0": "C-Space"}
"""End of a sequence → tmux's name of the key, which it sends as the program's cursor mode requires."""
_BUFFER = "garrison-paste"


class ScreenSize(Value):
    """Columns and rows of a screen."""

    columns: int
    rows: int


class TypedKeys(Value):
    """Part of the input: a literal text, keys by name, or a paste."""

    text: str = ""
    name: str = ""
    pasted: str = ""


def read_keys(typed: str) -> Iterator[TypedKeys]:
    """Split the input of a terminal emulator. Pure."""
    for number, part in enumerate(_PASTED.split(typed)):
        if number % 2:
            yield TypedKeys(pasted=part)
            continue
        for piece in _CURSOR.split(part):
            if _CURSOR.fullmatch(piece):
                yield TypedKeys(name=_NAMES[piece[-1]])
            elif piece:
                yield TypedKeys(text=piece)


class TmuxViewer:
    """One viewer of a session; `fileno` becomes readable when there is something to draw."""

    def __init__(self, terminal: TmuxTerminal, session: TerminalSession) -> None:
        """Start to view; Refused if the session has ended."""
        self._terminal, self._session = terminal, session
        self._status_lines = 0
        size = self.window_size()
        if size is None:
            raise Refused(f"session {session.name} has ended")
        self.size = size
        self._master, slave = os.openpty()
        try:
            os.set_blocking(self._master, False)
            self._resize(size)
            environment = {"PATH": os.environ.get("PATH", os.defpath), "HOME": "/", "LANG": "C.UTF-8",
                           "TERM": "xterm-256color"}
            self._client = subprocess.Popen(terminal.viewer_argv(session), stdin=slave, stdout=slave, stderr=slave,
                                            env=environment, cwd="/", start_new_session=True)
        except OSError as error:
            os.close(self._master)
            raise Refused(f"cannot run tmux: {error.strerror}") from error
        finally:
            os.close(slave)

    def fileno(self) -> int:
        """Return the descriptor to read from."""
        return self._master

    def read(self) -> bytes | None:
        """Return what to draw, b'' at the end of the session, None if there is nothing now."""
        try:
            return os.read(self._master, BLOCK)
        except BlockingIOError:
            return None
        except OSError:  # EIO: the other end is closed
            return b""

    def window_size(self) -> ScreenSize | None:
        """Return the size of the session's window with its status lines; None if its program has ended."""
        if not self._terminal.is_alive(self._session):
            return None
        shown = self._terminal.ask(self._session, "#{window_width} #{window_height} #{status}").split()
        if len(shown) != 3:
            return None
        self._status_lines = {"off": 0, "on": 1}.get(shown[2]) or (int(shown[2]) if shown[2].isdigit() else 0)
        return ScreenSize(int(shown[0]), int(shown[1]) + self._status_lines)

    def follow_window(self, size: ScreenSize) -> None:
        """Adopt the new size of the session's window."""
        if size != self.size:
            self.size = size
            self._resize(size)
            self._wake()

    def set_window(self, size: ScreenSize) -> None:
        """Set the size of the session's window for the screen of the user who types."""
        self._terminal.resize(self._session, size.columns, max(1, size.rows - self._status_lines))
        self.follow_window(size)

    def other_writers(self) -> bool:
        return "0" in self._terminal.list_clients(self._session, "#{client_readonly}")

    def type(self, typed: str) -> None:
        """Type into the session; Refused if its program has ended."""
        for keys in read_keys(typed):
            if keys.pasted:
                self._terminal.paste(self._session, keys.pasted, _BUFFER)
            else:
                self._terminal.press(self._session, keys.name or keys.text, literal=not keys.name)

    def close(self) -> None:
        """End the client; the session continues."""
        with suppress(OSError):
            os.close(self._master)
        self._client.kill()  # it has no terminal left to restore; the server drops it
        self._client.wait()

    def _resize(self, size: ScreenSize) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("4H", size.rows, size.columns, 0, 0))

    def _wake(self) -> None:
        """Tell the client of a new size: the pseudo terminal is not the controlling one of any session."""
        with suppress(ProcessLookupError):
            self._client.send_signal(signal.SIGWINCH)
