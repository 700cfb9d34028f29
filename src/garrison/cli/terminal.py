"""Terminal of a command: its size and colours, and `--watch`, which redraws a picture in place.

NO_COLOR and TERM=dumb mean no colours; FORCE_COLOR means colours on a pipe too; NO_COLOR wins. `redraw` uses the
alternate screen, which survives every change of size; however watching ends, that screen is left and the last picture
stays. On a pipe, `follow` prints a line whenever something happened. Nothing is read between two refreshes.
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
from dataclasses import dataclass
from types import FrameType

from garrison.cli.output import INTERRUPTED
from garrison.cli.render import Line, fit, raw, text


@dataclass(frozen=True)
class Stage:
    """`columns` and `rows` are None where nothing need be cut."""

    terminal: bool
    colours: bool
    columns: int | None = None
    rows: int | None = None


def stage_of(terminal: bool, environ: Mapping[str, str], size: tuple[int, int]) -> Stage:
    """The stage on stdout: `terminal` says whether it is one, `size` is (columns, rows) of it. Pure."""
    dumb = environ.get("TERM", "") in ("dumb", "unknown")
    forced = environ.get("FORCE_COLOR", "") not in ("", "0")
    colours = not environ.get("NO_COLOR") and not dumb and (terminal or forced)
    if not terminal:
        return Stage(False, colours)
    return Stage(not dumb, colours, max(20, size[0]), max(5, size[1]))


def stage() -> Stage:
    """This process's."""
    size = shutil.get_terminal_size()
    return stage_of(sys.stdout.isatty(), os.environ, (size.columns, size.lines))


def show(written: str) -> None:
    """Write to stdout; what its encoding cannot say is shown as `?`."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(written.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()


ENTER = "\x1b[?1049h\x1b[?25l"
LEAVE = "\x1b[?25h\x1b[?1049l"


class Alarm:
    """Passes time until it is over or the terminal changed; SIGTERM and SIGHUP end the process in order."""

    def __init__(self) -> None:
        self.suspended = False
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._old_fd = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._old = {number: signal.signal(number, self._hear) for number in (
            signal.SIGWINCH, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP)}

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGTSTP:
            self.suspended = True
        elif number != signal.SIGWINCH:
            raise SystemExit(128 + number)

    def wait(self, seconds: float) -> None:
        """Wait, until a signal at the most."""
        if select.select([self._read], [], [], seconds)[0]:
            os.read(self._read, 4096)

    def close(self) -> None:
        """Give the signals back."""
        for number, handler in self._old.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._old_fd)
        os.close(self._read)
        os.close(self._write)


def redraw(picture: Callable[[Stage], list[Line]], over: Callable[[], int | None], seconds: float) -> int:
    """Draw `picture` every `seconds` until `over` gives an exit code; the last picture stays."""
    drawn: list[Line] = []
    code = None
    try:
        with _alternate() as alarm:
            while True:
                drawn = picture(stage())
                code = over()
                if code is not None:
                    break
                show(frame(drawn, stage()))
                alarm.wait(seconds)
                if alarm.suspended:
                    _suspend(alarm)
    except KeyboardInterrupt:
        code = INTERRUPTED
    show(text(drawn, colours=stage().colours))
    return code


def frame(lines: list[Line], here: Stage) -> str:
    """One frame: every line to its end, the rest of the screen cleared; what does not fit is counted. Pure."""
    rows = (here.rows or len(lines)) - 1
    if len(lines) > rows:
        lines = [*lines[: rows - 1], raw(f"… {len(lines) - rows + 1} more lines; `garrison status` prints all", "dim")]
    body = text([fit(line, here.columns) for line in lines], colours=here.colours)
    return "\x1b[H" + body.replace("\n", "\x1b[K\n") + "\x1b[J"


@contextlib.contextmanager
def _alternate() -> Iterator[Alarm]:
    alarm = Alarm()
    try:
        show(ENTER)
        yield alarm
    finally:
        with contextlib.suppress(OSError):  # the terminal may be gone
            show(LEAVE)
        alarm.close()


def _suspend(alarm: Alarm) -> None:
    """Ctrl-Z: leave the screen to the shell, and take it again when we go on."""
    alarm.suspended = False
    show(LEAVE)
    os.kill(os.getpid(), signal.SIGSTOP)
    show(ENTER)


def follow(told: Callable[[], list[str]], over: Callable[[], int | None], seconds: float) -> int:
    """Print what `told` gives every `seconds`, until `over` gives an exit code."""
    while True:
        for line in told():
            show(line + "\n")
        code = over()
        if code is not None:
            return code
        time.sleep(seconds)
