"""What the keys of `garrison top` mean: which command of ours an action is, how a choice moves. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from garrison.cli.top_render import Chosen, details_text, place_of, selected, visible

PAGE = 10


@dataclass(frozen=True)
class Action:
    """A command of ours for the chosen row. `ask`: what is asked first; `terminal`: it takes the terminal; `waits`:
    what it printed stays until a key; `text`: what it prints is shown over the table."""

    word: str
    argv: Callable[[Mapping[str, Any]], list[str] | None]
    ask: str = ""
    terminal: bool = False
    waits: bool = False
    text: bool = False


def _of_node(*words: str) -> Callable[[Mapping[str, Any]], list[str] | None]:
    return lambda row: [*words, row["name"], "--run", row["run"]] if row["kind"] == "node" else None


def _logs(row: Mapping[str, Any]) -> list[str]:
    """A node's agent's, else what its layer printed; a run's are its guardian's."""
    if row["kind"] == "node":
        return ["logs", row["name"], "--run", row["run"], "-f", "--tail", "200"]
    return ["logs", "--layer", row["role"] or "guardian", "--run", row["run"], "-f", "--tail", "200"]


ACTIONS: Mapping[str, Action] = {
    "a": Action("attach", _of_node("attach"), terminal=True),
    "l": Action("logs", _logs, terminal=True, waits=True),
    "w": Action("why", _of_node("why"), text=True),
    "r": Action("respawn", _of_node("agents", "respawn"),
                ask="End the agent of {name} (run {run}), so that it comes back?"),
    "p": Action("park", _of_node("agents", "park"),
                ask="Park {name} (run {run}), so that nothing restarts it until it is unparked?"),
    "u": Action("unpark", _of_node("agents", "unpark"), ask="Unpark {name} (run {run}), so that it may begin again?"),
}
"""Key → what it does."""


def argv_of(action: Action, row: Mapping[str, Any]) -> list[str] | None:
    """The words after `garrison`; None where the action is not for such a row."""
    return action.argv(row)


_STEPS: Mapping[str, int] = {"down": 1, "j": 1, "up": -1, "k": -1, "pagedown": PAGE, "pageup": -PAGE, "home": -10**9,
                             "g": -10**9, "end": 10**9, "G": 10**9, " ": PAGE}


def moved(frame: Mapping[str, Any] | None, chosen: Chosen, key: str, rows: int) -> Chosen:
    """The choice after a key that is no action: another row, details, the filter, a text scrolled or left."""
    if chosen.title:
        return _in_text(chosen, key)
    if frame is None:
        return chosen
    if key == "/":
        return replace(chosen, typing=True)
    if key == "escape":
        return replace(chosen, filter="")
    row = selected(frame, chosen)
    if key == "enter" and row is not None:
        title = f"run {row['run']}" if row["kind"] == "run" else f"{row['name']} of run {row['run']}"
        return replace(chosen, title=title, text=details_text(row), scrolled=0)
    if key in _STEPS and row is not None:
        shown = visible(frame, chosen)
        place = place_of(shown, chosen.row) + _STEPS[key]
        return replace(chosen, row=shown[max(0, min(place, len(shown) - 1))]["id"])
    return chosen


def _in_text(chosen: Chosen, key: str) -> Chosen:
    if key in ("escape", "q", "enter"):
        return replace(chosen, title="", text=(), scrolled=0)
    if key in _STEPS:
        return replace(chosen, scrolled=max(0, min(chosen.scrolled + _STEPS[key], len(chosen.text))))
    return chosen


def typed(chosen: Chosen, key: str, character: str | None) -> Chosen:
    """The filter after one more key."""
    if key == "enter":
        return replace(chosen, typing=False)
    if key == "escape":
        return replace(chosen, typing=False, filter="")
    if key in ("backspace", "ctrl+h"):
        return replace(chosen, filter=chosen.filter[:-1])
    if character and character.isprintable():
        return replace(chosen, filter=(chosen.filter + character)[:60])
    return chosen
