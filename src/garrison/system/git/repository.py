"""Repository: run git in it, derive its key, and check whether garrison can work on it.

Each git call is a short-lived child with our settings on top of the user's, immune to what agents may have put into the
repository (`neutral.py`).
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import resource
import shutil
import signal
import stat
import subprocess
import time
from contextlib import contextmanager, suppress
from functools import cached_property, lru_cache, partial
from pathlib import Path
from shlex import quote
from typing import IO, TYPE_CHECKING, NamedTuple

from garrison.backoff import Backoff
from garrison.errors import GarrisonError, Refused
from garrison.system import machine, untrusted
from garrison.system.command import run
from garrison.system.environment import absolute_path
from garrison.system.git import damage
from garrison.system.git.neutral import (
    NETWORK,
    NO_DRIVERS,
    VARIABLES,
    Unneutral,
    find_git_dirs,
    neutral_variables,
    read_configuration,
)
from garrison.system.processes import signal_group
from garrison.system.stamps import file_stamp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from garrison.system.git.neutral import Setting
    from garrison.system.git.signing import Signer

DURABLE = ("-c", "core.fsync=committed,loose-object,reference")
"""Added if objects or refs must survive a power cut."""
NAME, EMAIL = "garrison", "garrison@localhost"
"""Author and committer if the user has not configured a name."""
CONTENTION = re.compile(r"(could not lock|cannot lock|unable to create .*\.lock|file exists|"
                        r"failed to (read|write) .*worktrees|commondir)", re.IGNORECASE)
"""Messages of git while another git holds a lock."""
OPERATIONS = {"MERGE_HEAD": "a merge", "CHERRY_PICK_HEAD": "a cherry-pick", "REVERT_HEAD": "a revert",
              "rebase-merge": "a rebase", "rebase-apply": "a rebase", "sequencer": "a cherry-pick or revert"}
"""Files in a worktree's git directory during an operation that the user must finish."""
_TRUST = re.compile(r"git config --global --add safe\.directory .+")
RETRY_SECONDS, _PAUSES = 10.0, Backoff(0.01, 0.2)
TIMED_OUT, TOO_MUCH = 124, 125
"""Codes of a GitError for a call that took too long or wrote too much."""
MAX_MEMORY, MAX_SECONDS = 2 << 30, 300.0
"""Limits of a call on an agent's raw data: bytes of memory and seconds; in a worktree and for merges, CPU seconds: an
agent also controls rules of a `.gitignore` and sizes in a `.gitattributes`."""
_MERGES = frozenset({"merge-tree", "merge-file"})


class GitError(GarrisonError):
    """A refusal or failure of git; `str(error)` is one line with its message."""

    def __init__(self, arguments: Sequence[str], code: int, stderr: str) -> None:
        lines = [line.strip() for line in stderr.splitlines() if line.strip()]
        message = next((line for line in lines if line.startswith(("fatal:", "error:"))), lines[-1] if lines else "")
        super().__init__(f"git {' '.join(arguments[:2])} failed ({code}): {message or 'it said nothing'}")
        self.code, self.stderr = code, stderr


class GitResult(NamedTuple):
    """Exit code and output of one call."""

    code: int
    out: str
    err: str


# ------------------------------------------------------------------------------------------------------- running git


