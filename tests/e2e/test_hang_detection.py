"""Processes that live but do nothing: stopped ones are replaced in time, working and thawed ones are not.

Real runs with a short timeout; a stopped process got SIGSTOP, which neither it nor its parent can refuse.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from support import DEADLINE, Node, Place, Process, load, processes, stat, wait_for

TIMEOUT = 2.0
"""Seconds of silence in these runs."""


@pytest.fixture
def quick(place: Place) -> Place:
    """Return a place whose processes soon count as hung."""
    place.env |= {"GARRISON_BEAT_TIMEOUT": str(TIMEOUT), "GARRISON_RESCAN": "0.2", "GARRISON_SWEEP_GRACE": "0.3"}
    return place


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)


def last_beat(place: Place, stem: str) -> float:
    """Return the time of the last heartbeat of a process, in seconds since the epoch."""
    return (place.home / f"identities/{stem}@r1.life").stat().st_mtime


def received(manager: socket.socket) -> list[bytes]:
    found = []
    with suppress(BlockingIOError):
        while True:
            found.append(manager.recv(200))
    return found


def why(place: Place, stem: str) -> list[str]:
    """Return the reasons of a name's deaths."""
    return [record["why"] for record in place.death_records(stem)]


def agent_of(place: Place) -> list[Process]:
    """Return the processes of a's agent: those with its orchestrator's marker, except the orchestrator."""
    orchestrator = place.identity("orchestrator-a")["pid"]
    return [one for one in processes() if "orchestrator-a#" in one.environ.get("GARRISON_LIFE", "")
            and str(place.home) in one.environ["GARRISON_LIFE"] and one.pid != orchestrator]


def is_stopped(agent: list[Process]) -> bool:
    """Stop an agent's processes; return whether they were stopped before: its loop starts one `sleep` after another."""
    states = [found[0] for one in agent if (found := stat(one.pid)) is not None]
    for one in agent:
        with suppress(ProcessLookupError):
            stop(one.pid)
    return len(states) > 1 and set(states) == {"T"}


def test_a_stopped_guardian_agent_and_job_are_replaced_and_the_run_lands_everything(quick: Place) -> None:
    def once(job: str) -> str:
        return f'{job}="test -e {quick.root}/{job} || {{ touch {quick.root}/{job}; kill -STOP $$; }}"'

    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    manager.bind(str(quick.root / "manager"))
    child = quick.launch(quick.graph(Node("a", before=quick.hold("a")), Node(
        "b", after=("a",), attributes=f"{once('setup')}, {once('acceptance')}")),
                         NOTIFY_SOCKET=str(quick.root / "manager"), WATCHDOG_USEC="300000000")
    quick.wait_until_held("a")
    with manager:
        wait_for("the watchdog gets a message", lambda: b"WATCHDOG=1" in received(manager))
    stop(quick.pid("guardian-crew"))
    beat = last_beat(quick, "guardian-crew")
    wait_for("its agent is stopped", lambda: is_stopped(agent_of(quick)))
    wait_for("the guardian is replaced", lambda: quick.identity("guardian-crew")["incarnation"] > 1)
    assert time.time() - beat > TIMEOUT - 0.1
    quick.wait_until_held("a")
    quick.release_to_end(child, "a")
    quick.check("a", "b")
    assert "is stopped (SIGSTOP)" in why(quick, "guardian-crew")[0]
    assert "processes are stopped (SIGSTOP)" in why(quick, "orchestrator-a")[0]
    stuck = [record["data"] for record in quick.journal() if record["data"].get("type") == "ORCHESTRATOR_STUCK"]
    assert len(stuck) == 1
    assert stuck[0]["why"] == why(quick, "orchestrator-a")[0]
    log = (quick.home / "runs/r1/layers/runner-b.log").read_text()
    for job in ("setup", "acceptance"):
        assert re.search(rf"{job} hung: 1 of its \d processes are stopped \(SIGSTOP\)", log), log  # bubblewrap's, too


def test_a_guardian_that_recorded_its_end_but_keeps_its_lock_is_replaced(place: Place) -> None:
    child = place.launch_until("a", place.graph(Node("a", before=place.hold("a"))))
    pid = place.pid("guardian-crew")
    stop(pid)
    path = place.home / "identities/guardian-crew@r1.json"
    now = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime())
    said = load(path) | {"status": "terminated", "terminated_at": now, "metadata": {"reason": "stopped"}}
    (place.root / "said").write_text(json.dumps(said))
    (place.root / "said").rename(path)
    wait_for("it is replaced", lambda: place.identity("guardian-crew")["incarnation"] > 1)
    place.release_to_end(child, "a")
    place.check("a", history=False)
    assert why(place, "guardian-crew") == [], "it ended gracefully: no death is counted"
    told = place.command("why", "guardian", "--run", "r1", "--replay").stdout
    assert f"process {pid} still holds its life lock" in told, told


@pytest.mark.slow
@pytest.mark.parametrize(("stem", "terminal"), [
    ("guardian-crew", "process"), ("guardian-crew", "tmux"), ("runner-a", "process"), ("runner-a", "tmux"),
    ("orchestrator-a", "process")])
