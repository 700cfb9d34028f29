from __future__ import annotations

import pytest

from garrison.ends import End
from garrison.merge import verdicts
from garrison.merge.config import QueueConfig, explain_gate_mismatch
from garrison.merge.entry import EntryFact, MergeEntry, to_signal
from garrison.merge.gate_files import command_words


@pytest.mark.parametrize(("code", "timed_out", "tail", "stage", "result"), [
    (0, False, "1 passed", "gate", "green"), (1, False, "", "gate", "red"), (126, False, "", "gate", "missing"),
    (127, False, "", "gate", "missing"), (124, True, "", "gate", "timeout"), (124, False, "", "gate", "red"),
    (5, False, "no tests ran", "gate", "empty"), (0, False, "Ran 0 tests in 0.000s\n\nOK", "gate", "empty"),
    (0, False, "Ran 0 tests in 0.0s\nRan 3 tests in 0.1s", "gate", "green"),
    (0, False, "we Ran 0 tests in my dream", "gate", "green"),
    (0, False, "", "setup", "green"), (1, False, "", "setup", "setup"), (127, False, "", "setup", "setup"),
    (124, True, "", "setup", "setup")])
def test_each_result_of_a_gate_and_a_set_up(code, timed_out, tail, stage, result):
    assert verdicts.classify(End(code, timed_out), tail=tail, stage=stage) == result


def test_every_failure_is_described():
    for result in verdicts.BROKEN | {"red"}:
        assert "`make test`" in verdicts.describe_result(result, "make test", End(9), 1.5)
    assert verdicts.describe_result("green", "make test", End(0), 1) == ""
    assert verdicts.describe_result("red", "make test", End(9), 1) == "the gate `make test` failed (exit 9)"
    assert verdicts.describe_result("setup", "npm ci", End(1), 1) == "the set-up `npm ci` failed (exit 1)"
    assert verdicts.describe_result("lost", "npm ci", End(1), 1, stage="setup", is_disk_full=True) == (
        "the set-up `npm ci` filled its disk, or found it full, and gave no verdict")
    assert verdicts.describe_result("setup", "npm ci", End(127), 1) == (
        "the set-up `npm ci` was not found or could not run (exit 127)")


def test_verdicts_are_exchangeable_only_with_gate_setup_and_environment():
    config, environment = QueueConfig("make"), {"PATH": "/bin", "LANG": "C"}
    key = config.verdict_key(environment)
    assert key.startswith(config.command_key)
    assert key == config.verdict_key({"LANG": "C", "PATH": "/bin", "TERM": "dumb", "GARRISON_HOME": "/h"})
    others = [(QueueConfig("make", "set-up"), environment), (QueueConfig("make all"), environment),
              (config, {"PATH": "/bin"}), (config, {"PATH": "/usr/bin", "LANG": "C"})]
    assert key not in {other.verdict_key(environ) for other, environ in others}


@pytest.mark.parametrize(("old", "new", "unfinished", "processor", "refused"), [
    (None, QueueConfig("a"), 3, True, False), (QueueConfig("a"), QueueConfig("a", timeout=5), 3, True, False),
    (QueueConfig("a"), QueueConfig("b"), 0, False, False), (QueueConfig("a"), QueueConfig("b"), 1, False, True),
    (QueueConfig("a"), QueueConfig("b"), 0, True, True), (QueueConfig("a"), QueueConfig("a", "s"), 1, False, True),
    (QueueConfig("a"), QueueConfig(no_gate=True), 1, False, True)])
def test_a_busy_queue_refuses_another_gate(old, new, unfinished, processor, refused):
    assert bool(explain_gate_mismatch(old, new, unfinished=unfinished, processor=processor)) == refused


@pytest.mark.parametrize(("gate", "words"), [
    ("pytest -q", ["pytest"]), ("cd a && FOO=1 python -m x; make | tee log", ["cd", "python", "make", "tee"]),
    ("env A=1 exec pytest", ["pytest"]), ("echo 'a && b'", ["echo"]), ("broken 'quote", ["broken"]),
    ("a\nb", ["a", "b"])])
def test_command_words_of_a_gate(gate, words):
    assert command_words(gate) == words


def test_a_signal_is_a_function_of_its_record():
    entry = MergeEntry("e", "r", "n", 2, "b", "o", "main", recipient="runner-n@r")
    outcome = EntryFact(entry, "MERGE_FAILED", 7, "2026-01-01T00:00:00.000000Z", {"error": "x"})
    signal = to_signal(outcome, "demo", 3)
    assert signal == to_signal(outcome, "demo", 3)
    assert (signal.id, signal.recipient.full, signal.sender.full, signal.attempt) == (
        "mq-7-MERGE_FAILED", "runner-n@r", "processor-demo@r", 2)
    by_hand = MergeEntry("x", "r", "x", 1, "b", "o", "main", status="landed")
    assert to_signal(EntryFact(by_hand, "MERGE_COMPLETE", 1, "", {})) is None


@pytest.mark.parametrize(("code", "runs"), [
    (-9, 6), (137, 6), (-15, 6), (143, 6), (130, 6), (-1, 6), (-11, 3), (139, 3), (1, 3), (None, 3)])
def test_a_gate_that_was_killed_is_run_again_more_often_than_one_that_crashed(code, runs):
    """Seen: `kill -9` each second ended three runs in a row of a good entry, which was rejected."""
    cache = verdicts.VerdictCache()
    assert [cache.record("t", "k", "lost", ("a",), seq, code) for seq in range(runs)] == [False] * (runs - 1) + [True]
