"""Terminal of a command: its size and colours, and `--watch`, which redraws a picture in place.

NO_COLOR and TERM=dumb disable colours; FORCE_COLOR enables them also on a pipe; NO_COLOR takes precedence. `redraw`
uses the alternate screen, which survives resizing; however watching ends, that screen is left and the last picture
stays. On a pipe, `follow` prints a line per event. Nothing is read between two refreshes.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import TextIO

from garrison.cli.output import INTERRUPTED, trusted_stdout
from garrison.cli.render import Line, fit, raw, text
from garrison.system.terminal_text import spell_obeyed
from garrison.values import Value

ENTER = "\x1b[?1049h\x1b[?25l"  # alternate screen, no cursor
LEAVE = "\x1b[?25h\x1b[?1049l"


class OutputTerminal(Value):
    """Standard output; `columns` and `rows` are None without a limit."""

    interactive: bool
    colours: bool
    columns: int | None = None
    rows: int | None = None


def terminal_of(isatty: bool, environ: Mapping[str, str], size: tuple[int, int]) -> OutputTerminal:
    """Return the terminal on stdout; `size` is its (columns, rows). Pure."""
    dumb = environ.get("TERM", "") in ("dumb", "unknown")
    forced = environ.get("FORCE_COLOR", "") not in ("", "0")
    colours = not environ.get("NO_COLOR") and not dumb and (isatty or forced)
    if not isatty:
        return OutputTerminal(False, colours)
    return OutputTerminal(not dumb, colours, max(20, size[0]), max(5, size[1]))


def stdout_terminal() -> OutputTerminal:
    size = shutil.get_terminal_size()
    return terminal_of(sys.stdout.isatty(), os.environ, (size.columns, size.lines))


def write(output: str) -> None:
    """Write to stdout; characters that its encoding lacks are written as `?`."""
    _write(output, sys.stdout)


def _control(output: str) -> None:
    """Write a control sequence."""
    _write(output, trusted_stdout())


def _write(output: str, stream: TextIO) -> None:
    encoding = stream.encoding or "utf-8"
    stream.write(output.encode(encoding, "replace").decode(encoding))
    stream.flush()


def show(lines: list[Line], terminal: OutputTerminal) -> None:
    """Write rendered lines to stdout."""
    write(text(lines, colours=terminal.colours))


# ---- watching


class Sleeper:
    """Sleeps until a time or until the terminal changes; SIGTERM and SIGHUP end the process gracefully."""

    def __init__(self) -> None:
        self.suspended = False
        # select() continues after a signal whose handler does not raise (PEP 475): only a byte in this pipe ends the
        # sleep, even if the signal came just before select().
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._old_fd = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._old = {number: signal.signal(number, self._handle) for number in (
            signal.SIGWINCH, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP)}

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGTSTP:
            self.suspended = True
        elif number != signal.SIGWINCH:
            raise SystemExit(128 + number)

    def sleep(self, seconds: float) -> None:
        """Sleep for `seconds`, or until a signal."""
        if select.select([self._read], [], [], seconds)[0]:
            os.read(self._read, 4096)

    def close(self) -> None:
        """Restore the signal handlers."""
        for number, handler in self._old.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._old_fd)
        os.close(self._read)
        os.close(self._write)


def redraw(picture: Callable[[OutputTerminal], list[Line]], exit_code: Callable[[], int | None], seconds: float) -> int:
    """Draw `picture` every `seconds` until `exit_code` returns a code; the last picture stays."""
    drawn: list[Line] = []
    code = None
    try:
        with _alternate_screen() as sleeper:
            while True:
                drawn = picture(stdout_terminal())
                code = exit_code()
                if code is not None:
                    break
                _control(frame(drawn, stdout_terminal()))
                sleeper.sleep(seconds)
                if sleeper.suspended:
                    _suspend(sleeper)
    except KeyboardInterrupt:
        code = INTERRUPTED
    show(drawn, stdout_terminal())
    return code


def frame(lines: list[Line], terminal: OutputTerminal) -> str:
    """Return one frame: every line cleared to its end, then the rest of the screen; omitted lines are counted. Pure."""
    rows = (terminal.rows or len(lines)) - 1
    if len(lines) > rows:
        lines = [*lines[: rows - 1], raw(f"… {len(lines) - rows + 1} more lines; `garrison status` prints all", "dim")]
    body = spell_obeyed(text([fit(line, terminal.columns) for line in lines], colours=terminal.colours))
    # draw over the last picture, line by line: clearing the screen first would flicker
    return "\x1b[H" + body.replace("\n", "\x1b[K\n") + "\x1b[J"


@contextlib.contextmanager
def _alternate_screen() -> Iterator[Sleeper]:
    sleeper = Sleeper()
    try:
        _control(ENTER)
        yield sleeper
    finally:
        with contextlib.suppress(OSError):  # the terminal may be gone
            _control(LEAVE)
        sleeper.close()


def _suspend(sleeper: Sleeper) -> None:
    """Handle Ctrl-Z: leave the screen to the shell, and enter it again when the process continues."""
    sleeper.suspended = False
    _control(LEAVE)
    # not SIGTSTP: its handler is ours
    os.kill(os.getpid(), signal.SIGSTOP)
    _control(ENTER)


def follow(new_lines: Callable[[], list[str]], exit_code: Callable[[], int | None], seconds: float) -> int:
    """Print new lines every `seconds` until `exit_code` returns a code."""
    while True:
        for line in new_lines():
            write(line + "\n")
        code = exit_code()
        if code is not None:
            return code
        time.sleep(seconds)
