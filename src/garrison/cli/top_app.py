"""Textual application of `garrison top`: its widgets show the lines of `top_render`; a thread observes.

It has no logic: a key runs a garrison command and shows its output. The widgets handle moving, scrolling, typing and
    the mouse.
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

from rich.text import Text
from textual import events
from textual.app import App, ComposeResult, SuspendNotSupported
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import DataTable, Footer, Input, Static

from garrison.cli import top_render
from garrison.cli.render import Line, StyledText, raw, span
from garrison.errors import GarrisonError
from garrison.system import terminal_text
from garrison.system.machine import garrison_argv
from garrison.views.node_view import first_line
from garrison.views.top_frame import Frame, FrameReader, TopRow
from garrison.views.usage import next_pause

STYLES: Mapping[str, str] = {
    "": "", "head": "bold", "dim": "dim", "good": "green", "busy": "yellow", "due": "cyan", "bad": "bold red"}
"""Styles of `render` in the terminal's colours, for light and dark themes."""
KEYS_FIT = 80
"""Minimum width for the keys on one line."""
BEFORE = "\n-- garrison {}: Ctrl-C returns to garrison top --\n"
AFTER = "\n-- Enter returns to garrison top -- "


@dataclass(frozen=True)
class RowCommand:
    """garrison command for the selected row.

    `ask`: question to confirm first; `terminal`: it takes over the terminal; `waits`: its output stays until a key is
    pressed; `text`: its output is shown over the table.
    """

    word: str
    argv: Callable[[TopRow], list[str] | None]
    """Row → arguments of `garrison`; None if the action does not apply to it."""
    ask: str = ""
    terminal: bool = False
    waits: bool = False
    text: bool = False


def _of_node(*words: str) -> Callable[[TopRow], list[str] | None]:
    return lambda row: [*words, row.name, "--run", row.run] if row.kind == "node" else None


def _logs(row: TopRow) -> list[str]:
    """Return the command for the log of a node's agent or of a process; for a run, its guardian's."""
    if row.kind == "node":
        return ["logs", row.name, "--run", row.run, "-f", "--tail", "200"]
    return ["logs", "--process", row.role or "guardian", "--run", row.run, "-f", "--tail", "200"]


ACTIONS: Mapping[str, RowCommand] = {
    "a": RowCommand("attach", _of_node("attach"), terminal=True),
    "l": RowCommand("logs", _logs, terminal=True, waits=True),
    "w": RowCommand("why", _of_node("why"), text=True),
    "r": RowCommand("respawn", _of_node("agents", "respawn"),
                    ask="End the agent of {name} (run {run}), and start its successor?"),
    "p": RowCommand("park", _of_node("agents", "park"),
                    ask="Park {name} (run {run}), so that it is not restarted until it is unparked?"),
    "u": RowCommand("unpark", _of_node("agents", "unpark"), ask="Unpark {name} (run {run}), so that it may run again?"),
}
"""Key → its action."""


def _text(*lines: Line) -> Text:
    """Return rendered lines for a widget."""
    return Text("\n").join(Text.assemble(*((part.text, STYLES[part.style]) for part in line)) for line in lines)


class Rows(DataTable[Text]):
    """Table of runs, processes and nodes, with lines of `top_render.table`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,j", "cursor_down", "move", key_display="↑↓"), Binding("up,k", "cursor_up", show=False),
        Binding("pagedown,space", "page_down", show=False), Binding("home,g", "scroll_top", show=False),
        Binding("end,G", "scroll_bottom", show=False), Binding("enter", "select_cursor", "info", key_display="⏎")]

    def fill(self, lines: Mapping[str, Line], index: int) -> None:
        """Show these lines by row id, redrawing only changed ones."""
        cells = {row: _text(line) for row, line in lines.items()}
        columns = self.app.size.width
        # refilling loses the cursor and redraws everything: only if the rows or the width changed
        if [key.value for key in self.rows] == [*cells] and self.ordered_columns[0].width == columns:
            for row, cell in cells.items():
                if self.get_cell(row, "line") != cell:
                    self.update_cell(row, "line", cell)
            return
        # clear() moves the cursor to the first row, which is not the user's choice
        with self.prevent(DataTable.RowHighlighted):
            self.clear(columns=True).add_column("", key="line", width=columns)
            for row, cell in cells.items():
                self.add_row(cell, key=row)
            self.move_cursor(row=index)


class TextPane(VerticalScroll):
    """Text in place of the table: a row's details, or a command's output."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,j", "scroll_down", "scroll", key_display="↑↓"), Binding("up,k", "scroll_up", show=False),
        Binding("pagedown,space", "page_down", show=False), Binding("home,g", "scroll_home", show=False),
        Binding("end,G", "scroll_end", show=False), Binding("escape,q,enter", "app.leave", "back", key_display="Esc")]


class Keys(Footer):
    """The keys, on two lines on a narrow screen."""

    def compose(self) -> ComposeResult:
        yield from super().compose()
        self.styles.grid_size_columns = 5


