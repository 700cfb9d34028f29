"""Set-ups: made once, copied for each worktree, nothing of one branch in another; and those that fail, hang or ask."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from support import Node, Place, git


def commit(name: str, script: str) -> Node:
    """Return a node whose command needs nothing outside of its sandbox."""
    return Node(name, command=f'set -e; {script}; echo {name} > {name}-"$GARRISON_RUN".txt')


def confine_wholly(place: Place) -> None:
    """Let commands write nothing in the test's own folders."""
    (place.home / "config.toml").write_text('[sandbox]\nnetwork = "open"\n')


def stamps(place: Place, run: str) -> set[str]:
    return {path.read_text().splitlines()[0] for path in place.home.glob(f"runs/{run}/**/output.log")}


def test_a_set_up_runs_once_for_all_worktrees_and_again_when_asked(place: Place) -> None:
    confine_wholly(place)
    setup = ("mkdir -p node_modules .venv ~/.cache/foo; date +%s%N > node_modules/stamp; touch ~/.cache/foo/f; "
             "echo '*' > .venv/.gitignore")
    take = ("cat node_modules/stamp; mkdir ~/.cache/bar; rm -r node_modules ~/.cache/foo; echo x > .venv/installed; "
            "git status --porcelain | grep venv && exit 1")
    place.commit("ignore", {".gitignore": "node_modules/\n"})
    both, one = place.graph(commit("a", take), commit("b", take)), place.graph(commit("a", take), name="one")
    gate = "test -s node_modules/stamp && rm -r node_modules && mkdir ~/.cache/baz"
    for run, graph, more in (("r1", both, ()), ("r2", one, ()), ("r3", one, ("--fresh-setup",))):
        place.commit("of the user", {"of-the-user": run})  # the gate has not passed on this tree yet
        place.run(graph, run, "--setup", setup, *more, gate=gate)
    assert len(stamps(place, "r1")) == 1
    assert stamps(place, "r2") == stamps(place, "r1")
    assert len(stamps(place, "r3") | stamps(place, "r1")) == 2
    assert "set-up: kept from" in (place.root / "out").read_text()
    assert ".venv" not in git(place.repo, "ls-tree", "--name-only", "main")
    shown = json.loads(place.command("cost", "--disk", "--json").stdout)
    assert {(each["what"], each["removable"]) for each in shown if each["bytes"]} == {
        ("set-up", True), ("records", False), ("gate slots and other", False)}
    (place.home / "config.toml").write_text('[limits]\ndisk = "1 kB"\n')
    said = place.command("up").stderr
    assert "disk: removed 2 kept set-ups, " in said and "more than [limits] disk (1 kB)" in said
    assert not [each for each in json.loads(place.command("cost", "--disk", "--json").stdout) if each["removable"]]


def test_a_branch_that_changes_its_set_up_reaches_no_other_node_and_no_gate(place: Place) -> None:
    """It changes only the script that set-up runs; its lock files are those of the target."""
    confine_wholly(place)
    place.commit("set-up", {"setup.sh": "mkdir -p node_modules; echo good > node_modules/x\n",
                            ".gitignore": "node_modules/\n"})
    evil = "echo 'mkdir -p node_modules; echo evil > node_modules/x' > setup.sh; sh setup.sh; touch reject"
    is_good = 'test "$(cat node_modules/x)" = good'
    graph = place.graph(commit("evil", evil), commit("good", is_good), commit("later", f"sleep 2; {is_good}"))
    gate = 'test ! -e reject && test "$(cat node_modules/x)" = good'
    place.run(graph, "r1", "--setup", "sh ./setup.sh", "--max-rework", "1", gate=gate, code=1)
    assert {node["status"] for node in place.nodes().values()} == {"validated", "failed"}
    assert git(place.repo, "ls-tree", "--name-only", "main", "--", "good-r1.txt", "later-r1.txt").split() \
        == ["good-r1.txt", "later-r1.txt"]
    assert git(place.repo, "ls-tree", "--name-only", "main", "--", "reject") == ""
    left = place.folder.glob("**/setups/*/tree/node_modules/x")
    assert [path.read_text() for path in left] == ["good\n"]


