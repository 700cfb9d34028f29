"""A record's value says what happened; its words do only in a record of an earlier version, and in one module."""

from __future__ import annotations

import ast
from itertools import pairwise
from pathlib import Path

import pytest

import garrison
from garrison.ends import Departure
from garrison.records import earlier
from garrison.records.events import ChildSpawned, NoteWritten
from garrison.records.identity import Identity, mark_ended
from garrison.values import replace

NOW = "2026-01-31T13:00:00.000000Z"
ALIVE = Identity("id", "runner", "a", "r1", NOW)


@pytest.mark.parametrize(("reason", "departure"), [
    ("done", Departure.DONE), ("failed", Departure.FAILED), ("stopped", Departure.STOPPED),
    ("orphaned", Departure.ORPHANED), ("its terminal is gone", Departure.HANGUP), ("marked by hand", Departure.EARLY)])
def test_only_without_a_departure_an_identitys_reason_tells_how_it_ended(reason: str, departure: Departure) -> None:
    recorded = replace(ALIVE, status="terminated", metadata={"reason": reason})
    assert recorded.departure is departure
    assert mark_ended(ALIVE, "terminated", NOW, reason).departure is Departure.EARLY
    assert mark_ended(ALIVE, "terminated", NOW, "words", departure).departure is departure
    assert mark_ended(ALIVE, "crashed", NOW, reason).departure is None


def test_a_departure_of_a_later_version_counts_as_an_early_end() -> None:
    later = replace(ALIVE, status="terminated", metadata={"reason": "done", "departure": "sold"})
    assert later.departure is Departure.EARLY


@pytest.mark.parametrize(("event", "is_so"), [
    (ChildSpawned("x", 2, why="process 7 is gone"), True), (ChildSpawned("x", 2, why="attempt 2"), False),
    (ChildSpawned("x", 2, why="attempt 2", follows="death"), True),
    (ChildSpawned("x", 2, why="process 7 is gone", follows="nothing"), False)])
def test_only_without_what_it_follows_the_reason_of_a_start_tells_a_restart(event: ChildSpawned, is_so: bool) -> None:
    assert event.is_respawn is is_so


@pytest.mark.parametrize(("event", "is_so"), [
    (NoteWritten("a", "waiting for approval"), True), (NoteWritten("a", "held by a person"), False),
    (NoteWritten("a", "waiting for approval", approval=False), False), (NoteWritten("a", "x", approval=True), True)])
def test_only_in_an_earlier_journal_a_notes_text_tells_that_it_waits_for_approval(event: NoteWritten, is_so: bool,
                                                                                  ) -> None:
    assert event.is_for_approval is is_so


def test_each_other_sentence_of_earlier_versions_is_read() -> None:
    assert earlier.branch_of_merge("Merge garrison/r1/a into main") == "garrison/r1/a"
    assert earlier.branch_of_merge("Mend a") == ""
    assert earlier.modes_of("sandbox: bubblewrap; agent a: landlock 4, which leaves gaps") == ["landlock"]
    assert earlier.modes_of("sandbox: bubblewrap") == []
    assert [earlier.has_gaps(line) for line in ("sandbox: bubblewrap", "sandbox: none (it can do whatever you can)")] \
        == [False, True]
    assert earlier.claim_of("r1/a/2.1 of laptop") == "r1/a/2.1"
    assert earlier.reason_of_rescue("garrison: what a left when it failed") == "left when it failed"
    assert earlier.reason_of_rescue("Mend a") == ""
    assert [earlier.step_of_error(error) for error in ("Step 'a' failed: ValueError", "it took too long")] == ["a", ""]


# ---- no code asks words what happened --------------------------------------------------------------------------------


