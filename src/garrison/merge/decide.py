"""What the queue decides about one gate run and one configuration, from facts that are given. Pure.

`classify` turns an exit into a class; only `green` lands. What follows from the classes of several trees is decided in
`batch`, how many are tried together in `sizing`, and in which order in `order`.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from typing import TYPE_CHECKING

from garrison.merge.classes import BROKEN, MAX_LOST, Class

if TYPE_CHECKING:
    from collections.abc import Mapping

    from garrison.merge.config import Config

__all__ = ["BROKEN", "MAX_LOST", "Class", "classify", "gate_words", "in_words", "judge_key", "refusal"]

EMPTY_EXIT = 5
"""pytest's and unittest's (from 3.12) exit code for "no tests ran"."""

_RAN_NOTHING = re.compile(r"^Ran 0 tests in ", re.MULTILINE)
_RAN_SOME = re.compile(r"^Ran [1-9]\d* tests? in |^[= ]*\d+ passed", re.MULTILINE)
_VOLATILE = frozenset({"TERM", "TMPDIR", "XDG_RUNTIME_DIR", "SHELL"})
"""Variables that tell one terminal from another, not one machine from another."""

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


def judge_key(config: Config, environment: Mapping[str, str]) -> str:
    """By what a verdict was given: gate and set-up, and the environment that they saw. Verdicts of one tree are
    exchangeable if their keys are equal."""
    told = "\0".join(f"{name}={value}" for name, value in sorted(environment.items())
                     if name not in _VOLATILE and not name.startswith("GARRISON_"))
    return f"{config.command_key}-{hashlib.sha256(told.encode(errors='surrogateescape')).hexdigest()[:8]}"


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