def test_kills_while_a_layer_is_made_and_used_leave_no_half_of_one(place: Place) -> None:
    """Nodes set their worktrees up themselves, as there was no preflight; one makes the layer, the other waits."""
    confine_wholly(place)
    place.commit("ignore", {".gitignore": "node_modules/\n"})
    files = "for n in $(seq 300); do echo $n > node_modules/$n; done"
    setup = f"mkdir -p node_modules; {files}; sleep 1; echo whole > node_modules/whole"
    check = 'test "$(cat node_modules/whole)" = whole; test "$(ls node_modules | wc -l)" = 301; rm -r node_modules'
    graph = place.graph(commit("a", f"{check}; sleep 1"), commit("b", check))
    child = place.launch(graph, "r1", "--land", "none", "--setup", setup, gate="true")
    for incarnation in (1, 2):
        place.kill("runner-a", incarnation=incarnation)
        place.kill("runner-b", incarnation=incarnation)
    place.kill("orchestrator-a")
    assert place.finish(child) == 0, place.logs()
    kept = list(place.folder.glob("**/setups/*/setup.json"))
    assert len(kept) == 1
    assert (kept[0].parent / "tree/node_modules/whole").read_text() == "whole\n"
    assert not list(place.folder.glob("**/setups/.new-*"))


WORK = "echo work > work.txt; git add work.txt; git commit -qm Work"


def run(place: Place, setup: str, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a task with this set-up, at default settings."""
    return place.command("run", "do it", "--command", WORK, "--setup", setup, "--gate", "true", *words, cwd=place.repo,
                         **env)


@pytest.mark.parametrize(("setup", "told"), [
    ("echo no such package; exit 3", "failed (exit 3); fix the set-up or the target first (log: "),
    ("printf 'Overwrite? [y/N] '; read answer", "failed (exit 1); fix the set-up or the target first (log: "),
    ("echo x > /etc/garrison-was-here", "add other folders to write = [...] in [sandbox.setup] of config.toml"),
    ("echo beginning; sleep 60", "ran longer than 1 s and was stopped; GARRISON_SETUP_TIMEOUT sets the limit")])
def test_a_set_up_that_fails_is_one_line_with_a_remedy_and_leaves_nothing(place: Place, setup: str, told: str) -> None:
    before = git(place.repo, "for-each-ref"), git(place.repo, "status", "--porcelain")
    ended = run(place, setup, GARRISON_SETUP_TIMEOUT="1" if "sleep" in setup else "60")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr
    [line] = [line for line in ended.stderr.splitlines() if line.startswith("garrison: ")]
    assert f"on the bare target the set-up `{setup}` " in line
    assert told in ended.stderr
    if "printf" in setup:
        assert "Overwrite? [y/N]" in ended.stderr.splitlines()[-1]
    assert (git(place.repo, "for-each-ref"), git(place.repo, "status", "--porcelain")) == before
    assert not Path("/etc/garrison-was-here").exists()
    assert len(git(place.repo, "worktree", "list").splitlines()) == 1


def test_init_names_its_own_option_for_a_set_up_that_takes_too_long(place: Place) -> None:
    ended = place.command("init", "--setup", "sleep 60", "--gate", "true", "--timeout", "1", cwd=place.repo)
    assert ended.returncode == 1
    assert "the set-up `sleep 60` ran longer than 1 s and was stopped; --timeout sets the limit" in ended.stderr


def test_lock_files_that_are_not_files_stop_nothing(place: Place) -> None:
    (place.repo / "package-lock.json").mkdir()
    (place.repo / "package-lock.json/x").touch()
    (place.repo / "uv.lock").symlink_to("/proc/self/mem")
    (place.repo / "yarn.lock").symlink_to("yarn.lock")
    (place.repo / "Cargo.lock").write_bytes(os.urandom(3000))
    git(place.repo, "add", "-A")
    git(place.repo, "commit", "-qm", "Lock files")
    ended = run(place, "echo made > made", "--setup-key", "package-lock.json", "--setup-key", "uv.lock", "--setup-key",
                "absent.lock", "--setup-key", "Cargo.lock")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    notes = [line for line in ended.stderr.splitlines() if line.startswith("note: ")]
    unused = "so its changes do not make set-up run again; correct setup_key"
    assert notes == [f"note: package-lock.json: it is not a file, or a link out of the repository, {unused}",
                     f"note: uv.lock: it is not a file, or a link out of the repository, {unused}",
                     f"note: absent.lock: it is not in this commit, {unused}"]
    assert git(place.repo, "show", "main:work.txt") == "work"


@pytest.mark.slow
def test_a_set_up_may_leave_200_000_files(place: Place) -> None:
    make = ("import os\nos.mkdir('modules')\nfor folder in range(200):\n    os.mkdir(f'modules/{folder}')\n"
            "    for name in range(1000):\n        open(f'modules/{folder}/{name}', 'w').close()\n")
    place.commit("Set-up", {"make.py": make})
    child = place.begin("run", "do it", "--command", WORK, "--setup", "python3 make.py", "--gate", "true",
                        "--acceptance", "test -e modules/199/999", "--target-dir", place.repo)
    assert child.wait(500) == 0, place.logs()
    assert git(place.repo, "diff", "--name-only", "main^", "main") == "work.txt"
