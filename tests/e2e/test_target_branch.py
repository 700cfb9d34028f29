"""The target while a run is stopped: moved on, rewritten, gone, checked out elsewhere; and a disk that is full."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from support import DEADLINE, Node, Place, checkout_in, git, make_repository, wait_for


def stopped(place: Place, graph: Path, run: str, node: str) -> None:
    """Launch a run onto main, and stop it once its agent works."""
    child = place.launch(graph, run, "--base", "main")
    place.wait_until_held(node)
    child.send_signal(signal.SIGTERM)
    assert place.finish(child, run) == 130, place.logs()


@pytest.mark.slow
def test_a_stopped_run_is_resumed_though_its_target_moved_but_not_if_it_is_gone_or_rewritten(place):
    """`main` is checked out in another worktree of the user, which moves along."""
    git(place.repo, "checkout", "-qb", "mine")
    git(place.repo, "worktree", "add", "-q", str(place.root / "elsewhere"), "main")
    elsewhere = place.root / "elsewhere"
    graph = place.graph(Node("a", command=f"echo a > a.txt; {place.hold('a')}"))
    stopped(place, graph, "r1", "a")
    git(elsewhere, "commit", "-q", "--allow-empty", "-m", "moved on")
    moved = git(place.repo, "rev-parse", "main")
    git(elsewhere, "checkout", "-q", "--detach")
    git(place.repo, "branch", "-m", "main", "away")
    gone = place.command("resume", "r1")
    assert (gone.returncode, "no longer has the branch main; restore it" in gone.stderr) == (1, True), gone.stderr
    git(place.repo, "branch", "-m", "away", "main")
    git(elsewhere, "checkout", "-q", "main")
    place.release("a")
    assert place.finish(place.resume("r1")) == 0, place.logs()
    assert git(place.repo, "rev-parse", "main^1") == moved
    assert (elsewhere / "a.txt").read_text() == "a\n"
    assert git(elsewhere, "status", "--porcelain") == git(place.repo, "status", "--porcelain") == ""

    again = place.graph(Node("b", command=f"echo b > b.txt; {place.hold('b')}"), name="again")
    stopped(place, again, "r2", "b")
    git(elsewhere, "commit", "-q", "--amend", "--allow-empty", "-m", "rewritten")
    rewritten = git(place.repo, "rev-parse", "main")
    refused = place.command("resume", "r2")
    assert (refused.returncode, "pass --accept-rewritten-target" in refused.stderr) == (1, True), refused.stderr
    place.release("b")
    assert place.finish(place.begin("resume", "r2", "--accept-rewritten-target"), "r2") == 0, place.logs()
    assert git(place.repo, "rev-parse", "main^1") == rewritten
    assert git(place.repo, "show", "main:b.txt") == "b"


def test_a_run_waits_with_a_message_while_its_target_has_another_name(place):
    """`a` is to land and `b` to start then."""
    graph = place.graph(Node("a", before=place.hold("a")), Node("b", after=("c",)), Node("c", before=place.hold("c")))
    child = place.launch(graph)

    def status() -> dict[str, Any]:
        return json.loads(place.command("status", "r1", "--json").stdout)

    place.wait_until_held("a")
    place.wait_until_held("c")
    git(place.repo, "branch", "-m", "main", "away")
    place.release("a", "c")
    waits = wait_for("status shows it", lambda: [wait for wait in status()["waits"] if "is gone from" in wait["text"]])
    assert [wait["kind"] for wait in waits] == ["hindered"], "once, though two nodes wait"
    assert "the target branch main is gone from" in place.command("status", "r1").stdout.partition("waits for you")[2]
    git(place.repo, "branch", "-m", "away", "main")
    assert place.finish(child) == 0, place.logs()
    assert status()["landed"] == 3


FULL = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
import test_target_branch
test_target_branch.on_a_small_disk(Path(sys.argv[1]))
"""


def on_a_small_disk(root: Path) -> None:
    """Launch on a full disk, fill it during a run, make room, forbid writing; runs in a mount namespace of its own."""
    disk = root / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(disk)], check=True)
    make_repository(disk / "repo")
    checkout_in(root).parent.mkdir(parents=True)
    checkout_in(root).symlink_to(disk / "repo")
    place = Place(root)
    try:
        begin = place.launch_arguments(place.graph(Node("a")), "r1", repo=disk / "repo")
        _fill(disk)
        full = place.command(*begin)
        assert (full.returncode, "No space left on device" in full.stderr) == (1, True), full.stderr
        (disk / "fill").unlink()
        graph = place.graph(Node("a", command=f"echo a > a.txt; {place.hold('x')}"))
        child = place.begin(*place.launch_arguments(graph, "r2", repo=disk / "repo"))
        place.wait_until_held("x")
        _fill(disk)
        place.release("x")
        log = place.home / "runs/r2/layers/orchestrator-a.log"
        wait_for("the agent's life meets the full disk", lambda: "No space left" in log.read_text())
        assert log.read_text().count("No space left") < 10, "it was tried without a pause"
        (disk / "fill").unlink()
        assert place.finish(child, "r2") == 0, place.logs()
        assert git(place.repo, "show", "main:a.txt") == "a"
        assert not place.deaths("r2"), "no process died of it"
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        told = place.command(*begin)
        assert (told.returncode, "is not writable" in told.stderr) == (1, True), told.stderr
    finally:
        left = place.kill_rest()
    assert not left, left


def _fill(disk: Path) -> None:
    with suppress(OSError), (disk / "fill").open("wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass


@pytest.mark.slow
def test_a_full_disk_loses_no_work_and_a_launch_is_refused_where_it_could_not_land(tmp_path):
    if os.geteuid() != 0 or shutil.which("unshare") is None or subprocess.run(
            ["unshare", "-m", "true"], check=False, capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root and `unshare -m`")
    tests = Path(__file__).parents
    done = subprocess.run(["unshare", "-m", sys.executable, "-c", FULL, str(tmp_path), str(tests[0]), str(tests[1])],
                          capture_output=True, text=True, check=False, timeout=DEADLINE)
    assert done.returncode == 0, done.stdout + done.stderr
