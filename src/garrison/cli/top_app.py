"""Textual application of `garrison top`: read keys, draw what `top_render` rendered, observe in a thread.

Nothing is decided here: the screen is `top_render.picture`, a key runs one of garrison's own commands and shows its
output. The key table and the functions that move the selection are pure.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

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
from garrison.cli.top_render import Picture, Selection, details_text, index_of, picture, selected, visible
from garrison.errors import GarrisonError
from garrison.values import replace
from garrison.views.top_frame import Frame, FrameReader, Row
from garrison.views.usage import next_pause

PROGRAM = (sys.executable, "-P", "-m", "garrison.cli.main")
STYLES: Mapping[str, Style] = {
    "": Style(), "head": Style(bold=True), "dim": Style(dim=True), "good": Style(color="green"),
    "busy": Style(color="yellow"), "due": Style(color="cyan"), "bad": Style(color="red", bold=True)}
"""Styles of `render`, in the terminal's own colours: they suit light and dark ones."""
MARK = Style(reverse=True)
BEFORE = "\n-- garrison {}: Ctrl-C returns to garrison top --\n"
AFTER = "\n-- Enter returns to garrison top -- "


class Screenful(Widget):
    """The whole screen, line by line."""

    DEFAULT_CSS = "Screenful { width: 100%; height: 100%; background: ansi_default; color: ansi_default; }"

    shown = Picture([], None, 0)

    def draw(self, shown: Picture) -> None:
        """Draw a picture; only lines that changed are drawn again."""
        old, self.shown = self.shown, shown
        height = max(len(old.lines), len(shown.lines))
        for y in range(height):
            if _line(old, y) != _line(shown, y):
                self.refresh(Region(0, y, self.size.width, 1))

    def render_line(self, y: int) -> Strip:
        line, marked = _line(self.shown, y)
        return strip(line, self.size.width, marked=marked)


def _line(shown: Picture, y: int) -> tuple[Line, bool]:
    return (shown.lines[y] if y < len(shown.lines) else [], y == shown.marked)


def strip(line: Line, columns: int, *, marked: bool = False) -> Strip:
    """Return a rendered line as Textual draws it, exactly `columns` wide."""
    line = fit(line, columns)
    segments = [Segment(part.text, MARK if marked else STYLES[part.style]) for part in line if part.text]
    rest = columns - width(line)
    return Strip([*segments, Segment(" " * rest, MARK if marked else Style())] if rest > 0 else segments, columns)


