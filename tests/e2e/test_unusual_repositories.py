"""Repositories and git configurations as people have them: everything at once lands, or is refused in one line."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from garrison.cli.main import main
from support import Node, Place, git, make_repository

CONFIG = """
[commit]
    gpgsign = true
    verbose = true
[tag]
    gpgsign = true
[gpg]
    program = false
[merge]
    ff = only
    conflictStyle = zdiff3
    verifySignatures = true
[user]
    useConfigOnly = true
[pull]
    rebase = true
[rerere]
    enabled = true
[branch]
    autoSetupMerge = always
    autoSetupRebase = always
[core]
    fsmonitor = true
    autocrlf = input
    safecrlf = true
    quotePath = true
    pager = false
    editor = false
    untrackedCache = true
    splitIndex = true
[index]
    version = 4
[diff]
    external = false
    noprefix = true
    ignoreSubmodules = all
[color]
    ui = always
[column]
    ui = always
[status]
    showUntrackedFiles = no
    short = true
    branch = true
[log]
    showSignature = true
[format]
    pretty = fuller
[submodule]
    recurse = true
[init]
    defaultBranch = trunk
[alias]
    status = !false
"""
"""What is never asked for in one file, but each of it somewhere."""


def hook(place: Place, name: str) -> None:
    folder = place.root / "husky"
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("#!/bin/sh\necho the hook says no >&2; exit 1\n")
    (folder / name).chmod(0o755)
    git(place.repo, "config", "core.hooksPath", str(folder))


@pytest.fixture
def wild(place: Place) -> Place:
    """A sparse checkout with a submodule, failing hooks, no identity, and a user's configuration that has it all."""
    (place.user / ".gitconfig").write_text(CONFIG)
    make_repository(place.user / "lib")
    for name in ("docs/a.txt", "src/b.txt"):
        (place.repo / name).parent.mkdir()
        (place.repo / name).write_text(f"{name}\n")
    (place.repo / ".gitignore").write_text(".env\n")
    (place.repo / ".worktreeinclude").write_text(".env\n")
    (place.repo / ".env").write_text("KEY=1\n")
    git(place.repo, "-c", "protocol.file.allow=always", "submodule", "add", "-q", "../lib", "lib")
    git(place.repo, "add", "-A")
    git(place.repo, "commit", "-qm", "More")
    git(place.repo, "sparse-checkout", "set", "src")
    for name in ("user.name", "user.email"):
        git(place.repo, "config", "--unset", name)
    for name in ("pre-commit", "commit-msg", "post-checkout", "post-commit", "post-index-change", "pre-merge-commit"):
        hook(place, name)
    (place.user / "lib").rename(place.user / "lib-offline")
    with (place.home / "config.toml").open("a") as file:
        file.write('[guard]\nhooks = "none"\n')
    place.env |= {"GIT_DIR": "/nowhere", "GIT_WORK_TREE": "/nowhere", "GIT_INDEX_FILE": "/nowhere",
                  "GIT_EXTERNAL_DIFF": "false", "GIT_OBJECT_DIRECTORY": "/nowhere"}
    place.start = git(place.repo, "rev-parse", "main")
    return place


def test_everything_at_once_lands(wild):
    """Agents leave their work uncommitted, in the submodule too, and no hook runs."""
    here = "set -e; test -f src/b.txt; test ! -e docs; grep -q KEY .env; test -f lib/calc.py; "
    graph = wild.graph(
        Node("a", command=here + "echo one > 'fi le ä.txt'; printf 'x\\r\\n' > crlf.txt; mkdir docs; "
                                 "echo a > docs/a.txt"),
        Node("b", command=here + "echo made > lib/made.txt; git rev-parse HEAD > /dev/null"),
        Node("c", after=("a", "b"), command=here + "grep -q made lib/made.txt; echo c > c.txt"))
    config = (wild.repo / ".git/config").read_text()
    gate = "test -f calc.py && test ! -e docs && test -f src/b.txt && grep -q KEY .env && test -f lib/calc.py"
    (wild.repo / "src/sub").mkdir()
    child = wild.begin(*wild.launch_arguments(graph, "r1", gate=gate, repo=wild.repo / "src/sub"))
    assert wild.finish(child) == 0, wild.logs()
    assert git(wild.repo, "show", "main:fi le ä.txt") == "one"
    assert git(wild.repo, "show", "main:docs/a.txt") == "a"
    assert git(wild.repo, "show", "main:c.txt") == "c"
    assert git(wild.repo, "log", "-1", "--format=%an", "main^2") == "garrison"
    assert git(wild.repo, "ls-tree", "-r", "--name-only", "main").count(".env") == 0
    assert (wild.repo / ".git/config").read_text() == config
    assert not (wild.repo / "docs").exists()
    git(wild.repo, "submodule", "update", "-q")  # offline: what landed is in the user's own modules
    assert (wild.repo / "lib/made.txt").read_text() == "made\n"
    assert git(wild.repo, "status", "--porcelain") == ""
    assert not list(wild.trees.rglob("*")), list(wild.trees.rglob("*"))


