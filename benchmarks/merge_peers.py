"""Peers of `merge_queue.py`: repositories to merge in, the merge-test-one-by-one loop, agcoord from PyPI.

The loop is what a careful person would script: a worktree on the target, `git merge`, the gate, `update-ref` with the
old value if it is green, else back. agcoord's own `land` publishes pull requests of a forge only, so its gate for an
exact head (`agc full`) is placed between the same merge and the same `update-ref`. All defaults are the peers' own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

VERSION = "0.2.2"
INSTALL_SECONDS = 300
WHO = {"GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@x", "GIT_COMMITTER_NAME": "A", "GIT_COMMITTER_EMAIL": "a@x",
       "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}


class Missing(Exception):
    """Why a peer is unavailable."""


def git(path: Path, *words: str, text: str = "", check: bool = True) -> str:
    """Run a git command; return its output."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | WHO
    done = subprocess.run(["git", *words], cwd=path, env=env, input=text, text=True, capture_output=True, check=False)
    if check and done.returncode:
        raise RuntimeError(f"git {words[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


def repository(path: Path, files: int) -> Path:
    """Make a repository with that many files on main, checked out nowhere; a hundred to a folder."""
    path.mkdir(parents=True)
    git(path, "init", "-q", "-b", "main")
    stream = ["commit refs/heads/main", "committer A <a@x> 1700000000 +0000", "data 5", "Begin"]
    for number in range(files):
        stream += [f"M 100644 inline d{number // 100}/f{number}", "data 7", f"{number:06}", ""]
    git(path, "fast-import", "--quiet", text="\n".join(stream) + "\n")
    git(path, "update-ref", "--no-deref", "HEAD", git(path, "rev-parse", "main"))
    (path / ".git/HEAD").write_text(git(path, "rev-parse", "main") + "\n")
    return path


def branches(repo: Path, names: Sequence[str], bad: Sequence[str] = ()) -> None:
    """Make a branch of one commit for each name: it changes a file of its own and adds one, `bad-NAME` if it is bad.

    The commits are loose objects, as those that an agent has just made.
    """
    tip, stream = git(repo, "rev-parse", "main"), []
    for number, name in enumerate(names):
        stream += [f"commit refs/heads/{name}", "committer A <a@x> 1700000000 +0000", f"data {len(name)}", name,
                   f"from {tip}", f"M 100644 inline d{number // 100}/f{number}", f"data {len(name)}", name,
                   f"M 100644 inline {'bad' if name in bad else 'new'}-{name}", "data 2", "x", ""]
    git(repo, "-c", "fastimport.unpackLimit=1000000", "fast-import", "--quiet", "--force",
        text="\n".join(stream) + "\n")


class Loop:
    """Merge, test, land, one by one, in its own worktree."""

    def __init__(self, repo: Path, tree: Path, gate: Callable[[Path], bool]) -> None:
        self.repo, self.tree, self.gate = repo, tree, gate
        git(repo, "worktree", "add", "-q", "--detach", str(tree), "main")

    def land(self, branch: str) -> bool:
        """Merge and test a branch; return whether it landed."""
        old = git(self.tree, "rev-parse", "HEAD")
        git(self.tree, "merge", "-q", "--no-ff", "-m", f"Merge {branch}", branch)
        if not self.gate(self.tree):
            git(self.tree, "reset", "-q", "--hard", old)
            git(self.tree, "clean", "-fdq")
            return False
        git(self.tree, "update-ref", "refs/heads/main", "HEAD", old)
        return True


def by_shell(command: str) -> Callable[[Path], bool]:
    """Run a gate as the loop does."""
    return lambda tree: subprocess.run(["sh", "-c", command], cwd=tree, check=False).returncode == 0


class Agcoord:
    """agcoord's broker with its own state; a gate for the loop."""

    def __init__(self, root: Path, *, fetch: bool = True) -> None:
        self.state, self.root = root / "agcoord-state", root
        self.program = shutil.which("agc") or str(root / "agcoord/bin/agc")
        if not Path(self.program).exists():
            if not fetch:
                raise Missing("agc is not on the PATH, and fetching is off (--no-fetch)")
            self._install()

    def _install(self) -> None:
        folder = self.root / "agcoord"
        steps = ([sys.executable, "-m", "venv", str(folder)],
                 [str(folder / "bin/python"), "-m", "pip", "install", "-q", f"agcoord=={VERSION}"])
        for step in steps:
            try:
                done = subprocess.run(step, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
            except subprocess.TimeoutExpired as error:
                raise Missing(f"not installed within {INSTALL_SECONDS} s") from error
            if done.returncode:
                raise Missing((done.stderr.strip() or "no reason given").splitlines()[-1][:120])

    def gate(self, command: str) -> Callable[[Path], bool]:
        """`agc full` with that command on the tree's exact head."""
        env = {**os.environ, **WHO, "HOME": str(self.root), "AGCOORD_STATE_DIR": str(self.state)}
        return lambda tree: subprocess.run([self.program, "--json", "full", "--checkout", str(tree), "--", "sh", "-c",
                                            command], env=env, cwd=tree, check=False, capture_output=True
                                           ).returncode == 0

    def close(self) -> None:
        """End its broker, known by its state's folder."""
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
                if b"agcoord.queue" in words and os.fsencode(self.state) in words:
                    os.kill(int(entry.name), signal.SIGTERM)