class Repository:
    """One repository, seen from `root` (any directory of it). Methods that take `path` act in that worktree."""

    def __init__(self, root: Path, environ: Mapping[str, str] | None = None, common: Path | None = None,
                 home: Path | None = None) -> None:
        """Open a repository. `home`: the home whose launches record which programs of its configuration are trusted."""
        self.root, self.home = root, home
        self.environment = environment(environ)
        self.pinned: Mapping[str, str] = {}
        """Variables of every call that name its git directory, if `root` must not determine it."""
        self.has_foreign_objects = False
        """True if its objects come directly from an agent: calls have limits then."""
        self.max_memory, self.max_seconds = MAX_MEMORY, MAX_SECONDS
        self._registered: dict[Path, tuple[object, Path]] = {}
        """Worktree → folder above it and stamp of its record, and its git directory."""
        self.committer = (NAME, EMAIL)
        """Name and address of the committer of what lands, and author of merges."""
        self.signer: Signer | None = None
        """Signs the commits of a landing; None: nothing is signed."""
        self.retry_seconds = RETRY_SECONDS
        self.outer: Path | None = None
        """Common directory of the repository whose worktree contains this one, if any."""
        if common is not None:
            self.common = common  # the caller knows it: git need not be asked

    @cached_property
    def common(self) -> Path:
        return common_dir(self.root)

    @cached_property
    def key(self) -> str:
        return key_of(self.common)

    def run(self, *arguments: str, cwd: Path | None = None, check: bool = True, durable: bool = False,
            text: str | None = None, extra: Mapping[str, str] | None = None, hooks: bool = False,
            exact: bool = False, timeout: float | None = None, most: int | None = None,
            meanwhile: Callable[[], object] | None = None) -> GitResult:
        """Run git. GitError if it fails, unless not `check`; always if a signal or the time limit ended it, or if the
        problem is temporary (`hindrance`): then it has not answered, least of all "there is none".

        Args:
            durable: what it writes survives a power cut.
            text: its standard input; None: closed.
            extra: additional environment variables.
            hooks: the user's hooks may run, and refuse.
            exact: bytes that are not UTF-8 are kept, as Python does in file names.
            timeout: seconds after which git is killed, with the programs of its transports.
            most: bytes of output; a git that writes more is killed.
            meanwhile: is called once, while git runs; an exception kills git.
        """
        once = partial(self._run_once, *arguments, cwd=cwd, check=check, durable=durable, text=text, extra=extra,
                       hooks=hooks, exact=exact, timeout=timeout, most=most)
        try:
            answer = once(meanwhile=meanwhile)
        except GitError as error:
            if not self._mend(error.stderr, cwd):
                raise
            return once()
        return once() if answer.code and self._mend(answer.err, cwd) else answer

    def _mend(self, told: str, cwd: Path | None) -> bool:
        """Repair the registration of a worktree that made git fail; return whether anything was repaired."""
        common = self.__dict__.get("common")
        found = machine.find_hindrance(told)
        if common is None or found is None or found.course is not machine.Course.REPAIR:
            return False
        mended = damage.mend_registration(common, cwd, told)
        if cwd is not None and any(name.endswith("/index") for name in mended):
            self._run_once("read-tree", "HEAD", cwd=cwd, check=False)
        return bool(mended)

    def _run_once(self, *arguments: str, cwd: Path | None = None, check: bool = True, durable: bool = False,
                  text: str | None = None, extra: Mapping[str, str] | None = None, hooks: bool = False,
                  exact: bool = False, timeout: float | None = None, most: int | None = None,
                  meanwhile: Callable[[], object] | None = None) -> GitResult:
        if cwd is not None and cwd != self.root and not os.access(cwd, os.X_OK):
            untrusted.mend_folder(cwd)  # an agent in this worktree removed our permissions
        if self.has_foreign_objects:
            timeout = min(timeout or self.max_seconds, self.max_seconds)
        name, *rest = arguments
        command = ["git", *(DURABLE if durable else ()), name, *NO_DRIVERS.get(name, ()), *rest]
        named = {**self.pinned, **self._pin(cwd), **(extra or {})}
        where = Path(named["GIT_DIR"]) if "GIT_DIR" in named else cwd or self.root
        try:
            neutral = neutral_variables(where, self.__dict__.get("common"), self.home, self.environment,
                                        outer=self.outer, network=name in NETWORK, hooks=hooks)
        except Unneutral as error:
            if check:
                raise GitError(arguments, 128, f"fatal: {error}") from error
            return GitResult(128, "", f"fatal: {error}")
        env = {**self.environment, **neutral, **named}
        with _given(text) as given, self._start(command, arguments, cwd or self.root, env, given=given,
                                                has_group=timeout is not None) as child:
            if self.has_foreign_objects or "GIT_WORK_TREE" in named or name in _MERGES:
                _limit(child, self.max_memory, int(self.max_seconds))
            try:
                out, err = _read_all(child, arguments, timeout, most, meanwhile)
            except subprocess.TimeoutExpired as error:
                signal_group(child)
                raise GitError(arguments, TIMED_OUT, f"fatal: it did not end within {timeout:g} s") from error
            except BaseException:
                child.kill()
                raise
        errors = "surrogateescape" if exact else "backslashreplace"
        answer = GitResult(child.returncode, out.decode(errors=errors), err.decode(errors="backslashreplace"))
        if answer.code < 0:
            raise GitError(arguments, answer.code, f"fatal: {signal.strsignal(-answer.code)}: a signal ended it")
        if answer.code and (check or machine.passes(GitError(arguments, answer.code, answer.err))):
            raise GitError(arguments, answer.code, answer.err)
        return answer

    def _explain_start(self, error: OSError, arguments: Sequence[str], env: Mapping[str, str]) -> GarrisonError:
        """Return the error of a git that could not be started."""
        if isinstance(error, FileNotFoundError) and shutil.which("git", path=env.get("PATH")) is None:
            return _lacks_git()
        if not self.root.is_dir():
            return GitError(arguments, 127, f"fatal: {error.strerror}; the repository is not there: {self.root}")
        subject = f": {error.filename}" if error.filename else ""  # none if the machine lacks descriptors
        return GitError(arguments, 127, f"fatal: {error.strerror}{subject}")

    def _start(self, command: Sequence[str], arguments: Sequence[str], cwd: Path, env: Mapping[str, str], *,
               given: int, has_group: bool) -> subprocess.Popen[bytes]:
        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen(command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                    start_new_session=has_group, executable=find_git(env.get("PATH", "")), stdin=given)

        try:
            try:
                return start()
            except FileNotFoundError:  # an upgrade may have put it elsewhere
                find_git.cache_clear()
                return start()
        except OSError as error:
            raise self._explain_start(error, arguments, env) from error

    def _pin(self, path: Path | None) -> Mapping[str, str]:
        """Return the variables that name the git directory of a linked worktree, whatever the worktree contains."""
        own = None if path is None or path == self.root or self.pinned else self.registered(path)
        return {} if own is None else {"GIT_DIR": str(own), "GIT_WORK_TREE": str(path)}

    def registered(self, path: Path) -> Path | None:
        """Return a linked worktree's own git directory by the repository's records, whatever its `.git` file says; None
        if the repository has no such worktree."""
        known = self._registered.get(path)
        if known is not None and known[0] == _stamp_record(path, known[1]):
            return known[1]
        try:
            folder = self.common / "worktrees"
        except Refused:
            return None
        link = path.parent.resolve() / path.name / ".git"
        for git_dir in damage.list_entries(folder, path.name):
            stamp = _stamp_record(path, git_dir)
            if damage.is_record_of(git_dir, link):
                self._registered[path] = stamp, git_dir
                return git_dir
        return None

    def is_contention(self, errors: str) -> bool:
        """Return whether git's messages say that another git holds a lock; remove locks of a killed git."""
        damage.remove_named(errors, self.root, self.common)
        return CONTENTION.search(errors) is not None

    def make_lock(self, path: Path) -> Path:
        """Create the empty file `path` below the shared git directory, with its folders, unless it exists: with the
        permissions of `core.sharedRepository`, as git creates its own files. Refused if only another user may."""
        try:
            return self._make_lock(path)
        except PermissionError as error:
            raise explain_rights(path) or error from error

    def _make_lock(self, path: Path) -> Path:
        with suppress(FileNotFoundError):
            status = path.stat()
            if status.st_uid != os.geteuid() or status.st_mode & 0o077 or not self.shared_mode:
                return path  # else an older version may have made it, for one user only
        self.make_folder(path.parent)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if self.shared_mode and os.fstat(descriptor).st_uid == os.geteuid():
            os.fchmod(descriptor, 0o600 | self.shared_mode)
        os.close(descriptor)
        return path

    def make_folder(self, path: Path) -> None:
        """Create a folder below the shared git directory, with its parents, for the same users as `make_lock`."""
        for folder in reversed([each for each in (path, *path.parents) if self.common in each.parents]):
            with suppress(FileExistsError):
                folder.mkdir(0o700)
            if self.shared_mode and folder.stat().st_uid == os.geteuid():
                folder.chmod(stat.S_ISGID | 0o700 | self.shared_mode | (self.shared_mode & 0o044) >> 2)

    @cached_property
    def shared_mode(self) -> int:
        """Return the permissions of others on files that git creates here; 0 for none."""
        if not self.common.stat().st_mode & (stat.S_ISGID | stat.S_IWGRP):
            return 0
        return _shared_mode(self.run("config", "--get", "core.sharedRepository", check=False).out.strip())

    def settings(self, path: Path | None = None) -> Sequence[Setting]:
        """Return the settings that apply in a worktree, in git's order; none if it cannot read them."""
        own = (self.pinned or self._pin(path)).get("GIT_DIR")
        dirs = find_git_dirs(Path(own) if own else path or self.root)
        return read_configuration(dirs, self.environment).in_force if dirs is not None else ()

    def rev(self, name: str, path: Path | None = None) -> str | None:
        """Return the commit that `name` refers to (in the worktree `path`), or None."""
        answer = self.run("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}", cwd=path, check=False)
        return answer.out.strip() or None