def test_other_kinds_of_repositories_land(places, tmp_path_factory):
    """Objects named by SHA-256, a linked worktree as target, a partial clone: each in one small run, side by side."""
    def sha256(place: Place) -> Path:
        shutil.rmtree(place.repo)
        place.repo.mkdir()
        git(place.repo, "init", "-q", "-b", "main", "--object-format=sha256")
        (place.repo / "calc.py").touch()
        git(place.repo, "add", "-A")
        git(place.repo, "-c", "user.name=A", "-c", "user.email=a@x", "commit", "-qm", "Begin")
        return place.repo

    def linked(place: Place) -> Path:
        git(place.repo, "worktree", "add", "-q", "-b", "side", str(place.root / "linked"))
        return place.root / "linked"

    def partial(place: Place) -> Path:
        place.repo.rename(place.root / "origin")
        git(place.root / "origin", "config", "uploadpack.allowFilter", "true")
        git(place.user, "clone", "-q", "--filter=blob:none", f"file://{place.root / 'origin'}", place.repo.name)
        return place.repo

    made = [(place := places(), kind(place)) for kind in (sha256, linked, partial)]
    running = [(place, target, place.begin(*place.launch_arguments(
        place.graph(Node("a", command="echo new > new.txt")), "r1", repo=target))) for place, target in made]
    for place, target, child in running:
        assert place.finish(child) == 0, place.logs()
        assert (target / "new.txt").read_text() == "new\n"
        assert git(target, "status", "--porcelain") == ""


def test_setup_runs_again_only_when_its_key_changed_and_trees_have_numbers(place):
    """k dies twice and changes the named file the first time, o dies and changes another; both live at one time."""
    kill = "kill -9 $$"
    graph = place.graph(
        Node("k", command=f"""case $GARRISON_INCARNATION in
            1) echo 2 > my.lock; {kill};; 2) {kill};; esac
            cp setups number.txt; echo $GARRISON_SLOT > slot-k.txt; {place.hold("k")}"""),
        Node("o", command=f"""[ $GARRISON_INCARNATION -gt 1 ] || {{ echo '[x]' > pyproject.toml; {kill}; }}
            cp setups number-o.txt; echo $GARRISON_SLOT > slot-o.txt; {place.hold("o")}"""),
        Node("n", command="true", attributes='acceptance="no-such-command"'),
        attributes='setup="echo $GARRISON_SLOT >> setups"; setup_key="my.lock, other.lock"')
    (place.repo / ".git/info/exclude").write_text("setups\n")
    child = place.launch(graph, "r1", "--max-agents", 3, "--max-rework", 0, AWS_SECRET_X="hunter2")
    place.wait_until_held("k")
    place.wait_until_held("o")
    place.release("k", "o")
    assert place.finish(child) == 1, place.logs()
    slots = [git(place.repo, "show", f"main:slot-{name}.txt") for name in "ko"]
    assert len(set(slots)) == 2, slots
    assert git(place.repo, "show", "main:number.txt").split() == [slots[0]], "once more, by itself and from the start"
    assert len(git(place.repo, "show", "main:number-o.txt").split()) == 1, "the one that is kept"
    reason = place.nodes()["n"]["reason"]
    assert "failed (exit 127)" in reason
    assert "held back" in reason
    log = (place.home / "runs/r1/nodes/n/1/acceptance.log").read_text()
    assert "AWS_SECRET_X" in log
    assert "hunter2" not in log


