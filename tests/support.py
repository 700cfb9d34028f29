"""Support of the end-to-end tests: a directory for each, launching, waiting, and a checker that uses no garrison code.

A `Place` is the world of one user: a HOME as a plain folder with a repository in it, an installed garrison whose home
and worktrees are where they are by default, below that HOME, and the sandbox. Nothing of the caller's environment that
could reach garrison is passed on, and no variable of garrison's is set but those in `VARIABLES`. Ledger and witness are
outside the HOME, in the one folder that the user's config.toml opens to agents and gates: nodes append to the ledger at
their successful end, and the gate writes each tree that it passed to the witness.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from garrison.merge.gate import attestations_of
from garrison.records import atomic
from garrison.sandbox import private_files
from garrison.sandbox.file_system import PREFIX_PARTS, PRIVATE_IN
from garrison.testing.checker import CheckedRepository, check, read_attestations, read_events
from garrison.values import asdict
from garrison.views.event_log import EventLog
from garrison.views.explain import explain
from installed import FOLDER, install
from prestarted import Begun, Prestarted

if TYPE_CHECKING:
    import pytest

T = TypeVar("T")
Command = subprocess.Popen[bytes] | Begun
"""A garrison command at work."""
PYTHON = str(install())
"""The Python that garrison is installed in."""
PROGRAM = [PYTHON, "-P", "-m", "garrison.cli.main"]
DEADLINE = float(os.environ.get("GARRISON_TEST_DEADLINE", "300"))
"""Seconds after which a wait fails, in every test: twenty times the longest on an idle machine. Only what never happens
is waited for that long, so no test needs a shorter one of its own; proofs, in which it does not happen, set it."""
_SCRATCH = tempfile.gettempdir()  # of the suite, before a test has one of its own
ORDER = ("launch", "guardian", "runner", "orchestrator", "processor")


def landed_subjects(repo: Path, start: str, target: str = "main") -> list[str]:
    """Return the merges by which branches landed since `start`, oldest first, those in batches too: their subjects, or
    `Merge BRANCH into TARGET` for one whose subject is its task's words."""
    lines = git(repo, "log", "--merges", "--topo-order", "--reverse", f"{start}..{target}",
                "--format=%s%x09%(trailers:key=Merge-Queue-Branch,valueonly,separator=%x2C)", "--").splitlines()
    subjects = [subject if " into " in subject or not branch else f"Merge {branch} into {target}"
                for subject, _, branch in (line.partition("\t") for line in lines)]
    return [subject for subject in subjects
            if subject.endswith(f" into {target}") and not re.match(r"Merge \d+ branches", subject)]


def git(path: Path, *arguments: str, check: bool = True) -> str:
    """Run a git command in `path`; return its output."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    env |= {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(["git", *arguments], cwd=path, env=env, capture_output=True, text=True, check=False,
                          stdin=subprocess.DEVNULL)
    assert not check or done.returncode == 0, done.stderr
    return done.stdout.strip()


def make_repository(path: Path) -> None:
    """Make a small Python project with one commit on main."""
    copy_of(_make_project, path)


def copy_of(make: Callable[[Path], None], path: Path) -> Path:
    """Return the folder `path`: a copy of what `make` makes once for all tests of this process."""
    return Path(shutil.copytree(_made(make), path, symlinks=True))


@cache
def _made(make: Callable[[Path], None]) -> Path:
    owner, folder = os.getpid(), Path(tempfile.mkdtemp(dir=_SCRATCH))
    atexit.register(lambda: os.getpid() == owner and shutil.rmtree(folder, ignore_errors=True))
    make(folder / "made")
    return folder / "made"


def _make_project(path: Path) -> None:
    path.mkdir()
    git(path, "init", "-q", "-b", "main")
    with (path / ".git/config").open("a") as config:
        config.write("[user]\n\tname = A User\n\temail = user@example.org\n")
    (path / "calc.py").write_text("def add(a, b):\n    return a + b\n")
    (path / "notes.txt").write_text("".join(f"line {number}\n" for number in range(20)))
    commit_all(path, "Begin")


def commit_all(path: Path, subject: str) -> None:
    git(path, "add", "-A")
    git(path, "commit", "-qm", subject)


def write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def clone_or_make(source: Path | None, folder: Path) -> None:
    """Clone a foreign repository to where a place in this folder has its own, or make a small one."""
    repo = checkout_in(folder)
    if source is None:
        make_repository(repo)
        return
    git(Path("/"), "clone", "-q", "--no-local", str(source.resolve()), str(repo))
    git(repo, "checkout", "-qB", "main")
    with (repo / ".git" / "config").open("a") as config:
        config.write("[user]\n\tname = A User\n\temail = user@example.org\n")


def wait_for(what: str, condition: Callable[[], Any], seconds: float = DEADLINE) -> Any:
    """Poll until `condition()` is true; return its value. Fails with `what` at the deadline.

    An expensive condition is polled less often: several tests wait at once, and what they wait for also needs CPU.
    """
    end = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        if value := condition():
            return value
        now = time.monotonic()
        assert now < end, f"not within {seconds:.0f} s: {what}"
        time.sleep(min(max(0.01, 8 * (now - began)), 0.5))


def until(condition: Callable[[], T]) -> T:
    """Return what `condition()` gives once that is true; for what happens within milliseconds."""
    end = time.monotonic() + DEADLINE
    while not (value := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.002)
    return value


def fork(work: Callable[[], object]) -> int:
    """Start a child that does `work`, and exits with the number that this returns, else 0, or with 1 if it raises;
    return its pid."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            result = work()
            code = result if isinstance(result, int) else 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid


