"""What a launcher shows: an event in words, or as JSON; a closed pipe stops nobody."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest

from garrison.processes.launcher.progress import Progress, describe_event
from garrison.processes.run_state import NodeState, RunState
from garrison.records.journal import Entry

AT = "2026-01-31T12:34:56.000000Z"

WORDS: list[tuple[str, dict[str, Any], str]] = [
    ("node", {"node": "a", "status": "active"}, "a: an agent works on it"),
    ("node", {"node": "a", "status": "pending"}, ""),
    ("node", {"node": "a", "status": "impl_complete"}, "a: done, waiting to be merged"),
    ("node", {"node": "a", "status": "validated", "commit": "0123456789abcdef"}, "a: merged (0123456789)"),
    ("node", {"node": "a", "status": "failed", "reason": "exit code 1"}, "a: FAILED: exit code 1"),
    ("node", {"node": "a", "status": "failed", "reason": "the gate is red\n\nTraceback\n  x\n2 failed\n"},
     "a: FAILED: the gate is red; … 2 failed"),
    ("node", {"node": "a", "status": "active", "attempt": 2, "reason": "conflict in b.py"},
     "a: attempt 2, since conflict in b.py"),
    ("signal", {"id": "1", "effect": {"node": "a", "status": "active"}}, "a: an agent works on it"),
    ("signal", {"id": "1", "type": "ORCHESTRATOR_CRASHED", "node": "a", "why": "killed by SIGKILL"},
     "orchestrator-a died (killed by SIGKILL); its runner looks after it"),
    ("signal", {"id": "1", "type": "ORCHESTRATOR_CRASHED", "node": "a", "why": "stopped"}, ""),
    ("signal", {"id": "1", "type": "NODE_COMPLETE", "node": "a"}, ""),
    ("run", {"status": "running"}, "run running"),
    ("signal", {"type": "GUIDANCE", "resume": {}, "run": "running"}, "run running: resumed"),
    ("signal", {"type": "GUIDANCE", "resume": {}}, ""),
    ("run", {"status": "stopped", "reason": "stopped by a person"}, "run stopped: stopped by a person"),
    ("run", {"status": "failed", "reason": "a failed"}, ""),
    ("death", {"full": "runner-a@r1", "incarnation": 2, "why": "process 7 is gone"},
     "runner-a life 2 died: process 7 is gone"),
    ("spawn", {"full": "runner-a@r1", "incarnation": 1}, ""),
    ("spawn", {"full": "runner-a@r1", "incarnation": 2}, "runner-a respawned as life 2"),
    ("park", {"full": "runner-a@r1", "why": "6 deaths"}, "runner-a was given up: 6 deaths"),
    ("open", {"incarnation": 1, "pid": 7}, ""),
]


@pytest.mark.parametrize(("kind", "data", "words"), WORDS)
def test_words(kind: str, data: dict[str, Any], words: str) -> None:
    assert describe_event(kind, data) == words


def entry(status: str) -> Entry:
    return Entry(3, 1, "t", AT, "node", {"node": "a", "status": status})


def test_a_line_an_event(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress()
    progress.begin("r1")
    progress.show(entry("active"))
    progress.show(entry("pending"))
    progress.death({"full": "guardian-p@r1", "incarnation": 1, "why": "process 7 is gone"})
    state = RunState(nodes={"a": NodeState("validated"), "b": NodeState("failed")})
    progress.end("failed", "b failed", state)
    out = capsys.readouterr().out.splitlines()
    assert out == ["12:34:56  a: an agent works on it", "          guardian-p life 1 died: process 7 is gone",
                   "run failed: 1 of 2 merged; b failed; more: garrison status r1"]


def test_an_object_an_event(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(as_json=True)
    progress.show(entry("pending"))
    progress.end("done", "", RunState(nodes={"a": NodeState("validated")}))
    first, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["kind"], first["seq"], first["data"]) == ("node", 3, {"node": "a", "status": "pending"})
    assert (last["kind"], last["status"], last["done"], last["nodes"]["a"]["status"]) == ("end", "done", 1, "validated")


def test_quiet_says_only_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(quiet=True)
    progress.show(entry("active"))
    progress.death({"full": "guardian-p@r1", "incarnation": 1, "why": "x"})
    progress.end("done", "", RunState())
    assert capsys.readouterr().out == "run done: 0 of 0 merged\n"


def test_a_reader_that_went_away_is_no_reason_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed(io.StringIO):
        def write(self, _text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Closed())
    Progress().show(entry("active"))