def test_work_that_cannot_be_kept_stays_where_it_is(place):
    """The user's filter refuses what the agent made: the node fails, the run ends, the tree is left and named."""
    place.env["GARRISON_GIT_PATIENCE"] = "0.3"
    (place.repo / ".gitattributes").write_text("*.odd filter=odd\n")
    git(place.repo, "add", "-A")
    git(place.repo, "commit", "-qm", "A filter")
    git(place.repo, "config", "filter.odd.clean", "false")
    git(place.repo, "config", "filter.odd.required", "true")
    graph = place.graph(Node("a", command="echo precious > work.odd"))
    assert place.finish(place.launch(graph, "r1", "--max-rework", 0)) == 1, place.logs()
    reason = place.nodes()["a"]["reason"]
    tree = next(place.trees.glob("*/r1/a"))
    assert f"its work stays in {tree}" in reason
    assert (tree / "work.odd").read_text() == "precious\n"


@pytest.fixture
def refusal(place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return what tells what a launch says in this process that is refused: one line, exit 1, nothing begun."""
    place.enter(monkeypatch)
    for name in ("LEDGER", "WITNESS"):
        monkeypatch.setenv(name, place.env[name])

    def launch(graph: Path, *more: object) -> str:
        assert main(place.launch_arguments(graph, "r1", *more)) == 1
        said = capsys.readouterr().err
        [line] = [line for line in said.splitlines() if line.startswith("garrison: ")]
        assert "Traceback" not in said and not (place.home / "runs").exists()
        return line

    return launch


def test_launches_that_could_not_land_are_refused_with_a_remedy(place, refusal):
    graph = place.graph(Node("a"))
    repo = place.repo
    git(repo, "checkout", "-qb", "topic")
    (repo / "calc.py").write_text("one\n")
    git(repo, "commit", "-qam", "one")
    git(repo, "checkout", "-q", "main")
    (repo / "calc.py").write_text("two\n")
    git(repo, "commit", "-qam", "two")
    (repo / "calc.py").write_text("three\n")
    git(repo, "commit", "-qam", "three")
    git(repo, "checkout", "-q", "topic")
    git(repo, "rebase", "main", check=False)
    assert f"a rebase is in progress in {repo}; finish or abort it" in refusal(graph)
    git(repo, "rebase", "--abort")
    git(repo, "bisect", "start", "main", "main~2")
    assert f"a bisect is in progress in {repo}; finish or abort it" in refusal(graph)
    git(repo, "bisect", "reset")
    git(repo, "checkout", "-q", "--detach", "main")
    assert "--base BRANCH" in refusal(graph)
    git(repo, "checkout", "-q", "main")
    assert "has no branch nope" in refusal(graph, "--base", "nope")
    hook(place, "reference-transaction")
    assert "forbids to move main" in refusal(graph, "--with-hooks")
    git(repo, "config", "--unset", "core.hooksPath")
    (repo / ".gitattributes").write_text("*.bin filter=lfs\n")
    (repo / "a.bin").write_text("version https://git-lfs.github.com/spec/v1\n")
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "large")
    (place.user / ".gitconfig").write_text('[filter "lfs"]\nsmudge = no-lfs\nclean = no-lfs\nrequired = true\n')
    assert "install git-lfs" in refusal(graph)
    (place.user / ".gitconfig").unlink()
    noted = place.command(*place.launch_arguments(graph, "r1", "--dry-run"))
    assert noted.returncode == 0, noted.stderr
    assert "only LFS pointers, for agents and gate too: 1;" in noted.stderr
    missing = place.command(*place.launch_arguments(graph, "r1", gate="no-such-gate"), AWS_SECRET_X="hunter2")
    assert missing.returncode == 1
    assert "AWS_SECRET_X" in missing.stderr
    assert "hunter2" not in missing.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a repository to another user")
def test_a_repository_of_another_user_is_refused_with_gits_remedy(place, refusal):
    for path in (place.repo, *place.repo.rglob("*")):
        os.chown(path, 4711, 4711, follow_symlinks=False)
    told = refusal(place.graph(Node("a")))
    assert f"git config --global --add safe.directory {place.repo}" in told