class Top(App[None]):
    """The application. `interval`: seconds between two refreshes."""

    ENABLE_COMMAND_PALETTE = False
    CSS = "Screen { background: ansi_default; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "quit", priority=True), Binding("ctrl+z", "suspend_process", priority=True)]

    def __init__(self, reader: FrameReader, interval: float = 1.0) -> None:
        super().__init__(ansi_color=True)
        self.reader, self.interval = reader, interval
        self.frame: Frame | None = None
        self.selection = Selection()
        self._pending: Callable[[], None] | None = None
        self._failure = ""
        """Why the last refresh failed, '' if it did not."""

    def compose(self) -> ComposeResult:
        yield Screenful()

    def on_mount(self) -> None:
        """Start refreshing; a signal that ends us leaves the terminal as it was."""
        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, partial(self.exit, return_code=128 + number))
        self._start_refresh()

    # ---- refreshing

    def _start_refresh(self) -> None:
        self.run_worker(self._refresh, thread=True, group="refresh", exclusive=False)

    def _refresh(self) -> None:
        """Read a frame, in a thread because the disk may be slow."""
        before, frame, failure = time.thread_time(), None, ""
        try:
            frame = self.reader.read()
        except (GarrisonError, OSError) as error:
            failure = f"cannot read {self.reader.home}: {error}"
        cost = time.thread_time() - before
        self.call_from_thread(self._refreshed, frame, failure, next_pause(self.interval, cost))

    def _refreshed(self, frame: Frame | None, failure: str, pause: float) -> None:
        self.frame = frame or self.frame
        if failure or self.selection.note == self._failure != "":
            self.selection = replace(self.selection, note=failure, bad=True)
        self._failure = failure
        self.draw()
        self.set_timer(pause, self._start_refresh)

    # ---- drawing

    def draw(self) -> None:
        """Draw the frame and the selection."""
        shown = picture(self.frame, self.selection, self.size.width, self.size.height)
        self.selection = replace(self.selection, first=shown.first)
        self.query_one(Screenful).draw(shown)

    def select(self, selection: Selection) -> None:
        """Set and draw another selection."""
        self.selection = selection
        self.draw()

    def show_note(self, note: str, *, bad: bool = False) -> None:
        """Show a message above the keys, until the next key."""
        self.select(replace(self.selection, note=note, bad=bad))

    def on_resize(self, _event: events.Resize) -> None:
        """Draw for the terminal's new size."""
        if self.query(Screenful):
            self.draw()

    # ---- keys

    def on_key(self, event: events.Key) -> None:
        """Handle a key: typed into the filter, an answer, a move, or an action."""
        event.prevent_default()
        event.stop()
        if self.selection.ask:
            self._answered(event.key == "y")
            return
        if self.selection.typing:
            self.select(type_filter(self.selection, event.key, event.character))
            return
        self.selection = replace(self.selection, note="", bad=False)
        name = event.character if event.character and event.character.isprintable() else event.key
        if name in ACTIONS and not self.selection.title:
            self._act(ACTIONS[name])
        elif name == "q" and not self.selection.title:
            self.exit()
        else:
            self.select(move(self.frame, self.selection, name))

    def on_mouse_scroll_down(self) -> None:
        """Move by three rows."""
        self._wheel("down")

    def on_mouse_scroll_up(self) -> None:
        """Move by three rows."""
        self._wheel("up")

    def _wheel(self, key: str) -> None:
        for _ in range(3):
            self.selection = move(self.frame, self.selection, key)
        self.draw()

    def on_click(self, event: events.Click) -> None:
        """Select the row that was clicked."""
        shown = self.query_one(Screenful).shown
        rows = top_render.visible(self.frame, self.selection) if self.frame else []
        index = event.screen_y - shown.begin + shown.first
        if shown.marked is not None and shown.begin <= event.screen_y and shown.first <= index < len(rows):
            self.select(replace(self.selection, row=rows[index].id))

    # ---- acting

    def _act(self, action: Action) -> None:
        row = top_render.selected(self.frame, self.selection) if self.frame else None
        argv = action.argv(row) if row else None
        if row is None or argv is None:
            self.show_note(f"{action.word}: select a node first" if self.frame else "reading …", bad=True)
        elif action.ask:
            self._pending = lambda: self._start(action, argv, row)
            self.select(replace(self.selection, ask=action.ask.format(name=row.name, run=row.run)))
        else:
            self._start(action, argv, row)

    def _answered(self, yes: bool) -> None:
        pending, self._pending = self._pending, None
        self.select(replace(self.selection, ask=""))
        if yes and pending:
            pending()

    def _start(self, action: Action, argv: Sequence[str], row: Row) -> None:
        if action.terminal:
            self._hand_over(action, argv)
        else:
            self.show_note(f"{action.word} {row.name} …")
            self.run_worker(lambda: self._command(action, argv, row), thread=True, group="command")

    def _command(self, action: Action, argv: Sequence[str], row: Row) -> None:
        """Run a command, in a thread; show its output over the table, or its last line above the keys."""
        done = subprocess.run([*PROGRAM, *argv], env=self._environment(), stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, errors="replace", check=False)
        output = (done.stderr.strip() or done.stdout.strip()).splitlines()
        if action.text and done.returncode == 0:
            title = f"{action.word} {row.name}"
            self.call_from_thread(self.select, replace(self.selection, note="", title=title,
                                                       text=done.stdout.splitlines(), scrolled=0))
            return
        ending = "done" if done.returncode == 0 else f"exit {done.returncode}"
        note = output[-1] if output else f"{action.word}: {ending}"
        self.call_from_thread(self.show_note, note, bad=done.returncode != 0)

    def _hand_over(self, action: Action, argv: Sequence[str]) -> None:
        """Give the terminal, including Ctrl-C, to a command until it ends; show why it failed."""
        try:
            with self.suspend(), _ctrl_c_ignored():
                if action.waits:
                    sys.stdout.write(BEFORE.format(" ".join(argv)))
                    sys.stdout.flush()
                code, failure = run_here(argv, self._environment(), keep=action.waits)
        except SuspendNotSupported:
            self.show_note(f"{action.word} needs a terminal", bad=True)
            return
        if code not in (0, 130, -signal.SIGINT):
            self.show_note(failure or f"{action.word}: exit {code}", bad=True)
        self.refresh(layout=True)

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "GARRISON_HOME": str(self.reader.home)}