def exit_codes(*pids: int) -> list[int]:
    """Wait for children; return their exit codes, negative for a signal."""
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


@dataclass(frozen=True)
class Process:
    """A process as /proc shows it; pid and start ticks identify it."""

    pid: int
    ticks: int
    argv: str
    environ: dict[str, str]
    ppid: int

    @property
    def living(self) -> bool:
        found = stat(self.pid)
        return found is not None and found[1] == self.ticks and found[0] != "Z"


def stat(pid: int) -> tuple[str, int, int] | None:
    """Return (state, start ticks, parent) of a process; None if there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return fields[0], int(fields[19]), int(fields[1])


def is_gone(pid: int) -> bool:
    """Return whether a process has ended; an orphan stays a zombie until init looks."""
    found = stat(pid)
    return found is None or found[0] == "Z"


def read_process(pid: int, text: str = "") -> Process | None:
    """Return one process; None if it is gone, a zombie, another user's, or if neither its command line nor its
    environment contains `text`."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123  # hundreds each time
            raw = file.read()
        with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123
            line = file.read()
    except OSError:
        return None
    wanted = os.fsencode(text)
    if (wanted not in raw and wanted not in line) or (found := stat(pid)) is None or found[0] == "Z":
        return None
    environ = dict(item.split("=", 1) for item in raw.decode(errors="replace").split("\0") if "=" in item)
    return Process(pid, found[1], line.decode(errors="replace").replace("\0", " ").strip(), environ, found[2])


def processes(text: str = "") -> Iterator[Process]:
    """Yield the living processes that we may read and whose command line or environment contains `text`."""
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit() and (found := read_process(int(name), text)):
            yield found


@dataclass
class Node:
    """Node of a test's graph. It writes `{name}-{run}.txt`, commits, then appends a line to the ledger."""

    name: str
    after: tuple[str, ...] = ()
    before: str = ""
    """Shell that runs first, in the worktree."""
    then: str = ""
    """Shell that runs after the commit, before the ledger's line."""
    attributes: str = ""
    command: str | None = None


CONFIG = """\
[sandbox]
write = ["{root}"]  # ledger, witness and whatever else a test's commands tell it
"""
"""The config.toml of each place: what a user writes whose agents and gates keep books outside of their worktrees."""
PASSED_ON = ("PATH", "LANG", "LC_ALL", "TERM", "TZ", "TMPDIR", "CONTAINERS_STORAGE_CONF")
"""Variables that the users in the tests take from the environment of the tests."""


OWN_PYTHON = ("PYTHON", "LD_", "COVERAGE_", "GARRISON_LIFE")
"""Beginnings of variables that a Python must have from its start, or that others read in `/proc`."""


def checkout_in(folder: Path) -> Path:
    """Return where the user's checkout is in the folder of a user's world."""
    return folder / "user/repo"


def garrison_home(user: Path) -> Path:
    """Make garrison's home below a user's HOME, where it is by default, with what walks of the tests' Pythons and of
    the system have found: each user would walk some 100,000 files, which takes half a second."""
    home = user / ".local/state/garrison"
    home.mkdir(parents=True, exist_ok=True)
    home.chmod(0o700)
    atomic.write(home / private_files.FILE, _private_files(), durable=False)
    return home


@cache
def _private_files() -> bytes:
    kept = FOLDER / private_files.FILE
    for prefix in (sys.prefix, sys.base_prefix, FOLDER):
        for part in PREFIX_PARTS:
            private_files.private_below(Path(prefix, part), kept)
    for folder in PRIVATE_IN:
        private_files.private_below(Path(folder), kept, is_system=True)
    return kept.read_bytes()


