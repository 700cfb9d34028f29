"""`garrison agents park|unpark|cancel` without living processes: name resolution, signals, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from garrison.cli.main import main
from garrison.records import run as run_records
from garrison.records import signals
from garrison.records.identity import Identity
from garrison.records.journal import Writer
from garrison.records.names import Key
from garrison.records.run import Launch, RunFiles
from garrison.records.store import Store
from support import UserWorld

AT = "2026-01-31T12:00:00.000001Z"
GUARDIAN = Key("guardian", "crew", "r1")


def make(home: Path, run: str, nodes: dict[str, list[str]], *, adhoc: bool = False,
         more: tuple[tuple[str, dict[str, Any]], ...] = ()) -> None:
    """Record a run as its guardian left it."""
    files = RunFiles(home, run)
    files.root.mkdir(parents=True)
    run_records.save(files.launch, Launch(run, "crew", "/repo", "main", AT, "/trees", adhoc=adhoc))
    journal = Writer(files.journal, "guardian-crew#1")
    for name, path in nodes.items():
        for status in path:
            journal.append("node", {"node": name, "status": status, "attempt": 1}, AT)
    for kind, data in (("run", {"status": "running"}), *more):
        journal.append(kind, data, AT)
    journal.close()


@pytest.fixture
def home(user: UserWorld) -> Path:
    park = ("park", {"full": "runner-d@r1", "why": "6 deaths in 600 s", "incarnation": 6, "monotonic": 1.0,
                     "boot_id": "b", "probe_at": AT})
    make(user.home, "r1", {"a": ["active"], "b": ["active", "impl_complete", "validated"],
                          "c": ["active", "impl_complete"], "d": ["active"], "e": ["pending"]}, more=(park,))
    for role in ("processor", "guardian"):
        key = Key(role, "crew", "r1")
        Store(user.home).update(Identity, key, lambda _, key=key: Identity(
            "i", key.role, key.name, key.run, AT, status="crashed"))
    return user.home


def told(home: Path) -> list[dict[str, Any]]:
    return [posted.signal.payload for posted in signals.list_pending(home, GUARDIAN) if posted.signal]


def test_park_and_unpark_signal_the_guardian(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name, who in (("a", "a"), ("runner-a", "a"), ("orchestrator-a@r1", "a"), ("processor-crew", "processor")):
        assert main(["agents", "park", name, "--reason", "the API is down"]) == 0
        assert told(home)[-1] == {"action": "park", "who": who, "text": "the API is down"}
        assert f"{who} will be parked when run r1 is resumed" in capfd.readouterr().err
        assert main(["agents", "unpark", name]) == 0  # what has not been done yet can be taken back
        assert [one["action"] for one in told(home)[-2:]] == ["park", "unpark"]
        assert "continues when its run does: `garrison resume r1`" in capfd.readouterr().err


REFUSALS = (
    (("unpark", "a"), "a of run r1 is not parked; `garrison status r1` shows what it does"),
    (("park", "A1"), "no run in"), (("park", "dd"), "did you mean d?"),
    (("park", "b"), "b has landed"), (("park", "c"), "`garrison merge-queue cancel NODE` withdraws it"),
    (("park", "guardian-crew"), "`garrison stop` stops it"), (("park", "launch@r1"), "`garrison stop r1` stops it"),
    (("park", "a", "--run", "r9"), "no run r9"), (("park", "runner-zz"), "has a node zz"),
    (("cancel", "b"), "it has landed"), (("cancel", "c"), "`garrison merge-queue cancel NODE` withdraws it"),
    (("cancel", "d"), "`garrison agents unpark d` first"),
    (("cancel", "e"), "`garrison agents park e` keeps it from starting"),
    (("cancel", "dd"), "did you mean d?"),
    (("park", "x"), "`garrison stop adhoc-x-1` stops it"),
)


def test_a_refusal_is_one_line_and_only_what_is_parked_is_unparked(home: Path,
                                                                   capfd: pytest.CaptureFixture[str]) -> None:
    make(home, "adhoc-x-1", {"x": ["active"]}, adhoc=True)
    for words, said in REFUSALS:
        assert main(["agents", *words]) == 1
        out, err = capfd.readouterr()
        assert out == "" and said in err and err.count("\n") == 1 and told(home) == [], words
    assert main(["agents", "unpark", "d"]) == 0
    assert told(home) == [{"action": "unpark", "who": "d"}], "also what policy has parked"


def test_cancel_signals_the_runner_idempotently(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for option in ("--reason", "--why"):
        assert main(["agents", "cancel", "a", option, "no\x1b[31mt needed"]) == 0
    said, again = [one.signal for one in signals.list_pending(home, Key("runner", "a", "r1")) if one.signal]
    assert said.id == again.id, "the runner acts on it once"
    assert (said.signal_type, said.attempt) == ("GUIDANCE", 1) and told(home) == []
    assert said.payload == {"action": "cancel", "text": "cancelled by the user: no\x1b[31mt needed"}
    err = capfd.readouterr().err
    assert "a is cancelled as soon as run r1 has a runner for it" in err
    assert err.count("warning: --why is now --reason") == 1, "the former name is accepted, with a warning"


def test_status_shows_why_a_node_is_parked_and_when_its_probe_is_due(
        home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    journal = Writer(RunFiles(home, "r1").journal, "guardian-crew#2")
    journal.append("signal", {"id": "s", "type": "GUIDANCE", "node": "a", "hold": "a", "text": "the API is down"}, AT)
    journal.close()
    assert main(["status", "r1", "--json"]) == 0
    body = json.loads(capfd.readouterr().out)
    nodes = {node["node"]: node for node in body["nodes"]}
    assert nodes["a"]["parked"] == {"by": "person", "why": "the API is down", "probe_at": None, "probe_in_s": None}
    assert nodes["d"]["parked"] == {"by": "policy", "why": "its runner keeps failing: 6 deaths in 600 s",
                                    "probe_at": AT, "probe_in_s": 0.0}
    assert (nodes["a"]["place"], nodes["d"]["place"], nodes["b"]["parked"]) == ("parked", "parked", None)
    assert body["counts"]["parked"] == 2 and body["counts"]["working"] == 0
    assert main(["status", "r1"]) == 0
    shown = " ".join(capfd.readouterr().out.split())
    assert "parked by you: the API is down" in shown
    assert "parked, probe due: its runner keeps failing: 6 deaths in 600 s" in shown
