"""A run is stopped gracefully, whatever processes are left, and resumed in the same attempt with its notes."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.test_kill_pairs import half_done
from support import Node, Place, alive, wait_for

REGISTRY = Path(__file__).parents[2] / "scripts/identity_registry.py"


def stopped(place: Place) -> None:
    """Check that the run is stopped and resumable, and that no process of it is left."""
    assert place.status() == "stopped", place.logs()
    # /proc shows no command line of a process that is just exiting, so it is looked for by its pid too
    wait_for("nothing is left", lambda: not place.living_processes() and not [
        stem for stem, identity in place.identities().items() if alive(identity)])
    assert place.nodes()["a"] == {**place.nodes()["a"], "status": "active", "attempt": 1}
    assert not list(place.home.glob("run/plain/*@r1.json"))


@pytest.mark.smoke
def test_a_run_is_stopped_in_every_way_and_resumed(place):
    graph = place.graph(Node("a", before=half_done(place, "a")))
    detached = place.command(*place.launch_arguments(graph, "r1", "--detach", "--json"))
    assert detached.returncode == 0, detached.stderr
    said = json.loads(detached.stdout)
    assert (said["status"], said["run"], said["launcher_pid"]) == ("ok", "r1", place.pid("launch"))
    place.wait_until_held("a")
    stop = place.command("stop", "r1")
    assert (stop.returncode, stop.stdout) == (0, "run r1: stopped\n"), stop.stderr
    stopped(place)
    assert "1 stopped" in (told := place.command("status", "r1").stdout) and "1 working" not in told, told
    assert place.command("status", "--watch", "r1").returncode == 130
    assert place.command("up").stdout == "", "a stopped run is not resumed"

    child = place.resume()
    place.wait_until_held("a")
    child.send_signal(signal.SIGTERM)
    assert place.finish(child) == 130, place.logs()
    stopped(place)

    for dead in (["launch"], ["launch", "guardian-crew"]):
        child = place.resume()
        place.wait_until_held("a")
        place.kill(*dead)
        child.wait()
        stop = place.command("stop")
        assert (stop.returncode, stop.stdout) == (0, "run r1: stopped\n"), stop.stderr
        stopped(place)
    for words in (("stop", "r1"), ("stop",)):
        again = place.command(*words)
        assert (again.returncode, again.stdout) == (0, "run r1: already stopped; nothing to stop\n"), again

    child = place.resume()
    place.wait_until_held("a")
    os.kill(child.pid, signal.SIGHUP)
    log = place.home / "runs/r1/layers/launch.log"
    wait_for("the launcher detaches", lambda: "detached, run r1 continues" in log.read_text())
    place.release_to_end(child, "a")
    assert "orchestrator-a died" not in place.logs(), "a stop is not a death"
    place.check("a", history=False)
    prompt = (place.home / "runs/r1/nodes/a/1/prompt.md").read_text()
    assert "Half of the work" in prompt
    assert "half is there, seen by life 4" in prompt
    assert place.finished_work() == [("a", 1, 5)]


@pytest.mark.slow
def test_a_request_to_resume_survives_its_killed_launcher(place: Place) -> None:
    graph = place.graph(Node("a", before=place.hold("a")))
    child = place.launch_until("a", graph)
    refused = place.command("resume", "r1", "--max-steps", "7")
    assert (refused.returncode, "has a launcher already" in refused.stderr) == (1, True)
    said = [path.read_text() for path in (place.home / "signals/guardian-crew@r1").rglob("*.json")]
    assert not [text for text in said if "budget" in text], "a refused request has no effect"
    assert place.command("stop", "r1").returncode == 0
    child.wait()
    stopped(place)
    killed = place.resume(GARRISON_FAILPOINT="launch:resume.before")
    assert killed.wait() == -signal.SIGKILL
    assert place.command("up").stdout == "r1\n", place.logs()
    place.release("a")
    wait_for("it is done", lambda: place.status() == "done")
    wait_for("nothing is left", lambda: not place.living_processes())
    place.check("a", history=False)


def mark_terminated(place: Place, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, REGISTRY, "mark-terminated", *arguments], env=place.for_scripts, check=False,
                          capture_output=True, text=True)


def test_a_runner_marked_by_hand_blocks_neither_the_run_nor_a_stop(place: Place) -> None:
    child = place.launch_until("a", place.graph(Node("a", before=place.hold("a"))))
    refused = mark_terminated(place, "runner", "a", "--run", "r1")
    assert (refused.returncode, "--kill" in refused.stderr) == (1, True)
    assert place.identity("runner-a")["status"] == "active"
    assert mark_terminated(place, "runner", "a", "--run", "r1", "--kill").returncode == 0
    place.pid("runner-a", incarnation=2)
    assert mark_terminated(place, "guardian", "crew", "--run", "r1", "--kill").returncode == 0
    place.pid("guardian-crew", incarnation=2)
    assert (place.status(), place.identity("orchestrator-a")["incarnation"]) == ("running", 1), "its runner continues"

    # as an earlier version marked a living process
    path = place.home / "identities/runner-a@r1.json"
    marked = {**json.loads(path.read_text()), "status": "terminated", "terminated_at": "2026-01-01T00:00:00.000000Z"}
    path.write_text(json.dumps({**marked, "metadata": {**marked["metadata"], "reason": "marked by hand"}}))
    place.pid("runner-a", incarnation=3)

    elsewhere = {**place.identity("runner-a"), "name": "x", "host": "another", "pid_ns": "pid:[1]", "agent_id": "x"}
    (place.home / "identities/runner-x@r1.json").write_text(json.dumps(elsewhere))
    with (place.home / "identities/runner-x@r1.life").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        stop = place.command("stop", "r1")
        assert (stop.returncode, "runner-x@r1" in stop.stderr) == (1, True), stop.stderr
    assert place.identity("launch")["incarnation"] <= 4
    assert place.command("stop", "r1").returncode in (0, 1)  # by now it may be over already
    child.wait()
    stopped(place)
    (place.home / "identities/runner-x@r1.json").unlink()
    place.release("a")
    assert place.finish(place.resume()) == 0, place.logs()
    place.check("a", history=False)
