"""Results and signals of other runs, attempts or incarnations are refused; what waited for a guardian is taken once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from support import Node, Place, load, stat, wait_for

FENCED = 75


def test_foreign_results_zombies_and_signals(place):
    place.env["GARRISON_ORPHAN_GRACE"] = "10"  # so long an orphaned runner waits for its gate
    graph = place.graph(Node("a", before=place.hold("a"), attributes='acceptance="test -f a-r1.txt"'),
                        Node("b", after=("a",), before=place.hold("b")))
    child = place.launch_until("a", graph)
    foreign_results_are_ignored(place)
    a_zombie_changes_nothing(place)
    place.wait_until_held("b")
    foreign_signals_are_refused(place)
    child = what_waited_is_obeyed_once(place, child)
    assert place.finish(child) == 0, place.logs()
    place.check_landed("a", "b")
    place.check_work("a", "b")
    place.check_nothing_left()


def log_of(place: Place, stem: str) -> str:
    return (place.home / f"runs/r1/layers/{stem}.log").read_text()


def foreign_results_are_ignored(place: Place) -> None:
    """Check that neither the runner nor a respawned orchestrator takes another's success for its own."""
    path = place.home / "runs/r1/nodes/a/1/result.json"
    good = {"schema": 1, "run_id": "r1", "node": "a", "attempt": 1, "incarnation": 1, "status": "success",
            "at": "2026-01-01T00:00:00.000000Z", "reason": "", "exit_code": 0, "head": None, "tail": ""}
    for foreign in ({"attempt": 2}, {"node": "b"}, {"run_id": "r0"}):
        body = {**good, **foreign}
        replace(path, body)
        said = f"{body['run_id']}/{body['node']}/{body['attempt']}; ignored"
        wait_for(f"the runner says {said}", lambda said=said: said in log_of(place, "runner-a"))
    place.kill("orchestrator-a")
    place.wait_until_held("a")
    replace(path, {"schema": 1, "torn": True})
    wait_for("the runner names the torn file", lambda: f"{path}" in log_of(place, "runner-a").rpartition("ignored")[2])
    path.unlink()
    assert place.nodes()["a"]["status"] == "active"


def a_zombie_changes_nothing(place: Place) -> None:
    """Check a stopped runner, fenced as by another machine: its successor waits for the life lock, which it gives up
    with 75. The record is written by hand, with an unused pid: no sweep on this machine would let it live on."""
    runner, guardian = place.pid("runner-a"), place.pid("guardian-crew")
    os.kill(runner, signal.SIGSTOP)
    gone = subprocess.Popen(["true"])
    gone.wait()
    for kind in ("identities", "hooks"):
        path = place.home / kind / "runner-a@r1.json"
        body = {**load(path), "incarnation": 2}
        if kind == "identities":
            body |= {"status": "crashed", "pid": gone.pid, "crashed_at": body["created_at"]}
        replace(path, body)
    wait_for("a successor is started", lambda: [record for record in place.journal() if record["kind"] == "spawn" and (
        record["data"]["full"], record["data"]["incarnation"]) == ("runner-a@r1", 3)])
    os.kill(guardian, signal.SIGSTOP)  # it would collect the exit code before we have seen it
    place.release("a")
    wait_for("the orchestrator's result", lambda: place.identity("orchestrator-a")["status"] == "terminated")
    assert place.identity("runner-a")["status"] == "starting", "the successor must wait for the zombie's lock"
    os.kill(runner, signal.SIGCONT)
    wait_for("the zombie ends", lambda: (stat(runner) or "Z")[0] == "Z")
    code = Path(f"/proc/{runner}/stat").read_text().split()[-1]
    os.kill(guardian, signal.SIGCONT)
    assert int(code) == FENCED << 8
    assert "runner-a@r1 has a later incarnation (3 > 1); stopping without writing" in log_of(place, "runner-a")
    place.pid("runner-a", incarnation=3)


def foreign_signals_are_refused(place: Place) -> None:
    """Check signals of another run, attempt or node, of a replaced incarnation, and a file that is no signal."""
    bad: list[tuple[dict[str, Any] | None, str]] = [
        ({"run_id": "r0", "signal_type": "NODE_COMPLETE"}, "it belongs to run r0, this is r1"),
        ({"attempt": 7, "signal_type": "NODE_COMPLETE"}, "it belongs to attempt 7 of b, the current one is 1"),
        ({"node_id": "z", "signal_type": "MERGE_READY"}, "this run has no node z"),
        ({"node_id": "a", "signal_type": "RUNNER_EXITED", "payload": {"status": "failed", "reason": "lie"},
          "source": {"role": "runner", "name": "a", "incarnation": 1}}, "runner-a@r1 has a later incarnation (3)"),
        (None, "guardian-crew@r1"),
    ]
    for number, (changes, _) in enumerate(bad):
        post(place, number, changes)
    reasons = wait_for("all are refused", lambda: len(found := place.refused("guardian-crew")) == len(bad) and found)
    assert all(said in reason for (_, said), reason in zip(bad, reasons, strict=True)), reasons
    assert {name: node["status"] for name, node in place.nodes().items()} == {"a": "validated", "b": "active"}


def what_waited_is_obeyed_once(place: Place, child: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    """Check that without guardian and launcher the runner ends the attempt; the successor takes each signal once."""
    inbox = place.home / "signals/guardian-crew@r1"
    wait_for("the guardian has read that the runner of a has ended",
             lambda: place.identity("runner-a")["status"] == "terminated" and not any(inbox.glob("*.json")))
    place.kill("launch", "guardian-crew")
    child.wait()
    place.release("b")
    wait_for("the runner has enqueued and gone", lambda: place.identity("runner-b")["status"] == "terminated")
    assert place.identity("runner-b")["metadata"]["reason"] == "orphaned"
    waiting = sorted(inbox.glob("*.json"))
    kinds = [load(path)["signal_type"] for path in waiting]
    assert kinds == ["NODE_COMPLETE", "MERGE_READY"]
    for path in waiting:  # sent again, as by a runner that died after sending
        (inbox / f"3{path.name[1:]}").write_bytes(path.read_bytes())
    resumed = place.resume()
    wait_for("b is merged", lambda: place.has_landed("b"))
    taken = [record["data"]["id"] for record in place.journal() if record["kind"] == "signal"]
    assert len(taken) == len(set(taken))
    assert {"r1-b-1-NODE_COMPLETE", "r1-b-1-MERGE_READY"} <= set(taken)
    return resumed


def replace(path: Path, body: dict[str, Any]) -> None:
    """Write atomically, as garrison does."""
    temporary = path.with_name(".by-hand")
    temporary.write_text(json.dumps(body))
    temporary.replace(path)


def post(place: Place, number: int, changes: dict[str, Any] | None) -> None:
    body: dict[str, Any] = {
        "schema": 1, "id": f"bad{number}", "source": {"role": "runner", "name": "b", "incarnation": 1},
        "target": {"role": "guardian", "name": "crew"}, "signal_type": "NODE_COMPLETE", "run_id": "r1",
        "timestamp": "2026-01-01T00:00:00.000000Z", "node_id": "b", "attempt": 1, "payload": {}}
    inbox = place.home / "signals/guardian-crew@r1"
    path = inbox / f"20260101T000000000000-{number:06d}Z-runner-guardian-NODE_COMPLETE-bad{number}.json"
    replace(path, {"nonsense": True} if changes is None else {**body, **changes})
