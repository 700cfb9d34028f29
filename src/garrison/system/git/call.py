"""Calls of git: run it, its errors and environment, and the keys of repositories.

Each call is a short-lived child with our settings on top of the user's.
"""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import time
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from garrison.errors import GarrisonError, Refused

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

SETTINGS = tuple(part for setting in (
    "gc.auto=0", "maintenance.auto=false", "core.fsmonitor=false", "commit.gpgsign=false", "core.safecrlf=false",
    "submodule.recurse=false", "merge.verifySignatures=false") for part in ("-c", setting))
"""Settings that every call overrides."""
NO_HOOKS = ("-c", f"core.hooksPath={os.devnull}")
"""Added unless a call asks for the user's hooks: they are meant for people's commits, and a failing one stops git."""
DURABLE = ("-c", "core.fsync=committed,loose-object,reference")
"""Added where objects or refs are promised to someone."""
NAME, EMAIL = "garrison", "garrison@localhost"
"""Author of commits where the user has no name, and of all merge commits."""

CONTENTION = re.compile(r"(could not lock|cannot lock|unable to create .*\.lock|file exists|"
                         r"failed to (read|write) .*worktrees|commondir)", re.IGNORECASE)
_TRUST = re.compile(r"git config --global --add safe\.directory .+")
_RETRY_SECONDS = 10.0


class GitError(GarrisonError):
    """A refusal or failure of git; `str(error)` is one line with its message."""

    def __init__(self, arguments: Sequence[str], code: int, stderr: str) -> None:
        lines = [line.strip() for line in stderr.splitlines() if line.strip()]
        told = next((line for line in lines if line.startswith(("fatal:", "error:"))), lines[-1] if lines else "")
        super().__init__(f"git {' '.join(arguments[:2])} failed ({code}): {told or 'it said nothing'}")
        self.code, self.stderr = code, stderr


class Answer(NamedTuple):
    """Exit code and output of one call."""

    code: int
    out: str
    err: str


def environment(source: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of our git: `source` (default: ours) without `GIT_*`, English, without prompts."""
    kept = {name: value for name, value in (os.environ if source is None else source).items()
            if not name.startswith("GIT_")}
    return {**kept, "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0"}


def common_dir(path: Path) -> Path:
    """Return the real path of the git directory that all worktrees of `path` share; Refused if there is none."""
    if not path.exists():
        raise Refused(f"{path} does not exist; name the directory of a git repository")
    if not path.is_dir():
        raise Refused(f"{path} is a file; name the directory of a git repository")
    if not is_text(path):
        raise Refused(f"the path {os.fsencode(path)!r} is not UTF-8, so no record could hold it; rename the directory")
    answer = Call(path).run("rev-parse", "--git-common-dir", check=False)
    if answer.code:
        raise Refused(_why_none(path, answer.err))
    return (path / answer.out.strip()).resolve()


def is_text(path: Path) -> bool:
    """Return whether the real path is UTF-8, so that a record can hold it."""
    try:
        os.fspath(path.resolve()).encode()
    except UnicodeEncodeError:
        return False
    return True


def _why_none(path: Path, said: str) -> str:
    """Describe, from git's message, what to do about a directory in which it finds no repository."""
    trust = _TRUST.search(said)
    if trust:
        return f"git does not trust {path}, which belongs to another user; if you do, run `{trust[0]}`"
    told = next((line for line in said.splitlines() if line.startswith("fatal:")), "")
    if told and "not a git repository (or" not in told:
        return f"git cannot open the repository at {path}: {told.removeprefix('fatal: ')}; mend that first"
    return f"{path} is not in a git repository; name one, or run `git init` there and commit"


def repository_key(path: Path) -> str:
    """Return a directory name for the repository at `path`: a readable stem and a hash of its common directory."""
    return key_of(common_dir(path))


def key_of(common: Path) -> str:
    """Return `repository_key` for a common directory."""
    stem = common.parent.name if common.name == ".git" else common.name.removesuffix(".git")
    readable = re.sub(r"[^A-Za-z0-9_-]", "_", stem)[:32] or "repository"
    return f"{readable}-{hashlib.sha256(os.fsencode(common)).hexdigest()[:8]}"


class Call:
    """One repository, seen from `root` (any directory of it). Methods that take `path` act in that worktree."""

    def __init__(self, root: Path, environ: Mapping[str, str] | None = None, common: Path | None = None) -> None:
        self.root = root
        self._environment = environment(environ)
        if common is not None:
            self.common = common  # known already: git need not be asked

    @cached_property
    def common(self) -> Path:
        """Return the real path of the shared git directory."""
        return common_dir(self.root)

    @cached_property
    def key(self) -> str:
        """Return the `repository_key` of this repository."""
        return key_of(self.common)

    def run(self, *arguments: str, cwd: Path | None = None, check: bool = True, durable: bool = False,
            text: str | None = None, extra: Mapping[str, str] | None = None, hooks: bool = False,
            timeout: float | None = None) -> Answer:
        """Run git; `text` is its standard input (else closed). GitError on failure, unless not `check`, and always if
        a signal ended it.

        `hooks`: the user's hooks may run, and refuse. `timeout`: seconds after which git is ended, always an error.
        """
        command = ["git", *SETTINGS, *(() if hooks else NO_HOOKS), *(DURABLE if durable else ()), *arguments]
        env = {**self._environment, **(extra or {})}
        feed = None if text is None else text.encode()
        try:
            if feed is None:
                done = subprocess.run(command, cwd=cwd or self.root, env=env, capture_output=True, check=False,
                                      stdin=subprocess.DEVNULL, timeout=timeout)
            else:
                done = subprocess.run(command, cwd=cwd or self.root, env=env, capture_output=True, check=False,
                                      input=feed, timeout=timeout)
        except subprocess.TimeoutExpired as error:
            raise GitError(arguments, 124, f"fatal: it did not end within {timeout:g} s") from error
        except OSError as error:
            raise GitError(arguments, 127, f"fatal: {error.strerror}: {error.filename}") from error
        answer = Answer(done.returncode, done.stdout.decode(errors="backslashreplace"),
                        done.stderr.decode(errors="backslashreplace"))
        if answer.code < 0:  # somebody ended it: that is no answer, least of all "there is none"
            raise GitError(arguments, answer.code, f"fatal: {signal.strsignal(-answer.code)}: a signal ended it")
        if check and answer.code:
            raise GitError(arguments, answer.code, answer.err)
        return answer


def split(text: str) -> list[str]:
    """Return the parts of output made with -z."""
    return [part for part in text.split("\0") if part]


def pair(line: str) -> tuple[str, str]:
    """Return a line's first word and the rest."""
    name, _, value = line.partition(" ")
    return name, value


def attempts() -> Iterator[bool]:
    """Tries under lock contention, with a growing pause before each but the first; yields True for the last one."""
    deadline, pause = time.monotonic() + _RETRY_SECONDS, 0.01
    yield False
    while time.monotonic() < deadline:
        time.sleep(pause)
        pause = min(0.2, pause * 2)
        yield False
    yield True
