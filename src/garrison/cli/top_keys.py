"""Keys of `garrison top`: the command that each action runs, and how the selection moves. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from garrison.cli.top_render import Selection, details_text, index_of, selected, visible
from garrison.views.top_frame import Frame, Row

PAGE = 10


@dataclass(frozen=True)
class Action:
    """One of garrison's commands, for the selected row.

    `ask`: the question asked first; `terminal`: it takes the terminal; `waits`: its output stays until a key is
    pressed; `text`: its output is shown over the table.
    """

    word: str
    argv: Callable[[Row], list[str] | None]
    """Row → the words after `garrison`; None where the action is not for such a row."""
    ask: str = ""
    terminal: bool = False
    waits: bool = False
    text: bool = False


def _of_node(*words: str) -> Callable[[Row], list[str] | None]:
    return lambda row: [*words, row.name, "--run", row.run] if row.kind == "node" else None


def _logs(row: Row) -> list[str]:
    """Return the command for the log of a node's agent, or of a layer; a run's is its guardian's."""
    if row.kind == "node":
        return ["logs", row.name, "--run", row.run, "-f", "--tail", "200"]
    return ["logs", "--layer", row.role or "guardian", "--run", row.run, "-f", "--tail", "200"]


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
    """Return the selection after a key that is no action: another row, details, the filter, a text scrolled or left."""
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