SOURCES = Path(garrison.__file__).parent
WORDS = frozenset({"reason", "why", "note", "notes", "detail", "hint", "stop_reason", "failure_reason"})
"""Names of what records and values say in words, beside the value that tells what happened."""
READERS = frozenset({"startswith", "endswith", "removeprefix", "removesuffix", "find", "rfind", "index", "count"})
CUTTERS = frozenset({"partition", "rpartition", "split", "rsplit"})
PATTERNS = frozenset({"match", "search", "fullmatch", "findall", "finditer"})
EXCEPTIONS = {
    "records/earlier.py": "it is the one module that reads words of earlier versions",
    "testing/checker/promises.py": "it imports nothing of the engine, and reads journals of earlier versions itself",
    "forge/": "these words are a forge's answers, each read by the forge's own module",
    "agents/claude/client.py": "the stop reason is a code of the model's API",
}


def is_words(node: ast.expr) -> bool:
    match node:
        case ast.Name(name) | ast.Attribute(attr=name) | ast.Subscript(slice=ast.Constant(str(name))) | ast.Call(
                ast.Attribute(attr="get"), [ast.Constant(str(name)), *_]):
            return name.lstrip("_") in WORDS
        case ast.Call(ast.Attribute(value, "strip" | "lower" | "casefold" | "upper")) | ast.Call(
                ast.Name("str"), [value]):
            return is_words(value)
    return False


def is_text(node: ast.expr) -> bool:
    """Return whether an operand is a text written in the source: not '', and no member of an enumeration."""
    match node:
        case ast.Constant(str(text)):
            return bool(text)
        case ast.JoinedStr():
            return True
        case ast.Name(name):
            return name.isupper()
        case ast.Attribute(ast.Name(module), name):
            return name.isupper() and module.islower()
        case ast.Tuple(elements) | ast.Set(elements) | ast.List(elements):
            return any(map(is_text, elements))
    return False


def reads_words(node: ast.AST) -> bool:
    match node:
        case ast.Compare(left, operators, others):
            operands = list(pairwise([left, *others]))
            return any((is_words(one) and is_text(other)) or (is_text(one) and is_words(other))
                       for (one, other), operator in zip(operands, operators, strict=True)
                       if isinstance(operator, (ast.Eq, ast.NotEq, ast.In, ast.NotIn)))
        case ast.Call(ast.Attribute(value, name), arguments) if name in READERS and is_words(value):
            return bool(arguments)
        case ast.Call(ast.Attribute(value, name), [ast.Constant(text), *_]) if name in CUTTERS and is_words(value):
            return text not in ("\n", None)
        case ast.Call(ast.Attribute(_, name), arguments) if name in PATTERNS:
            return any(map(is_words, arguments))
        case ast.Match(subject):
            return is_words(subject)
    return False


def test_no_module_learns_from_words_what_happened() -> None:
    found = [f"{path.relative_to(SOURCES)}:{node.lineno}" for path in sorted(SOURCES.rglob("*.py"))
             if not str(path.relative_to(SOURCES)).startswith(tuple(EXCEPTIONS))
             for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
             if isinstance(node, (ast.Compare, ast.Call, ast.Match)) and reads_words(node)]
    assert found == [], "record a value (garrison.ends), or read an earlier version's words in records/earlier.py"


@pytest.mark.parametrize("code", [
    'identity.reason == "done"', "self._stop_reason != TERMINAL_GONE", 'why.startswith("attempt ")',
    'main.why in ("done", "failed")', '"no room" in str(error.detail)', "reason == exit_info.TERMINAL_GONE",
    'data.get("reason", "").strip() == "asked"', "re.match(GRACEFUL, start.why)", "notes.partition(';')",
    'event["why"].removeprefix("stopped; ")'])
def test_each_form_of_reading_words_is_seen(code: str) -> None:
    assert any(map(reads_words, ast.walk(ast.parse(code))))


@pytest.mark.parametrize("code", [
    "reason.partition('\\n')[0]", 'if reason != "": pass', "before.reason != now.reason", "reason == Departure.DONE",
    'kind == "done"', "why.split()", "self.state.troubles.get(name) != why"])
def test_showing_words_or_seeing_that_they_have_changed_is_no_reading(code: str) -> None:
    assert not any(map(reads_words, ast.walk(ast.parse(code))))
