"""Verdicts: classify how a gate run ended, and cache what the journal has recorded of trees; only `green` lands.

A verdict is kept by (tree, key); the key stands for gate, set-up and the environment they ran in. A green one is used
again for any candidate with that tree. A red one is remembered with the entries that were under test, and never rejects
an entry by itself. What follows from verdicts is decided in `batch`. Everything here is pure.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Mapping, Sequence

    from garrison.merge.config import QueueConfig


Class = Literal["green", "red", "missing", "timeout", "empty", "setup", "lost"]

BROKEN: frozenset[str] = frozenset({"missing", "timeout", "empty", "setup", "lost"})
"""Classes in which the gate itself may be at fault."""
MAX_LOST = 3
"""Gate runs of one tree that may vanish without a verdict before that counts as one."""


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


def describe_result(result: str, code: int, timeout: float, *, timed_out: bool = False) -> str:
    """One line about a class, for people; empty for green."""
    if result == "setup" and (timed_out or code in (126, 127)):
        return describe_result("timeout" if timed_out else "missing", code, timeout).replace("gate", "set-up")
    return WORDS.get(result, "").format(code=code, timeout=timeout)


def verdict_key(config: QueueConfig, environment: Mapping[str, str]) -> str:
    """By what a verdict was given: gate and set-up, and the environment that they saw. Verdicts of one tree are
    exchangeable if their keys are equal."""
    told = "\0".join(f"{name}={value}" for name, value in sorted(environment.items())
                     if name not in _VOLATILE and not name.startswith("GARRISON_"))
    return f"{config.command_key}-{hashlib.sha256(told.encode(errors='surrogateescape')).hexdigest()[:8]}"


def explain_gate_mismatch(old: QueueConfig | None, new: QueueConfig, *, unfinished: int, processor: bool) -> str | None:
    """Why the queue keeps its recorded gate; None if it takes (or already has) the new one."""
    if old is None or not old.ready or old.same_gate(new):
        return None
    if not unfinished and not processor:
        return None
    busy = f"{unfinished} unfinished entries" if unfinished else "a living processor"
    return (f"this queue has {old.describe()}, you bring {new.describe()}, and it has {busy}; use the recorded one, or "
            "wait until it is empty and unattended")


def command_words(gate: str) -> list[str]:
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



WINDOW = 64
"""Judged entries that are remembered."""
_LAST_RUNS = 5
_WAVERING = 200
"""So many verdicts after a gate judged one tree both ways it still counts as one that wavers."""


@dataclass(frozen=True)
class RedRun:
    """A run that was not green: of which entries, its class, its record's number."""

    entries: tuple[str, ...]
    result: str
    seq: int


@dataclass(frozen=True)
class BaseRun:
    """The last verdict on the bare tip: its class, its record's number, how many in a row were not green."""

    result: str
    seq: int
    failures: int


@dataclass(frozen=True)
class Evidence:
    """What the journal and the running gates say of trees; `broken` is the number of the first broken verdict on this
    tip (0: none), `wavers` whether the gate was seen to judge one tree both ways."""

    green: Container[str] = ()
    red: Mapping[str, Sequence[RedRun]] = field(default_factory=dict)
    running: Collection[str] = ()
    base: BaseRun | None = None
    broken: int = 0
    wavers: bool = False


class OfOneKey:
    """The trees of a set of (tree, key) pairs, for one key."""

    def __init__(self, pairs: Collection[tuple[str, str]], key: str) -> None:
        self._pairs, self._key = pairs, key

    def __contains__(self, tree: object) -> bool:
        return (tree, self._key) in self._pairs


@dataclass
class VerdictCache:
    """Folded from verdicts; `judged` says of each entry that landed or was rejected whether it was rejected."""

    green: dict[tuple[str, str], None] = field(default_factory=dict)
    """(tree, key) pairs that passed, the first seen first."""
    red: dict[str, dict[str, tuple[RedRun, ...]]] = field(default_factory=dict)
    """Key → tree → runs that were not green, oldest first."""
    base: BaseRun | None = None
    broken: int = 0
    """Number of the first broken verdict since the tip or the suspects changed."""
    judged: list[bool] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    """What the last gate runs took."""
    _lost: dict[tuple[str, str], int] = field(default_factory=dict)
    _verdicts: int = 0
    _wavered: int = -_WAVERING

    def verdict(self, tree: str, key: str, result: str, entries: tuple[str, ...], seq: int) -> bool:
        """Fold a run's end; whether it counts as a verdict (one that vanished does when that happened too often)."""
        self._verdicts += 1
        reds = self.red.setdefault(key, {})
        if result == "green":
            if tree in reds:
                self._wavered = self._verdicts
            self.green[tree, key] = None
            return True
        if result == "lost":
            self._lost[tree, key] = self._lost.get((tree, key), 0) + 1
            if self._lost[tree, key] < MAX_LOST:
                return False
            del self._lost[tree, key]
        if (tree, key) in self.green:
            self._wavered = self._verdicts
        reds[tree] = (*reds.get(tree, ()), RedRun(entries, result, seq))
        if result in BROKEN and not self.broken:
            self.broken = seq
        return True

    def of_base(self, tree: str, key: str, result: str, seq: int) -> bool:
        """Fold the end of a run on the bare target; whether it counts."""
        before, broken = self.base, self.broken
        counts = self.verdict(tree, key, result, (), seq)
        self.broken = broken
        if counts:
            failures = 0 if result == "green" else 1 + (before.failures if before else 0)
            self.base = BaseRun(result, seq, failures)
        return counts

    def took(self, seconds: float) -> None:
        """Fold how long a run took."""
        self.seconds = [*self.seconds, max(0.0, seconds)][-_LAST_RUNS:]

    def judge(self, *, rejected: bool) -> None:
        """Fold that an entry landed or was rejected."""
        self.judged = [*self.judged, rejected][-WINDOW:]

    def fresh(self) -> None:
        """The tip or the suspects changed, or the queue paused: the bare target's answer is of before."""
        self.base, self.broken = None, 0

    def new_life(self) -> None:
        """Another processor: what vanished under the last one is not held against the tree."""
        self._lost = {}

    def known(self, key: str, running: Collection[str]) -> Evidence:
        """What decides, for one key."""
        return Evidence(OfOneKey(self.green, key), self.red.get(key, {}), running, self.base, self.broken,
                     self._verdicts - self._wavered < _WAVERING)
