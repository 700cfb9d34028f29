"""Repositories: which ones garrison can work on, and what to do about the others."""

from __future__ import annotations

import os
from pathlib import Path

from garrison.errors import Refused
from garrison.system.git.call import common_dir, is_text
from garrison.system.git.history import History

UNDERWAY = {"MERGE_HEAD": "a merge", "CHERRY_PICK_HEAD": "a cherry-pick", "REVERT_HEAD": "a revert",
            "rebase-merge": "a rebase", "rebase-apply": "a rebase", "sequencer": "a cherry-pick or revert"}
"""Files in a worktree's git directory during an operation that a person must finish."""


def underway(own: Path) -> str | None:
    """Return what is in progress in the worktree with the git directory `own` (`a rebase`), None if nothing."""
    return next((what for name, what in UNDERWAY.items() if (own / name).exists()), None)


def collecting(common: Path) -> bool:
    """Return whether a `git gc` that a user started runs in the repository with that common directory.

    It may remove objects whose ref is newer than its listing; an automatic one spares what is younger than two weeks.
    """
    try:
        pid = int((common / "gc.pid").read_text().split()[0])
        return b"--auto" not in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError, IndexError):
        return False


def detached(path: Path) -> str:
    """Describe what to do about the checkout at `path`, whose HEAD is on no branch."""
    own = History(path).run("rev-parse", "--absolute-git-dir").out.strip()
    what = "a bisect" if (Path(own) / "BISECT_START").exists() else underway(Path(own))
    if what:
        return f"{what} is in progress in {path}; finish or abort it, or name the branch to land on with --base BRANCH"
    return f"{path} has a detached HEAD; say which branch to land on with --base BRANCH"


def check_writable(common: Path) -> None:
    """Refused if nothing can be written into the repository with that common directory."""
    for folder in (common, common / "objects", common / "refs"):
        if not os.access(folder, os.W_OK):
            raise Refused(f"{folder} cannot be written, and every landing is written there; mend its permissions, or "
                          "work on a clone")


def validate_repository(path: Path) -> Path:
    """Return the top directory of a repository garrison can work on; Refused, with what to do, for any other."""
    return places(path)[0]


def places(path: Path) -> tuple[Path, Path]:
    """Return top directory and common directory of a valid repository; Refused as `validate_repository`."""
    if path.is_dir() and is_text(path):
        answer = History(path).run("rev-parse", "--git-common-dir", "--is-bare-repository", "--is-shallow-repository",
                                   "--show-toplevel", "--verify", "HEAD^{commit}", check=False)
        told = answer.out.splitlines()
        if answer.code == 0 and told[1:3] == ["false", "false"] and len(told) == 5:
            common = (path / told[0]).resolve()
            check_writable(common)
            return Path(told[3]), common
    return _slowly(path), common_dir(path)


def _slowly(path: Path) -> Path:
    """Return the top directory, asking step by step, so that the message can name what is wrong."""
    common = common_dir(path)
    check_writable(common)
    git = History(path)
    flags = git.run("rev-parse", "--is-bare-repository", "--is-shallow-repository").out.split()
    if flags[0] == "true":
        raise Refused(f"{path} is a bare repository; clone it and name the clone")
    if flags[1] == "true":
        raise Refused(f"{path} is a shallow clone; run `git -C {path} fetch --unshallow` first")
    if git.rev("HEAD") is None:
        if git.run("rev-list", "-n1", "--all").out.strip():
            raise Refused(f"{path} stands on a branch without commits; switch to one that has some")
        raise Refused(f"{path} has no commit yet; run `git -C {path} commit --allow-empty -m start` first")
    return top_of(path)


def top_of(path: Path) -> Path:
    """Return the top directory of the checkout that `path` is in; Refused if it is in none."""
    common = common_dir(path)
    top = History(path).run("rev-parse", "--show-toplevel", check=False).out.strip()
    if not top:
        raise Refused(f"{common} is a git directory; name the checkout that belongs to it")
    return Path(top)
