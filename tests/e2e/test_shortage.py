"""A machine without disk space, processes or descriptors: reported, waited for, and no node fails of it."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support import PROGRAM, Node, Place, wait_for

PIDS = Path("/sys/fs/cgroup/pids")


def test_a_guardian_and_a_runner_without_descriptors_wait_and_lose_nothing(place: Place) -> None:
    place.env |= {"GARRISON_RESCAN": "0.3"}
    child = place.launch_until("a", place.graph(Node("a", before=place.hold("a")), Node("b", after=("a",))))
    stems = ("guardian-crew", "runner-a")
    with without_descriptors(place, *stems):
        place.release("a")
        for stem in stems:
            log = place.home / f"runs/r1/layers/{stem}.log"
            wait_for(f"{stem} tells it", lambda log=log: "Too many open files" in log.read_text())
    finish(place, child, "a", "b")


def test_a_launcher_and_a_merge_processor_without_descriptors_wait_and_lose_nothing(place: Place) -> None:
    """Seen to leave `status` at "next in the merge queue" for as long as it lasted."""
    place.env |= {"GARRISON_RESCAN": "0.3"}
    child = place.launch_until("a", place.graph(Node("z"), Node("a", after=("z",), before=place.hold("a"))))
    with without_descriptors(place, "launch"), without_descriptors(place, "processor-crew", left=2):
        place.release("a")
        wait_for("status tells what holds the queue up",
                 lambda: "Too many open files" in place.command("status").stdout)
        wait_for("the launcher tells it", lambda: "Too many open files" in (place.root / "out").read_text())
    finish(place, child, "z", "a")
    assert "Too many open files" not in place.command("status").stdout


@contextlib.contextmanager
def without_descriptors(place: Place, *stems: str, left: int = 1) -> Iterator[None]:
    """Leave these processes about `left` descriptors, and check that none of them dies."""
    pids = {stem: place.pid(stem) for stem in stems}
    limits = {}
    try:
        for pid in pids.values():
            highest = max(int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir())
            limits[pid] = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (highest + left, limits[pid][1]))
        yield
        assert {stem: place.pid(stem) for stem in pids} == pids, "one of them died"
    finally:  # without it, a red test would leave processes that cannot end
        for pid, limit in limits.items():
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_NOFILE, limit)


def finish(place: Place, child: subprocess.Popen[bytes], *names: str) -> None:
    """Check that everything lands, and that no process dies or writes a traceback."""
    assert place.finish(child) == 0, place.logs()
    assert not place.deaths()
    place.check(*names)
    assert "Traceback" not in place.logs()


@pytest.fixture
def group(place: Place) -> Iterator[Path]:
    """Yield a pids cgroup of the test's own."""
    folder = PIDS / f"garrison-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("a pids cgroup of one's own needs root and cgroups v1")
    yield folder
    (folder / "pids.max").write_text("max")
    wait_for("nothing is left in it", lambda: not (folder / "cgroup.procs").read_text())
    folder.rmdir()


@pytest.mark.slow
def test_a_run_in_a_full_pids_cgroup_starts_nothing_until_there_is_room(place: Place, group: Path) -> None:
    """Seen to park the merge processor after six starts that the kernel refused."""
    graph = place.graph(Node("a", before=place.hold("a")), Node("b", after=("a",)), Node("c", after=("a",)))
    script = f'echo $$ > {group}/cgroup.procs; exec "$@"'
    child = place.begin(*place.launch_arguments(graph, "r1"), before=["sh", "-c", script, "sh"])
    place.wait_until_held("a")
    (group / "pids.max").write_text((group / "pids.current").read_text())
    place.release("a")
    wait_for("it is reported", lambda: "no room for another process: its cgroup allows only" in
             (place.root / "out").read_text())
    assert "failed" not in {node["status"] for node in place.nodes().values()} and place.status() == "running"
    (group / "pids.max").write_text("max")
    assert place.finish(child) == 0, place.logs()
    place.check("a", "b", "c", history=False)


@contextmanager
def disk_of_its_own(place: Place, options: str = "size=100%") -> Iterator[list[str]]:
    """Give the place's home a disk, in a mount namespace of its own; yield the command that enters that."""
    mount = f"mount -t tmpfs -o {options} tmpfs {place.home} && touch {place.root}/mounted && exec sleep 1000"
    keeper = subprocess.Popen(["unshare", "-m", "sh", "-c", mount], stderr=subprocess.DEVNULL, cwd="/")
    try:
        wait_for("a mount or none", lambda: (place.root / "mounted").exists() or keeper.poll() is not None)
        if keeper.poll() is not None:
            pytest.skip("a disk of one's own needs root and mounts")
        yield ["nsenter", "-t", str(keeper.pid), "-m", f"--wd={place.root}"]
    finally:
        keeper.kill()
        keeper.wait()


@pytest.fixture
def small(place: Place) -> Iterator[tuple[Place, list[str]]]:
    """Yield a place whose home is a small disk, and the command that enters its namespace."""
    with disk_of_its_own(place, "size=600k") as enter:
        place.home = Path(f"/proc/{enter[2]}/root{place.home}")
        place.configure()
        yield place, enter


@pytest.mark.parametrize("fails", [False, True])
def test_a_full_disk_is_reported_and_waited_for(small: tuple[Place, list[str]], fails: bool) -> None:
    """Seen to end every layer but the launcher, which could not write to its log that the disk was full; and to fail a
    node whose agent failed then, once there was room to record that."""
    place, enter = small
    place.env |= {"GARRISON_RESCAN": "0.3"}
    failure = f"; test -e {place.root}/again || {{ touch {place.root}/again; exit 1; }}" if fails else ""
    graph = place.graph(Node("a", before=place.hold("a") + failure), Node("b", after=("a",)))
    child = place.begin(*place.launch_arguments(graph, "r1"), before=enter)
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
    wait_for("it is reported", lambda: "No space left on device" in (place.root / "out").read_text())
    if fails:
        wait_for("the failure", (place.root / "again").exists)
        children = Path(f"/proc/{pids['orchestrator-a']}/task/{pids['orchestrator-a']}/children")
        wait_for("the agent's end", lambda: not (children.exists() and children.read_text().strip()))
        time.sleep(1.0)  # turns that cannot write show nowhere
    assert fails or {stem: place.pid(stem) for stem in pids} == pids, "a process died of it"
    (place.home / "fill").unlink()
    assert place.finish(child) == 0, place.logs()
    assert place.deaths() == ({"orchestrator-a": [1]} if fails else {})
    assert {node["attempt"] for node in place.nodes().values()} == {1}
    place.check("a", "b")
    assert "Traceback" not in place.logs()


@pytest.mark.slow
def test_an_agent_that_found_no_room_and_an_acceptance_that_a_signal_ended_begin_again(place: Place) -> None:
    """Seen to fail the node, and to repeat good work: neither end is a verdict on the work."""
    again = f"test -e {place.root}/%s || {{ touch {place.root}/%s; %s; }}"
    graph = place.graph(
        Node("a", before=again % ("one", "one", "echo 'cannot write: No space left on device'; exit 1")),
        Node("b", attributes=f'acceptance="{again % ("two", "two", "kill -SEGV $$")}"'))
    place.run(graph)
    assert {node["attempt"] for node in place.nodes().values()} == {1}
    assert place.deaths() == {"orchestrator-a": [1]}
    [death] = place.death_records("orchestrator-a")
    assert "no space left on the disk of its worktree or output" in death["why"]
    place.check("a", "b")