def _stamp_record(path: Path, git_dir: Path) -> object:
    """Return a value that changes with the folder above a worktree and with git's record of its place."""
    try:
        above = os.stat(path.parent)  # noqa: PTH116  # several times a git call
    except OSError:
        return None
    return above.st_dev, above.st_ino, file_stamp(f"{git_dir}/gitdir")


def _shared_mode(setting: str) -> int:
    """Return the permissions of others on a file by `core.sharedRepository`, as git reads it. Pure."""
    if re.fullmatch("0[0-7]+", setting):
        return int(setting, 8) & 0o066
    if setting.lower() in ("all", "world", "everybody", "2"):
        return 0o064
    return 0o060 if setting.lower() in ("group", "true", "1", "yes", "on") else 0


def explain_rights(path: Path) -> Refused | None:
    """Return the refusal for a file in a git directory that another user created privately; None for one's own.
    """
    for folder in (path, *path.parents):
        with suppress(OSError):
            owner = folder.lstat().st_uid
            return None if owner == os.geteuid() else Refused(
                f"only user {owner} can write to {folder}, so your runs cannot land here; have them "
                "share the repository (`git config core.sharedRepository group`, and `chmod -R g+rwXs` for .git), or "
                "work in a clone")
    return None


@contextmanager
def _given(text: str | None) -> Iterator[int]:
    """Yield what git reads."""
    if text is None:
        yield subprocess.DEVNULL
        return
    with in_memory(text.encode(errors="surrogateescape")) as file:
        yield file.fileno()


