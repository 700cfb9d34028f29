"""A queue's state as one record, so that its journal need not be read from its beginning. Pure.

The rule of this room: what `restore` makes of `saved` is the state itself, less what nobody asks for any more: of the
entries that are over all but the last, unless one that waits depends on them, and verdicts on trees of long ago.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from garrison.light import asdict, fields
from garrison.merge.batch import Base, Red
from garrison.merge.config import Config
from garrison.merge.entry import Entry
from garrison.merge.facts import BaseVerdict, Landing, Outcome, Owed, Pause, Test, payload_of
from garrison.merge.seen import Seen

if TYPE_CHECKING:
    from collections.abc import Iterable

    from garrison.merge.state import QueueState

KEPT = 1000
"""Entries that are over and still known; the parts of the journal that were put aside have all of them."""
TREES = 2000
"""Verdicts that are remembered, of each colour."""
_PLAIN = ("holder", "updated_at", "tip", "count")
"""What of a state is JSON as it is."""
_FACTS: dict[str, Any] = {"base": BaseVerdict, "landing": Landing, "pause": Pause}
_OF_SEEN = ("broken", "judged", "seconds", "_verdicts", "_wavered")


def saved(state: QueueState) -> dict[str, Any]:
    """The record's data."""
    entries = kept(state)
    names = {entry.id for entry in entries}
    return {
        **{name: getattr(state, name) for name in _PLAIN},
        **{name: fact and asdict(fact) for name in _FACTS for fact in [getattr(state, name)]},
        "config": state.config and state.config.record(),
        "entries": [_spare(entry) for entry in entries],
        "places": [state.places[entry.id] for entry in entries],
        "tests": [asdict(test) for test in state.tests.values()],
        "owed": [asdict(owed) for owed in state.owed],
        "outcomes": [_outcome(state, outcome) for outcome in state.outcomes if outcome.entry.id in names],
        "seen": _seen(state.seen)}


def restore(state: QueueState, data: dict[str, Any]) -> None:
    """Make `state` what `saved` was given."""
    for name in _PLAIN:
        setattr(state, name, data[name])
    for name, kind in _FACTS.items():
        setattr(state, name, data[name] and _made(kind, data[name]))
    state.config = Config.of(data["config"]) if data["config"] else None
    state.entries = {entry.id: entry for entry in (_made(Entry, one) for one in data["entries"])}
    state.places = dict(zip(state.entries, data["places"], strict=True))
    state.tests = {test.job: test for test in (_made(Test, one) for one in data["tests"])}
    state.owed = tuple(_made(Owed, one) for one in data["owed"])
    state.outcomes = [_told(state, one) for one in data["outcomes"]]
    state.seen = _seen_of(data["seen"])


def kept(state: QueueState) -> list[Entry]:
    """The entries that stay known: those that wait and all of the nodes that they wait for, and the last others."""
    todo = list(state.unfinished())
    keys: set[tuple[str, str]] = set()
    while todo:
        entry = todo.pop()
        if entry.key not in keys:
            keys.add(entry.key)
            line = state.of_key(*entry.key)
            todo += [state.entries[name] for one in line for name in one.depends_on if name in state.entries]
    last = {entry.id for entry in [entry for entry in state.entries.values() if entry.final][-KEPT:]}
    return [entry for entry in state.entries.values() if entry.id in last or entry.key in keys]


def _spare(entry: Entry) -> dict[str, Any]:
    """An entry without what is as by default."""
    return {one.name: value for one in fields(Entry) if (value := getattr(entry, one.name)) != one.default}


def _made(kind: type[Any], data: dict[str, Any]) -> Any:
    """The inverse of `asdict`: JSON knows no tuples."""
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in data.items()})


def _outcome(state: QueueState, outcome: Outcome) -> dict[str, Any]:
    same = state.entries[outcome.entry.id] == outcome.entry
    return {"type": outcome.type, "seq": outcome.seq, "at": outcome.at,
            "entry": outcome.entry.id if same else _spare(outcome.entry)}


def _told(state: QueueState, data: dict[str, Any]) -> Outcome:
    entry = state.entries[data["entry"]] if isinstance(data["entry"], str) else _made(Entry, data["entry"])
    return Outcome(entry, data["type"], data["seq"], data["at"], payload_of(entry, data["type"]))


def _seen(seen: Seen) -> dict[str, Any]:
    reds = sorted(((key, tree, runs) for key, trees in seen.red.items() for tree, runs in trees.items()),
                  key=lambda one: one[2][-1].seq)
    return {**{name: getattr(seen, name) for name in _OF_SEEN}, "base": seen.base and asdict(seen.base),
            "green": list(seen.green)[-TREES:], "lost": [[*pair, count] for pair, count in seen._lost.items()],
            "red": [[key, tree, [asdict(run) for run in runs]] for key, tree, runs in reds[-TREES:]]}


def _seen_of(data: dict[str, Any]) -> Seen:
    seen = Seen(**{name: data[name] for name in _OF_SEEN})
    seen.base = data["base"] and _made(Base, data["base"])
    seen.green = dict.fromkeys(_pairs(data["green"]))
    seen._lost = {(tree, key): count for tree, key, count in data["lost"]}
    for key, tree, runs in data["red"]:
        seen.red.setdefault(key, {})[tree] = tuple(_made(Red, run) for run in runs)
    return seen


def _pairs(listed: Iterable[list[str]]) -> Iterable[tuple[str, str]]:
    return ((tree, key) for tree, key in listed)
