"""Target: the branch that entries land on, of this repository or of a remote (`origin:main`).

`tip` asks the repository that has the branch; `swap` moves the branch from OLD to NEW by one compare-and-swap, and may
be repeated after a crash. A remote's branch is read by `ls-remote` and moved by `push --force-with-lease`; its commits
are fetched into refs of garrison, never into the user's.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from garrison.errors import Refused, UsageError
from garrison.records.run import REMOTES
from garrison.system import failpoint
from garrison.system.git import GitError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from garrison.system.git import Git

LANDING = "GARRISON_LANDING"
"""Environment variable of a swap: the ref that the queue moves, so that the guard allows it."""
_NETWORK_SECONDS = 120.0
_FRESH_SECONDS = 5.0
"""Seconds for which a remote's answer is reused: the lease of the push detects a newer tip."""


class Target(Protocol):
    """Branch that entries land on."""

    name: str
    """Name of the queue's target."""
    ref: str
    """Full ref in the repository of the branch."""
    is_local: bool
    """Set if a swap takes milliseconds and is done under `queue.lock`."""
    retry_seconds: float
    """Seconds after which a refused swap is retried."""

    def tip(self) -> str | None:
        """Return its current commit, fetched into this repository; None if there is no such branch."""
        ...

    def swap(self, old: str, new: str, message: str, *, hooks: bool = False) -> str:
        """Move it from `old` to `new` if it is still at `old`; return '', or why it was not moved.

        `hooks`: run the user's reference-transaction hook of this repository, which may refuse.
        """
        ...


class LocalTarget:
    """Branch of this repository."""

    is_local, retry_seconds = True, 1.0

    def __init__(self, git: Git, branch: str) -> None:
        self.git, self.name = git, branch
        self.ref = f"refs/heads/{branch}"

    def tip(self) -> str | None:
        """Return its current commit; None if there is no such branch."""
        return self.git.branch_tip(self.name)

    def swap(self, old: str, new: str, message: str, *, hooks: bool = False) -> str:
        """Move it from `old` to `new`, like `Target.swap`."""
        if self.git.update_ref(self.ref, new, old, message=message, hooks=hooks, extra={LANDING: self.ref}):
            return ""
        hint = ", and check that the reference-transaction hook does not forbid it" if hooks else ""
        lock = f"{self.git.common / self.ref}.lock"
        return f"git refuses to move {self.ref}; if a killed git left {lock}, garrison removes it after a minute{hint}"


class RemoteTarget:
    """Branch of a remote of this repository."""

    is_local, retry_seconds = False, 10.0

    def __init__(self, git: Git, remote: str, branch: str) -> None:
        self.git, self.remote, self.branch = git, remote, branch
        self.name, self.ref = f"{remote}:{branch}", f"refs/heads/{branch}"
        self.copy = f"{REMOTES}/{remote}/{branch}"
        self._answer: tuple[float, str | None] = (float("-inf"), None)
        """Time of the last answer, and its tip."""

    def tip(self) -> str | None:
        """Return its commit, a few seconds old at most, and current after a swap; GitError if the remote fails."""
        asked_at, tip = self._answer
        if time.monotonic() - asked_at > _FRESH_SECONDS:
            asked_at, tip = time.monotonic(), fetch_tip(self.git, self.remote, self.branch, _NETWORK_SECONDS) or None
            self._answer = (asked_at, tip)
        return tip

    def swap(self, old: str, new: str, message: str, *, hooks: bool = False) -> str:
        """Move it, like `Target.swap`. The outcome of an interrupted push is unknown until `tip` is called."""
        self._answer = (float("-inf"), None)
        arguments = ("push", "--quiet", "--no-recurse-submodules", f"--force-with-lease={self.ref}:{old}", self.remote,
                     f"{new}:{self.ref}")
        try:
            result = self.git.run(*arguments, check=False, timeout=_NETWORK_SECONDS)
        except GitError as error:
            return str(error)
        if result.code == 0:
            self.git.update_ref(self.copy, new, message=message)
            return ""
        return f"{self.remote} did not accept {self.branch} ({GitError(arguments, result.code, result.err)})"


def fetch_tip(git: Git, remote: str, branch: str, timeout: float, extra: Mapping[str, str] | None = None) -> str:
    """Return the tip of a branch on a remote, fetched into garrison's copy; '' if there is none.

    Args:
        extra: environment variables that give git access to the remote.
    """
    ref, copy = f"refs/heads/{branch}", f"{REMOTES}/{remote}/{branch}"
    failpoint.here("forge:ls-remote")
    answer = git.run("ls-remote", "--", remote, ref, timeout=timeout, extra=extra)
    # the pattern matches the end of a name: a remote may have refs/pull/refs/heads/main as well
    tip = next((line.split()[0] for line in answer.out.splitlines() if line.endswith(f"\t{ref}")), "")
    if tip and git.rev(copy) != tip:
        failpoint.here("forge:fetch")
        git.run("fetch", "--quiet", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head", remote,
                f"+{ref}:{copy}", timeout=timeout, durable=True, extra=extra)
        # after a push between the two calls, it is ahead of what `ls-remote` returned
        return git.rev(copy) or tip
    return tip


def split_target(name: str) -> tuple[str | None, str]:
    """Return (remote, branch) of a target's name: `origin:main`, or a branch of this repository alone."""
    remote, colon, branch = name.partition(":")
    return (remote, branch) if colon else (None, name)


def check_target_name(name: str) -> str:
    """Return `name`; UsageError if it cannot be a target."""
    remote, branch = split_target(name)
    if not branch or remote == "" or any(part.startswith("-") for part in (branch, remote or "")):
        raise UsageError(f"not a branch: {name!r}; name the branch to land on, `origin:main` for one of a remote")
    return name


def describe_gone(branch: str, repo: object) -> str:
    """Return the message about a missing target branch, the same wherever something waits for it. Pure."""
    return f"the target branch {branch} is gone from {repo}; restore it, or undo its renaming"


def describe_moved(repo: object, run: str) -> str:
    """Return the message about a run whose repository has moved. Pure."""
    return (f"the repository is no longer in {repo}; move it back, or continue at its new place: "
            f"`garrison resume {run} --target-dir DIR`")


def open_target(git: Git, name: str) -> Target:
    remote, branch = split_target(name)
    return RemoteTarget(git, remote, branch) if remote else LocalTarget(git, branch)


def check_target(git: Git, name: str) -> None:
    """Raise Refused unless this repository has the branch, or the remote, which is not contacted."""
    remote, branch = split_target(check_target_name(name))
    if remote is None and not git.branch_exists(branch):
        raise Refused(f"{git.root} has no branch {branch} to land on; name one with --target")
    if remote and remote not in git.run("remote").out.split():
        raise Refused(f"{git.root} has no remote {remote}; `git remote add` it, or name a branch with --target")
