"""Machine: how many agents it runs at once, what it lacks for a start, and what follows from what git, the file system
and the machine answer.

What is lacking passes, and says nothing about the work: what meets it waits and is tried again. So does garrison itself
while an upgrade replaces it.
"""

from __future__ import annotations

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
"""Limits from here on mean that there is none (v1 has no `max`)."""


def default_agents(cores: int, available: int | None) -> int:
    """Return the default of `--max-agents`: one per core, at least 2, if memory (bytes; None: unknown) allows. Pure."""
    by_cores = max(2, cores)
    return by_cores if available is None else max(1, min(by_cores, available // AGENT_BYTES))


def parse_version(text: str) -> tuple[int, ...]:
    """Return the numbers a version begins with: `2.43.0.rc1` → (2, 43, 0); () for none."""
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
    import shutil  # imported late: it is for the user's eyes, and every command of a script imports this module

    command = next((text for manager, text in _INSTALLERS.items() if shutil.which(manager)), _INSTALLERS["apt-get"])
    return f"{'' if os.geteuid() == 0 else 'sudo '}{command} {package}"


RECOVERY = 60.0
"""Seconds without a shortage after which one more agent may work."""


class AgentLimit(Value):
    """Number of agents that may work at once: lowered while the machine is short of room, raised again one by one.

    It stops no agent; only no other is started while more work than it allows.
    """

    most: int
    allowed: int
    changed: float = 0.0
    """When it was changed last, in monotonic seconds."""

    @classmethod
    def full(cls, most: int) -> AgentLimit:
        return cls(most, most)

    def after(self, *, is_short: bool, busy: int, now: float) -> AgentLimit:
        """Return the limit now, while `busy` agents work. Pure."""
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
    """Return the bytes that may still be used: the least of MemAvailable and what our cgroups leave; None: unknown."""
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


# ---- Shortage: recognise that the machine lacks processes, memory or descriptors for another start, or garrison
# itself.
#
# Like a full disk it passes, and says nothing about the work: what meets it waits and is tried again.
# `find_shortage` looks at the limits before a start; `is_shortage` and `reports_shortage` recognise one that was
# met all the same (a limit of the user, say, cannot be read).


ERRNOS = frozenset({EAGAIN, ENOMEM, EMFILE, ENFILE, ETOOMANYREFS})
"""Errors of fork, exec and open for lack of processes, memory or descriptors."""
MIN_PROCESSES = 8
"""Processes that must be left in our cgroup for the start of a process: it will need more for its work."""
MIN_FOR_WORK = 3
"""Processes that must be left for an agent, a job or a gate run: fewer, so that what has started is finished, and not
all wait for one another."""
MIN_MEMORY = 64 << 20
"""Bytes that must be left: a Python process and its agent's first steps need about as much."""
PAUSE = 5.0
"""Seconds before a start that met a shortage is tried again, the first time."""
LONGEST_PAUSE = 30.0

_NO_ROOM = ("Resource temporarily unavailable", "Cannot allocate memory", "Too many open files", "Cannot fork",
             "cannot fork", "unable to fork", "can't start new thread", "unable to create thread",
             "Too many references: cannot splice")


def is_shortage(error: BaseException) -> bool:
    """Return whether an error was met for lack of processes, memory or descriptors, as git and tmux say in words, or of
    a part of garrison itself."""
    if is_own(error):
        return True
    if isinstance(error, OSError):
        return error.errno in ERRNOS
    if isinstance(error, GarrisonError):
        return isinstance(error, Shortage) or reports_shortage(getattr(error, "stderr", "") or str(error))
    return isinstance(error, MemoryError)


def reports_shortage(output: str) -> bool:
    """Return whether a program's output reports such a lack. Pure."""
    return any(message in output for message in _NO_ROOM)


def find_shortage(processes: int = MIN_PROCESSES, proc: Path = Path("/proc"),
                  cgroups: Path = Path("/sys/fs/cgroup")) -> str:
    """Return what the machine lacks for a start that needs so many processes, '' if nothing."""
    left = _processes_left(proc, cgroups)
    if left is not None and left < processes:
        return f"its cgroup allows only {left} more processes"
    memory = available_memory(proc, cgroups)
    if memory is not None and memory < MIN_MEMORY:
        return f"only {memory >> 20} MiB of memory are left"
    return ""


class Lack(Value):
    """What the start of a process lacks."""

    what: str
    ends: str
    """When what waits for it starts."""


def find_lack(processes: int = MIN_PROCESSES) -> Lack | None:
    """Return what the start of one of garrison's own processes lacks now; None if nothing."""
    if missing := find_missing():
        return Lack(f"{missing} (is an upgrade under way?)", f"once it is back, tried every {LONGEST_PAUSE:.0f} s")
    if lack := find_shortage(processes):
        return Lack(f"no room for another process: {lack}", "when there is room")
    return None


def require_room(processes: int = MIN_PROCESSES) -> None:
    """Raise Shortage if the machine lacks what a start needs."""
    if lack := find_lack(processes):
        raise Shortage(f"{lack.what}; it starts {lack.ends}")


def retry_pause(number: int) -> float:
    """Return the seconds before the start that met its `number`-th shortage in a row is tried again. Pure."""
    return Backoff(PAUSE, LONGEST_PAUSE).delay(number)


def _processes_left(proc: Path, cgroups: Path) -> int | None:
    """Return how many more processes our cgroup and its parents allow; None: no limit is known."""
    left: list[int] = []
    for group in _groups("pids", proc, cgroups):
        try:
            left.append(int((group / "pids.max").read_text()) - int((group / "pids.current").read_text()))
        except (OSError, ValueError):  # `max`, or no such file
            continue
    return max(0, min(left)) if left else None


# ---- Disk space: recognise a full disk, and wait until there is room.
#
# Nothing is reserved: a step that meets ENOSPC waits and is tried again.


MIN_BYTES = 65536
"""Free bytes below which a disk counts as full: a record and its temporary file need less, an agent's work more."""
MIN_INODES = 16
"""Free inodes below which a disk counts as full although it has room for bytes."""
SPACE_PAUSE = 0.1
"""Seconds between two attempts of a step that found the disk full."""
_NO_SPACE = ("No space left on device", "Disk quota exceeded")


def reports_no_space(output: str) -> bool:
    """Return whether a program's output reports a full disk. Pure."""
    return any(message in output for message in _NO_SPACE)


def is_full(path: Path) -> bool:
    """Return whether the disk that contains `path` has no space or no inodes left.

    An absent path, or a disk that reports no size or no inode count, is not full.
    """
    try:
        stat = os.statvfs(path)
    except OSError:
        return False
    lacks_bytes = stat.f_blocks > 0 and stat.f_bavail * stat.f_frsize < MIN_BYTES
    return lacks_bytes or (stat.f_files > 0 and max(stat.f_favail, stat.f_ffree) < MIN_INODES)


def require_space(path: Path) -> None:
    """Raise OSError (ENOSPC) if the disk that contains `path` is full: work started there would fail for that alone."""
    if is_full(path):
        raise OSError(ENOSPC, os.strerror(ENOSPC), str(path))


def retry_until_space(step: Callable[[], T], wait: Callable[[float], None], over: Callable[[], bool]) -> T:
    """Return the result of `step`; after ENOSPC, or for lack of memory or descriptors, repeat it after `wait(seconds)`
    until `over()`.

    For code that runs before the event loop, which waits by itself. `step` must be safe to repeat after it failed.
    """
    while True:
        try:
            return step()
        except OSError as error:
            if error.errno not in (ENOSPC, EDQUOT, *ERRNOS) or over():
                raise
        wait(SPACE_PAUSE)


# ---- Hindrances: what git, the file system and the clock can answer that says nothing about the work, in one
# table.
#
# A class says what follows. WAIT: what met it is tried again, however long it takes, and the user is notified. REPAIR:
# what garrison made itself (a worktree, a slot) is made again, then it is tried again. REFUSE: the user's command
# ends with the reason. FAIL: the node does, after `GARRISON_GIT_PATIENCE`. Whatever the table does not know is
# FAIL.
#
# `Repository.run` asks it for every call of git: one that could not look has not answered, least of all "there is
# none", and raises GitError even where a failure is expected. The loop of every process waits on WAIT, as do the
# merge queue and what saves work; the commits of a finished agent are brought over again, and the agent is never
# repeated for that.


class Course(StrEnum):
    """What follows from an answer."""

    WAIT = "wait"
    REPAIR = "repair"
    REFUSE = "refuse"
    FAIL = "fail"


class Hindrance(Value):
    """One class of answers: how git words it in a line that begins with `fatal:` or `error:`, and its errors."""

    name: str
    course: Course
    what: str
    """What happened, for people."""
    words: str
    """Regular expression of git's words."""
    errnos: Collection[int] = ()
    inside: str = ""
    """Regular expression of what the line must name as well: the same words of a file in a worktree are the agent's."""


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
    """Return the class of what git, or an error in its words, told; None if the table does not know it. Pure.

    Only lines of an error count: a warning stands alongside an answer that is true.
    """
    lines = [line for line in told.splitlines() if any(word in line for word in _SPOKEN)]
    return next((each for each in TABLE for line in lines
                 if re.search(each.words, line) and re.search(each.inside, line)), None)


def course_of(error: BaseException) -> Course:
    """Return what follows from an error of git or of the file system. Pure.

    An error of the file system that is about rights counts for a file of a git directory alone.
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
    """Return whether an error is waited for. Pure."""
    return course_of(error) is Course.WAIT


# ---- Garrison's own package while an upgrade replaces it: pip and pipx take it away, and put the new one in its
# place some seconds later. What is to be started meanwhile waits, and names what is missing.
#
# Two places see it. Whoever starts a process looks first (`find_missing`) and does not start it, as on a machine
# without room (`find_lack`). A process that was started into a package half there is caught at its import: its first
# lines are not part of the package (`FIRST_LINES`, in its command line), try again, and give up with an exit code of
# their own.


MODULE_MISSING = 72
"""Exit code of a process whose modules were not there for all of its time to start (EX_OSFILE)."""
PATIENCE = 24.0
"""Seconds for which a process that a supervisor starts tries to import its modules: less than its start may take."""
REPLACED_PATIENCE = 10.0
"""Seconds for one whose loaded modules are of the version before an upgrade: its successor has the new ones."""
LONG_PATIENCE = 600.0
"""Seconds for one that nobody waits for by a deadline: the connection of a session."""
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
"""Import the module of the second argument and call its `main`. It begins again in a fresh interpreter as long as the
module cannot be imported: one that failed half way has modules of both versions. Nothing that an import makes is
garbage, so none is looked for meanwhile, nor later in what was imported."""
_MAIN = "garrison.processes.main"


def module_argv(module: str, patience: float = PATIENCE) -> tuple[str, ...]:
    """Return the words that run the `main` of one of garrison's modules once it can be imported; its arguments follow.

    Args:
        patience: seconds for which it is tried.
    """
    # -P: a module in the working directory must not shadow one of ours.
    return (sys.executable, "-P", "-c", FIRST_LINES, f"{patience:g}", module)


def program_of(argv: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Return the module that `module_argv` runs, and its arguments."""
    ours = len(module_argv(""))
    return argv[ours - 1], argv[ours:]


def garrison_argv(*words: str, home: Path | None = None) -> list[str]:
    """Return the words that run a command of this installation of garrison, on a home."""
    return [sys.executable, "-P", "-m", "garrison.cli.main", *(("--home", str(home)) if home else ()), *words]


def begin_again() -> None:
    """Replace this process by one that begins again, since a module is missing and it has done nothing yet; return once
    its patience is over, or if it was not started by `FIRST_LINES`."""
    since = getattr(sys, "missing_since", None)
    if since is not None and time.monotonic() - since <= PATIENCE:
        time.sleep(0.2)
        os.environ["GARRISON_MISSING_SINCE"] = str(since)
        os.execv(sys.executable, sys.orig_argv)


def find_missing(package: Path = Path(__file__).parents[1], python: str = sys.executable) -> str:
    """Return what of garrison is not there now, so that no process of it could start; '' if nothing is."""
    for module, path in ((f"garrison ({package})", package), (_MAIN, package / "processes" / "main.py")):
        if not path.exists():
            return f"garrison's own module {module} is missing"
    return "" if os.path.exists(python) else f"its Python {python} is missing"  # noqa: PTH110  # a string


def is_replaced(error: BaseException) -> bool:
    """Return whether an error tells that a module on the disk does not fit those that this process has loaded: they are
    of the version before an upgrade, which no waiting mends."""
    return isinstance(error, ImportError) and not isinstance(error, ModuleNotFoundError) and error.name in sys.modules


def is_own(error: BaseException) -> bool:
    """Return whether an error is of a module, or of a file of garrison's package, that was not there when needed."""
    if isinstance(error, ImportError):
        return True
    return isinstance(error, FileNotFoundError) and isinstance(error.filename, str | bytes | os.PathLike) \
        and Path(os.fsdecode(error.filename)).is_relative_to(Path(__file__).parents[1])