class Top(App[None]):
    """The application. `interval`: seconds between two refreshes."""

    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "quit", priority=True, show=False),
        Binding("ctrl+z", "suspend_process", priority=True, show=False),
        *(Binding(key, f"act('{key}')", action.word) for key, action in ACTIONS.items()),
        Binding("slash", "filter", "filter", key_display="/", priority=True),  # before the keys typed right after it
        Binding("escape", "drop_filter", show=False),
        Binding("q", "quit", "quit")]
    CSS = """
    * { background: ansi_default; color: ansi_default; background-tint: transparent; }
    Screen { overflow: hidden; }
    Static { text-wrap: nowrap; }
    Rows { height: 1fr; max-height: 100%; scrollbar-size: 0 0; overflow-x: hidden; }
    Rows > .datatable--cursor, Rows:focus > .datatable--cursor {
        background: ansi_default; color: ansi_default; text-style: reverse; }
    TextPane { height: 1fr; display: none; }
    #message { height: 2; }
    #text, #message { text-wrap: wrap; }
    Input { display: none; }
    .-narrow Keys { layout: grid; height: 2; }
    """

    def __init__(self, reader: FrameReader, interval: float = 1.0) -> None:
        super().__init__(ansi_color=True)
        self.reader, self.interval = reader, interval
        self.frame: Frame | None = None
        self.selected = ""
        """Id of the last selected row, kept while a filter hides it."""
        self._title = ""
        """Title of the text in place of the table, '' if there is none."""
        self._note: Line = []
        """The latest message: a command's last line, or why it failed."""
        self._question = ""
        """Question confirmed by `y`."""
        self._pending: Callable[[], None] | None = None
        self._failure: Line = []
        """Why the last refresh failed, empty if it did not."""

    def compose(self) -> ComposeResult:
        """Lay out the widgets from top to bottom; either table or text is shown, the input only during typing."""
        yield Static(id="header")
        yield Static(id="head")
        yield Rows(cursor_type="row", cell_padding=0, show_header=False)
        with TextPane():
            yield Static(id="text")
        yield Static(id="below")
        yield Static("reading …", id="message")
        yield Input(compact=True, max_length=60)
        yield Keys(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        """Start refreshing; a signal that ends us restores the terminal."""
        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, partial(self.exit, return_code=128 + number))
        self.query_one(Rows).focus()
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
        failed = [span(failure, "bad")] if failure else []
        if failed or self._note == self._failure:
            self._note = failed
        self._failure = failed
        self.draw()
        self.set_timer(pause, self._start_refresh)

    # ---- drawing

    def draw(self) -> None:
        """Show the frame, limited by the filter and the size of the terminal."""
        if self.frame is None:
            return
        columns, left = self.size.width, self.size.height - 5 - self.query_one(Keys).outer_size.height
        rows = self._rows()
        head, *lines = top_render.table(rows, columns)
        nothing = "nothing matches the filter" if self.frame.rows else top_render.NO_RUN
        table = self.query_one(Rows)
        table.show_cursor = bool(rows)
        table.fill({row.id: line for row, line in zip(rows, lines, strict=True)} or {"": raw(f"  {nothing}", "dim")},
                   top_render.index_of(rows, self.selected))
        below = top_render.below(self.frame, columns, max(left * 2 // 5, left - max(1, len(rows))))
        self._show("header", *top_render.header(self.frame, columns))
        self._show("head", raw(self._title, "head") if self._title else head)
        self._show("below", *below)
        self._show("message", self._message(self.frame))

    def _show(self, name: str, *lines: Line) -> None:
        self.query_one(f"#{name}", Static).update(_text(*lines))

    def _message(self, frame: Frame) -> Line:
        """Return a question, a command's message, a problem, the filter, or the activity of the selected row."""
        words, row = self.query_one(Input).value, self._row()
        if self._question:
            return raw(f"{self._question}  y: yes, any other key: no", "due")
        if self.query_one(Input).display:
            return [StyledText("filter: ", "due"), StyledText("⏎ keeps it, Esc drops it", "dim")]
        if self._note or frame.problems:
            return self._note or [span(first_line(frame.problems[0]), "bad")]
        if words:
            return [StyledText("filter: ", "due"), span(words), StyledText("  / changes it, Esc drops it", "dim")]
        return [span(row.name, "head"), StyledText(": "), span(first_line(row.doing) or row.state)] if row else []

    def on_resize(self, event: events.Resize) -> None:
        """Draw for the terminal's new size, after the keys."""
        self.screen.set_class(event.size.width < KEYS_FIT, "-narrow")
        self.call_after_refresh(self.draw)

    def say(self, note: str, *, bad: bool = False) -> None:
        """Show a message above the keys, until the next key."""
        self._note = [span(first_line(note), "bad" if bad else "good")] if note else []
        self.draw()

    def read(self, title: str, text: str) -> None:
        """Show text in place of the table, or the table again if there is no title."""
        self._title = terminal_text.clean(title)
        self.query_one("#text", Static).update(Text("\n".join(terminal_text.clean_lines(text))))
        table, reading = self.query_one(Rows), self.query_one(TextPane)
        reading.display, table.display, self.query_one("#below").display = bool(title), not title, not title
        self.screen.set_focus(reading if title else table)
        reading.scroll_home(animate=False)
        self.draw()

    # ---- selecting

    def _rows(self) -> Sequence[TopRow]:
        return top_render.visible(self.frame.rows, self.query_one(Input).value) if self.frame else ()

    def _row(self) -> TopRow | None:
        rows = self._rows()
        return rows[top_render.index_of(rows, self.selected)] if rows else None

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """Remember the selected row."""
        self.selected = event.row_key.value or self.selected
        self.draw()

    def on_data_table_row_selected(self) -> None:
        """Show all details of the selected row."""
        if row := self._row():
            self.read(f"run {row.run}" if row.kind == "run" else f"{row.name} of run {row.run}", "\n".join(
                f"{name:<10} {terminal_text.clean(text)}" for name, text in row.details()))

    def action_leave(self) -> None:
        self.read("", "")

    def action_filter(self) -> None:
        self._type(typing=True)

    def action_drop_filter(self) -> None:
        self.query_one(Input).value = ""
        self._type(typing=False)

    def on_input_submitted(self) -> None:
        """Keep the filter."""
        self._type(typing=False)

    def on_input_changed(self) -> None:
        """Show the rows that match the typed text."""
        self.draw()

    def _type(self, *, typing: bool) -> None:
        typed = self.query_one(Input)
        typed.display, self.query_one("#message").styles.height = typing, 1 if typing else 2
        self.screen.set_focus(typed if typing else self.query_one(Rows))
        self.draw()

    # ---- acting

    def check_action(self, action: str, _parameters: tuple[object, ...]) -> bool:
        """Return whether a key acts on the table: not while text replaces it, nor during a question or typing."""
        if action == "filter" and (self._pending or self.query_one(Input).display):
            return False
        return not (self._title and action in ("act", "filter"))

    def on_key(self, event: events.Key) -> None:
        """Use a key as the answer to a question, or drop the current message."""
        pending, self._pending, self._question = self._pending, None, ""
        self.say("")
        if pending:
            event.prevent_default()
            if event.key == "y":
                pending()

    def action_act(self, key: str) -> None:
        """Run the command of a key for the selected row, after its question, if any."""
        action, row = ACTIONS[key], self._row()
        argv = action.argv(row) if row else None
        if row is None or argv is None:
            self.say(f"{action.word}: select a node first", bad=True)
        elif action.ask:
            self._pending = lambda: self._start(action, argv, row)
            self._question = action.ask.format(name=row.name, run=row.run)
            self.draw()
        else:
            self._start(action, argv, row)

    def _start(self, action: RowCommand, argv: Sequence[str], row: TopRow) -> None:
        if action.terminal:
            self._hand_over(action, argv)
        else:
            self.say(f"{action.word} {row.name} …")
            self.run_worker(lambda: self._command(action, argv, row), thread=True, group="command")

    def _command(self, action: RowCommand, argv: Sequence[str], row: TopRow) -> None:
        """Run a command, in a thread; show its output over the table, or its last line above the keys."""
        done = subprocess.run(garrison_argv(*argv), env=self._environment(), stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, errors="replace", check=False)
        output = (done.stderr.strip() or done.stdout.strip()).splitlines()
        if action.text and done.returncode == 0:
            self.call_from_thread(self.read, f"{action.word} {row.name}", done.stdout)
            return
        ending = "done" if done.returncode == 0 else f"exit {done.returncode}"
        note = output[-1] if output else f"{action.word}: {ending}"
        self.call_from_thread(self.say, note, bad=done.returncode != 0)

    def _hand_over(self, action: RowCommand, argv: Sequence[str]) -> None:
        """Hand the terminal, including Ctrl-C, to a command until it ends; show why it failed."""
        try:
            with self.suspend(), _ctrl_c_ignored():
                if action.waits:
                    print(BEFORE.format(" ".join(argv)), end="", flush=True)
                code, failure = run_here(argv, self._environment(), keep=action.waits)
        except SuspendNotSupported:
            self.say(f"{action.word} needs a terminal", bad=True)
            return
        if code not in (0, 130, -signal.SIGINT):
            self.say(failure or f"{action.word}: exit {code}", bad=True)
        self.refresh(layout=True)

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "GARRISON_HOME": str(self.reader.home)}


def run_here(argv: Sequence[str], env: Mapping[str, str], *, keep: bool) -> tuple[int, str]:
    """Run one of our commands on this terminal; return its exit code and the last line of its stderr.

    `keep`: its output, including stderr, stays until Enter, unless Ctrl-C ended it.
    """
    done = subprocess.run(garrison_argv(*argv), env=dict(env), check=False, text=True, errors="replace",
                          stderr=None if keep else subprocess.PIPE)
    if keep and done.returncode not in (130, -signal.SIGINT):
        print(AFTER, end="", flush=True)
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