def in_memory(data: bytes = b"") -> IO[bytes]:
    """Return a file with this content, as git's input: git writes while it reads, so with a pipe each side could wait
    for the other."""
    file = open(os.memfd_create("git", os.MFD_CLOEXEC), "w+b")  # noqa: PTH123, SIM115  # a descriptor
    file.write(data)
    file.seek(0)
    return file


def _read_all(child: subprocess.Popen[bytes], arguments: Sequence[str], timeout: float | None, most: int | None,
              meanwhile: Callable[[], object] | None) -> tuple[bytes, bytes]:
    """Return output and messages of git; TimeoutExpired, or GitError for more output than `most`."""
    begin = b""
    if meanwhile is not None:
        meanwhile()
    if most is not None and child.stdout is not None:
        begin = child.stdout.read(most + 1)
        if len(begin) > most:
            child.kill()
            raise GitError(arguments, TOO_MUCH, f"fatal: it wrote more than {most >> 20} MiB")
    out, err = child.communicate(timeout=timeout)
    return begin + out, err


def _limit(child: subprocess.Popen[bytes], memory: int, seconds: int) -> None:
    """Limit the memory and CPU time of a git that has just started."""
    with suppress(ProcessLookupError, PermissionError):
        resource.prlimit(child.pid, resource.RLIMIT_DATA, (memory, memory))
        resource.prlimit(child.pid, resource.RLIMIT_CPU, (seconds, seconds + 5))


