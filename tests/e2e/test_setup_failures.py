"""Set-ups that fail, hang, ask, or write where they may not, and lock files that are none, at default settings."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from support import DEADLINE, git, make_repository

INSTALLED = ("import sys, garrison.directories, garrison.launch.launch; garrison.directories.checkout = lambda: None; "
             "from garrison.cli.main import main; sys.exit(main(sys.argv[1:]))")
"""garrison as it is where it is installed: its home is the user's."""
WORK = "echo work > work.txt; git add work.txt; git commit -qm Work"


@dataclass
class User:
    """User with a plain HOME and a repository in it."""

    home: Path

    @property
    def repo(self) -> Path:
        return self.home / "project"

    def garrison(self, *words: str, limit: float = DEADLINE, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the repository, for at most `limit` seconds."""
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        return subprocess.run([sys.executable, "-c", INSTALLED, *words], cwd=self.repo, capture_output=True, text=True,
                              env={**kept, "HOME": str(self.home), **env}, stdin=subprocess.DEVNULL, timeout=limit,
                              check=False)

    def run(self, setup: str, *words: str, limit: float = DEADLINE, **env: str) -> subprocess.CompletedProcess[str]:
        return self.garrison("run", "do it", "--command", WORK, "--setup", setup, "--gate", "true", *words, limit=limit,
                             **env)


@pytest.fixture
def user(tmp_path: Path) -> User:
    found = User(tmp_path / "user")
    found.home.mkdir(mode=0o700)
    make_repository(found.repo)
    return found


@pytest.mark.parametrize(("setup", "told"), [
    ("echo no such package; exit 3", "failed (exit 3); fix the set-up or the target first (log: "),
    ("printf 'Overwrite? [y/N] '; read answer", "failed (exit 1); fix the set-up or the target first (log: "),
    ("echo x > /etc/garrison-was-here", "add other folders to write = [...] in [sandbox.setup] of config.toml"),
    ("echo beginning; sleep 60", "ran longer than 1 s and was stopped; GARRISON_SETUP_TIMEOUT sets the limit")])
def test_a_set_up_that_fails_is_one_line_that_says_what_to_do_and_costs_nothing(user: User, setup: str,
                                                                               told: str) -> None:
    before = git(user.repo, "for-each-ref"), git(user.repo, "status", "--porcelain")
    ended = user.run(setup, GARRISON_SETUP_TIMEOUT="1" if "sleep" in setup else "60")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr
    [line] = [line for line in ended.stderr.splitlines() if line.startswith("garrison: ")]
    assert f"on the bare target the set-up `{setup}` " in line
    assert told in ended.stderr
    if "printf" in setup:
        assert "Overwrite? [y/N]" in ended.stderr.splitlines()[-1]
    assert (git(user.repo, "for-each-ref"), git(user.repo, "status", "--porcelain")) == before
    assert not Path("/etc/garrison-was-here").exists()
    assert len(git(user.repo, "worktree", "list").splitlines()) == 1


def test_init_names_its_own_option_for_a_set_up_that_takes_too_long(user: User) -> None:
    ended = user.garrison("init", "--setup", "sleep 60", "--gate", "true", "--timeout", "1")
    assert ended.returncode == 1
    assert "the set-up `sleep 60` ran longer than 1 s and was stopped; --timeout sets the limit" in ended.stderr


def test_lock_files_that_are_no_files_stop_nothing(user: User) -> None:
    (user.repo / "package-lock.json").mkdir()
    (user.repo / "package-lock.json/x").touch()
    (user.repo / "uv.lock").symlink_to("/proc/self/mem")
    (user.repo / "yarn.lock").symlink_to("yarn.lock")
    (user.repo / "Cargo.lock").write_bytes(os.urandom(3000))
    git(user.repo, "add", "-A")
    git(user.repo, "commit", "-qm", "Lock files")
    ended = user.run("echo made > made", "--setup-key", "package-lock.json", "--setup-key", "uv.lock", "--setup-key",
                     "absent.lock", "--setup-key", "Cargo.lock")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    notes = [line for line in ended.stderr.splitlines() if line.startswith("note: ")]
    unused = "so no change of it makes set-up run again; correct setup_key"
    assert notes == [f"note: package-lock.json: it is not a file, or a link out of the repository, {unused}",
                     f"note: uv.lock: it is not a file, or a link out of the repository, {unused}",
                     f"note: absent.lock: it is not in this commit, {unused}"]
    assert git(user.repo, "show", "main:work.txt") == "work"


@pytest.mark.slow
def test_a_set_up_may_leave_200_000_files(user: User) -> None:
    make = ("import os\nos.mkdir('modules')\nfor folder in range(200):\n    os.mkdir(f'modules/{folder}')\n"
            "    for name in range(1000):\n        open(f'modules/{folder}/{name}', 'w').close()\n")
    (user.repo / "make.py").write_text(make)
    git(user.repo, "add", "-A")
    git(user.repo, "commit", "-qm", "Set-up")
    ended = user.run("python3 make.py", "--acceptance", "test -e modules/199/999", limit=500)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert git(user.repo, "diff", "--name-only", "main^", "main") == "work.txt"
