"""What a user meets first: each command answers with one screen that helps, exits with 1 or 2, and its advice works.

A row is a folder and its surroundings, a command, and its message. Where the message names commands in backquotes, the
row types them as they are, then the command again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import shutil
import struct
import subprocess
import termios
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from installed import install
from support import DEADLINE, garrison_home, git, make_repository

LINES, COLUMNS = 24, 60
TASK = ("run", "write down what changed", "--command", "true", "--gate", "true", "--dry-run")
UNLOCKED = """
import errno, fcntl, os, sys
lock = fcntl.flock
def flock(file, operation):
    if "{folder}" in os.readlink(f"/proc/self/fd/{{file if isinstance(file, int) else file.fileno()}}"):
        raise OSError(errno.{error}, os.strerror(errno.{error}))
    lock(file, operation)
fcntl.flock = flock
from garrison.cli.main import main
sys.exit(main())
"""


class Stand(NamedTuple):
    """The folder of a user with a plain HOME and the PATH of a small machine."""

    home: Path
    folder: Path
    path: str
    around: tuple[str, ...] = ()
    """Words before the command, that make its surroundings."""

    @property
    def env(self) -> dict[str, str]:
        return {"HOME": str(self.home), "PATH": self.path, "LANG": "C.UTF-8"}

    def replace_program(self, name: str, text: str) -> None:
        program = Path(self.path, name)
        program.unlink(missing_ok=True)
        program.write_text(text)
        program.chmod(0o755)

    def type(self, line: str) -> subprocess.CompletedProcess[str]:
        """Type a line into a shell, whose standard input is not a terminal."""
        return subprocess.run([*self.around, "/bin/sh", "-c", line], cwd=self.folder, env=self.env, text=True,
                              check=False, capture_output=True, stdin=subprocess.DEVNULL, timeout=DEADLINE)


class Door(NamedTuple):
    """A command in surroundings of its own, and what it answers."""

    prepare: Callable[[Stand], Stand]
    words: Sequence[str]
    says: str
    """Pattern of its message."""
    then: str = ""
    """Pattern of what the command says once its advice was typed, '' if it gives none that can be typed here."""
    code: int = 1


def in_plain_folder(stand: Stand) -> Stand:
    return stand._replace(folder=_made(stand.home / "plain folder"))


def in_empty_repository(stand: Stand) -> Stand:
    stand = in_plain_folder(stand)
    git(stand.folder, "init", "-qb", "main")
    (stand.folder / "file").write_text("x")
    return stand


def in_bare_repository(stand: Stand) -> Stand:
    git(stand.home, "clone", "-q", "--bare", stand.folder, "shop.git")
    return stand._replace(folder=stand.home / "shop.git")


def below_git_directory(stand: Stand) -> Stand:
    return stand._replace(folder=stand.folder / ".git/refs")


def without(*programs: str) -> Callable[[Stand], Stand]:
    def prepare(stand: Stand) -> Stand:
        for name in programs:
            Path(stand.path, name).unlink()
        return stand
    return prepare


def with_old_git(stand: Stand) -> Stand:
    stand.replace_program("git", "#!/bin/sh\necho git version 2.30.2\n")
    return stand


def without_user_namespaces(stand: Stand) -> Stand:
    shell = 'echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"'
    return stand._replace(around=("unshare", "-Ur", "sh", "-c", shell, "sh"))


def with_read_only_home(stand: Stand) -> Stand:
    return stand._replace(around=("bwrap", "--dev-bind", "/", "/", "--ro-bind", str(stand.home), str(stand.home),
                                  "--bind", str(stand.folder), str(stand.folder), "--tmpfs", "/var/tmp"))


def with_full_disk(stand: Stand) -> Stand:
    state = str(stand.home / ".local")
    return stand._replace(around=("bwrap", "--dev-bind", "/", "/", "--size", "4096", "--tmpfs", state))


def without_locks(folder: str, error: str) -> Callable[[Stand], Stand]:
    def prepare(stand: Stand) -> Stand:
        stand.replace_program("garrison", f"#!{_python()} -P\n{UNLOCKED.format(folder=folder, error=error)}")
        return stand
    return prepare


def in_gone_folder(stand: Stand) -> Stand:
    gone = _made(stand.home / "gone")
    return stand._replace(around=("sh", "-c", f'cd "{gone}"; rmdir "{gone}"; exec "$@"', "sh"))


def as_it_is(stand: Stand) -> Stand:
    return stand


NO_SANDBOX = r"agent command: no sandbox: bubblewrap .*; {}, or pass `--sandbox landlock`, which leaves gaps"
INSTALL = r"install it with `(sudo )?\S+ .*{}`"
DONE = "pre-flight passed"
DOORS = {
    "nothing but its name": Door(as_it_is, (), r"garrison init .*\n(.*\n)+here: \S+ is not prepared yet; "
                                               "next: garrison init", code=2),
    "its name, in no repository": Door(in_plain_folder, (), "here: .*plain folder is not in a git repository", code=2),
    "a misspelt command": Door(as_it_is, ("stauts",), "did you mean 'status'?", code=2),
    "no repository": Door(in_plain_folder, TASK, "is not in a git repository; `cd` to one", "has no commit yet"),
    "no commit": Door(in_empty_repository, TASK, "has no commit yet; commit what is there: `git -C", DONE),
    "a bare repository": Door(in_bare_repository, TASK,
                              "is a bare repository; clone it and start there: `git clone .*shop-checkout"),
    "below .git": Door(below_git_directory, TASK, "is a git directory; start in the checkout that belongs to it: `cd "),
    "a folder that is gone": Door(in_gone_folder, TASK, "the current folder is gone; `cd` to an existing one"),
    "no git": Door(without("git"), TASK, f"git is not on your PATH; {INSTALL.format('git')}"),
    "no git, to prepare": Door(without("git"), ("init",), "git is not on your PATH"),
    "no git, to watch": Door(without("git"), ("demo",), "^garrison: git is not on your PATH"),
    "an old git": Door(with_old_git, TASK, "git 2.30.2 is too old: garrison needs 2.39 or newer; install it"),
    "no agent": Door(as_it_is, ("run", "write down what changed", "--gate", "true"),
                     r"which agent\?.*--command CMD; `garrison init` keeps"),
    "no bubblewrap": Door(without("bwrap"), TASK, NO_SANDBOX.format(INSTALL.format("bubblewrap"))),
    "no user namespaces": Door(without_user_namespaces, TASK, NO_SANDBOX.format(
        "allow user namespaces: `(sudo )?sysctl -w user.max_user_namespaces=15000`")),
    "a read-only HOME": Door(with_read_only_home, TASK, "Read-only file system: .*; make it writable, or keep home and "
                                                        "worktrees elsewhere: `export GARRISON_HOME=", DONE),
    "a full disk": Door(with_full_disk, TASK, "No space left on device.*; free some space"),
    "a home without locks": Door(without_locks("/.local/", "ENOLCK"), TASK[:-1],
                                 r"\.lock cannot be locked \(No locks available\).*; keep home and worktrees on a "
                                 "local disk: `export GARRISON_HOME="),
    "a repository without locks": Door(without_locks("/.git/", "EOPNOTSUPP"), TASK,
                                       r"cannot be locked \(Operation not supported\).*; clone the repository to a "),
}


@pytest.fixture
def stand(tmp_path: Path) -> Stand:
    """A HOME with a repository, and a PATH with few programs."""
    home, path = tmp_path / "home", _made(tmp_path / "bin")
    garrison_home(home)
    make_repository(home / "shop")
    (home / ".gitconfig").write_text("[user]\nname = A User\nemail = user@example.org\n")
    for name in ("git", "sh", "env", "cat", "cp", "true", "timeout", "bwrap", "unshare", "rmdir", "sysctl", "apt-get"):
        if found := shutil.which(name):
            (path / name).symlink_to(found)
    stand = Stand(home, home / "shop", str(path))
    stand.replace_program("garrison", f"#!/bin/sh\nexec {_python()} -P -m garrison.cli.main \"$@\"\n")
    return stand


@pytest.mark.parametrize("name", DOORS)
def test_each_first_command_helps(stand: Stand, name: str) -> None:
    door = DOORS[name]
    stand = door.prepare(stand)
    if stand.around and (lack := _lack(stand.around[0])):
        pytest.skip(lack)
    line = " ".join(["garrison", *(f"'{word}'" for word in door.words)])
    done = stand.type(line)
    assert re.search(door.says, done.stderr, re.MULTILINE), done.stderr
    assert (done.returncode, done.stdout) == (door.code, "")
    assert len(done.stderr.splitlines()) <= LINES and "Traceback" not in done.stderr
    for advice in re.findall(door.then and "`([^`]+)`", done.stderr)[-1:]:
        again = stand.type(f"{advice} && {line}")
        assert re.search(door.then, again.stdout + again.stderr), (advice, again)


@cache
def _lack(program: str) -> str:
    """Return why a program cannot make surroundings here, '' if it can."""
    words = {"unshare": ["-Ur"], "bwrap": ["--dev-bind", "/", "/"]}.get(program, ["-c"])
    try:
        done = subprocess.run([program, *words, "true"], check=False, capture_output=True)
    except FileNotFoundError:
        return f"{program} is not installed"
    return "" if done.returncode == 0 else f"{program} may not make namespaces here"


@pytest.mark.parametrize("variables", [{"TERM": "xterm"}, {"TERM": "dumb"}, {"TERM": "xterm", "NO_COLOR": "1"}])
def test_its_name_alone_fits_a_small_terminal(stand: Stand, variables: dict[str, str]) -> None:
    """It has no colour or escape, and no line that the terminal would break."""
    reading, writing = pty.openpty()
    fcntl.ioctl(writing, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    done = subprocess.Popen(["garrison"], cwd=stand.home, env=stand.env | variables, stdin=writing, stdout=writing,
                            stderr=writing, executable=str(Path(stand.path, "garrison")))
    os.close(writing)
    seen = b""
    with contextlib.suppress(OSError):  # EIO: no writer is left
        while block := os.read(reading, 65536):
            seen += block
    os.close(reading)
    assert done.wait(DEADLINE) == 2
    lines = seen.decode().splitlines()
    assert sum(max(1, -(-len(line) // COLUMNS)) for line in lines) < LINES, lines
    assert max(map(len, lines[:-1])) <= COLUMNS
    assert b"\x1b" not in seen


def test_python_runs_it_as_a_module(stand: Stand) -> None:
    done = subprocess.run([_python(), "-P", "-m", "garrison", "--version"], env={"PATH": stand.path}, check=True,
                          capture_output=True, text=True, cwd=stand.home)
    assert re.fullmatch(r"garrison, version \d+\.\d+\.\d+\n", done.stdout)


@cache
def _python() -> str:
    return str(install())


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
