"""Gates by path, as the garrison.toml of a commit declares them, and the landings since the last whole gate.

A landing must pass the gates that its changed files select, and those that depend on them; garrison.toml, or a file
that no gate names, requires the whole gate.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from garrison.testing.checker.attestations import Attestations
from garrison.testing.checker.repository import CheckedRepository

EVERY = 10
MOST_COMMITS = 1000
"""Commits of a target's line that are searched for its last whole gate."""


def selected(repository: CheckedRepository, old: str, new: str) -> frozenset[str] | None:
    """Return the gates that a landing from `old` to `new` had to pass; None for the whole gate."""
    tables = _declared(repository, old).get("gates")
    gates = {gate["name"]: gate for gate in tables} if isinstance(tables, list) else {}
    chosen: set[str] = set()
    for file in repository.changed(old, new):
        own = {name for name, gate in gates.items()
               if any(is_match(pattern, file) for pattern in gate.get("paths", ()))}
        if not own or file == "garrison.toml" or file.endswith("/garrison.toml"):
            return None
        chosen |= own
    todo = list(chosen)
    while todo:
        name = todo.pop()
        for other, gate in gates.items():
            if other not in chosen and (name in gate.get("needs", ()) or other in gates[name].get("dependants", ())):
                chosen.add(other)
                todo.append(other)
    return frozenset(chosen) or None


def whole_gate_every(repository: CheckedRepository, commit: str) -> int | None:
    """Return in how many landings the whole gate must run once, as a commit declares; None if it always runs."""
    declared = _declared(repository, commit)
    every = declared.get("whole_gate_every", EVERY)
    return (every if isinstance(every, int) else EVERY) if declared.get("gates") else None


def since_whole(repository: CheckedRepository, ref: str, attestations: Attestations) -> tuple[str, ...] | None:
    """Return the entries that landed on a ref since a tree of it last passed the whole gate, latest first; None if no
    such tree is attested."""
    whole = {run.tree for run in attestations.runs if run.passed and not run.gates}
    code, told = repository.git("rev-parse", "--verify", "--quiet", f"{ref}~{MOST_COMMITS}")
    names: list[str] = []
    for commit in reversed(repository.line(told, ref) if code == 0 else repository.whole_line(ref)):
        if commit.tree in whole:
            return tuple(names)
        names += commit.names
    return None


def _declared(repository: CheckedRepository, commit: str) -> Mapping[str, Any]:
    try:
        return tomllib.loads(repository.content(commit, "garrison.toml"))
    except tomllib.TOMLDecodeError:
        return {}


def is_match(pattern: str, file: str) -> bool:
    """Return whether a file lies below a gate's pattern."""
    parts = [part for part in pattern.split("/") if part]
    if pattern.endswith("/") or not any(char in pattern for char in "*?["):
        parts.append("**")
    return _match(parts, file.split("/"))


def _match(parts: list[str], names: list[str]) -> bool:
    if not parts:
        return not names
    if parts[0] == "**":
        return any(_match(parts[1:], names[index:]) for index in range(len(names) + 1))
    return bool(names) and fnmatchcase(names[0], parts[0]) and _match(parts[1:], names[1:])
