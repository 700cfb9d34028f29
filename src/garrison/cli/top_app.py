"""Textual application of `garrison top`: read keys, draw what `top_render` painted, observe in a thread.

Nothing is decided here: the screen is `top_render.picture`, a key runs one of garrison's own commands, and its output
is shown as it is.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.app import App, ComposeResult, SuspendNotSupported
from textual.binding import Binding, BindingType
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from garrison.cli import top_render
from garrison.cli.render import Line, fit, width
from garrison.cli.top_keys import ACTIONS, Action, argv_of, moved, typed
from garrison.cli.top_render import Chosen, Picture, picture
from garrison.errors import GarrisonError
from garrison.views.top_frame import Looker, environment
from garrison.views.usage import pause_after

PROGRAM = (sys.executable, "-P", "-m", "garrison.cli.main")
STYLES: Mapping[str, Style] = {
    "": Style(), "head": Style(bold=True), "dim": Style(dim=True), "good": Style(color="green"),
    "busy": Style(color="yellow"), "due": Style(color="cyan"), "bad": Style(color="red", bold=True)}
"""paint's styles, in the terminal's own colours: they are right on light and on dark ones."""
MARK = Style(reverse=True)
BEFORE = "\r\n-- garrison {}: Ctrl-C goes back to garrison top --\r\n"
AGAIN = "\r\n-- Enter goes back to garrison top -- "


class Screenful(Widget):
    """The whole screen, line by line."""

    DEFAULT_CSS = "Screenful { width: 100%; height: 100%; background: ansi_default; color: ansi_default; }"

    shown = Picture([], None, 0)

    def draw(self, shown: Picture) -> None:
        """Show that; only lines that changed are drawn again."""
        old, self.shown = self.shown, shown
        height = max(len(old.lines), len(shown.lines))
        for y in range(height):
            if _line(old, y) != _line(shown, y):
                self.refresh(Region(0, y, self.size.width, 1))

    def render_line(self, y: int) -> Strip:
        """One line of the screen."""
        line, marked = _line(self.shown, y)
        return strip(line, self.size.width, marked=marked)


def _line(shown: Picture, y: int) -> tuple[Line, bool]:
    return (shown.lines[y] if y < len(shown.lines) else [], y == shown.marked)


def strip(line: Line, columns: int, *, marked: bool = False) -> Strip:
    """A painted line as Textual draws it, exactly `columns` wide."""
    line = fit(line, columns)
    segments = [Segment(part.text, MARK if marked else STYLES[part.style]) for part in line if part.text]
    rest = columns - width(line)
    return Strip([*segments, Segment(" " * rest, MARK if marked else Style())] if rest > 0 else segments, columns)


class Top(App[None]):
    """One person's look at a home. `interval`: seconds between two looks."""

    ENABLE_COMMAND_PALETTE = False
    CSS = "Screen { background: ansi_default; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "quit", priority=True), Binding("ctrl+z", "suspend_process", priority=True)]

    def __init__(self, looker: Looker, interval: float = 1.0) -> None:
        super().__init__(ansi_color=True)
        self.looker, self.interval = looker, interval
        self.frame: dict[str, Any] | None = None
        self.chosen = Chosen()
        self._pending: Callable[[], None] | None = None
        self._trouble = ""
        """Why the last look failed, '' if it did not."""

    def compose(self) -> ComposeResult:
        """One widget."""
        yield Screenful()

    def on_mount(self) -> None:
        """Begin to look; a signal to end leaves the terminal as it was."""
        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, partial(self.exit, return_code=128 + number))
        self._begin_look()

    # ------------------------------------------------------------------------------------------------ looking

    def _begin_look(self) -> None:
        self.run_worker(self._look, thread=True, group="look", exclusive=False)

    def _look(self) -> None:
        """In a thread: one look, however long a disk takes."""
        before, frame, trouble = time.thread_time(), None, ""
        try:
            frame = self.looker.look()
        except (GarrisonError, OSError) as error:
            trouble = f"cannot look at {self.looker.gather.home}: {error}"
        cost = time.thread_time() - before
        self.call_from_thread(self._looked, frame, trouble, pause_after(self.interval, cost))

    def _looked(self, frame: dict[str, Any] | None, trouble: str, pause: float) -> None:
        self.frame = frame or self.frame
        if trouble or self.chosen.note == self._trouble != "":
            self.chosen = replace(self.chosen, note=trouble, bad=True)
        self._trouble = trouble
        self.draw()
        self.set_timer(pause, self._begin_look)

    # ------------------------------------------------------------------------------------------------ drawing

    def draw(self) -> None:
        """Paint what is known and chosen."""
        shown = picture(self.frame, self.chosen, self.size.width, self.size.height)
        self.chosen = replace(self.chosen, first=shown.first)
        self.query_one(Screenful).draw(shown)

    def choose(self, chosen: Chosen) -> None:
        """Another choice, and the screen that follows from it."""
        self.chosen = chosen
        self.draw()

    def say(self, note: str, *, bad: bool = False) -> None:
        """One line above the keys, until the next key."""
        self.choose(replace(self.chosen, note=note, bad=bad))

    def on_resize(self, _event: events.Resize) -> None:
        """The terminal has another size."""
        if self.query(Screenful):
            self.draw()

    # ------------------------------------------------------------------------------------------------ keys

    def on_key(self, event: events.Key) -> None:
        """What a key does: typed into the filter, an answer, a move, or an action."""
        event.prevent_default()
        event.stop()
        if self.chosen.ask:
            self._answered(event.key == "y")
            return
        if self.chosen.typing:
            self.choose(typed(self.chosen, event.key, event.character))
            return
        self.chosen = replace(self.chosen, note="", bad=False)
        name = event.character if event.character and event.character.isprintable() else event.key
        if name in ACTIONS and not self.chosen.title:
            self._act(ACTIONS[name])
        elif name == "q" and not self.chosen.title:
            self.exit()
        else:
            self.choose(moved(self.frame, self.chosen, name, self.size.height))

    def on_mouse_scroll_down(self) -> None:
        """As three times the key."""
        self._wheel("down")

    def on_mouse_scroll_up(self) -> None:
        """As three times the key."""
        self._wheel("up")

    def _wheel(self, key: str) -> None:
        for _ in range(3):
            self.chosen = moved(self.frame, self.chosen, key, self.size.height)
        self.draw()

    def on_click(self, event: events.Click) -> None:
        """A click chooses a row."""
        shown = self.query_one(Screenful).shown
        rows = top_render.visible(self.frame, self.chosen) if self.frame else []
        place = event.screen_y - shown.begin + shown.first
        if shown.marked is not None and shown.begin <= event.screen_y and shown.first <= place < len(rows):
            self.choose(replace(self.chosen, row=rows[place]["id"]))

    # ------------------------------------------------------------------------------------------------ acting

    def _act(self, action: Action) -> None:
        row = top_render.selected(self.frame, self.chosen) if self.frame else None
        argv = argv_of(action, row) if row else None
        if row is None or argv is None:
            self.say(f"{action.word}: choose a node first" if self.frame else "looking …", bad=True)
        elif action.ask:
            self._pending = lambda: self._begin(action, argv, row)
            self.choose(replace(self.chosen, ask=action.ask.format(**row)))
        else:
            self._begin(action, argv, row)

    def _answered(self, yes: bool) -> None:
        pending, self._pending = self._pending, None
        self.choose(replace(self.chosen, ask=""))
        if yes and pending:
            pending()

    def _begin(self, action: Action, argv: Sequence[str], row: Mapping[str, Any]) -> None:
        if action.terminal:
            self._hand_over(action, argv)
        else:
            self.say(f"{action.word} {row['name']} …")
            self.run_worker(lambda: self._command(action, argv, row), thread=True, group="command")

    def _command(self, action: Action, argv: Sequence[str], row: Mapping[str, Any]) -> None:
        """In a thread: a command to its end; its text over the table, or its last line above the keys."""
        done = subprocess.run([*PROGRAM, *argv], env=environment(self.looker.gather.home), stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, errors="replace", check=False)
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        if action.text and done.returncode == 0:
            self.call_from_thread(self.choose, replace(
                self.chosen, note="", title=f"{action.word} {row['name']}", text=done.stdout.splitlines(), scrolled=0))
            return
        ended = "done" if done.returncode == 0 else f"exit {done.returncode}"
        last = said[-1] if said else f"{action.word}: {ended}"
        self.call_from_thread(self.say, last, bad=done.returncode != 0)

    def _hand_over(self, action: Action, argv: Sequence[str]) -> None:
        """The terminal is the command's until it ends; Ctrl-C is meant for it. Its complaint is shown here."""
        try:
            with self.suspend(), _deaf():
                if action.waits:
                    sys.stdout.write(BEFORE.format(" ".join(argv)))
                    sys.stdout.flush()
                code, complaint = run_here(argv, environment(self.looker.gather.home), keep=action.waits)
        except SuspendNotSupported:
            self.say(f"{action.word} needs a terminal", bad=True)
            return
        if code not in (0, 130, -signal.SIGINT):
            self.say(complaint or f"{action.word}: exit {code}", bad=True)
        self.refresh(layout=True)


def run_here(argv: Sequence[str], env: Mapping[str, str], *, keep: bool) -> tuple[int, str]:
    """Run one of our commands on this terminal; its exit code and the last line it complained with.

    `keep`: what it printed stays until Enter, unless Ctrl-C ended it; its complaints stand among it.
    """
    done = subprocess.run([*PROGRAM, *argv], env=dict(env), check=False, text=True, errors="replace",
                          stderr=None if keep else subprocess.PIPE)
    if keep and done.returncode not in (130, -signal.SIGINT):
        sys.stdout.write(AGAIN)
        sys.stdout.flush()
        sys.stdin.readline()
        return 0, ""
    lines = (done.stderr or "").strip().splitlines()
    return done.returncode, lines[-1] if lines else ""


@contextmanager
def _deaf() -> Iterator[None]:
    """Ctrl-C does nothing to us meanwhile. A handler, for what is ignored would be ignored by the child too."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
