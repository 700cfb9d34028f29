"""Runs and git: repositories with their git directory elsewhere, refs that share a name, hooks, signatures and the
committer. Each test runs what a user types, and checks the exit code, the last line and git."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from support import Place, git, make_repository, wait_for


def run(place: Place, repo: Path, name: str, command: str = "", *more: str,
        rework: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a task that commits the file `name`, with `garrison run`."""
    command = command or f"echo {name} > {name}; git add {name}; git commit -qm 'Add {name}'"
    return place.command("run", f"Add {name}", "--target-dir", repo, "--command", command, "--no-gate", "--run", name,
                         "--terminal", "process", "--max-rework", rework, *more)


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    return (done.stdout.strip() or done.stderr.strip()).splitlines()[-1]


def check_landed(done: subprocess.CompletedProcess[str]) -> str:
    """Check that the only task has landed; return all that was printed."""
    said = done.stdout + done.stderr
    assert (done.returncode, last_line(done)) == (0, "run done: 1 of 1 landed"), said
    return said


def configure(repo: Path, **settings: str) -> None:
    for name, value in settings.items():
        git(repo, "config", name.replace("_", "."), value)


def make_key(place: Place) -> Path:
    """Make a key with which the repository's commits are signed."""
    key = place.user / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    configure(place.repo, commit_gpgsign="true", gpg_format="ssh", user_signingkey=f"{key}.pub")
    return key


def submodule(place: Place) -> tuple[Path, Path]:
    outer = place.root / "outer"
    make_repository(outer)
    git(outer, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(place.repo), "parts/inner")
    git(outer, "commit", "-qm", "Add a part")
    return outer / "parts/inner", outer / "parts/inner"


def separate(place: Place) -> tuple[Path, Path]:
    git(place.repo, "init", "-q", f"--separate-git-dir={place.root}/elsewhere")
    return place.repo, place.repo


def bare(place: Place) -> tuple[Path, Path]:
    project = place.root / "project"
    git(place.root, "clone", "-q", "--bare", str(place.repo), str(project / ".bare"))
    (project / ".git").write_text("gitdir: ./.bare\n")
    for branch in (("main", "main"), ("-b", "other", "other")):
        git(project, "worktree", "add", "-q", *branch)
    return project / "other", project / "main"


def linked(place: Place) -> tuple[Path, Path]:
    git(place.repo, "worktree", "add", "-q", "-b", "other", str(place.root / "linked"))
    return place.root / "linked", place.repo


@pytest.mark.parametrize("layout", [
    submodule, pytest.param(separate, marks=pytest.mark.slow), bare, pytest.param(linked, marks=pytest.mark.slow)])
def test_a_landing_moves_the_checkout_wherever_its_git_directory_is(place, layout):
    repo, checkout = layout(place)
    configure(repo, user_name="A User", user_email="user@example.org")
    (checkout / "mine.txt").write_text("not committed\n")
    check_landed(run(place, repo, "news", "", "--base", "main"))
    assert git(checkout, "status", "--porcelain") == "?? mine.txt"
    assert (checkout / "news").read_text() == "news\n"
    assert "1 of 1" in place.command("status", "news").stdout
    assert place.command("clean", "--run", "news", "-y").returncode == 0
    assert not git(repo, "worktree", "prune", "-n", "-v")


def test_a_checkout_that_cannot_be_found_is_named_at_the_launch_and_used_once_git_knows_it(place):
    repo, _ = separate(place)
    git(repo, "worktree", "add", "-q", "-b", "other", str(place.root / "linked"))
    done = run(place, place.root / "linked", "news", "", "--base", "main")
    assert done.returncode == 1
    assert last_line(done) == (f"garrison: the checkout of {place.root}/elsewhere is on main, and nothing says where "
                               'it is; there, run `git config core.worktree "$PWD"`')
    configure(repo, core_worktree=str(repo))
    check_landed(run(place, place.root / "linked", "news", "", "--base", "main"))
    assert (git(repo, "status", "--porcelain"), (repo / "news").exists()) == ("", True)