def run_here(argv: Sequence[str], env: Mapping[str, str], *, keep: bool) -> tuple[int, str]:
    """Run one of our commands on this terminal; return its exit code and the last line of its stderr.

    `keep`: its output, stderr included, stays until Enter, unless Ctrl-C ended it.
    """
    done = subprocess.run([*PROGRAM, *argv], env=dict(env), check=False, text=True, errors="replace",
                          stderr=None if keep else subprocess.PIPE)
    if keep and done.returncode not in (130, -signal.SIGINT):
        sys.stdout.write(AFTER)
        sys.stdout.flush()
        sys.stdin.readline()
        return 0, ""
    lines = (done.stderr or "").strip().splitlines()
    return done.returncode, lines[-1] if lines else ""


@contextmanager
def _ctrl_c_ignored() -> Iterator[None]:
    """Ignore Ctrl-C with a handler, since a child would inherit SIG_IGN."""
    previous = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


# ---- keys -----------------------------------------------------------------------------------------------------------

PAGE = 10


@dataclass(frozen=True)
class Action:
    """A garrison command for the selected row.

    `ask`: question to confirm first; `terminal`: it takes over the terminal; `waits`: its output stays until a key is
    pressed; `text`: its output is shown over the table.
    """

    word: str
    argv: Callable[[Row], list[str] | None]
    """Row → the words after `garrison`; None if the action does not apply to it."""
    ask: str = ""
    terminal: bool = False
    waits: bool = False
    text: bool = False


def _of_node(*words: str) -> Callable[[Row], list[str] | None]:
    return lambda row: [*words, row.name, "--run", row.run] if row.kind == "node" else None


def _logs(row: Row) -> list[str]:
    """Return the command for the log of a node's agent or of a process; for a run, its guardian's."""
    if row.kind == "node":
        return ["logs", row.name, "--run", row.run, "-f", "--tail", "200"]
    return ["logs", "--process", row.role or "guardian", "--run", row.run, "-f", "--tail", "200"]


ACTIONS: Mapping[str, Action] = {
    "a": Action("attach", _of_node("attach"), terminal=True),
    "l": Action("logs", _logs, terminal=True, waits=True),
    "w": Action("why", _of_node("why"), text=True),
    "r": Action("respawn", _of_node("agents", "respawn"),
                ask="End the agent of {name} (run {run}), and start its successor?"),
    "p": Action("park", _of_node("agents", "park"),
                ask="Park {name} (run {run}), so that nothing restarts it until it is unparked?"),
    "u": Action("unpark", _of_node("agents", "unpark"), ask="Unpark {name} (run {run}), so that it may run again?"),
}
"""Key → its action."""


_STEPS: Mapping[str, int] = {"down": 1, "j": 1, "up": -1, "k": -1, "pagedown": PAGE, "pageup": -PAGE, "home": -10**9,
                             "g": -10**9, "end": 10**9, "G": 10**9, " ": PAGE}


def move(frame: Frame | None, selection: Selection, key: str) -> Selection:
    """Return the selection after a key without an action: another row, details, the filter, scrolling."""
    if selection.title:
        return _in_text(selection, key)
    if frame is None:
        return selection
    if key == "/":
        return replace(selection, typing=True)
    if key == "escape":
        return replace(selection, filter="")
    row = selected(frame, selection)
    if key == "enter" and row is not None:
        title = f"run {row.run}" if row.kind == "run" else f"{row.name} of run {row.run}"
        return replace(selection, title=title, text=details_text(row), scrolled=0)
    if key in _STEPS and row is not None:
        shown = visible(frame, selection)
        index = index_of(shown, selection.row) + _STEPS[key]
        return replace(selection, row=shown[max(0, min(index, len(shown) - 1))].id)
    return selection


def _in_text(selection: Selection, key: str) -> Selection:
    if key in ("escape", "q", "enter"):
        return replace(selection, title="", text=(), scrolled=0)
    if key in _STEPS:
        return replace(selection, scrolled=max(0, min(selection.scrolled + _STEPS[key], len(selection.text))))
    return selection


def type_filter(selection: Selection, key: str, character: str | None) -> Selection:
    """Return the selection after one more key of the filter."""
    if key == "enter":
        return replace(selection, typing=False)
    if key == "escape":
        return replace(selection, typing=False, filter="")
    if key in ("backspace", "ctrl+h"):
        return replace(selection, filter=selection.filter[:-1])
    if character and character.isprintable():
        return replace(selection, filter=(selection.filter + character)[:60])
    return selection
