"""Machine: how many agents it can run, what it lacks for a start, and how to react to answers of git, the file system
and the machine.

A shortage is temporary and says nothing about the work: what hits it waits and is retried. The same applies to garrison
itself while an upgrade replaces it.
"""

from __future__ import annotations

import math
import os
import re
import sys
import time
from enum import StrEnum
from errno import EACCES, EAGAIN, EDQUOT, EIO, EMFILE, ENFILE, ENOMEM, ENOSPC, EPERM, EROFS, ETOOMANYREFS
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.backoff import Backoff
from garrison.errors import GarrisonError, Hindered, Shortage
from garrison.values import Value, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from typing import TypeVar

    T = TypeVar("T")

AGENT_BYTES = 512 << 20
"""Estimated memory of one agent with its tools."""
_UNLIMITED = 1 << 60
"""Limits from here on mean "no limit" (v1 has no `max`)."""


def default_agents(cores: int, available: int | None) -> int:
    """Return the default of `--max-agents`: one per core, at least 2, if memory (bytes; None: unknown) allows. Pure."""
    by_cores = max(2, cores)
    return by_cores if available is None else max(1, min(by_cores, available // AGENT_BYTES))


def parse_version(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: `2.43.0.rc1` → (2, 43, 0); () for none."""
    numbers: list[int] = []
    for part in text.split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


_INSTALLERS = {"apt-get": "apt-get install -y", "dnf": "dnf install -y", "pacman": "pacman -S --noconfirm",
               "apk": "apk add", "zypper": "zypper install -y"}
"""Package manager → command that installs the packages named after it."""


def install_command(package: str) -> str:
    """Return the command that installs a system package on this machine."""
    import shutil  # imported late: only messages need it, and every script command imports this module

    command = next((text for manager, text in _INSTALLERS.items() if shutil.which(manager)), _INSTALLERS["apt-get"])
    return f"{'' if os.geteuid() == 0 else 'sudo '}{command} {package}"


RECOVERY = 60.0
"""Seconds without a shortage after which one more agent may work."""


class AgentLimit(Value):
    """Limit of concurrent agents: lowered while the machine is short of memory or processes, raised again one by one.

    It stops no agent; it only prevents starts while more agents work than it allows.
    """

    most: int
    allowed: int
    changed: float = 0.0
    """When it was changed last, in monotonic seconds."""

    @classmethod
    def full(cls, most: int) -> AgentLimit:
        return cls(most, most)

    def after(self, *, is_short: bool, busy: int, now: float) -> AgentLimit:
        """Return the current limit, while `busy` agents work. Pure."""
        if is_short and self.allowed >= min(self.most, max(1, busy)):
            return replace(self, allowed=max(1, min(self.most, busy) - 1), changed=now)
        if is_short:
            return replace(self, changed=now)
        if self.allowed < self.most and now - self.changed >= RECOVERY:
            return replace(self, allowed=self.allowed + 1, changed=now)
        return self


def cores() -> int:
    return len(os.sched_getaffinity(0))


def available_memory(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the bytes that may still be used: the minimum of MemAvailable and what our cgroups allow; None:
    unknown."""
    limits = [left for group in _groups("memory", proc, cgroups) if (left := _unused(group)) is not None]
    try:
        for line in (proc / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                limits.append(int(line.split()[1]) << 10)
    except (OSError, ValueError, IndexError):
        pass
    return min(limits, default=None)


def _groups(controller: str, proc: Path, cgroups: Path) -> list[Path]:
    """Return the folders of our cgroup of a controller and of its parents; a container may mount them at the root."""
    try:
        lines = [line.split(":", 2) for line in (proc / "self/cgroup").read_text().splitlines()]
    except OSError:
        return []
    groups = []
    for _, controllers, path in lines:
        if controllers and controller not in controllers.split(","):
            continue
        base = cgroups / controller if controllers else cgroups
        group = base / path.strip("/")
        groups += [folder for folder in (group, *group.parents) if folder == base or base in folder.parents]
    return groups


def _unused(group: Path) -> int | None:
    """Return the bytes that a cgroup's limit leaves, counting droppable page cache as free; None: no limit."""
    for limit, used, idle in (("memory.max", "memory.current", "inactive_file"),
                              ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")):
        try:
            if (allowed := int((group / limit).read_text())) < _UNLIMITED:
                taken = int((group / used).read_text())
                stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
                return max(0, allowed - taken + int(stat.get(idle, 0)))
        except (OSError, ValueError):  # `max`, or no such file
            continue
    return None


# ---- Shortage: recognise that the machine lacks processes, memory, descriptors or garrison itself for another start.
#
# Like a full disk it is temporary and says nothing about the work: what hits it waits and is retried. `find_shortage`
# checks the limits before a start; `is_shortage` and `reports_shortage` recognise one that was hit nevertheless (a
# limit of the user, for example, cannot be read).


ERRNOS = frozenset({EAGAIN, ENOMEM, EMFILE, ENFILE, ETOOMANYREFS})
"""Errors of fork, exec and open for lack of processes, memory or descriptors."""
MIN_PROCESSES = 8
"""Free processes in our cgroup required to start a process: it will need more for its work."""
MIN_FOR_WORK = 3
"""Free processes required for an agent, a job or a gate run: fewer, so that started work is finished and nothing
deadlocks."""
MIN_MEMORY = 64 << 20
"""Free bytes required: about what a Python process and its agent's first steps need."""
PAUSE = 5.0
"""Seconds before the first retry of a start that hit a shortage."""
LONGEST_PAUSE = 30.0

_NO_ROOM = ("Resource temporarily unavailable", "Cannot allocate memory", "Too many open files", "Cannot fork",
             "cannot fork", "unable to fork", "can't start new thread", "unable to create thread",
             "Too many references: cannot splice")


def is_shortage(error: BaseException) -> bool:
    """Return whether an error was caused by lack of processes, memory or descriptors, also as worded by git and tmux,
    or by a missing part of garrison."""
    if is_own(error):
        return True
    if isinstance(error, OSError):
        return error.errno in ERRNOS
    if isinstance(error, GarrisonError):
        return isinstance(error, Shortage) or reports_shortage(getattr(error, "stderr", "") or str(error))
    return isinstance(error, MemoryError)


def reports_shortage(output: str) -> bool:
    """Return whether a program's output reports such a shortage. Pure."""
    return any(message in output for message in _NO_ROOM)


def find_shortage(processes: int = MIN_PROCESSES, proc: Path = Path("/proc"),
                  cgroups: Path = Path("/sys/fs/cgroup")) -> str:
    """Return what the machine lacks for a start that needs that many processes, '' if nothing."""
    left = _processes_left(proc, cgroups)
    if left is not None and left < processes:
        return f"its cgroup allows only {left} more processes"
    memory = available_memory(proc, cgroups)
    if memory is not None and memory < MIN_MEMORY:
        return f"only {memory >> 20} MiB of memory are left"
    return ""


class Lack(Value):
    """What is missing for the start of a process."""

    what: str
    ends: str
    """When the waiting start happens."""


def find_lack(processes: int = MIN_PROCESSES) -> Lack | None:
    """Return what is missing now for the start of one of garrison's processes; None if nothing."""
    if missing := find_missing():
        return Lack(f"{missing} (is an upgrade under way?)", f"once it is back, tried every {LONGEST_PAUSE:.0f} s")
    if lack := find_shortage(processes):
        return Lack(f"no room for another process: {lack}", "when there is room")
    return None


class LackWatch:
    """Finds what is missing, at most once in so many seconds: it reads a dozen files, and a process with much to do
    turns dozens of times a second. A start checks for itself (`require_room`)."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._next = seconds, -math.inf
        self._lack: Lack | None = None

    def find(self, now: float) -> Lack | None:
        """Return what was missing at the last check; `now` is monotonic."""
        if now >= self._next:
            self._lack, self._next = find_lack(), now + self._seconds
        return self._lack


def require_room(processes: int = MIN_PROCESSES) -> None:
    """Raise Shortage if something for a start is missing."""
    if lack := find_lack(processes):
        raise Shortage(f"{lack.what}; it starts {lack.ends}")


def retry_pause(number: int) -> float:
    """Return the seconds before the retry of a start after its `number`-th consecutive shortage. Pure."""
    return Backoff(PAUSE, LONGEST_PAUSE).delay(number)


def _processes_left(proc: Path, cgroups: Path) -> int | None:
    """Return how many more processes our cgroup and its parents allow; None: no known limit."""
    left: list[int] = []
    for group in _groups("pids", proc, cgroups):
        try:
            left.append(int((group / "pids.max").read_text()) - int((group / "pids.current").read_text()))
        except (OSError, ValueError):  # `max`, or no such file
            continue
    return max(0, min(left)) if left else None


# ---- Disk space: recognise a full disk, and wait until there is room.
#
# Nothing is reserved: a step that hits ENOSPC waits and is retried.


MIN_BYTES = 65536
"""Free bytes below which a disk counts as full: a record and its temporary file need less, an agent's work more."""
MIN_INODES = 16
"""Free inodes below which a disk counts as full although it has free bytes."""
SPACE_PAUSE = 0.1
"""Seconds between two tries of a step that found the disk full."""
_NO_SPACE = ("No space left on device", "Disk quota exceeded")


def reports_no_space(output: str) -> bool:
    """Return whether a program's output reports a full disk. Pure."""
    return any(message in output for message in _NO_SPACE)


def is_full(path: Path) -> bool:
    """Return whether the disk that contains `path` has no space or no inodes left.

    A missing path, or a disk that reports no size or no inode count, counts as not full.
    """
    try:
        stat = os.statvfs(path)
    except OSError:
        return False
    lacks_bytes = stat.f_blocks > 0 and stat.f_bavail * stat.f_frsize < MIN_BYTES
    return lacks_bytes or (stat.f_files > 0 and max(stat.f_favail, stat.f_ffree) < MIN_INODES)


def require_space(path: Path) -> None:
    """Raise OSError (ENOSPC) if the disk that contains `path` is full: work started there would fail for that reason
    alone."""
    if is_full(path):
        raise OSError(ENOSPC, os.strerror(ENOSPC), str(path))


def retry_until_space(step: Callable[[], T], wait: Callable[[float], None], over: Callable[[], bool]) -> T:
    """Return the result of `step`; after ENOSPC, or for lack of memory or descriptors, repeat it after `wait(seconds)`
    until `over()`.

    For code that runs before the event loop, which waits by itself. `step` must be safe to repeat after a failure.
    """
    while True:
        try:
            return step()
        except OSError as error:
            if error.errno not in (ENOSPC, EDQUOT, *ERRNOS) or over():
                raise
        wait(SPACE_PAUSE)


# ---- Hindrances: answers of git, the file system and the clock that say nothing about the work, in one table.
#
# A class says what follows. WAIT: retry for as long as it takes, and notify the user. REPAIR: recreate what garrison
# made itself (a worktree, a slot), then retry. REFUSE: the user's command ends with the reason. FAIL: the node fails,
# after `GARRISON_GIT_PATIENCE`. Anything not in the table is FAIL.
#
# `Repository.run` asks it for every call of git: one that could not check has not answered, least of all "there is
# none", and raises GitError even where a failure is expected. The loop of every process waits on WAIT, as do the merge
# queue and code that saves work; the commits of a finished agent are collected again, and the agent is never repeated
# for that.


class Course(StrEnum):
    """Reaction to an answer."""

    WAIT = "wait"
    REPAIR = "repair"
    REFUSE = "refuse"
    FAIL = "fail"


class Hindrance(Value):
    """One class of answers: git's wording in a line that starts with `fatal:` or `error:`, and the errors."""

    name: str
    course: Course
    what: str
    """What happened, for messages."""
    words: str
    """Regular expression of git's wording."""
    errnos: Collection[int] = ()
    inside: str = ""
    """Regular expression of what the line must also name: the same words about a file in a worktree concern the
    agent."""


_GIT_DIR = r"\.git\b|/worktrees/|/objects/|repository database|\.lock\b|packed-refs|'refs/|temporary file"
TABLE = (
    Hindrance("no room", Course.WAIT, "a disk or a quota is full", "|".join(_NO_SPACE), {ENOSPC, EDQUOT}),
    Hindrance("read-only", Course.WAIT, "a file system became read-only", "Read-only file system", {EROFS}),
    Hindrance("no rights", Course.WAIT, "a file of the git directory may not be read or written",
              "Permission denied|Operation not permitted|insufficient permission", {EACCES, EPERM}, _GIT_DIR),
    Hindrance("shortage", Course.WAIT, "memory, processes or descriptors ran out",
              "|".join(_NO_ROOM), ERRNOS),
    Hindrance("device", Course.WAIT, "a disk or a network file system does not answer",
              "Input/output error|Stale file handle", {EIO}),
    Hindrance("configuration", Course.WAIT, "git's configuration cannot be read",
              r"bad config |bad (numeric|boolean) config value|could not parse config|"
              "error occurred while reading the configuration|unable to access '[^']*config'",
              inside=r"^(?!.*\.gitmodules)"),
    Hindrance("moved away", Course.WAIT, "the repository or its target branch is not there",
              "the repository is not there"),
    Hindrance("worktree", Course.REPAIR, "what git keeps about a worktree is damaged, or an index is",
              r"worktrees/[^/ ]+/(commondir|gitdir|HEAD|index)\b|"
              r"not a git repository: .*/worktrees/|index file (corrupt|smaller)|bad (index file|signature)|"
              r"unable to read [0-9a-f]{40}|"
              r"invalid gitfile|failed to read .*(commondir|gitdir)|its \.git was rewritten"),
    Hindrance("distrust", Course.REFUSE, "git distrusts the repository, which another user owns",
              "detected dubious ownership|unsafe repository"),
)
_SPOKEN = ("fatal:", "error:")


def find_hindrance(told: str) -> Hindrance | None:
    """Return the class of a message from git, or of an error with its wording; None if it is not in the table. Pure.

    Only lines of an error count: a warning accompanies a valid answer.
    """
    lines = [line for line in told.splitlines() if any(word in line for word in _SPOKEN)]
    return next((each for each in TABLE for line in lines
                 if re.search(each.words, line) and re.search(each.inside, line)), None)


def course_of(error: BaseException) -> Course:
    """Return the reaction to an error of git or of the file system. Pure.

    A permission error of the file system only counts for a file in a git directory.
    """
    if isinstance(error, Hindered):
        return Course.WAIT
    if isinstance(error, OSError):
        name = str(error.filename or "")
        return next((each.course for each in TABLE if error.errno in each.errnos
                     and (not each.inside or "/.git/" in name)), Course.FAIL)
    found = find_hindrance(getattr(error, "stderr", "") or str(error))
    return found.course if found is not None else Course.FAIL


def passes(error: BaseException) -> bool:
    """Return whether to wait for the end of an error's cause. Pure."""
    return course_of(error) is Course.WAIT


# ---- Garrison's own package while an upgrade replaces it: pip and pipx remove it, and install the new one some seconds
# later. What must be started in between waits, and names what is missing.
#
# It shows in two places. The parent checks first (`find_missing`) and does not start a process, as on a machine without
# room (`find_lack`). A process that was started with a partial package is caught at its import: its first lines are not
# part of the package (`FIRST_LINES`, in its command line), retry, and give up with a special exit code.


MODULE_MISSING = 72
"""Exit code of a process whose modules were missing for all of its time to start (EX_OSFILE)."""
PATIENCE = 24.0
"""Seconds that a supervised process tries to import its modules: less than its start may take."""
REPLACED_PATIENCE = 10.0
"""The same if its loaded modules are from before an upgrade: its successor has the new ones."""
LONG_PATIENCE = 600.0
"""The same without a deadline for the start: the connection of a session."""
FIRST_LINES = """\
import gc, importlib, os, sys, time
gc.disable()
patience, name, now = float(sys.argv.pop(1)), sys.argv.pop(1), time.monotonic()
since = float(os.environ.pop("GARRISON_MISSING_SINCE", now))
try:
    main = importlib.import_module(name).main
except (ImportError, SyntaxError, AttributeError, OSError) as error:
    if since == now:
        print(f"garrison: cannot import {name} ({error}): is an upgrade under way?"
              f" tried again for {patience:.0f} s", file=sys.stderr, flush=True)
    if now - since > patience:
        sys.exit(72)
    time.sleep(0.2)
    os.environ["GARRISON_MISSING_SINCE"] = str(since)
    os.execv(sys.executable, sys.orig_argv)
sys.missing_since = since
gc.freeze()
gc.enable()
sys.exit(main())
"""
"""Import the module of the second argument and call its `main`. It restarts in a fresh interpreter while the module
cannot be imported: an interpreter that failed halfway has modules of both versions. Imports create no garbage, so the
collector is off during them, and later ignores what was imported."""
_MAIN = "garrison.processes.main"


def module_argv(module: str, patience: float = PATIENCE) -> tuple[str, ...]:
    """Return the command that runs the `main` of one of garrison's modules once it can be imported; its arguments
    follow.

    Args:
        patience: seconds to try.
    """
    # -P: a module in the working directory must not shadow one of ours.
    return (sys.executable, "-P", "-c", FIRST_LINES, f"{patience:g}", module)


def program_of(argv: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Return the module that `module_argv` runs, and its arguments."""
    ours = len(module_argv(""))
    return argv[ours - 1], argv[ours:]


def garrison_argv(*words: str, home: Path | None = None) -> list[str]:
    """Return the command line of this installation of garrison for a home."""
    return [sys.executable, "-P", "-m", "garrison.cli.main", *(("--home", str(home)) if home else ()), *words]


def begin_again() -> None:
    """Replace this process by a fresh start, since a module is missing and it has done nothing yet; return if its
    patience is over or it was not started by `FIRST_LINES`."""
    since = getattr(sys, "missing_since", None)
    if since is not None and time.monotonic() - since <= PATIENCE:
        time.sleep(0.2)
        os.environ["GARRISON_MISSING_SINCE"] = str(since)
        os.execv(sys.executable, sys.orig_argv)


def find_missing(package: Path = Path(__file__).parents[1], python: str = sys.executable) -> str:
    """Return what is missing of garrison, so that none of its processes could start; '' if nothing."""
    for module, path in ((f"garrison ({package})", package), (_MAIN, package / "processes" / "main.py")):
        if not path.exists():
            return f"garrison's own module {module} is missing"
    return "" if os.path.exists(python) else f"its Python {python} is missing"  # noqa: PTH110  # a string


def is_replaced(error: BaseException) -> bool:
    """Return whether an error means that a module on disk does not fit the loaded ones: they are from before an
    upgrade, so waiting does not help."""
    return isinstance(error, ImportError) and not isinstance(error, ModuleNotFoundError) and error.name in sys.modules


def is_own(error: BaseException) -> bool:
    """Return whether an error is about a missing module or file of garrison's package."""
    if isinstance(error, ImportError):
        return True
    return isinstance(error, FileNotFoundError) and isinstance(error.filename, str | bytes | os.PathLike) \
        and Path(os.fsdecode(error.filename)).is_relative_to(Path(__file__).parents[1])