def test_each_stopped_process_is_replaced_within_the_timeout(places: Callable[..., Place], stem: str,
                                                             terminal: str) -> None:
    """Not the orchestrator in tmux: the tmux server continues its stopped children at once."""
    place = places(terminal=terminal)
    place.env |= {"GARRISON_BEAT_TIMEOUT": "3", "GARRISON_RESCAN": "0.3"}
    child = place.launch_until("a", place.graph(Node("a", before=place.hold("a")), Node("b", after=("a",))))
    stop(place.pid(stem))
    beat = last_beat(place, stem)
    wait_for("it is replaced", lambda: place.identity(stem)["incarnation"] > 1)
    assert time.time() - beat > 3 - 0.1
    assert place.pid(stem, incarnation=2)
    place.release_to_end(child, "a")
    place.check("a", "b")
    others = {"guardian-crew", "runner-a", "orchestrator-a", "processor-crew"} - {stem}
    assert not [name for name in others if why(place, name)], "only the stopped one"
    assert "is stopped (SIGSTOP)" in why(place, stem)[0]


@pytest.mark.slow
def test_a_stopped_processor_is_replaced_and_the_queue_continues(place: Place) -> None:
    """It has the queue's lock, and is stopped while a gate runs: the verdict is adopted, or the gate runs again.

    The limit of a processor is five seconds; the beat timeout here is five minutes.
    """
    gate = f'git rev-parse "HEAD^{{tree}}" >> "$WITNESS"; {place.hold("gate")}'
    child = place.launch(place.graph(Node("a"), Node("b")), gate=gate)
    place.wait_until_held("gate")  # at the pre-flight
    place.release("gate")
    wait_for("the run works", lambda: place.status() == "running")
    (place.root / "go-gate").unlink()
    place.wait_until_held("gate")
    stop(place.pid("processor-crew"))
    wait_for("it is replaced", lambda: place.identity("processor-crew")["incarnation"] > 1)
    place.release_to_end(child, "gate")
    place.check("a", "b")
    assert "is stopped (SIGSTOP)" in why(place, "processor-crew")[0]


@pytest.mark.slow
def test_a_stopped_launcher_is_replaced_by_up_and_a_working_one_is_not(quick: Place) -> None:
    child = quick.launch_until("a", quick.graph(Node("a", before=quick.hold("a"))), "r1")
    assert quick.command("up").stdout == ""
    stopped = quick.pid("launch")
    stop(stopped)
    beat = last_beat(quick, "launch")
    wait_for("its beat is old", lambda: time.time() - beat > TIMEOUT + 0.5)
    up = quick.command("up")
    assert up.returncode == 0, up.stderr
    assert quick.pid("launch", incarnation=2) != stopped
    assert child.wait(DEADLINE) == -signal.SIGKILL
    found = quick.identity("launch")
    assert found["incarnation"] == 2
    assert quick.command("up").stdout == "", "harmless twice"
    quick.release("a")
    wait_for("the run is done", lambda: quick.status() == "done")
    wait_for("its launcher has left", lambda: quick.identity("launch")["status"] == "terminated")
    quick.check("a")
    assert not why(quick, "guardian-crew"), "adopted"


@pytest.mark.slow
def test_a_frozen_and_thawed_run_loses_no_process(quick: Place) -> None:
    """As on a suspended machine or in a paused container: seen to lose guardian and agent without the rule for gaps."""
    child = quick.launch_until("a", quick.graph(Node("a", before=quick.hold("a")), Node("b", after=("a",))))
    frozen = quick.living_processes()
    for one in frozen:
        with suppress(ProcessLookupError):
            os.kill(one.pid, signal.SIGSTOP)
    time.sleep(3 * TIMEOUT)
    for one in frozen:
        with suppress(ProcessLookupError):
            os.kill(one.pid, signal.SIGCONT)
    time.sleep(TIMEOUT / 2)
    quick.release_to_end(child, "a")
    quick.check("a", "b")
    assert quick.deaths() == {}


@pytest.mark.slow
def test_a_silent_or_busy_process_is_not_hung(quick: Place) -> None:
    silent, busy = Node("silent", before="sleep 7"), Node("busy", before="i=0; while test $i -lt 2000000; do "
                                                          "i=$((i+1)); done")
    quick.run(quick.graph(silent, busy, Node("slow", attributes='setup="sleep 6"'),
                          Node("proof", attributes='acceptance="sleep 6"')), "r1", "--max-agents", 4)
    quick.check("silent", "busy", "slow", "proof")
    assert quick.deaths() == {}


@pytest.mark.slow
def test_a_silent_agent_is_replaced_if_its_node_limits_silence(quick: Place) -> None:
    once = f'test -e {quick.root}/again || {{ touch {quick.root}/again; sleep 100; }}'
    speaks = "for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.7; done"
    quiet = 'silence="2500ms"'
    quick.run(quick.graph(Node("sleeps", before=once, attributes=quiet),
                          Node("speaks", before=speaks, attributes=quiet)), "r1", "--max-agents", 2)
    quick.check("sleeps", "speaks")
    assert quick.deaths() == {"orchestrator-sleeps": [1]}
    assert "its agent was silent for" in why(quick, "orchestrator-sleeps")[0]
