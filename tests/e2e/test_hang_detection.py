"""Layers and agents that live but do nothing: stopped ones are replaced in time, and nobody who works or thaws is.

Real runs with a short timeout; a stopped process is SIGSTOPped, which neither it nor its parent can refuse.
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
    """A place whose layers are soon thought hung."""
    place.env |= {"GARRISON_BEAT_TIMEOUT": str(TIMEOUT), "GARRISON_RESCAN": "0.2", "GARRISON_SWEEP_GRACE": "0.3"}
    return place


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)


def last_beat(place: Place, stem: str) -> float:
    """When a layer beat last, in seconds since the epoch."""
    return (place.home / f"identities/{stem}@r1.life").stat().st_mtime


def heard(manager: socket.socket) -> list[bytes]:
    """What came since."""
    found = []
    with suppress(BlockingIOError):
        while True:
            found.append(manager.recv(200))
    return found


def why(place: Place, stem: str) -> list[str]:
    """What the lives of a name died of, as their supervisors journaled it."""
    folder = place.home / "runs/r1/layers"
    stems = ["", *(path.stem for path in folder.glob("*.jsonl"))]
    return [record["data"]["why"] for name in stems for record in place.journal("r1", name)
            if record["kind"] == "death" and record["data"]["full"] == f"{stem}@r1"]


def agent_of(place: Place, node: str = "a") -> list[Process]:
    """The processes of a node's agent: what bears its orchestrator's marker and is not the orchestrator."""
    layer = place.identity(f"orchestrator-{node}")["pid"]
    return [one for one in processes() if f"orchestrator-{node}#" in one.environ.get("GARRISON_LIFE", "")
            and str(place.home) in one.environ["GARRISON_LIFE"] and one.pid != layer]


def is_stopped(agent: list[Process]) -> bool:
    """Stop an agent's processes; whether they were stopped before: its loop starts a `sleep` after the other."""
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
        wait_for("the watchdog is told", lambda: b"WATCHDOG=1" in heard(manager))
    stop(quick.pid("guardian-crew"))
    beat = last_beat(quick, "guardian-crew")
    wait_for("its agent is stopped", lambda: is_stopped(agent_of(quick)))
    wait_for("the guardian is replaced", lambda: quick.identity("guardian-crew")["incarnation"] > 1)
    assert time.time() - beat > TIMEOUT - 0.1
    quick.wait_until_held("a")
    quick.release("a")
    assert quick.finish(child) == 0, quick.logs()
    quick.check("a", "b")
    assert "is stopped (SIGSTOP)" in why(quick, "guardian-crew")[0]
    assert "processes are stopped (SIGSTOP)" in why(quick, "orchestrator-a")[0]
    stuck = [record["data"] for record in quick.journal() if record["data"].get("type") == "ORCHESTRATOR_STUCK"]
    assert len(stuck) == 1
    assert stuck[0]["why"] == why(quick, "orchestrator-a")[0]
    log = (quick.home / "runs/r1/layers/runner-b.log").read_text()
    for job in ("setup", "acceptance"):
        assert re.search(rf"{job} hung: 1 of its \d processes are stopped \(SIGSTOP\)", log), log  # bubblewrap's, too


def test_a_guardian_that_recorded_its_end_and_keeps_its_lock_is_replaced(place: Place) -> None:
    child = place.launch(place.graph(Node("a", before=place.hold("a"))))
    place.wait_until_held("a")
    pid = place.pid("guardian-crew")
    stop(pid)
    path = place.home / "identities/guardian-crew@r1.json"
    now = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime())
    said = load(path) | {"status": "terminated", "terminated_at": now, "metadata": {"reason": "stopped"}}
    (place.root / "said").write_text(json.dumps(said))
    (place.root / "said").rename(path)
    wait_for("it is replaced", lambda: place.identity("guardian-crew")["incarnation"] > 1)
    place.release("a")
    assert place.finish(child) == 0, place.logs()
    place.check("a", history=False)
    assert why(place, "guardian-crew") == [], "it ended in order: nothing is counted"
    told = place.command("why", "guardian", "--run", "r1", "--replay").stdout
    assert f"process {pid} still holds its life lock" in told, told


@pytest.mark.slow
@pytest.mark.parametrize(("stem", "terminal"), [
    ("guardian-crew", "process"), ("guardian-crew", "tmux"), ("runner-a", "process"), ("runner-a", "tmux"),
    ("orchestrator-a", "process")])
