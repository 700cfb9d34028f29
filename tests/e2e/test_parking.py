"""Names parked by the restart policy, with a half-open probe, and by the user."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from support import Node, Place, git, wait_for

QUICK = {"GARRISON_PROBE_AFTER": "3", "GARRISON_HEALTHY_AFTER": "0.5"}


def dies(place: Place, name: str, times: int) -> str:
    """Return shell that kills its agent in the first `times` incarnations."""
    count = f"{place.root}/lives-{name}"
    return f"echo x >> {count}; if test $(wc -l < {count}) -le {times}; then kill -9 $$; fi"


def lives(place: Place, name: str) -> int:
    path = Path(place.root) / f"lives-{name}"
    return len(path.read_text().split()) if path.exists() else 0


def facts(place: Place, kind: str, stem: str = "") -> list[dict[str, Any]]:
    return [record["data"] for record in place.journal("r1", stem) if record["kind"] == kind]


def told_of(place: Place, name: str) -> dict[str, Any]:
    """Return a node as `garrison status --json` shows it."""
    body = json.loads(place.command("status", "r1", "--json").stdout)
    (node,) = [one for one in body["nodes"] if one["node"] == name]
    return dict(node)


@pytest.mark.slow
def test_a_probe_heals_a_parked_node_while_others_land_and_its_slot_is_free(place: Place) -> None:
    """b dies six times and is parked; a and c get the only slot; its runner is killed; the probe heals it."""
    place.env |= QUICK
    graph = place.graph(Node("b", before=f"{dies(place, 'b', 6)}; sleep 1"), Node("a", before=place.hold("a")),
                        Node("c", before=place.hold("c")))
    child = place.launch(graph, "r1", "--max-agents", "1")
    place.wait_until_held("a")  # a slot was free though b is unfinished
    assert lives(place, "b") >= 6 and place.nodes()["b"]["status"] == "active"
    place.kill("runner-b")  # its successor continues the same cool-down
    place.release("a")
    place.wait_until_held("c")
    wait_for("the probe works", lambda: lives(place, "b") == 7)
    place.release_to_end(child, "c")
    place.check("a", "b", "c")
    (park,) = facts(place, "park", "runner-b")
    (probe,) = [one for one in facts(place, "spawn", "runner-b") if one.get("probe")]
    assert park["incarnation"] == 6 and probe["incarnation"] == 7
    assert 3 <= probe["monotonic"] - park["monotonic"] < 60
    assert [one["incarnation"] for one in facts(place, "heal", "runner-b")] == [7]
    assert "orchestrator-b is parked: 6 deaths in 600 s, the limit is 5; the last: " in place.logs()


@pytest.mark.slow
def test_a_run_whose_nodes_are_all_parked_fails_and_can_be_resumed(place: Place) -> None:
    graph = place.graph(Node("a", before=f"echo begun > half.txt; {dies(place, 'a', 6)}"), Node("b", after=("a",)))
    child = place.launch(graph)
    assert place.finish(child) == 1, place.logs()
    assert place.status() == "failed" and lives(place, "a") == 6
    last = (place.root / "out").read_text().splitlines()[-1]
    assert "run failed: 0 of 2 landed; a: parked: its agent keeps failing: 6 deaths in 600 s" in last
    assert "fix the cause, then: garrison resume r1" in last
    assert git(place.repo, "show", "refs/garrison/rescue/r1/a/1:half.txt") == "begun"
    assert place.command("up").stdout == "", "what is parked waits for the user"
    told = told_of(place, "a")
    assert told["parked"]["by"] == "policy" and told["doing"].startswith("parked: its agent keeps failing: 6 deaths")
    assert place.command("agents", "unpark", "a").returncode == 0
    assert place.finish(place.resume()) == 0, place.logs()
    place.check("a", "b", history=False)
    assert [node["attempt"] for node in place.nodes().values()] == [1, 1]


@pytest.mark.slow
def test_a_node_parked_by_the_user_continues_though_all_processes_above_it_were_killed(place: Place) -> None:
    graph = place.graph(Node("a", before=place.hold("a")), Node("b"))
    child = place.launch_until("a", graph)
    wrong = place.command("agents", "park", "A1")
    assert wrong.returncode == 1 and "did you mean a?" in wrong.stderr
    assert place.command("agents", "park", "a", "--reason", "the API is down").returncode == 0
    wait_for("a's runner has ended", lambda: place.identity("runner-a")["status"] == "terminated")
    assert place.identity("orchestrator-a")["status"] == "terminated"
    wait_for("b lands", lambda: place.has_landed("b"))
    assert told_of(place, "a")["doing"] == "parked by you: the API is down"
    assert "parked by you: the API is down" in place.command("status", "r1").stdout
    place.kill("launch", "guardian-crew")
    child.wait()
    child = place.resume()
    place.pid("guardian-crew", incarnation=2)
    assert place.command("agents", "unpark", "orchestrator-a@r1").returncode == 0
    place.release_to_end(child, "a")
    place.check("a", "b", history=False)
    assert place.identity("runner-a")["incarnation"] == 2


@pytest.mark.slow
def test_a_cancelled_node_fails_and_can_be_retried(place: Place) -> None:
    half = f"echo half > half.txt; {place.hold('a')}"
    graph = place.graph(Node("a", before=half), Node("b"), Node("c", after=("a",)))
    child = place.launch_until("a", graph)
    wait_for("b lands", lambda: place.has_landed("b"))
    assert place.command("agents", "cancel", "a", "--reason", "leads nowhere").returncode == 0
    assert place.finish(child) == 1, place.logs()
    told = told_of(place, "a")
    assert (told["status"], told["attempt"]) == ("failed", 1)
    assert told["doing"] == "cancelled by the user: leads nowhere"
    assert git(place.repo, "show", "refs/garrison/rescue/r1/a/1:half.txt") == "half"
    place.release("a")
    assert place.finish(place.begin("resume", "r1", "--retry-failed")) == 0, place.logs()
    assert {name: (node["status"], node["attempt"]) for name, node in place.nodes().items()} == {
        "a": ("validated", 2), "b": ("validated", 1), "c": ("validated", 1)}


@pytest.mark.slow
def test_six_graceful_stops_are_no_deaths(place: Place) -> None:
    graph = place.graph(Node("a", before=place.hold("a")))
    for number in range(7):
        child = place.resume() if number else place.launch(graph)
        place.wait_until_held("a")
        if number == 6:
            place.release("a")
            break
        child.send_signal(signal.SIGTERM)
        assert place.finish(child) == 130, place.logs()
    assert place.finish(child) == 0, place.logs()
    assert place.deaths() == {} and place.identity("orchestrator-a")["incarnation"] == 7


def test_a_run_whose_guardian_keeps_dying_is_shown_as_parked_and_tried_again(place: Place) -> None:
    """Seen to stay `running` with no process alive, and `garrison up` left it alone with exit code 0."""
    place.env |= {"GARRISON_HEALTHY_AFTER": "0.001", "GARRISON_PROBE_AFTER": "10000"}
    place.kill_at("guardian:start.before", times=6, keep_going=False)
    place.run(place.graph(Node("a")), code=1)
    assert not place.living_processes() and place.status() == "parked"
    assert "run parked: 0 of 1 landed; its guardian is parked: 6 deaths in 600 s" in place.logs()
    (status,) = json.loads(place.command("status", "--json").stdout)
    assert (status["run_id"], status["status"]) == ("r1", "parked") and "6 deaths" in status["reason"]
    assert 'garrison_run_status{run="r1",status="parked"} 1.0' in place.command("metrics").stdout
    early = place.command("up")
    assert early.returncode == 1 and "run r1 is parked: its guardian keeps dying (6 deaths in 600 s" in early.stderr

    path = place.home / "identities" / "guardian-crew@r1.json"  # its cool-down is over
    identity = json.loads(path.read_text())
    identity["metadata"]["probe_at"] = identity["metadata"]["parked_at"]
    path.write_text(json.dumps(identity))
    assert place.command("up", GARRISON_PROBE_AFTER="0.001").stdout == "r1\n"
    wait_for("the run ends", lambda: place.status() == "done" and not place.living_processes())
    place.check("a")
    (probe,) = [one for one in facts(place, "spawn", "launch") if one.get("probe")]
    assert probe["incarnation"] == 7
    assert [one["status"] for one in facts(place, "run")] == ["running", "parked", "running", "done"]
