"""Foreign things: the caller's environment, other processes, tmux servers and branches, and the edits of the user."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support import PYTHON, Node, Place, Process, git, processes, read_process, wait_for

SECRETS = {"API_TOKEN": "hunter2-token", "AWS_SECRET_ACCESS_KEY": "hunter2-aws", "CLAUDECODE": "1",
           "CLAUDE_CODE_SSE_PORT": "4711", "VIRTUAL_ENV": "/somewhere/else", "GARRISON_LIFE": "another:home:runner-x#9"}


@pytest.fixture
def decoys(places: Callable[..., Place]) -> Iterator[Place]:
    """Yield a place next to a user's tmux server and processes that look like garrison's."""
    place = places(terminal="tmux")
    theirs = place.folder.with_name(f"{place.folder.name}-theirs")
    theirs.mkdir()
    tmux = ["tmux", "-S", str(theirs / "socket"), "-f", "/dev/null"]
    env = {"PATH": os.environ["PATH"], "HOME": str(theirs), "TERM": "screen"}
    for name in ("orchestrator-a@r1", "orchestrator-a", "garrison"):
        subprocess.run([*tmux, "new-session", "-d", "-s", name, "sleep 1000"], env=env, check=True)
    subprocess.run([*tmux, "set", "-g", "destroy-unattached", "off"], env=env, check=True)
    alike = [subprocess.Popen(["bash", "-c", f"exec -a '{argv0}' sleep 1000"], start_new_session=True,
                              env={**env, "GARRISON_LIFE": life}) for argv0, life in (
        (f"{PYTHON} -P -m garrison.processes.main runner --run r1 --name a --incarnation 1", ""),
        ("garrison.processes.main guardian --run r1 --name crew --incarnation 1", "/other/home:r1:guardian-crew#1"),
        ("tmux -S /other/home/run/tmux", "/other/home:r1:orchestrator-a#1"))]
    place.env["TMUX"] = f"{theirs}/socket,1,0"
    yield place
    try:
        assert [one.poll() for one in alike] == [None] * 3, "a decoy was killed"
        listed = subprocess.run([*tmux, "list-sessions", "-F", "#{session_name} #{pane_pid}"], env=env, check=True,
                                capture_output=True, text=True).stdout
        assert [line.split()[0] for line in listed.splitlines()] == ["garrison", "orchestrator-a", "orchestrator-a@r1"]
    finally:
        subprocess.run([*tmux, "kill-server"], env=env, check=False)
        for one in alike:
            one.kill()
            one.wait()


def test_tmux_panes_decoys_and_a_dead_server(decoys):
    """A pane has its own environment; the death of a tmux server costs each of its orchestrators one incarnation."""
    place = decoys
    for name in ("garrison-x", "garrison/other/a", "garrison/r1x/a"):
        git(place.repo, "branch", name)
    before = git(place.repo, "for-each-ref", "refs/heads/garrison*")
    graph = place.graph(*(Node(name, before=place.hold(name)) for name in ("a", "b")))
    child = place.launch_until("a", graph, "r1", "--max-agents", "2", **SECRETS)
    place.wait_until_held("b")
    check_environment(place)

    servers = our_servers(place)
    assert len(servers) == 1
    os.kill(servers[0], signal.SIGKILL)
    for name in ("a", "b"):
        place.pid(f"orchestrator-{name}", incarnation=2)
        place.wait_until_held(name)
    assert servers != our_servers(place)

    place.kill("runner-a", "orchestrator-a", incarnation=1)
    place.wait_until_held("a")
    place.release_to_end(child, "a", "b")
    place.check("a", "b")
    assert place.identity("orchestrator-a")["incarnation"] == 3
    assert git(place.repo, "for-each-ref", "refs/heads/garrison*") == before
    wait_for("our server is gone", lambda: not our_servers(place))


def our_servers(place: Place) -> list[int]:
    """Return the pids of tmux servers on a socket below the place."""
    return [one.pid for one in processes() if is_tmux(one) and f"{place.folder}/" in one.argv]


def is_tmux(one: Process) -> bool:
    return one.argv.partition(" ")[0].endswith("tmux")


def check_environment(place: Place) -> None:
    """Check that each process of the run has the marker of its own incarnation, and no secret of the caller."""
    for stem in ("launch", "guardian-crew", "runner-a", "runner-b", "orchestrator-a", "orchestrator-b"):
        layer = read_process(place.pid(stem))
        assert layer.environ["GARRISON_LIFE"] == f"{place.home}:r1:{stem}#1"
    for one in place.living_processes():
        assert not [value for value in one.environ.values() if "hunter2" in value], one
        assert not {"CLAUDECODE", "CLAUDE_CODE_SSE_PORT", "VIRTUAL_ENV", "AWS_SECRET_ACCESS_KEY"} & set(one.environ)
        if not is_tmux(one):
            assert "theirs" not in one.environ.get("TMUX", ""), one
    for name in ("a", "b"):
        agents = [one for one in place.living_processes() if one.environ.get("GARRISON_NODE") == name]
        assert {one.environ["GARRISON_LIFE"] for one in agents} == {f"{place.home}:r1:orchestrator-{name}#1"}
        assert {one.environ["GARRISON_TREE"] for one in agents} == place.tree_paths(name)
        assert len(agents) >= 2, "the orchestrator and its agent"
    server = read_process(our_servers(place)[0])
    assert "GARRISON_LIFE" not in server.environ


def test_the_users_edits_stay_and_block_only_what_touches_them(place):
    """Edits of other paths do not keep a branch from landing; edits of a landed path do, until they are stashed."""
    repo = place.repo
    (repo / "notes.txt").write_text((repo / "notes.txt").read_text().replace("line 3\n", "my line 3\n"))
    (repo / "staged.txt").write_text("staged by the user\n")
    git(repo, "add", "staged.txt")
    (repo / "scratch.txt").write_text("untracked\n")
    (repo / "calc.py").write_text("# my edit\n" + (repo / "calc.py").read_text())
    edits = git(repo, "status", "--porcelain").splitlines()
    change = "echo 'def sub(a, b): return a - b' >> calc.py"
    child = place.launch(place.graph(Node("free"), Node("touching", before=change)), "r1", "--max-agents", "2")
    wait_for("the free node is merged", lambda: place.has_landed("free"))
    blocked = wait_for("the other one is blocked", lambda: blocked_paths(place))
    assert blocked == ["calc.py"]
    assert (repo / "free-r1.txt").read_text() == "free\n", "the checkout moves along"
    assert git(repo, "status", "--porcelain").splitlines() == edits
    assert (repo / "calc.py").read_text().startswith("# my edit\n")
    status = place.command("status", "r1")
    told = status.stdout.rpartition("waits for you: ")[2]
    assert "calc.py" in told and told.endswith("then it continues\n"), "the path, and what to do"

    git(repo, "stash", "push", "-q", "--", "calc.py")
    assert place.finish(child) == 0, place.logs()
    assert "sub" in (repo / "calc.py").read_text()
    git(repo, "stash", "pop")
    place.edits = git(repo, "status", "--porcelain")
    assert place.edits.splitlines() == edits
    assert "my line 3" in (repo / "notes.txt").read_text()
    assert (repo / "calc.py").read_text().startswith("# my edit\n")
    place.check("free", "touching")


def blocked_paths(place: Place) -> list[str]:
    """Return the files that keep an entry from landing, as `merge-queue list` shows them."""
    listed = place.command("merge-queue", "list", "--repo-root", place.repo, "--json")
    entries = json.loads(listed.stdout)["entries"]
    return [path for entry in entries if entry["status"] == "landing_blocked" for path in entry["files"]]


def test_an_editable_install_of_the_checkout_is_refused(place):
    """A gate that imports the project from the user's checkout would pass on a broken tree; in a sandbox, where the
    tree is at the checkout's path, it would not."""
    place.use_mode("none")
    venv = place.root / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    site = next((venv / "lib").glob("python3*/site-packages"))
    (site / "__editable__.calc.pth").write_text(f"{place.repo}\n")
    (place.repo / "tests").mkdir()
    graph = place.graph(Node("a"))
    arguments = place.launch_arguments(graph, "r1", gate=f"{venv}/bin/python -c 'import calc'")
    done = place.command(*arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert str(place.repo) in done.stderr
    assert "--setup" in done.stderr
    assert "--allow-foreign-imports" in done.stderr
    assert not Path(place.home / "runs").exists()
    allowed = place.command(*arguments, "--allow-foreign-imports", "--dry-run")
    assert allowed.returncode == 0, allowed.stderr