def environment(source: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of our git: `source` (default: ours) without `GIT_*`, English, without prompts; with a
    PATH of absolute folders only."""
    kept = {name: value for name, value in (os.environ if source is None else source).items()
            if not name.startswith("GIT_")}
    return {**kept, "PATH": absolute_path(kept.get("PATH", "")), "LC_ALL": "C", **VARIABLES}


def split(text: str) -> list[str]:
    return [part for part in text.split("\0") if part]


def pair(line: str) -> tuple[str, str]:
    name, _, value = line.partition(" ")
    return name, value


def attempts(seconds: float) -> Iterator[bool]:
    """Yield once per attempt under lock contention, after a growing pause; True marks the last attempt."""
    deadline = time.monotonic() + seconds
    yield False
    failures = itertools.count(1)
    while time.monotonic() < deadline:
        time.sleep(_PAUSES.delay(next(failures)))
        yield False
    yield True


# ------------------------------------------------------------------------------------------- directories and their keys


def common_dir(path: Path) -> Path:
    """Return the real path of the git directory that all worktrees of `path` share; Refused if there is none."""
    if not path.exists():
        raise Refused(f"{path} does not exist; name the directory of a git repository")
    if not path.is_dir():
        raise Refused(f"{path} is a file; name the directory of a git repository")
    if not is_text(path):
        raise Refused(f"the path {os.fsencode(path)!r} is not UTF-8, which no record can contain; rename the directory")
    if (known := _known_common_dir(path)) is not None:
        return known
    answer = Repository(path).run("rev-parse", "--git-common-dir", check=False)
    if answer.code:
        raise Refused(_explain_no_repository(path, answer.err))
    return (path / answer.out.strip()).resolve()


def _known_common_dir(path: Path) -> Path | None:
    """Return the common directory of our own complete checkout; None if git must check it and report the problem."""
    dirs = find_git_dirs(path) if (path / ".git").exists() else None
    if dirs is None or not all((dirs.common / name).exists() for name in ("HEAD", "objects", "refs")):
        return None
    # git refuses another user's repository unless safe.directory names it (2.35.2), so it must be asked.
    owners = {each.stat().st_uid for each in (path, path / ".git", dirs.own, dirs.common)}
    return dirs.common if owners == {os.geteuid()} else None


def _explain_no_repository(path: Path, stderr: str) -> str:
    """Describe, from git's message, what to do about a directory in which it finds no repository."""
    trust = _TRUST.search(stderr)
    if trust:
        return f"git does not trust {path}, which belongs to another user; if you do, run `{trust[0]}`"
    message = next((line for line in stderr.splitlines() if line.startswith("fatal:")), "")
    if message and "not a git repository (or" not in message:
        return f"git cannot open the repository at {path}: {message.removeprefix('fatal: ')}; fix that first"
    return f"{path} is not in a git repository; `cd` to one, or make one there with `git init {quote(str(path))}`"


def is_text(path: Path) -> bool:
    """Return whether the real path is UTF-8, so that a record can contain it."""
    try:
        os.fspath(path.resolve()).encode()
    except UnicodeEncodeError:
        return False
    return True


def repository_key(path: Path) -> str:
    """Return a directory name for the repository at `path`: a readable stem and a hash of its common directory."""
    return key_of(common_dir(path))


def key_of(common: Path) -> str:
    stem = common.parent.name if common.name == ".git" else common.name.removesuffix(".git")
    readable = re.sub(r"[^A-Za-z0-9_-]", "_", stem)[:32] or "repository"
    return f"{readable}-{hashlib.sha256(os.fsencode(common)).hexdigest()[:8]}"


# ------------------------------------------------------------------------------------- repositories that can be used


OLDEST = (2, 39)
"""The oldest git with all features used here."""


def installed_version() -> str:
    """Return the version of the git on PATH, '' if there is none."""
    match = re.search(r"\d+(\.\d+)+", run(["git", "--version"], 20.0).out)
    return match[0] if match else ""


@lru_cache(maxsize=8)
def find_git(path: str) -> str:
    """Return the git of a PATH, as its whole name: each start by its name alone tries all folders before."""
    found = shutil.which("git", path=path) if path else None
    return found if found and os.path.isabs(found) else "git"  # noqa: PTH117  # a word of PATH


def check_version() -> None:
    """Raise GarrisonError if git is missing, Refused if it is too old, before anything starts that would fail
    halfway."""
    version = installed_version()
    if not version:
        raise _lacks_git()
    if machine.parse_version(version) < OLDEST:
        raise Refused(f"git {version} is too old: garrison needs {'.'.join(map(str, OLDEST))} or newer; install it, "
                      f"with `{machine.install_command('git')}` if your system has it")


def _lacks_git() -> GarrisonError:
    return GarrisonError(f"git is not on your PATH; install it with `{machine.install_command('git')}`, or add its "
                         "folder to PATH")


def validate_repository(path: Path) -> Path:
    """Return the top directory of a repository garrison can work on; Refused, with what to do, for any other."""
    return locate_repository(path)[0]


def locate_repository(path: Path) -> tuple[Path, Path]:
    """Return top directory and common directory of a valid repository; Refused as `validate_repository`."""
    if path.is_dir() and is_text(path):
        answer = Repository(path).run(
            "rev-parse", "--git-common-dir", "--is-bare-repository", "--is-shallow-repository", "--show-toplevel",
            "--verify", "HEAD^{commit}", check=False)
        lines = answer.out.splitlines()
        if answer.code == 0 and lines[1:3] == ["false", "false"] and len(lines) == 5:
            common = (path / lines[0]).resolve()
            check_writable(common)
            return Path(lines[3]), common
    return _locate_step_by_step(path), common_dir(path)


def _locate_step_by_step(path: Path) -> Path:
    """Return the top directory, checking step by step, so that the message can name the problem."""
    common = common_dir(path)
    check_writable(common)
    git = Repository(path)
    flags = git.run("rev-parse", "--is-bare-repository", "--is-shallow-repository").out.split()
    if flags[0] == "true":
        first = next(iter(sorted((common / "worktrees").glob("*/gitdir"))), None)
        there = Path(first.read_text(errors="surrogateescape").strip()).parent if first is not None else None
        if common.name == ".git" and (common / "index").exists():
            raise Refused(f"core.bare is true in {common.parent}, so git takes that checkout for a bare repository; "
                          f"run `git -C {common.parent} config core.bare false`")
        clone = common.with_name(f"{common.name.removesuffix('.git')}-checkout")
        way = f"start in a worktree of it: `cd {quote(str(there))}`" if there else \
            f"clone it and start there: `git clone {quote(str(common))} {quote(str(clone))}`"
        if there is None and common != path:  # a folder for worktrees, whose `.git` points to it
            way = f"it has no worktree yet: `git -C {path} worktree add main`, and start there"
        raise Refused(f"{path} is a bare repository; {way}")
    if flags[1] == "true":
        raise Refused(f"{path} is a shallow clone; run `git -C {path} fetch --unshallow` first")
    if git.rev("HEAD") is None:
        if git.run("rev-list", "-n1", "--all").out.strip():
            raise Refused(f"{path} is on a branch without commits; switch to one that has some")
        at = f"git -C {quote(str(path))}"
        raise Refused(f"{path} has no commit yet; commit what is there: `{at} add -A && {at} commit --allow-empty -m "
                      "start`")
    return top_directory(path)


def top_directory(path: Path) -> Path:
    """Return the top directory of the checkout that `path` is in; Refused if it is in none."""
    common = common_dir(path)
    top = Repository(path).run("rev-parse", "--show-toplevel", check=False).out.strip()
    if not top:
        checkout = f": `cd {quote(str(common.parent))}`" if common.name == ".git" else ""
        raise Refused(f"{common} is a git directory; start in the checkout that belongs to it{checkout}")
    return Path(top)


def check_writable(common: Path) -> None:
    """Refused if the repository with that common directory is not writable."""
    for folder in (common, common / "objects", common / "refs"):
        if not os.access(folder, os.W_OK):
            raise Refused(f"{folder} is not writable, and every landing is written there; fix its permissions, or "
                          "work on a clone")


def operation_in_progress(git_dir: Path) -> str | None:
    """Return what is in progress in the worktree with that git directory (`a rebase`), None if nothing."""
    return next((what for name, what in OPERATIONS.items() if (git_dir / name).exists()), None)


def explain_detached_head(path: Path) -> str:
    """Describe what to do about the checkout at `path`, which has a detached HEAD."""
    git_dir = Path(Repository(path).run("rev-parse", "--absolute-git-dir").out.strip())
    what = "a bisect" if (git_dir / "BISECT_START").exists() else operation_in_progress(git_dir)
    if what:
        return f"{what} is in progress in {path}; finish or abort it, or name the branch to land on with --base BRANCH"
    return f"{path} has a detached HEAD; say which branch to land on with --base BRANCH"