def may_be_prestarted(env: Mapping[str, str]) -> bool:
    """Return whether a command in this environment need not have a Python of its own."""
    return PROGRAM[0] == PYTHON and not any(name.startswith(OWN_PYTHON) for name in env)


PRELOADED: list[str] = []
"""Modules that all processes of the tests' runs have loaded: those of an agent that each run has."""


@cache
def _prestarted() -> Prestarted:
    return Prestarted(PYTHON, {name: os.environ[name] for name in PASSED_ON if name in os.environ}, PRELOADED)


@dataclass
class UserWorld:
    """The files of one user: a plain HOME with a checkout in it, and garrison's home and worktrees in their
    default places; next to the HOME the folder `root`, the only one outside a worktree where agents and gates write."""

    folder: Path

    def __post_init__(self) -> None:
        self.user, self.repo = self.folder / "user", checkout_in(self.folder)
        self.home, self.trees = garrison_home(self.user), self.user / ".cache/garrison"
        self.root, self.runtime = self.folder / "open", self.folder / "rt"
        for path in (self.root, self.runtime):
            path.mkdir(exist_ok=True)
        self.runtime.chmod(0o700)
        if not (self.home / "config.toml").exists():
            self.configure()

    def configure(self, settings: str = "") -> None:
        """Write config.toml; the first lines of `settings` continue with the table `[sandbox]`."""
        atomic.write(self.home / "config.toml", (CONFIG.format(root=self.root) + settings).encode(), durable=False)

    def use_mode(self, mode: str) -> None:
        """State the mode of the sandbox in config.toml, as it is now."""
        config = self.home / "config.toml"
        config.write_text(config.read_text().replace("[sandbox]\n", f'[sandbox]\nmode = "{mode}"\n', 1))

    def variables(self) -> dict[str, str]:
        """Return the environment of the user's shell."""
        return {name: os.environ[name] for name in PASSED_ON if name in os.environ} | {
            "HOME": str(self.user), "XDG_RUNTIME_DIR": str(self.runtime)}

    def enter(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let this process be in that environment, and its garrison an installed one."""
        kept = self.variables()
        for name in [name for name in os.environ if name.startswith(("GARRISON_", "XDG_", "GIT_"))]:
            monkeypatch.delenv(name)
        for name, value in kept.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("garrison.directories.checkout", lambda: None)


@dataclass
class Place(UserWorld):
    """Folder with everything that a test touches; the repository is there before, at `checkout_in(folder)`."""

    env: dict[str, str] = field(default_factory=dict)
    terminal: str = "process"
    started: list[Command] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.ledger, self.witness, self.points = self.root / "ledger", self.root / "witness", self.root / "points"
        self.edits = ""  # output of `git status` that is expected of the user's checkout
        self.fired = self.folder / "fired"
        self.fired.mkdir(exist_ok=True)
        self.env = {**self.variables(), "LEDGER": str(self.ledger), "WITNESS": str(self.witness),
                    "GARRISON_FAILPOINT_DIR": str(self.fired), **self.env, **self.coverage()}
        self.start = git(self.repo, "rev-parse", "main")

    @property
    def for_scripts(self) -> dict[str, str]:
        """Return the environment of a checkout's scripts, which look for the home there unless given one."""
        return {**self.env, "GARRISON_HOME": str(self.home)}

    # ------------------------------------------------------------------------------------------------ graphs

    def graph(self, *nodes: Node, name: str = "crew", attributes: str = "") -> Path:
        """Write a graph of `nodes`; return the file."""
        lines = [f"digraph {name} {{", f"  flow=dag; goal=\"a test\"; {attributes}",
                 "  start [shape=Mdiamond]; exit [shape=Msquare];"]
        for node in nodes:
            command = work(node) if node.command is None else node.command
            quoted = command.replace("\\", "\\\\").replace('"', '\\"')
            lines.append(f'  {node.name} [shape=box, command="{quoted}"{node.attributes and ", " + node.attributes}];')
            lines += [f"  {before} -> {node.name};" for before in node.after or ("start",)]
        followed = {before for node in nodes for before in node.after}
        lines += [f"  {node.name} -> exit;" for node in nodes if node.name not in followed]
        path = self.root / f"{name}.dot"
        path.write_text("\n".join([*lines, "}", ""]))
        return path

    def plan(self, *answers: object, before: str = "", settings: str = "") -> str:
        """Make a planner that gives these answers, one a call, the last from then on, and an agent `writer` that writes
        a file named as its node; return the command that plans."""
        for number, answer in enumerate(answers, 1):
            (self.root / f"answer-{number}").write_text(answer if isinstance(answer, str) else json.dumps(answer))
        program = self.root / "planner"
        program.write_text(f"""#!/bin/sh
{before}
echo "I think {{}}"
n=$(basename "$(dirname "$(dirname "$GARRISON_PLAN_FILE")")")
test -e {self.root}/answer-$n || n={len(answers)}
cat {self.root}/answer-$n
""")
        program.chmod(0o755)
        shell = 'n=$(basename "$(git branch --show-current)"); test $n = check_goal || echo "$n" >"$n.txt"'
        said = (f'[plan]\nagent = "planner"\n{settings}\n[agents.planner]\nargv = [{json.dumps(str(program))}]\n'
                f'[agents.writer]\nargv = ["sh", "-c", {json.dumps(shell)}]\n')
        config = self.home / "config.toml"
        if said not in (known := config.read_text() if config.exists() else ""):  # tests may share a home
            config.write_text(known + said)
        return str(program)

    def commit(self, message: str, files: Mapping[str, str]) -> None:
        """Commit these files, and what else is new, on main; what lands is counted from there."""
        for name, text in files.items():
            (self.repo / name).parent.mkdir(parents=True, exist_ok=True)
            (self.repo / name).write_text(text)
        commit_all(self.repo, message)
        self.start = git(self.repo, "rev-parse", "main")

    def use_agent(self, script: str, gate: str = "test -f calc.py") -> None:
        """Make an agent of a shell script the default one, and a gate the repository's."""
        with (self.home / "config.toml").open("a") as file:
            file.write(f'[launch]\nagent = "double"\n[agents.double]\nargv = ["sh", "-c", {json.dumps(script)}]\n')
        (self.repo / "garrison.toml").write_text(f"[launch]\ngate = {json.dumps(gate)}\n")
        self.edits = "?? garrison.toml"

    def use_agents(self, **tables: Mapping[str, object]) -> None:
        """Write config.toml with these tables of agents."""
        self.configure("".join(f"[agents.{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in
                                                              table.items()) for name, table in tables.items()))

    def acp_agent(self, name: str, *turns: Sequence[Mapping[str, object]]) -> dict[str, object]:
        """Return the table of an ACP agent that plays these turns."""
        script = self.root / f"{name}.json"
        script.write_text(json.dumps({"turns": turns}))
        return {"kind": "acp", "argv": [PYTHON, "-P", "-m", "garrison.testing.acp_agent", str(script)],
                "read": [str(script)]}

    # ------------------------------------------------------------------------------------------------ commands

    def command(self, *arguments: object, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a garrison command to its end; in a Python of its own where its environment is odd or measured."""
        folder, env = cwd or self.root, {**self.env, **env}
        if may_be_prestarted(env):
            return _prestarted().run([str(each) for each in arguments], env, folder, DEADLINE)
        return subprocess.run(
            [*PROGRAM, *map(str, arguments)], env=env, cwd=folder,
            capture_output=True, text=True, check=False, timeout=DEADLINE, stdin=subprocess.DEVNULL)

    def launch_arguments(self, graph: Path, run: str, *more: object, gate: str = "",
                         repo: Path | None = None) -> list[str]:
        gate = gate or 'git rev-parse "HEAD^{tree}" >> "$WITNESS"; test -f calc.py'
        return ["launch", str(graph), "--target-dir", str(repo or self.repo), "--run", run, "--gate", gate,
                "--terminal", self.terminal, "--env", "LEDGER", "--env", "WITNESS",
                *(word for name in self.coverage() for word in ("--env", name)), *map(str, more)]

    def coverage(self) -> dict[str, str]:
        """Return the environment that has a process's coverage measured; nothing, but in tests that are `traced`."""
        if not any(name.startswith("COVERAGE_PROCESS") for name in os.environ):
            return {}
        return {name: value for name, value in os.environ.items() if name.startswith("COVERAGE_")}

    def begin(self, *arguments: object, log: str = "out", before: Sequence[str] = (),
              **env: str) -> Command:
        """Start a garrison command in a session of its own; its output is appended to `log`. `before`: the command that
        starts it."""
        env = {**self.env, **env}
        if not before and may_be_prestarted(env):
            child: Command = _prestarted().begin([str(each) for each in arguments], env, self.root, self.root / log)
        else:
            with (self.root / log).open("ab") as output:
                child = subprocess.Popen(
                    [*before, *PROGRAM, *map(str, arguments)], env=env, cwd=self.root,
                    stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
        self.started.append(child)
        return child

    def launch(self, graph: Path, run: str = "r1", *more: object, gate: str = "",
               **env: str) -> Command:
        """Launch a run in the background; its launcher has the returned pid."""
        return self.begin(*self.launch_arguments(graph, run, *more, gate=gate), **env)

    def resume(self, run: str = "r1", **env: str) -> Command:
        """Resume a run in the background."""
        return self.begin("resume", run, **env)

    def finish(self, child: Command, run: str = "r1", *, resumes: int = 0) -> int:
        """Wait for a launcher's end; one that was killed is followed by `--resume`, at most `resumes` times, unless it
        had nothing left to do."""
        while True:
            try:
                code = child.wait(DEADLINE)
            except subprocess.TimeoutExpired:
                raise AssertionError(f"run {run} has not ended\n{self.logs()}") from None
            if code != -signal.SIGKILL:
                return code
            if self.identity("launch", run)["status"] == "terminated":
                return int(self.identity("launch", run)["exit"])
            assert resumes > 0, f"the launcher was killed too often\n{self.logs()}"
            resumes -= 1
            child = self.resume(run)

    def launch_until(self, name: str, graph: Path, run: str = "r1", *more: object, gate: str = "",
                     **env: str) -> Command:
        """Launch a run in the background, and wait until one of its commands waits at `name`."""
        child = self.launch(graph, run, *more, gate=gate, **env)
        self.wait_until_held(name)
        return child

    def release_to_end(self, child: Command, *names: str, code: int = 0) -> None:
        """Let the commands that wait there continue; the run must end with this exit code."""
        self.release(*names)
        assert self.finish(child) == code, self.logs()

    def run(self, graph: Path, run: str = "r1", *more: object, code: int = 0, gate: str = "", resumes: int = 0,
            **env: str) -> None:
        """Launch a run and wait for its end, which must have this exit code."""
        child = self.launch(graph, run, *more, gate=gate, **env)
        assert self.finish(child, run, resumes=resumes) == code, self.logs()

    def kill_at(self, *points: str, times: int = 1, keep_going: bool = True) -> None:
        """Kill the processes that pass these failpoints, `times` times at each, and note what they pass. `keep_going`:
        no death counts for the next restart, as more are wanted than any policy allows."""
        self.env |= {"GARRISON_FAILPOINT": ",".join(points), "GARRISON_FAILPOINT_TIMES": str(times),
                     "GARRISON_FAILPOINT_LIST": str(self.points)}
        if keep_going:
            self.env |= {"GARRISON_RESTART_WINDOW": "0.001", "GARRISON_HEALTHY_AFTER": "0.001"}

    def in_terminal(self, *words: str, **env: str) -> subprocess.Popen[bytes]:
        """Start a garrison command in a terminal of its own, whose other end is its `terminal`."""
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        child = subprocess.Popen([*PROGRAM, *words], env={**self.env, **env}, cwd=self.root, stdin=theirs,
                                 stdout=theirs, stderr=theirs, start_new_session=True)
        os.close(theirs)
        child.terminal = ours  # type: ignore[attr-defined]
        self.started.append(child)
        return child

    def logs(self) -> str:
        """Return what garrison printed, for a failure's message: the commands' output and the processes' logs."""
        logs = [self.root / "out", *sorted(self.home.glob("runs/*/layers/*.log"))]
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in logs
                         if path.exists())

    # ------------------------------------------------------------------------------------------------ reading

    def identity(self, stem: str, run: str = "r1") -> dict[str, Any]:
        """Return an identity as it is on disk; empty if there is none. `stem` is role-name, or launch."""
        return load(self.home / "identities" / f"{stem}@{run}.json")

    def tree_paths(self, name: str, run: str = "r1") -> set[str]:
        """Return the paths of a node's worktree: outside of its sandbox, and inside, which is the user's checkout."""
        return {self.identity(f"orchestrator-{name}", run)["worktree"], str(self.repo)}

    def hook(self, stem: str, run: str = "r1") -> dict[str, Any]:
        return load(self.home / "hooks" / f"{stem}@{run}.json")

    def identities(self, run: str = "r1") -> dict[str, dict[str, Any]]:
        """Return role-name → identity of one run."""
        return {path.name.partition("@")[0]: load(path) for path in (self.home / "identities").glob(f"*@{run}.json")}

    def pid(self, stem: str, run: str = "r1", *, incarnation: int = 1) -> int:
        """Wait until a process is active as that incarnation or a later one; return its pid."""
        def active() -> int | None:
            found = self.identity(stem, run)
            if found.get("status") != "active" or found["incarnation"] < incarnation:
                return None
            return found["pid"] if alive(found) else None

        return int(wait_for(f"incarnation {incarnation} of {stem} is active", active))

    def kill(self, *stems: str, run: str = "r1", incarnation: int = 1) -> None:
        """Kill these processes together, once all of them live."""
        pids = [self.pid(stem, run, incarnation=incarnation) for stem in stems]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def kill_and_await(self, *stems: str, incarnation: int = 1) -> None:
        """Kill these processes together, once all of them live, and wait for their successors."""
        self.kill(*stems, incarnation=incarnation)
        for stem in stems:
            self.pid(stem, incarnation=incarnation + 1)

    def journal(self, run: str = "r1", stem: str = "") -> list[dict[str, Any]]:
        """Return the records of the guardian's journal, or of the process `stem`'s, without a torn tail."""
        path = self.home / "runs" / run / (f"layers/{stem}.jsonl" if stem else "journal.jsonl")
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in lines]

    def status(self, run: str = "r1") -> str:
        """Return the run's status by the last record of it in its journal."""
        return str(([record["data"]["status"] for record in self.journal(run) if record["kind"] == "run"] or [""])[-1])

    def nodes(self, run: str = "r1") -> dict[str, dict[str, Any]]:
        """Return node → its last change in the guardian's journal."""
        found = {}
        for record in self.journal(run):
            data = record["data"] if record["kind"] == "node" else record["data"].get("effect")
            if data:
                found[data["node"]] = data
        return found

    def deaths(self, run: str = "r1") -> dict[str, list[int]]:
        """Return role-name → the incarnations whose death its supervisor journaled."""
        found: dict[str, list[int]] = {}
        stems = ["", *(path.stem for path in (self.home / "runs" / run / "layers").glob("*.jsonl"))]
        for record in (record for stem in stems for record in self.journal(run, stem)):
            if record["kind"] == "death":
                found.setdefault(record["data"]["full"].partition("@")[0], []).append(record["data"]["incarnation"])
        return found

    def death_records(self, stem: str, run: str = "r1") -> list[dict[str, Any]]:
        """Return how the incarnations of a name died, as its supervisor journaled it."""
        stems = ["", *(path.stem for path in (self.home / "runs" / run / "layers").glob("*.jsonl"))]
        return [record["data"] for one in stems for record in self.journal(run, one)
                if record["kind"] == "death" and record["data"]["full"] == f"{stem}@{run}"]

    def has_landed(self, node: str, run: str = "r1") -> bool:
        return self.nodes(run).get(node, {}).get("status") == "validated"

    def finished_work(self, run: str = "r1") -> list[tuple[str, int, int]]:
        """Return a run's lines of the ledger: (node, attempt, incarnation) each time a node finished its work."""
        lines = self.ledger.read_text().splitlines() if self.ledger.exists() else []
        return [(node, int(attempt), int(incarnation))
                for which, node, attempt, incarnation in map(str.split, lines) if which == run]

    def passed_points(self) -> set[str]:
        """Return the failpoints that were passed (needs GARRISON_FAILPOINT_LIST)."""
        return set(self.points.read_text().splitlines()) if self.points.exists() else set()

    def failpoint_kills(self) -> Counter[str]:
        """Return failpoint → how often a process was killed there."""
        return Counter(path.name.rpartition(".")[0] for path in self.fired.iterdir())

    # ------------------------------------------------------------------------------------------------ holding

    def hold(self, name: str) -> str:
        """Return shell that waits at `name` until the test releases it; `wait_until_held` notices."""
        return f"touch {self.root}/at-{name}; until test -e {self.root}/go-{name}; do sleep 0.1; done"

    def wait_until_held(self, name: str) -> None:
        """Wait until a command waits at `name`, once for each that does."""
        wait_for(f"a command waits at {name}\n", (self.root / f"at-{name}").exists)
        (self.root / f"at-{name}").unlink()

    def release(self, *names: str) -> None:
        """Let the commands that wait there continue, now and later."""
        for name in names:
            (self.root / f"go-{name}").touch()

    # ------------------------------------------------------------------------------------------------ checking

    def check(self, *names: str, run: str = "r1", history: bool = True) -> None:
        """Check that the run ended right: all done, landed once and tested, history complete (`history`; not where
        processes were stopped), nothing left. Garrison's code is used only to check that it can explain it all."""
        assert self.status(run) == "done", self.logs()
        assert {name: node["status"] for name, node in self.nodes(run).items()} == dict.fromkeys(names, "validated")
        self.check_landed(*names, run=run)
        self.check_work(*names, run=run)
        if history:
            self.check_history(run)
        for name in names:
            assert self.hook(f"runner-{name}", run)["phase"] == "merged"
            runner, identity = load(self.home / "runs" / run / "runners" / f"{name}.json"), self.identity(
                f"runner-{name}", run)
            assert runner["started_at"] == identity["created_at"] < identity["terminated_at"]
        for stem, identity in self.identities(run).items():
            if stem.startswith(("launch", "guardian-", "processor-")) and identity["status"] == "terminated":
                assert self.hook(stem, run)["phase"] == "merged", f"{stem}: {self.hook(stem, run)}"
        check_explanations(self.home, run)
        check_promises(self.home, run, self.repo)
        self.check_nothing_left(run)

    def check_landed(self, *names: str, run: str = "r1") -> None:
        """Check that each branch was merged into main once, with its work, and that the gate had passed each tree that
        main ever had."""
        subjects = landed_subjects(self.repo, self.start)
        merges = [subject for subject in subjects if f"garrison/{run}/" in subject]
        assert len(merges) == len(set(merges)), "landed twice"
        assert sorted(merges) == sorted(f"Merge garrison/{run}/{name} into main" for name in names), subjects
        tips = [line for line in git(self.repo, "log", "-g", "--format=%P|%T", "main").splitlines()
               if " " in line.partition("|")[0]]
        tested = set(self.witness.read_text().split())
        assert {line.partition("|")[2] for line in tips} <= tested, "landed untested"
        assert not merges or tips, "main keeps no reflog"
        for name in names:
            assert git(self.repo, "show", f"main:{name}-{run}.txt") == name, f"the work of {name} is not right on main"

    def check_work(self, *names: str, run: str = "r1") -> None:
        """Check that no node's work was done twice.

        Work is repeated only by a successor of an incarnation that died before its result was recorded. So an
        incarnation finishes its work at most once; each that did, but the one whose result counts, died; and after a
        recorded result none works.
        """
        deaths = self.deaths(run)
        for name in names:
            finished = [incarnation for node, attempt, incarnation in self.finished_work(run)
                        if (node, attempt) == (name, 1)]
            result = load(self.home / "runs" / run / "nodes" / name / "1" / "result.json")
            assert finished, f"{name} landed without work"
            assert len(set(finished)) == len(finished), f"{name} worked twice in one incarnation: {finished}"
            assert max(finished) <= result["incarnation"], f"{name} worked after its result: {finished}, {result}"
            assert set(finished) - {result["incarnation"]} <= set(deaths.get(f"orchestrator-{name}", [])), finished

    def check_history(self, run: str = "r1") -> None:
        """Check that each incarnation but the last has its death in its supervisor's journal, and that the last ended
        gracefully (or also died, when there was nothing left to do)."""
        deaths = self.deaths(run)
        for stem, identity in self.identities(run).items():
            died_last = identity["status"] == "crashed" and stem.startswith(("orchestrator-", "processor-"))
            assert died_last or identity["status"] == "terminated", f"{stem} is {identity['status']}"
            if stem == "launch":  # nothing supervises it
                continue
            died = deaths.get(stem, [])
            assert len(died) == len(set(died)), f"a death of {stem} was counted twice: {died}"
            assert sorted(died) == list(range(1, identity["incarnation"] + died_last)), f"{stem}: {died}, {identity}"
            assert identity["respawns"] == identity["incarnation"] - 1

    def check_nothing_left(self, run: str = "r1") -> None:
        """Check that the run left no branch, worktree, session, signal or damage, and a clean checkout."""
        assert git(self.repo, "for-each-ref", "--format=%(refname)", f"refs/heads/garrison/{run}/") == ""
        assert not [path for path in self.trees.glob(f"*/{run}*") if path.name != "slot-1"]
        trees = [line for line in git(self.repo, "worktree", "list", "--porcelain").splitlines()
                 if line.startswith("worktree ")]
        assert not [line for line in trees if f"/{run}/" in line], trees
        assert not list(self.home.glob(f"run/plain/*@{run}.json"))
        assert not list(self.home.glob(f"signals/guardian-*@{run}/*.json"))
        assert git(self.repo, "fsck", "--connectivity-only", "--no-dangling") == ""
        assert git(self.repo, "status", "--porcelain") == self.edits
        assert not [path.name for path in (self.repo / ".git").iterdir() if path.name.endswith(".lock")]

    def check_failed_nodes_kept(self, *names: str, run: str = "r1") -> None:
        """Check that failed nodes kept their branch, and all work under a rescue ref, and no worktree."""
        refs = git(self.repo, "for-each-ref", "--format=%(refname)").splitlines()
        assert [ref for ref in refs if ref.startswith(f"refs/heads/garrison/{run}/")] == [
            f"refs/heads/garrison/{run}/{name}" for name in sorted(names)]
        for name in names:
            assert f"refs/garrison/rescue/{run}/{name}/1" in refs
        assert not list(self.trees.glob(f"*/{run}"))
        assert git(self.repo, "status", "--porcelain") == self.edits

    def check_only_last_incarnations(self, run: str = "r1") -> None:
        """Check that no process bears the marker of an incarnation that has a successor."""
        last = {stem: identity["incarnation"] for stem, identity in self.identities(run).items()}
        for process in self.living_processes():
            stem, _, number = process.environ.get("GARRISON_LIFE", "").rpartition(":")[2].partition("#")
            assert int(number or 0) == last.get(stem, int(number or 0)), f"{process} outlived its incarnation: {last}"

    def refused(self, stem: str, run: str = "r1") -> list[str]:
        """Return why signals to a process were refused."""
        return [path.read_text() for path in sorted((self.home / "signals" / f"{stem}@{run}").glob("refused/*.reason"))]

    def living_processes(self) -> list[Process]:
        """Return the living processes of this place: their command line, marker or home contains its folder."""
        root = f"{self.folder}/"
        return [process for process in processes(root) if process.pid != os.getpid() and (
            root in process.argv
            or any(root in process.environ.get(name, "") for name in ("GARRISON_LIFE", "GARRISON_HOME")))]

    def kill_rest(self) -> list[str]:
        """Kill what is left; return what it was."""
        for child in self.started:
            child.poll()
        left = []
        end = time.monotonic() + 60
        while (found := self.living_processes()) and time.monotonic() < end:  # a session may just be ending
            time.sleep(0.05)
        for process in found:
            left.append(f"{process.pid} {process.argv} {process.environ.get('GARRISON_LIFE', '')}")
        self.kill_all()
        return left

    def kill_all(self) -> None:
        """Kill every process of the place at once, as a power cut does."""
        end = time.monotonic() + 60
        while (found := self.living_processes()) and time.monotonic() < end:
            for process in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
            for child in self.started:
                child.poll()
            time.sleep(0.05)


