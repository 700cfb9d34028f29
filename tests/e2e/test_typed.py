"""Commands of a new user in a fresh repository: the exit code, the last line, and git."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from support import Place, git


@pytest.fixture
def shell(place: Place):
    """Return a function that types a command in the repository: its exit code and the last line of each stream."""
    def type_(*words: str) -> tuple[int, str, str]:
        done = place.command(*words, cwd=place.repo)
        out, err = (text.rstrip().rpartition("\n")[2] for text in (done.stdout, done.stderr))
        return done.returncode, out, err
    return type_


def test_a_mistake_in_a_pipeline_is_reported_with_its_place_and_nothing_starts(place: Place, shell) -> None:
    pipeline = place.repo / "w.dot"
    pipeline.write_text("digraph w {\n start -> plan\n plan [agent=cluade, prompt=x]\n plan -> exit\n}\n")
    code, _, said = shell("launch", "w.dot", "--no-gate")
    assert (code, said.partition("; there")[0].partition(" there")[0]) == (
        2, "garrison: w.dot:3:14: node plan: no agent 'cluade'; did you mean claude?")
    pipeline.write_text(pipeline.read_text().replace("agent=cluade", "shape=componnt"))
    code, _, said = shell("launch", "w.dot", "--no-gate")
    assert code == 1 and said.startswith("garrison: w.dot:3:14: plan has the unknown shape componnt")
    assert not (place.home / "runs").exists()
    place.edits = "?? w.dot"


def test_a_detached_head_is_refused_with_the_option_that_helps(place: Place, shell) -> None:
    git(place.repo, "checkout", "-q", "--detach")
    code, _, said = shell("init", "--gate", "true", "--no-try")
    assert code == 1 and said.endswith("has a detached HEAD; say which branch to land on with --base BRANCH")
    assert shell("init", "--gate", "true", "--base", "main")[0] == 0
    script = place.user / "own scripts/note.sh"
    script.parent.mkdir()
    script.write_text("echo a >note.txt; echo done")
    code, out, _ = shell("run", "write a note", "--command", f"sh '{script}'", "--terminal", "process")
    assert (code, out) == (0, "run done: 1 of 1 landed")
    [own] = (place.home / "merge-queue").iterdir()
    shutil.copytree(own, own.with_name("other-01234567"))
    shown = [place.command("merge-queue", "list", *more, cwd=place.repo).stdout for more in ((), ("--all",))]
    assert ["other-01234567" in text for text in shown] == [False, True] and own.name in shown[0], shown
    shutil.rmtree(own.with_name("other-01234567"))
    assert git(place.repo, "show", "main:note.txt") == "a"
    code, _, said = shell("merge-queue", "enqueue", "main")
    assert (code, said) == (1, "garrison: main is the branch to land on; name the branch that should land there")
    (place.user / "fresh/.git").mkdir(parents=True)
    runs = place.command("status", cwd=place.user / "fresh")
    assert runs.stderr == "this repository has no run yet; other repositories:\n" and "write-a-note-1" in runs.stdout
    git(place.repo, "checkout", "-q", "main")
    place.edits = "?? first.dot\n?? garrison.toml"


def test_a_task_that_lands_nothing_has_a_reason_and_uninstall_keeps_unlanded_work(place: Place, shell) -> None:
    options = ("--no-gate", "--terminal", "process", "--max-rework", "0")
    code, out, _ = shell("run", "drop it", "--command",
                         "echo 'Agent 1.2'; echo lost > lost; echo 'E: the token is wrong'; exit 3", *options)
    assert code == 1 and "(exit 3): E: the token is wrong; next: `garrison resume " in out
    code, out, _ = shell("run", "look", "--command", "echo 'all is well'", *options)
    assert code == 1 and "changed nothing (if that is right: --allow-empty, or allow_empty=true); its output ends: " \
        "all is well" in out
    code, out, _ = shell("run", "look", "--command", "true", "--allow-empty", *options)
    assert (code, out) == (0, "run done: 0 of 1 landed, 1 no change")
    assert shell("run", "keep it", "--command", "echo kept > kept", *options)[0] == 0
    place.command("merge-queue", "config", "--guard", "--target", "main", "--repo-root", place.repo).check_returncode()
    shown = place.command("uninstall", "--dry-run")
    assert shown.returncode == 0 and "guard hook" in shown.stdout and "stays" in shown.stdout
    asked = place.command("uninstall")
    assert asked.returncode != 0 and asked.stderr.startswith("garrison: nothing was removed: --yes "), asked.stderr
    done = place.command("uninstall", "--yes")
    assert done.returncode == 0 and "uninstall" in done.stderr, done.stderr
    assert not place.home.exists() and not list(place.trees.rglob("*"))
    assert not [path for path in (place.repo / ".git/hooks").iterdir() if path.suffix != ".sample"]
    saved = git(place.repo, "for-each-ref", "--no-merged=main", "--format=%(refname)", "refs/garrison/rescue").split()
    assert [git(place.repo, "show", f"{ref}:lost") for ref in saved] == ["lost"]
    assert len(git(place.repo, "worktree", "list").splitlines()) == 1


def test_a_repository_behind_its_upstream_a_new_folder_and_core_bare_are_each_one_line(place: Place) -> None:
    git(place.repo, "update-ref", "refs/remotes/origin/main", git(
        place.repo, "commit-tree", "-p", "main", "-m", "theirs", "main^{tree}"))
    for key, value in (("remote.origin.url", "nowhere"), ("remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*"),
                       ("branch.main.remote", "origin"), ("branch.main.merge", "refs/heads/main")):
        git(place.repo, "config", key, value)
    here = place.repo / "sub"
    here.mkdir()
    task = ("run", "look", "--command", "true", "--no-gate", "--dry-run")
    said = place.command(*task, cwd=here).stderr
    assert "note: main lacks 1 commit of origin/main (as of the last fetch), which the work will lack; " \
        f"`git pull` in {place.repo} first brings it\n" in said
    assert "note: agents start at the top of the repository, since main has no folder sub\n" in said
    done = place.command("run", "write it", "--command", "echo a >a", "--no-gate", "--terminal", "process",
                         cwd=place.repo).stdout
    assert done.splitlines()[-2:] == [
        "main lacks 1 commit of origin/main: `git pull --no-rebase` merges it, "
        "then `git push origin main` publishes it",
        "run done: 1 of 1 landed"], done
    git(place.repo, "config", "core.bare", "true")
    said = place.command(*task, cwd=place.repo).stderr
    command = said.rpartition("run `")[2].rstrip().removesuffix("`")
    assert said.startswith("garrison: core.bare is true in ") and command.startswith("git -C ")
    subprocess.run(["sh", "-c", command], env=place.env, check=True)
    assert place.command(*task, cwd=place.repo).returncode == 0
