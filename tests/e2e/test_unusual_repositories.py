"""Unusual repositories and git configurations: a run lands in all of it at once, or is refused in one line."""

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
"""Unusual settings, each of which some user has."""


def hook(place: Place, name: str) -> None:
    folder = place.root / "husky"
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("#!/bin/sh\necho the hook says no >&2; exit 1\n")
    (folder / name).chmod(0o755)
    git(place.repo, "config", "core.hooksPath", str(folder))


@pytest.fixture
def wild(place: Place) -> Place:
    """Return a sparse checkout with a submodule, failing hooks, no identity, and that configuration."""
    (place.user / ".gitconfig").write_text(CONFIG)
    make_repository(place.user / "lib")
    git(place.repo, "-c", "protocol.file.allow=always", "submodule", "add", "-q", "../lib", "lib")
    place.commit("More", {"docs/a.txt": "docs/a.txt\n", "src/b.txt": "src/b.txt\n", ".gitignore": ".env\n",
                          ".worktreeinclude": ".env\n", ".env": "KEY=1\n"})
    git(place.repo, "sparse-checkout", "set", "src")
    for name in ("user.name", "user.email"):
        git(place.repo, "config", "--unset", name)
    for name in ("pre-commit", "commit-msg", "post-checkout", "post-commit", "post-index-change", "pre-merge-commit"):
        hook(place, name)
    (place.user / "lib").rename(place.user / "lib-offline")
    place.configure('[guard]\nhooks = "none"\n')
    place.env |= {"GIT_DIR": "/nowhere", "GIT_WORK_TREE": "/nowhere", "GIT_INDEX_FILE": "/nowhere",
                  "GIT_EXTERNAL_DIFF": "false", "GIT_OBJECT_DIRECTORY": "/nowhere"}
    return place


def test_a_run_in_a_most_unusual_repository_lands(wild):
    """Agents leave their work uncommitted, also in the submodule, and no hook runs."""
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
    """SHA-256 objects, a linked worktree as target, a partial clone: each in one small run, in parallel."""
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


def test_setup_runs_again_only_when_its_key_changed_and_worktrees_have_unique_slots(place):
    """k dies twice and changes the named file the first time, o dies and changes another; both work at one time."""
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
    child = place.launch_until("k", graph, "r1", "--max-agents", 3, "--max-rework", 0, AWS_SECRET_X="hunter2")
    place.wait_until_held("o")
    place.release_to_end(child, "k", "o", code=1)
    slots = [git(place.repo, "show", f"main:slot-{name}.txt") for name in "ko"]
    assert len(set(slots)) == 2, slots
    assert git(place.repo, "show", "main:number.txt").split() == [slots[0]], "once more, by itself and from the start"
    assert len(git(place.repo, "show", "main:number-o.txt").split()) == 1, "the one that is kept"
    reason = place.nodes()["n"]["reason"]
    assert "failed (exit 127)" in reason
    assert "withheld" in reason
    log = (place.home / "runs/r1/nodes/n/1/acceptance.log").read_text()
    assert "AWS_SECRET_X" in log
    assert "hunter2" not in log


def test_work_that_cannot_be_saved_stays_in_its_worktree(place):
    """The user's filter refuses the agent's file: the node fails, and its reason names the worktree."""
    place.env["GARRISON_GIT_PATIENCE"] = "0.3"
    place.commit("A filter", {".gitattributes": "*.odd filter=odd\n"})
    git(place.repo, "config", "filter.odd.clean", "false")
    git(place.repo, "config", "filter.odd.required", "true")
    graph = place.graph(Node("a", command="echo precious > work.odd"))
    place.run(graph, "r1", "--max-rework", 0, code=1)
    reason = place.nodes()["a"]["reason"]
    tree = next(place.trees.glob("*/r1/a"))
    assert f"its work stays in {tree}" in reason
    assert (tree / "work.odd").read_text() == "precious\n"


@pytest.fixture
def refusal(place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return a function that makes a launch in this process; it must be refused in the line that it returns."""
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
    for branch, text in (("topic", "one"), ("main", "two"), ("main", "three")):
        git(repo, "checkout", "-q", branch)
        place.commit(text, {"calc.py": text})
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
    assert "forbids moving main" in refusal(graph, "--with-hooks")
    git(repo, "config", "--unset", "core.hooksPath")
    place.commit("large", {".gitattributes": "*.bin filter=lfs\n",
                           "a.bin": "version https://git-lfs.github.com/spec/v1\n"})
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


def test_work_starts_in_the_folder_of_its_launch_or_of_its_path(place) -> None:
    """A `path` that is not a folder, or that links out of the worktree, fails its node."""
    (place.repo / "out").symlink_to("/")
    place.commit("packages", {
        "packages/a b/kept": "", "packages/c/kept": "", ".gitignore": "set-up\n",
        "garrison.toml": '[launch]\ngate = "false"\n', "packages/garrison.toml":
        '[launch]\ngate_path = "c"\ngate = "false; test -f kept"\nsetup = "echo x > ../set-up"\n'})
    stand = 'echo "$(git rev-parse --show-prefix)" > here-{name}'
    nodes = [Node(name, command=stand.format(name=name),
                  attributes=f'acceptance="test -f here-{name}", rework=none' + (path and f', path="{path}"'))
             for name, path in (("own", ""), ("other", "packages/c/"), ("top", "."), ("link", "out/etc"),
                                ("absent", "packages/b"))]
    launch = place.command("launch", place.graph(*nodes), "--run", "r1", "--max-agents", "3",
                           cwd=place.repo / "packages/a b")
    assert launch.returncode == 1, launch.stderr
    assert "agents and acceptance start in packages/a b; to start at the top: --target-dir " in launch.stderr
    found = {name: git(place.repo, "ls-tree", "-r", "--name-only", "main").count(f"here-{name}") for name in
             ("own", "other", "top", "link", "absent")}
    assert found == {"own": 1, "other": 1, "top": 1, "link": 0, "absent": 0}, launch.stdout
    assert [git(place.repo, "show", f"main:{path}") for path in (
        "packages/a b/here-own", "packages/c/here-other", "here-top")] == ["packages/a b/", "packages/c/", ""]
    reasons = {name: node["reason"] for name, node in place.nodes().items() if node["status"] == "failed"}
    assert {name: "is not a folder of the branch that it starts from" in said for name, said in reasons.items()} == {
        "link": True, "absent": True}
    shown = place.command("config", "show", "launch", cwd=place.repo / "packages/c").stdout
    assert f"{place.repo}/packages/garrison.toml:3" in shown and "cd packages || exit 1; echo x" in shown
    refused = place.command("pipeline", "validate", place.graph(Node("a", attributes="path=\"../x\""), name="wrong"))
    assert refused.returncode == 1 and "a folder of the repository" in refused.stdout + refused.stderr
