"""A machine without processes, memory or descriptors for another start: told, waited for, and no node fails of it."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import PROGRAM, Node, Place, wait_for

PIDS = Path("/sys/fs/cgroup/pids")


def test_a_guardian_and_a_runner_without_descriptors_wait_and_lose_nothing(place: Place) -> None:
    place.env |= {"GARRISON_RESCAN": "0.3"}
    child = place.launch(place.graph(Node("a", before=place.hold("a")), Node("b", after=("a",))))
    place.wait_until_held("a")
    pids = {stem: place.pid(stem) for stem in ("guardian-crew", "runner-a")}
    limits = {}
    for pid in pids.values():
        highest = max(int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir())
        limits[pid] = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (highest + 1, limits[pid][1]))
    place.release("a")
    for stem in pids:
        log = place.home / f"runs/r1/layers/{stem}.log"
        wait_for(f"{stem} tells it", lambda log=log: "Too many open files" in log.read_text())
    assert {stem: place.pid(stem) for stem in pids} == pids, "somebody died of it"
    for pid, limit in limits.items():
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limit)
    assert place.finish(child) == 0, place.logs()
    assert not place.deaths()
    place.check("a", "b")
    assert "Traceback" not in place.logs()


@pytest.fixture
def group(place: Place) -> Iterator[Path]:
    """A pids cgroup of the test's own."""
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
    with (place.root / "out").open("ab") as output:
        child = subprocess.Popen(
            ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh", *PROGRAM,
             *place.launch_arguments(graph, "r1")],
            env=place.env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
    place.started.append(child)
    place.wait_until_held("a")
    (group / "pids.max").write_text((group / "pids.current").read_text())
    place.release("a")
    wait_for("it is told", lambda: "no room for another process: its cgroup allows only" in
             (place.root / "out").read_text())
    assert "failed" not in {node["status"] for node in place.nodes().values()} and place.status() == "running"
    (group / "pids.max").write_text("max")
    assert place.finish(child) == 0, place.logs()
    place.check("a", "b", "c", history=False)