def work(node: Node) -> str:
    """Return the command of a node: write its file, commit, then note in the ledger that it is finished."""
    done = f'echo "$GARRISON_RUN {node.name} $GARRISON_ATTEMPT $GARRISON_INCARNATION" >> "$LEDGER"'
    steps = [node.before, f"echo {node.name} > {node.name}-$GARRISON_RUN.txt", "git add -A",
             f"git commit -qm 'Add {node.name}' || git diff --quiet HEAD", node.then, done]
    return "set -e; " + "; ".join(step for step in steps if step)


def load(path: Path) -> dict[str, Any]:
    """Return a JSON file; empty if there is none. A torn one fails the test."""
    try:
        return dict(json.loads(path.read_text()))
    except FileNotFoundError:
        return {}


def alive(identity: dict[str, Any]) -> bool:
    """Return whether the process of an identity lives."""
    found = stat(identity["pid"]) if identity.get("pid") else None
    return found is not None and found[0] != "Z" and found[1] == identity["start_ticks"]


# ---- a run explains itself


ORDERED = ("attempt ", "to stop what is still alive")
"""Reasons of starts that no death caused."""


def check_explanations(home: Path, run: str) -> None:
    """Fail if a restart has no rule and observation, or a replayed decision differs."""
    lines = explain(EventLog(home, run).read(), frozenset())
    different = [line for line in lines if line.same is False]
    assert not different, different
    for line in lines:
        if line.kind == "spawn" and line.text != "started" and not any(
                word in line.text for word in ORDERED):
            assert line.rule, line
            assert line.observed or line.rule == "first start", line  # a lost record has no observation
    deaths = [line for line in lines if line.kind == "death"]
    assert all(line.rule and line.observed for line in deaths), deaths


def check_promises(home: Path, run: str, repository: Path) -> None:
    """Fail if the checker finds a broken promise, or if the gate runs attested nothing though there were some."""
    history = read_events(json.dumps(asdict(event)) for event in EventLog(home, run).read())
    attestations = read_attestations(map(attestations_of, (home / "merge-queue").glob("*/*")))
    assert attestations.runs or not list(history.of("test")), "there are no attestations of gate runs"
    found = check(history, CheckedRepository(repository), attestations)
    assert not found, "\n".join(map(str, found))
