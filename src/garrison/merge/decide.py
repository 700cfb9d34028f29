"""What the queue decides, from facts that are given. Pure.

`classify` turns an exit into a class; only `green` lands. The classes in BROKEN say that the gate did not judge at
all, so the bare target is asked first; `blame` then says whether the entry, or the gate itself, is at fault.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Literal

from garrison.merge.state import Config, QueueState

if TYPE_CHECKING:
    from garrison.merge.entry import Entry

Class = Literal["green", "red", "missing", "timeout", "empty", "setup", "lost"]

BROKEN: frozenset[str] = frozenset({"missing", "timeout", "empty", "setup", "lost"})
"""Classes in which the gate itself may be at fault."""
EMPTY_EXIT = 5
"""pytest's and unittest's (from 3.12) exit code for "no tests ran"."""
MAX_LOST = 3
"""Gate runs that may vanish without a verdict before that counts as one."""

_RAN_NOTHING = re.compile(r"^Ran 0 tests in ", re.MULTILINE)
_RAN_SOME = re.compile(r"^Ran [1-9]\d* tests? in |^[= ]*\d+ passed", re.MULTILINE)

WORDS = {
    "red": "the gate failed with exit code {code}",
    "missing": "the gate's command was not found or could not run (exit code {code})",
    "timeout": "the gate ran longer than {timeout:g} s and was stopped",
    "empty": "the gate ran no tests (exit code {code})",
    "setup": "the set-up failed with exit code {code}",
    "lost": "the gate was ended by a signal, or had no room left on its disk, and gave no verdict",
}


def classify(code: int, *, timed_out: bool, tail: str, stage: str = "gate") -> Class:
    """The class of a finished command: exit `code`, whether its time was up, the end of its log."""
    if stage == "setup":
        return "green" if code == 0 and not timed_out else "setup"
    if timed_out:
        return "timeout"
    if code in (126, 127):
        return "missing"
    if code == EMPTY_EXIT or (code == 0 and _RAN_NOTHING.search(tail) and not _RAN_SOME.search(tail)):
        return "empty"
    return "green" if code == 0 else "red"


def in_words(result: str, code: int, timeout: float, *, timed_out: bool = False) -> str:
    """One line about a class, for people; empty for green."""
    if result == "setup" and (timed_out or code in (126, 127)):
        return in_words("timeout" if timed_out else "missing", code, timeout).replace("gate", "set-up")
    return WORDS.get(result, "").format(code=code, timeout=timeout)


def needs_base(result: str, base_tree: str, state: QueueState) -> bool:
    """Whether the bare target must be asked before an entry with this verdict is rejected.

    A plain red is the entry's own if the target's tree is known to pass; a broken gate may have broken since.
    """
    if result in BROKEN:
        return True
    return state.config is not None and (base_tree, state.config.command_key) not in state.green


def blame(base: str) -> tuple[str, str]:
    """Who is at fault, by the verdict on the bare target: ("entry", "") or ("queue", pause reason)."""
    if base == "green":
        return "entry", ""
    return "queue", "base_red" if base == "red" else "gate_broken"


def chosen(state: QueueState) -> Entry | None:
    """The entry to work on: one already begun, else the first in."""
    unfinished = state.unfinished()
    for status in ("landing", "testing", "candidate", "queued"):
        for entry in unfinished:
            if entry.status == status:
                return entry
    return None


def refusal(old: Config | None, new: Config, *, unfinished: int, processor: bool) -> str | None:
    """Why the queue keeps its recorded gate; None if it takes (or already has) the new one."""
    if old is None or not old.ready or old.same_gate(new):
        return None
    if not unfinished and not processor:
        return None
    busy = f"{unfinished} unfinished entries" if unfinished else "a living processor"
    return (f"this queue has {old.told()}, you bring {new.told()}, and it has {busy}; use the recorded one, or wait "
            "until it is empty and unattended")


def gate_words(gate: str) -> list[str]:
    """The command word of each part of a shell line (`cd a && FOO=1 python -m x` → cd, python); [] if unreadable."""
    try:
        lexer = shlex.shlex(gate, posix=True, punctuation_chars="();<>|&\n")
        lexer.whitespace = " \t\r"
        lexer.whitespace_split = True
        words = list(lexer)
    except ValueError:
        return []
    found, fresh = [], True
    for word in words:
        if set(word) <= set("();|&\n"):
            fresh = True
        elif fresh and not re.match(r"[A-Za-z_]\w*=", word) and word not in ("env", "exec", "time", "!", "command"):
            found.append(word)
            fresh = False
    return found