def test_each_stopped_process_is_replaced_within_the_timeout(places: Callable[..., Place], stem: str,
                                                             terminal: str) -> None:
    """Not the orchestrator in tmux: its server continues whatever of its own is stopped, at once."""
    place = places(terminal=terminal)
    place.env |= {"GARRISON_BEAT_TIMEOUT": "3", "GARRISON_RESCAN": "0.3"}
    child = place.launch(place.graph(Node("a", before=place.hold("a")), Node("b", after=("a",))))
    place.wait_until_held("a")
    stop(place.pid(stem))
    beat = last_beat(place, stem)
    wait_for("it is replaced", lambda: place.identity(stem)["incarnation"] > 1)
    assert time.time() - beat > 3 - 0.1
    assert place.pid(stem, incarnation=2)
    place.release("a")
    assert place.finish(child) == 0, place.logs()
    place.check("a", "b")
    others = {"guardian-crew", "runner-a", "orchestrator-a", "processor-crew"} - {stem}
    assert not [name for name in others if why(place, name)], "only the stopped one"
    assert "is stopped (SIGSTOP)" in why(place, stem)[0]


@pytest.mark.slow
def test_a_stopped_processor_is_replaced_and_the_queue_goes_on(place: Place) -> None:
    """It holds the queue's lock, and is stopped while a gate runs: its verdict is adopted, or the gate runs again.

    Nobody waits for the beat timeout, which is five minutes here: five seconds are too long for a processor.
    """
    gate = f'git rev-parse "HEAD^{{tree}}" >> "$WITNESS"; {place.hold("gate")}'
    child = place.launch(place.graph(Node("a"), Node("b")), gate=gate)
    place.wait_until_held("gate")  # at the pre-flight
    place.release("gate")
    wait_for("the run has begun", lambda: place.status() == "running")
    (place.root / "go-gate").unlink()
    place.wait_until_held("gate")
    stop(place.pid("processor-crew"))
    wait_for("it is replaced", lambda: place.identity("processor-crew")["incarnation"] > 1)
    place.release("gate")
    assert place.finish(child) == 0, place.logs()
    place.check("a", "b")
    assert "is stopped (SIGSTOP)" in why(place, "processor-crew")[0]


@pytest.mark.slow
def test_a_stopped_launcher_is_replaced_by_up_and_a_working_one_is_not(quick: Place) -> None:
    child = quick.launch(quick.graph(Node("a", before=quick.hold("a"))), "r1")
    quick.wait_until_held("a")
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
def test_a_run_that_is_frozen_whole_and_thawed_loses_no_process(quick: Place) -> None:
    """As a suspended machine, or a container that is paused: seen to lose guardian and agent without the gap's rule."""
    child = quick.launch(quick.graph(Node("a", before=quick.hold("a")), Node("b", after=("a",))))
    quick.wait_until_held("a")
    frozen = quick.living_processes()
    for one in frozen:
        with suppress(ProcessLookupError):
            os.kill(one.pid, signal.SIGSTOP)
    time.sleep(3 * TIMEOUT)
    for one in frozen:
        with suppress(ProcessLookupError):
            os.kill(one.pid, signal.SIGCONT)
    time.sleep(TIMEOUT / 2)
    quick.release("a")
    assert quick.finish(child) == 0, quick.logs()
    quick.check("a", "b")
    assert quick.deaths() == {}


@pytest.mark.slow
def test_a_silent_or_busy_process_is_not_hung(quick: Place) -> None:
    """A program that waits, one that computes without a word, and a set-up that does: nobody dies."""
    silent, busy = Node("silent", before="sleep 7"), Node("busy", before="i=0; while test $i -lt 2000000; do "
                                                          "i=$((i+1)); done")
    child = quick.launch(quick.graph(silent, busy, Node("slow", attributes='setup="sleep 6"'),
                                     Node("proof", attributes='acceptance="sleep 6"')), "r1", "--max-agents", 4)
    assert quick.finish(child) == 0, quick.logs()
    quick.check("silent", "busy", "slow", "proof")
    assert quick.deaths() == {}


@pytest.mark.slow
def test_a_node_may_ask_that_its_agents_silence_be_a_hang(quick: Place) -> None:
    """`silence=2s`: who sleeps is replaced, who speaks, computes or writes meanwhile is not."""
    once = f'test -e {quick.root}/again || {{ touch {quick.root}/again; sleep 100; }}'
    speaks = "for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.7; done"
    quiet = 'silence="2500ms"'
    child = quick.launch(quick.graph(Node("sleeps", before=once, attributes=quiet),
                                     Node("speaks", before=speaks, attributes=quiet)), "r1", "--max-agents", 2)
    assert quick.finish(child) == 0, quick.logs()
    quick.check("sleeps", "speaks")
    assert quick.deaths() == {"orchestrator-sleeps": [1]}
    assert "its agent was silent for" in why(quick, "orchestrator-sleeps")[0]
