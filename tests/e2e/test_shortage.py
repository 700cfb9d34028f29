"""A machine without processes, memory or descriptors for another start: told, waited for, and no node fails of it."""

from __future__ import annotations

import contextlib
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
    child = place.launch(place.graph(Node("z"), Node("a", after=("z",), before=place.hold("a"))))
    place.wait_until_held("a")
    with without_descriptors(place, "launch"), without_descriptors(place, "processor-crew", left=2):
        place.release("a")
        wait_for("status tells what holds the queue up",
                 lambda: "Too many open files" in place.command("status").stdout)
        wait_for("the launcher tells it", lambda: "Too many open files" in (place.root / "out").read_text())
    finish(place, child, "z", "a")
    assert "Too many open files" not in place.command("status").stdout


@contextlib.contextmanager
def without_descriptors(place: Place, *stems: str, left: int = 1) -> Iterator[None]:
    """Leave these processes about `left` descriptors; none of them may die of it."""
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
    """Let the run end; everything landed, and nobody died or wrote a traceback."""
    assert place.finish(child) == 0, place.logs()
    assert not place.deaths()
    place.check(*names)
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
