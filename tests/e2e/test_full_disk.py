"""A run whose home has no room left: it says so, nobody dies of it, with room again it goes on and loses nothing."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import PROGRAM, Node, Place, wait_for


@pytest.fixture
def small(place: Place) -> Iterator[tuple[Place, list[str]]]:
    """A place whose home is a small disk, in a mount namespace of its own, and how to enter it."""
    mount = f"mount -t tmpfs -o size=600k tmpfs {place.home} && touch {place.root}/mounted && exec sleep 1000"
    keeper = subprocess.Popen(["unshare", "-m", "sh", "-c", mount], stderr=subprocess.DEVNULL, cwd="/")
    wait_for("a mount or none", lambda: (place.root / "mounted").exists() or keeper.poll() is not None)
    if keeper.poll() is not None:
        pytest.skip("a disk of one's own needs root and mounts")
    place.home = Path(f"/proc/{keeper.pid}/root{place.home}")
    place.configure()
    try:
        yield place, ["nsenter", "-t", str(keeper.pid), "-m", f"--wd={place.root}"]
    finally:
        keeper.kill()
        keeper.wait()


@pytest.mark.parametrize("fails", [False, True])
def test_a_full_disk_is_reported_and_waited_for(small: tuple[Place, list[str]], fails: bool) -> None:
    """Seen to end every layer but the launcher, which could not write to its log that the disk was full; and to fail a
    node whose agent failed then, once there was room to record that."""
    place, enter = small
    place.env |= {"GARRISON_RESCAN": "0.3"}
    failure = f"; test -e {place.root}/again || {{ touch {place.root}/again; exit 1; }}" if fails else ""
    graph = place.graph(Node("a", before=place.hold("a") + failure), Node("b", after=("a",)))
    with (place.root / "out").open("ab") as output:
        child = subprocess.Popen([*enter, *PROGRAM, *place.launch_arguments(graph, "r1")], env=place.env,
                                 stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
    place.started.append(child)
    place.wait_until_held("a")
    pids = {stem: place.pid(stem) for stem in ("launch", "guardian-crew", "runner-a", "orchestrator-a")}
    fill = os.open(place.home / "fill", os.O_WRONLY | os.O_CREAT)
    with pytest.raises(OSError, match="No space left"):
        while True:
            os.write(fill, b"x" * 512)
    os.close(fill)
    place.release("a")
    shown = subprocess.run([*enter, *PROGRAM, "status", "r1", "--home", str(place.home)], env=place.env, text=True,
                           capture_output=True, check=False).stdout
    assert f"waiting for disk space: the disk of {place.home} is full" in shown, shown
    wait_for("it is said", lambda: "No space left on device" in (place.root / "out").read_text())
    if fails:
        wait_for("the failure", (place.root / "again").exists)
        children = Path(f"/proc/{pids['orchestrator-a']}/task/{pids['orchestrator-a']}/children")
        wait_for("the agent's end", lambda: not (children.exists() and children.read_text().strip()))
        time.sleep(1.0)  # turns that cannot write show nowhere
    assert fails or {stem: place.pid(stem) for stem in pids} == pids, "somebody died of it"
    (place.home / "fill").unlink()
    assert place.finish(child) == 0, place.logs()
    assert place.deaths() == ({"orchestrator-a": [1]} if fails else {})
    assert {node["attempt"] for node in place.nodes().values()} == {1}
    place.check("a", "b")
    assert "Traceback" not in place.logs()


@pytest.mark.slow
def test_an_agent_that_found_no_room_and_an_acceptance_that_a_signal_ended_begin_again(place: Place) -> None:
    """Seen to fail the node, and to do good work a second time: neither had said anything about the work."""
    again = f"test -e {place.root}/%s || {{ touch {place.root}/%s; %s; }}"
    graph = place.graph(
        Node("a", before=again % ("one", "one", "echo 'cannot write: No space left on device'; exit 1")),
        Node("b", attributes=f'acceptance="{again % ("two", "two", "kill -SEGV $$")}"'))
    child = place.launch(graph)
    assert place.finish(child) == 0, place.logs()
    assert {node["attempt"] for node in place.nodes().values()} == {1}
    assert place.deaths() == {"orchestrator-a": [1]}
    death = next(record for record in place.journal("r1", "runner-a") if record["kind"] == "death")
    assert "no space left on the disk of its worktree or output" in death["data"]["why"]
    place.check("a", "b")
