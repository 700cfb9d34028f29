"""Track record of a queue: learned once from each outcome, kept through crashes, and explained in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import pytest

from garrison.merge.beliefs import FILE, MAX_LEARNED, SHARED_FILE_CLASH, TrackRecord, count_flakes
from garrison.merge.entry import MergeEntry, make_outcome
from garrison.merge.explanation import GateRunOf, explain_tests, find_runs
from garrison.merge.records import GateStarted, VerdictGiven, encode
from garrison.merge.state import QueueState, restore, snapshot
from garrison.merge.touched import Touched, TouchedFiles
from garrison.merge.verdicts import VerdictCache
from garrison.records.journal import Entry as Stored
from garrison.values import replace


class KnownFiles:
    """Touched files as given, by node."""

    def __init__(self, **files: str) -> None:
        self.files = files

    def of(self, entry: MergeEntry, tip: str) -> Touched:
        names = tuple(self.files.get(entry.node, f"{entry.node}.txt").split())
        return Touched(names, len(names))

    def age_of(self, entry: MergeEntry, tip: str) -> int:
        return 0

    def of_all(self, entries: list[MergeEntry], tip: str) -> dict[str, Touched]:
        return {entry.id: self.of(entry, tip) for entry in entries}


def entry(node: str, status: str = "queued", **fields: object) -> MergeEntry:
    made = MergeEntry(f"{node}-1", "r", node, 1, node, "o", "main", status=status, tests=1, agent="one")
    return replace(made, **fields)


def history(count: int, bad: int = 0) -> QueueState:
    """Return the state of a queue in which so many entries were judged; every so many were bad, of another agent."""
    state = QueueState()
    for number in range(1, count + 1):
        is_bad = number * bad // count > (number - 1) * bad // count
        one = entry(f"n{number}", "rejected" if is_bad else "landed", agent="bad" if is_bad else "one")
        signals = ("VALIDATION_FAILED", "MERGE_FAILED") if is_bad else ("MERGE_COMPLETE",)
        state.outcomes += [make_outcome(one, signal, 10 * number, "") for signal in signals]
        state.seq = 10 * number
    return state


def track_record(folder: Path, **files: str) -> TrackRecord:
    return TrackRecord(folder, cast("TouchedFiles", KnownFiles(**files)))


def test_each_outcome_is_learned_once_also_by_the_next_processor(tmp_path: Path) -> None:
    state = history(60, bad=20)
    first = track_record(tmp_path)
    before = first.estimate(state, [entry("a", agent="bad"), entry("b")], "t")
    assert before.bad["a-1"] > before.bad["b-1"]
    assert first.estimate(state, [entry("a", agent="bad"), entry("b")], "t") == before
    again = track_record(tmp_path)
    assert again.estimate(state, [entry("a", agent="bad"), entry("b")], "t") == before
    assert json.loads((tmp_path / FILE).read_text())["model"]["judged"] == 60


def test_what_no_gate_judged_is_not_learned(tmp_path: Path) -> None:
    state = QueueState(seq=3)
    for number, one in enumerate((entry("a", "conflict"), entry("b", "cancelled"), entry("c", "landed", tests=0)), 1):
        signal = "MERGE_COMPLETE" if one.status == "landed" else "MERGE_FAILED"
        state.outcomes.append(make_outcome(one, signal, number, ""))
    assert track_record(tmp_path).estimate(state, [entry("d")], "t").bad == {"d-1": pytest.approx(0.05)}
    assert not (tmp_path / FILE).exists()


@pytest.mark.parametrize("data", [
    b"", b"{", b"[]", b'{"learned": "x"}', b'{"schema": 1, "learned": 5, "model": {"a": 1}}', b"\xff\xfe\x00",
    b'{"schema": 1, "learned": 99999, "model": {}}'])
def test_a_damaged_record_is_the_base_rate_and_is_learned_again(tmp_path: Path, data: bytes) -> None:
    state = history(60, bad=20)
    whole = track_record(tmp_path).estimate(state, [entry("a", agent="bad")], "t")
    (tmp_path / FILE).write_bytes(data)
    assert track_record(tmp_path).explain(state, entry("a"), "t").probability == pytest.approx(0.05)
    assert track_record(tmp_path).estimate(state, [entry("a", agent="bad")], "t") == whole


def test_a_record_of_a_newer_garrison_stays_as_it_is(tmp_path: Path) -> None:
    newer = b'{"schema": 99, "learned": 1}'
    (tmp_path / FILE).write_bytes(newer)
    assert track_record(tmp_path).estimate(history(5), [entry("a")], "t").bad["a-1"] < 0.05
    assert (tmp_path / FILE).read_bytes() == newer


def test_a_rebuilt_journal_with_other_numbers_is_learned_anew(tmp_path: Path) -> None:
    track_record(tmp_path).estimate(history(200), [], "t")
    state = history(4, bad=4)
    assert track_record(tmp_path).estimate(state, [entry("a", agent="bad")], "t").bad["a-1"] > 0.2


def test_an_old_queue_is_learned_from_its_last_outcomes(tmp_path: Path) -> None:
    record = track_record(tmp_path)
    record.estimate(history(500), [], "t")
    assert json.loads((tmp_path / FILE).read_text())["model"]["judged"] == MAX_LEARNED


def test_entries_that_change_the_same_file_may_clash_unless_all_change_it(tmp_path: Path) -> None:
    files = {name: f"CHANGES {name}.py" for name in "abcdefg"} | {"b": "CHANGES a.py"}
    beliefs = track_record(tmp_path, **files).estimate(QueueState(), [entry(name) for name in "abcdefg"], "t")
    assert beliefs.clashes == {frozenset(("a-1", "b-1")): SHARED_FILE_CLASH}


def test_flakes_are_red_runs_on_trees_that_passed() -> None:
    cache = VerdictCache()
    for number in range(8):
        cache.record(f"t{number}", "k", "green", (f"e{number}",), number)
    cache.record("t9", "k", "red", ("e9",), 9)
    cache.record("t9", "k", "green", ("e9",), 10)
    cache.record("t10", "k", "red", ("e10",), 11)
    assert count_flakes(QueueState(verdicts=cache)) == (1, 10)


def test_tests_that_failed_on_a_tree_that_passes_are_flaky_and_stay_so_in_a_snapshot() -> None:
    state = QueueState()

    def judge(seq: int, tree: str, result: str, *failing: str) -> None:
        record = VerdictGiven(("a",), "preflight", tree, "k", result, "", "", failing=failing)
        state.apply(Stored(seq, 1, "", "2026-01-01T00:00:00.000000Z", record.kind, encode(record)))

    judge(1, "t", "red", "test_a", "test_b")
    judge(2, "u", "red", "test_c")
    assert not state.flaky_tests
    judge(3, "t", "green")
    assert list(state.flaky_tests) == ["test_a", "test_b"]
    again = QueueState()
    restore(again, json.loads(json.dumps(snapshot(state).state)))
    assert (again.flaky_tests, again.failing) == (state.flaky_tests, {("u", "k"): ("test_c",)})
    judge(4, "t", "red", "test_d")  # after it passed
    assert "test_d" in state.flaky_tests


def test_why_names_factors_and_runs_in_words_and_numbers(tmp_path: Path) -> None:
    state = history(60, bad=20)
    record = track_record(tmp_path)
    record.estimate(state, [], "t")
    records = [GateStarted(("a-1", "b-1"), "entry", 1, "j1", "c", "t", 0, "k", "l"),
               VerdictGiven(("a-1", "b-1"), "entry", "t", "k", "red", "why", "l", "j1", failing=("x.py::t",) * 5,
                            suspicion=(6.0, 0.5)),
               GateStarted(("a-1",), "entry", 2, "j2", "c", "t", 0, "k", "l", why="it is tested alone")]
    stored = [Stored(seq, 1, "", "", each.kind, encode(each)) for seq, each in enumerate(records, 1)]
    runs = find_runs(stored, "a-1")
    assert runs == [GateRunOf(("b-1",), "red", ("x.py::t",) * 5, 6.0), GateRunOf((), why="it is tested alone")]
    lines = explain_tests(entry("a", agent="bad"), record.explain(state, entry("a", agent="bad"), "t"), (1, 10), 0.04,
                          runs)
    text = "\n".join(lines)
    assert "% that it is bad by itself; 29.3% of all entries lately were" in text
    assert "  agent bad: ×" in text
    assert "gate: 4.0% of runs on good trees are expected red; 1 of 10 lately were" in lines
    assert "run 1: with b-1: red; failing: x.py::t, x.py::t, x.py::t and 2 more; suspicion ×6: touches a file" in text
    assert lines[-1] == "run 2: alone (it is tested alone): running"
    off = explain_tests(entry("a"), None, (0, 0), 0.005, [])
    assert off[1].startswith("belief: off")
    assert off[-1] == "not tested yet"
