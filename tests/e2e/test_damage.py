"""Damage under a living run: records that are damaged, a home, repository, branch or terminal that goes away."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from screen_support import Screen
from support import DEADLINE, PROGRAM, Node, Place, git, make_repository, stat, wait_for


def no_traceback(place: Place) -> None:
    logs = [place.root / "out", *place.home.glob("runs/*/layers/*.log")]
    assert not [path for path in logs if path.exists() and "Traceback" in path.read_text()], place.logs()


def held(place: Place, attributes: str = "") -> subprocess.Popen[bytes]:
    """Launch `a -> b`, whose second node has these attributes, and wait until the first is at work."""
    place.env |= {"GARRISON_RESCAN": "0.3", "GARRISON_DAMAGE_PATIENCE": "0.3"}
    child = place.launch(place.graph(Node("a", before=place.hold("a")),
                                     Node("b", after=("a",), attributes=attributes)))
    place.wait_until_held("a")
    return child


def test_damaged_records_are_rebuilt_under_their_run(place: Place) -> None:
    """Each was seen to end the run. The launcher rewrites its own record, and the runners know it alive by its lock; a
    hook that was rolled back "cannot go from impl_complete to merged"."""
    child = held(place, "approve=true")
    damaged = [next(place.home.glob("merge-queue/*/*/journal.jsonl")), place.home / "hooks/runner-a@r1.json",
               place.home / "identities/runner-a@r1.json"]
    launcher = place.home / "identities/launch@r1.json"
    before = json.loads(launcher.read_bytes())
    for path in damaged:
        path.write_bytes(b"\xff garbage\n")
    launcher.write_bytes(b"{")
    wait_for("its owner rewrites it", lambda: launcher.read_bytes() != b"{")
    assert json.loads(launcher.read_bytes()) == before
    place.release("a")
    wait_for("the work of b waits", lambda: place.hook("runner-b").get("phase") == "validating")
    kept = [*(place.home / "quarantine").glob("*"), *damaged[0].parent.glob("damaged-*")]
    assert [one.read_bytes() for one in kept].count(b"\xff garbage\n") == 3, "the damaged bytes are kept"
    path = place.home / "hooks/runner-b@r1.json"
    hook = json.loads(path.read_text())
    path.write_text(json.dumps({**hook, "phase": "impl_complete", "phase_history": hook["phase_history"][:-1]}))
    assert place.command("review", "b", "--approve").returncode == 0
    assert place.finish(child) == 0, place.logs()
    place.check("a", "b", history=False)
    no_traceback(place)


@pytest.mark.slow  # one of many ways in which a record is damaged
def test_a_directory_in_place_of_a_result_fails_its_run_with_that_reason(place: Place) -> None:
    child = held(place)
    path = place.home / "runs/r1/nodes/a/1/result.json"
    path.mkdir()
    place.release_to_end(child, "a", code=1)
    assert f"cannot use {path}: is a directory" in place.logs().rpartition("run failed")[2]
    assert path.is_dir()
    no_traceback(place)


@pytest.mark.parametrize("terminal", [pytest.param("process", marks=pytest.mark.slow), "tmux"])
def test_a_home_removed_under_a_run_stops_it_and_is_not_made_again(places: Callable[..., Place], terminal: str) -> None:
    """Once by hand, once by `git clean -fdx` in the checkout whose `state/` it is."""
    place = places(terminal=terminal)
    checkout = place.user / "garrison"
    if terminal == "tmux":
        place.home = checkout / "state"
        place.home.mkdir(parents=True, mode=0o700)
        place.configure()
        place.env["GARRISON_HOME"] = str(place.home)
        git(checkout, "init", "-q")
        (checkout / ".git/info/exclude").write_text("state/\n")
    child = held(place)
    wait_for("the home is removed", lambda: _clean(checkout) if terminal == "tmux" else shutil.rmtree(
        place.home, ignore_errors=True) or not place.home.exists())
    assert child.wait(DEADLINE) == 1, place.logs()
    wait_for("no process is left, nor the tmux server", lambda: not place.living_processes())
    assert not place.home.exists()
    assert "was removed or replaced; stopping gracefully" in (place.root / "out").read_text()
    no_traceback(place)
    status = place.command("status")
    assert (status.returncode, status.stdout, status.stderr.count("\n")) == (0, "", 1)
    place.home.mkdir(mode=0o700)
    place.configure()
    taken = place.command(*place.launch_arguments(place.graph(Node("a")), "r1"))
    assert taken.returncode == 1 and "`--run r1-2` is free" in taken.stderr
    again = place.command(*place.launch_arguments(place.graph(Node("a")), "r1-2"))
    assert again.returncode == 0, again.stderr


def _clean(checkout: Path) -> bool:
    """Run `git clean -fdx`; return whether it removed all, though beats may write at the same time."""
    git(checkout, "clean", "-fdxq", check=False)
    return not (checkout / "state").exists()


@pytest.mark.slow
def test_a_run_waits_for_its_repository_and_continues_where_that_was_moved(place: Place) -> None:
    """Its agent ends before that; the command that `status` names is typed with the folder."""
    child = held(place)
    old, place.repo = place.repo, place.repo.rename(place.user / "elsewhere")
    place.release("a")
    told = wait_for("the user is told", lambda: re.search(
        r"`garrison (resume r1 --target-dir) DIR`", place.command("status", "r1").stdout))
    refused = place.command(*told[1].split(), place.user)
    assert refused.returncode == 1 and "is not in a git repository" in refused.stderr, refused
    other = place.user / "other"
    make_repository(other)
    refused = place.command(*told[1].split(), other)
    assert refused.returncode == 1 and "it lacks the commit" in refused.stderr, refused
    done = place.command(*told[1].split(), place.repo)
    assert done.returncode == 0, done.stdout + done.stderr
    assert child.wait(DEADLINE) == 130 and not old.exists()
    assert place.status() == "done", place.logs()
    place.check_landed("a", "b")
    place.check_nothing_left()
    assert place.command("verify", "r1").returncode == 0
    no_traceback(place)


@pytest.mark.slow
def test_a_run_waits_for_its_repository_and_its_target_branch_to_come_back(place: Place) -> None:
    child = held(place)
    place.repo.rename(place.root / "away")
    wait_for("the user is told", lambda: f"waits for you: the repository is no longer in {place.repo}; move it back"
             in place.command("status", "r1").stdout)
    (place.root / "away").rename(place.repo)

    git(place.repo, "checkout", "-q", "-b", "other")
    tip = git(place.repo, "rev-parse", "main")
    git(place.repo, "branch", "-D", "main")
    place.release("a")
    wait_for("the user is told", lambda: "the target branch main is gone from" in (place.root / "out").read_text())
    git(place.repo, "branch", "main", tip)
    assert place.finish(child) == 0, place.logs()
    place.check("a", "b", history=False)
    no_traceback(place)


@pytest.mark.slow
def test_another_container_leaves_a_run_alone_with_a_message(place: Place) -> None:
    inside = ["unshare", "-pf", "--mount-proc"]
    if os.geteuid() != 0 or subprocess.run([*inside, "true"], check=False, capture_output=True).returncode:
        pytest.skip("a pid namespace of one's own needs root")
    child = held(place)

    def there(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*inside, *PROGRAM, *words], env=place.env, cwd=place.root, capture_output=True,
                              text=True, check=False, stdin=subprocess.DEVNULL, timeout=DEADLINE)

    assert there("status", "r1").stdout.count("in another pid namespace") == 4
    for words in (("stop", "r1"), ("resume", "r1")):
        refused = there(*words)
        assert refused.returncode == 1
        assert "in another pid namespace; follow or stop the run there" in refused.stderr
    assert there("up").stdout == ""
    place.release_to_end(child, "a")
    place.check("a", "b")


@pytest.mark.parametrize("how", ["thrice", "closed", *(pytest.param(how, marks=pytest.mark.slow)
                                                       for how in ("once", "TERM"))])
def test_a_preflight_that_is_interrupted_leaves_nothing(place: Place, how: str) -> None:
    terminal = Screen(place, *place.launch_arguments(
        place.graph(Node("a")), "r1", gate=f"touch {place.root}/at-gate; sleep 1000"))
    place.wait_until_held("gate")
    if how == "TERM":
        os.kill(terminal.pid, signal.SIGTERM)
    elif how == "closed":
        terminal.close()
    else:
        terminal.type("\x03" * {"once": 1, "thrice": 3}[how])
    code, shown = terminal.end()
    assert code == 130 or how == "closed", shown
    wait_for("the gate has ended", lambda: not place.living_processes())
    assert not list(place.home.glob("runs/*"))
    assert len(git(place.repo, "worktree", "list").splitlines()) == 1


@pytest.mark.slow
def test_ctrl_c_again_and_again_and_a_terminal_that_closes(place: Place) -> None:
    """A second Ctrl-C ends an agent that ignores the first; a closed terminal lets the run continue, and its log tells.

    The first is typed while the launcher still starts, before its event loop.
    """
    place.env |= {"GARRISON_STOP_GUARDIAN": "60"}
    graph = place.graph(Node("a", before=f"trap '' TERM; {place.hold('a')}"))
    terminal = Screen(place, *place.launch_arguments(graph, "r1"))
    terminal.until("run r1: 1 node onto")
    place.pid("launch")  # until then Ctrl-C ends the command that becomes the launcher
    terminal.type("\x03")
    terminal.until("stopping run r1 gracefully")
    assert terminal.end()[0] == 130
    assert place.status() == "stopped"

    (place.root / "at-a").unlink(missing_ok=True)  # the agent may have come so far before the stop
    terminal = Screen(place, "resume", "r1")
    place.wait_until_held("a")
    terminal.type("\x03")
    terminal.until("stopping run r1 gracefully")
    terminal.type("\x03\x03")
    assert terminal.end()[0] == 130
    assert place.status() == "stopped"
    assert place.journal()[-1]["data"].get("reason") == "stopped by the user"
    wait_for("no process is left", lambda: not place.living_processes())

    terminal = Screen(place, "resume", "r1")
    place.wait_until_held("a")
    terminal.close()
    log = place.home / "runs/r1/layers/launch.log"
    wait_for("the launcher detaches", lambda: log.exists() and "detached, run r1 continues" in log.read_text())
    assert stat(terminal.pid)
    place.release("a")
    assert terminal.end()[0] == 0, place.logs()
    place.check("a", history=False)
    for words, code, message in ((("resume", "r1"), 0, "run r1 is done"),
                                 (("stop", "r1"), 0, "run r1: already done; nothing to stop")):
        done = place.command(*words)
        assert (done.returncode, len((done.stdout + done.stderr).splitlines())) == (code, 1)
        assert message in done.stdout + done.stderr
    again = place.command(*place.launch_arguments(graph, "r1"))
    assert (again.returncode, "run r1 exists already" in again.stderr) == (1, True)
    no_traceback(place)