def test_tags_branches_and_remotes_of_the_names_it_uses_do_not_mislead_a_run(place):
    repo = place.repo
    wrong = git(repo, "commit-tree", "HEAD^{tree}", "-m", "Wrong")
    git(repo, "commit", "-q", "--allow-empty", "-m", "Second")
    for ref in ("refs/tags/main", "refs/heads/heads/main", "refs/main", "refs/remotes/main/HEAD", "refs/tags/HEAD",
                "refs/tags/garrison/news/add_news", "refs/tags/garrison/lost/add_lost", "refs/tags/heads/main",
                "refs/remotes/garrison/news/add_news"):
        git(repo, "update-ref", ref, wrong)
    git(repo, "remote", "add", "main", str(place.root / "nowhere"))
    before = git(repo, "rev-parse", "refs/heads/main")

    check_landed(run(place, repo, "news"))
    assert (repo / "news").exists()
    assert git(repo, "rev-parse", "refs/heads/main^1") == before
    assert git(repo, "status", "--porcelain") == ""
    assert wrong not in git(repo, "rev-list", "refs/heads/main")

    done = run(place, repo, "lost", "echo lost > lost; exit 3")
    assert done.returncode == 1
    assert "1 of 1" in place.command("status", "news").stdout
    assert "(exit 3)" in place.command("why", "add_lost", "--run", "lost").stdout
    saved = place.command("rescue", "list", "--repo", repo).stdout
    assert "left when it failed" in saved
    assert "1 insertion" in place.command("rescue", "show", "lost/add_lost/1").stdout
    assert place.command("rescue", "restore", "lost/add_lost/1", "--branch", "main-again").returncode == 0
    assert git(repo, "rev-parse", "refs/heads/main-again^1") == git(repo, "rev-parse", "refs/heads/main")
    assert place.command("clean", "--all-done", "-y").returncode == 0
    assert not git(repo, "for-each-ref", "refs/heads/garrison")


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
def test_what_lands_is_the_users_commit_and_signed_as_their_own(place):
    repo, key = place.repo, make_key(place)
    (place.user / "allowed").write_text(f"user@example.org {key.with_suffix('.pub').read_text()}")
    configure(repo, gpg_ssh_allowedSignersFile=str(place.user / "allowed"))
    assert "signed" not in check_landed(run(place, repo, "news"))
    assert git(repo, "log", "--first-parent", "-1", "--format=%G? %an <%ae> %cn <%ce>") == (
        "G A User <user@example.org> A User <user@example.org>")
    assert git(repo, "status", "--porcelain") == ""

    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "a secret", "-f", str(key)], check=True)
    said = check_landed(run(place, repo, "more"))
    assert "note: what lands will not be signed, although commit.gpgsign is set: " in said
    assert git(repo, "log", "-1", "--format=%G? %cn") == "N A User"


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
def test_a_landing_that_cannot_be_signed_any_more_waits_with_a_message(place):
    repo, key = place.repo, make_key(place)
    child = place.begin("run", "Add it", "--target-dir", repo, "--no-gate", "--run", "r1", "--terminal", "process",
                        "--command", f"{place.hold('it')}; echo it > it; git add it; git commit -qm It")
    place.wait_until_held("it")
    key.rename(place.user / "away")
    place.release("it")
    wait_for("the landing waits", lambda: "it cannot be signed: " in (place.root / "out").read_text())
    told = place.command("status", "r1").stdout
    assert "garrison merge-queue config --no-sign" in told
    assert place.command("merge-queue", "config", "--no-sign", "--repo-root", repo).returncode == 0
    assert place.finish(child) == 0
    assert git(repo, "log", "-1", "--format=%G? %cn") == "N A User"


HOOK = """#!/bin/sh
git diff --cached | grep -q '^+BAD' || exit 0
echo "no bad lines please"; exit 1
"""
REFUSED = "the repository's own pre-commit hook refuses what it left uncommitted: no bad lines please"


def hooked(place: Place, mode: str = "") -> Path:
    hook = place.repo / ".git/hooks/pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(HOOK)
    hook.chmod(0o755)
    if mode:
        place.configure(f'[guard]\nhooks = "{mode}"\n')
    return place.repo


def test_what_a_hook_refused_is_not_committed_behind_its_back(place):
    repo = hooked(place)
    start = git(repo, "rev-parse", "HEAD")
    corrected = "if grep -q 'no bad lines' \"$GARRISON_PROMPT_FILE\"; then echo good; else echo BAD; fi"
    command = f"({corrected}) > news; git add -A; git commit -qm 'Add news' || true; echo fine > fine"
    said = check_landed(run(place, repo, "news", command, rework=1))
    assert "hooks: pre-commit runs for what agents commit ([guard] hooks)" in said
    assert f"add_news: attempt 2: {REFUSED}" in said
    assert (git(repo, "show", "main:news"), git(repo, "show", "main:fine")) == ("good", "fine")

    done = run(place, repo, "left", "echo BAD > left")
    assert done.returncode == 1
    assert REFUSED in last_line(done)
    assert "BAD" not in git(repo, "log", "-p", f"{start}..main", "--")


def test_a_hook_in_the_gate_sees_what_lands_and_none_runs_nowhere(place):
    repo = hooked(place, "gate")
    arguments = ("run", "Add it", "--target-dir", repo, "--terminal", "process", "--max-rework", "1", "--gate", "true")
    said = check_landed(place.command(
        *arguments, "--command", "if [ $GARRISON_ATTEMPT = 1 ]; then echo BAD > it; git add it; git commit -qm It; "
        "echo more > more; else echo good > it; fi"))
    assert 'hooks: pre-commit runs as part of the gate ([guard] hooks = "gate"), no other does' in said
    assert "the repository's own pre-commit hook refused it (exit code 1)" in said and "add_it: attempt 2: " in said
    assert git(repo, "show", "main:it") == "good"

    config = place.home / "config.toml"
    config.write_text(config.read_text().replace('"gate"', '"none"'))
    command = "echo BAD > bad; git add bad; git commit -qm Bad; echo BAD > more"
    said = check_landed(place.command(*arguments, "--command", command))
    assert 'hooks: pre-commit does not run ([guard] hooks = "none")' in said
    assert git(repo, "show", "main:more") == "BAD"
