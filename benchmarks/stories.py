"""Count the code that a reader crosses: three stories of one real node, traced in every process that carries them.

    .venv/bin/python benchmarks/stories.py [--checkout DIR]... [--list] [--keep DIR] [--json]

Needs a checkout (default: this one; several give a column each) with a finished .venv. A run of one node (a command
agent, a gate, the plain-process terminal) is launched from it with an environment whose every Python process is traced
by `call_trace.py`. Only the command line and files on disk are used, so any version can be measured.

How the windows are cut. A story is a relay: each leg names one process, told by the GARRISON_LIFE marker in its
environment, and the moments between which it carries the story. All moments are wall-clock times of one machine.

death    A death → the successor's prompt.
         runner: `kill -9` of the orchestrator → the `spawn` of its successor in the runner's journal.
         successor orchestrator: its start → its agent's shell has started, the prompt is on disk.
merge    A merge entry, enqueued → landed.
         runner: its hook's move to `impl_complete` → the `enq` record in the queue's journal.
         merge processor: that record → the `landed` record.
signal   A signal, sent → applied.
         runner: its hook's move to `impl_complete` → the guardian wakes, which is the guardian's first call after the
         time in the name of the NODE_COMPLETE file.
         guardian: that wake → the `signal` record in its journal, which holds the node's new status.

Counted is every call of a function of src/garrison that the leg's process, or a process that it starts meanwhile, makes
within the leg; also what belongs to its loop and not to the story, such as a heartbeat. Not counted is what runs while
a module is imported, and resuming a generator. A comprehension belongs to the function around it.

files       in which a function was called
rooms       packages and modules directly below src/garrison that hold them
functions   called at least once
jumps       calls whose caller, the nearest function of garrison on that thread's stack, lies in another file, each time
crossings   pairs of functions in different files of which one calls the other, once

Repeated jumps are mostly loops that poll until processes have ended, so `jumps` and `calls` grow on a busy machine; the
other figures vary by one or two.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from call_trace import IMPORTING, NO_CALLER, RECORD

T = TypeVar("T")
HERE = Path(__file__).resolve().parent
RUN, NODE = "story", "work"
PATIENCE = 120.0
"""Seconds that any step may take under tracing."""
SETTLE = 2.0
"""Seconds after a start until the layers only wait: their first turns are no part of the story that follows."""


# ------------------------------------------------------------------------------------------------------------ traces


@dataclass(frozen=True)
class Call:
    """One call: when, of which function in which file, from which function in which file (None: from outside)."""

    at: int
    file: str
    function: str
    caller_file: str | None
    caller: str | None

    @property
    def jumps(self) -> bool:
        """Return whether it leads into another file."""
        return self.caller_file not in (None, self.file)


@dataclass
class Process:
    """One traced process; `role` is that of its life marker, e.g. `runner-work`, and `incarnation` its number."""

    pid: int
    ppid: int
    at: int
    argv: list[str]
    role: str
    incarnation: int
    calls: list[Call] = field(default_factory=list)


def read_processes(folder: Path) -> list[Process]:
    """Return all traces of a folder."""
    return [_read_process(path) for path in sorted(folder.glob("*.names"))]


def _read_process(path: Path) -> Process:
    head, *functions = [json.loads(line) for line in path.read_text().splitlines()]
    name, _, incarnation = head["life"].rpartition(":")[2].partition("#")
    process = Process(head["pid"], head["ppid"], head["at"], head["argv"], name, int(incarnation or 0))
    data = path.with_suffix(".calls").read_bytes()
    for at, callee, caller, flags in RECORD.iter_unpack(data[:len(data) // RECORD.size * RECORD.size]):
        if flags & IMPORTING or functions[callee]["function"].endswith(_NO_FUNCTIONS):
            continue
        come_from = None if caller == NO_CALLER else functions[caller]
        process.calls.append(Call(at, functions[callee]["file"], _without_comprehensions(functions[callee]["function"]),
                                  come_from and come_from["file"],
                                  come_from and _without_comprehensions(come_from["function"])))
    return process


_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
_NO_FUNCTIONS = ("<module>", *_COMPREHENSIONS)


def _without_comprehensions(name: str) -> str:
    """Return the function that a comprehension belongs to: from Python 3.12 on they have no frames of their own."""
    for kind in _COMPREHENSIONS:
        name = name.replace(f".<locals>.{kind}", "")
    return name


@dataclass(frozen=True)
class Leg:
    """Part of a story in one process."""

    carrier: Process
    begin: int
    end: int

    def calls(self, processes: list[Process]) -> list[Call]:
        """Return the calls of the carrier, and of the processes it starts meanwhile, within the leg."""
        carriers = [self.carrier]
        for process in sorted(processes, key=lambda process: process.at):
            if self.begin <= process.at <= self.end and process.ppid in [parent.pid for parent in carriers] \
                    and process.role == self.carrier.role:
                carriers.append(process)
        return [call for process in carriers for call in process.calls if self.begin <= call.at <= self.end]


@dataclass
class Story:
    """Story with the calls in it, in order."""

    name: str
    title: str
    calls: list[Call]

    def figures(self) -> dict[str, Any]:
        """Return the figures of the table."""
        files = {call.file for call in self.calls}
        return {
            "files": len(files), "rooms": len({file.partition("/")[0] for file in files}),
            "functions": len({(call.file, call.function) for call in self.calls}),
            "crossings": len({(call.caller_file, call.caller, call.file, call.function)
                              for call in self.calls if call.jumps}),
            "jumps": sum(call.jumps for call in self.calls), "calls": len(self.calls)}

    def files(self) -> dict[str, list[str]]:
        """File → its functions, both in the order of their first call."""
        found: dict[str, list[str]] = {}
        for call in self.calls:
            functions = found.setdefault(call.file, [])
            if call.function not in functions:
                functions.append(call.function)
        return found


# ---------------------------------------------------------------------------------------------------- the real run


class Checkout:
    """Checkout of garrison, of any version, run with an interpreter whose every process is traced."""

    def __init__(self, path: Path, root: Path) -> None:
        self.path, self.root, self.traces = path, root, root / "traces"
        python, script = path / ".venv/bin/python", path / ".venv/bin/garrison"
        if not script.exists():
            raise SystemExit(f"{path} has no finished .venv; run its scripts/test or scripts/demo once")
        self.traces.mkdir()
        environment = root / "venv"
        subprocess.run([python, "-m", "venv", "--without-pip", environment], check=True)
        self.python = environment / "bin/python"
        [packages] = environment.glob("lib/python3*/site-packages")
        [installed] = (path / ".venv").glob("lib/python3*/site-packages")
        shutil.copy(HERE / "call_trace.py", packages / "_call_trace.py")
        (packages / "a_trace.pth").write_text(
            f"import _call_trace; _call_trace.start({str(self.traces)!r}, {str(path / 'src/garrison')!r})\n")
        (packages / "b_installed.pth").write_text(f"import site; site.addsitedir({str(installed)!r})\n")
        self.script = root / "garrison"
        self.script.write_text("".join(script.read_text().partition("\n")[1:]))


class Run:
    """Run of one node, its places and processes."""

    def __init__(self, checkout: Checkout) -> None:
        self.checkout, self.root = checkout, checkout.root
        self.home, self.repo = self.root / "home", self.root / "repo"
        for folder in (self.repo, self.root / "user", self.root / "tmp"):
            folder.mkdir()
        self.environment = {
            "PATH": os.environ["PATH"], "HOME": str(self.root / "user"), "LANG": "C.UTF-8",
            "GARRISON_SANDBOX": "none",  # the agent signs in outside of its worktree, to be seen from there
            "GARRISON_HOME": str(self.home), "GARRISON_TREES": str(self.root / "trees"),
            "XDG_STATE_HOME": str(self.root / "state"), "XDG_RUNTIME_DIR": str(self.root / "tmp"),
            "TMPDIR": str(self.root / "tmp")}
        self.journal = self.home / f"runs/{RUN}/journal.jsonl"
        self.runner_journal = self.home / f"runs/{RUN}/layers/runner-{NODE}.jsonl"

    def prepare(self) -> Path:
        """Make the repository and the graph."""
        for words in (["init", "-q", "-b", "main"], ["config", "user.name", "A User"],
                      ["config", "user.email", "user@example.org"], ["commit", "-q", "--allow-empty", "-m", "Begin"]):
            subprocess.run(["git", *words], cwd=self.repo, check=True, env=self.environment)
        work = (f"date +%s%N >> {self.root}/prompts; test -s $GARRISON_PROMPT_FILE || exit 1; "
                f"while [ ! -e {self.root}/go ]; do sleep 0.02; done; echo done > work.txt; git add -A; "
                "git commit -q -m Work")
        graph = self.root / "story.dot"
        graph.write_text(f'digraph story {{ flow=dag; goal="a story"; start [shape=Mdiamond]; exit [shape=Msquare];\n'
                         f'  {NODE} [shape=box, command="{work}"]; start -> {NODE} -> exit; }}\n')
        return graph

    def garrison(self, *words: str) -> subprocess.Popen[bytes]:
        """Start a garrison command; its output goes to `out`."""
        with (self.root / "out").open("ab") as out:
            return subprocess.Popen([self.checkout.python, self.checkout.script, *words], env=self.environment,
                                    cwd=self.root, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                    start_new_session=True)

    def identity(self, name: str) -> dict[str, Any]:
        """Return an identity as it is on disk; empty if there is none."""
        try:
            return dict(json.loads((self.home / f"identities/{name}@{RUN}.json").read_text()))
        except FileNotFoundError:
            return {}

    def prompts(self) -> list[int]:
        """Return when agents had their prompts, in ns; one an incarnation."""
        path = self.root / "prompts"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def phases(self) -> list[dict[str, Any]]:
        """Return the phase history of the runner's hook."""
        hook = json.loads((self.home / f"hooks/runner-{NODE}@{RUN}.json").read_text())
        return list(hook["phase_history"])

    def records(self, path: Path) -> list[dict[str, Any]]:
        """Return the complete records of a journal."""
        return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]] if path.exists() else []

    def queue_records(self) -> list[dict[str, Any]]:
        """Return the records of the merge queue's journal."""
        return [record for path in self.home.glob("merge-queue/*/*/journal.jsonl") for record in self.records(path)]

    def wait(self, what: str, condition: Callable[[], Any]) -> Any:
        """Poll until it is true; its value."""
        end = time.monotonic() + PATIENCE
        while not (value := condition()):
            if time.monotonic() > end:
                out = (self.root / "out").read_text(errors="replace")
                raise SystemExit(f"waited {PATIENCE:.0f} s in vain: {what}\n{out[-3000:]}")
            time.sleep(0.005)
        return value

    def processes(self) -> Iterator[int]:
        """Return the living processes whose environment or command line names this run's folder."""
        for path in Path("/proc").glob("[0-9]*"):
            if int(path.name) != os.getpid():
                with contextlib.suppress(OSError):
                    text = (path / "environ").read_bytes() + (path / "cmdline").read_bytes()
                    if f"{self.root}/".encode() in text:
                        yield int(path.name)

    def end(self) -> None:
        """Kill what is left, by pid."""
        for _ in range(100):
            left = list(self.processes())
            if not left:
                return
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)


def to_ns(time_string: str) -> int:
    """Return a time as garrison writes it, in ns."""
    moment = datetime.fromisoformat(time_string)
    return int(moment.timestamp()) * 1_000_000_000 + moment.microsecond * 1_000


def play(run: Run) -> int:
    """Run the node until it has landed, its orchestrator killed once; returns when that was."""
    launcher = run.garrison("launch", str(run.prepare()), "--target-dir", str(run.repo), "--run", RUN, "--gate",
                            "test -f work.txt || test ! -e work.txt", "--terminal", "process")
    run.wait("the first agent has its prompt", lambda: len(run.prompts()) == 1)
    time.sleep(SETTLE)
    killed_at = time.time_ns()
    os.kill(run.identity(f"orchestrator-{NODE}")["pid"], signal.SIGKILL)
    run.wait("the successor has its prompt", lambda: len(run.prompts()) == 2)
    time.sleep(SETTLE)
    (run.root / "go").touch()
    if code := launcher.wait(PATIENCE):
        raise SystemExit(f"the run ended with {code}\n{(run.root / 'out').read_text()[-3000:]}")
    return killed_at


def first(items: Iterable[T], wanted: Callable[[T], bool]) -> T:
    """Return the first item that is wanted."""
    return next(item for item in items if wanted(item))


def cut(run: Run, processes: list[Process], killed_at: int) -> list[Story]:
    """Cut the three stories out of the traces, as the module's docstring says."""
    def carrier(role: str, incarnation: int = 1) -> Process:
        """Return the process that wrote the records: an orchestrator is two, and its guard ends after it."""
        return max((process for process in processes if (process.role, process.incarnation) == (role, incarnation)),
                   key=lambda process: len(process.calls))

    runner, guardian = carrier(f"runner-{NODE}"), carrier("guardian-story")
    successor, processor = carrier(f"orchestrator-{NODE}", 2), carrier("processor-story")
    spawned = first(run.records(run.runner_journal),
                    lambda record: record["kind"] == "spawn" and record["data"]["incarnation"] == 2)
    death = [Leg(runner, killed_at, to_ns(spawned["at"])), Leg(successor, 0, run.prompts()[1])]

    queue = {record["kind"]: to_ns(record["at"]) for record in run.queue_records()}
    complete = to_ns(first(run.phases(), lambda move: move["to"] == "impl_complete")["at"])
    merge = [Leg(runner, complete, queue["enq"]), Leg(processor, queue["enq"], queue["landed"])]

    [sent] = (datetime.strptime(f"{path.name[:21]}+0000", "%Y%m%dT%H%M%S%f%z")
              for path in run.home.glob("signals/guardian-*/taken/*-NODE_COMPLETE-*"))
    woken = first(guardian.calls, lambda call: call.at >= to_ns(sent.isoformat())).at
    applied = first(run.records(run.journal),
                    lambda record: record["kind"] == "signal" and record["data"]["type"] == "NODE_COMPLETE")
    told = [Leg(runner, complete, woken), Leg(guardian, woken, to_ns(applied["at"]))]

    return [Story(name, title, [call for leg in legs for call in leg.calls(processes)]) for name, title, legs in (
        ("death", "a death → the successor's prompt", death),
        ("merge", "a merge entry, enqueued → landed", merge),
        ("signal", "a signal, sent → applied", told))]


def measure(path: Path, root: Path) -> list[Story]:
    """Run and trace a checkout."""
    run = Run(Checkout(path.resolve(), root))
    try:
        killed_at = play(run)
    finally:
        run.end()
    return cut(run, read_processes(run.checkout.traces), killed_at)


def main() -> None:
    """Print the figures of each checkout."""
    parser = argparse.ArgumentParser(description="Count the files, functions and jumps of three stories.")
    parser.add_argument("--checkout", type=Path, action="append", help="a checkout with a .venv (default: this one)")
    parser.add_argument("--list", action="store_true", help="print each story's files and functions too")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the runs and traces in a new directory DIR")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    checkouts = options.checkout or [HERE.parent]
    with contextlib.ExitStack() as stack:
        root = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stories-")))
        found = {}
        for number, path in enumerate(checkouts):
            folder = root.resolve() / str(number)
            folder.mkdir(parents=True)
            found[str(path)] = measure(path, folder)
    if options.json:
        print(json.dumps({path: {story.name: {**story.figures(), "functions_of": story.files()} for story in stories}
                          for path, stories in found.items()}, indent=1))
        return
    for path, stories in found.items():
        columns = " ".join(f"{name:>9}" for name in stories[0].figures())
        print(f"{path}\n{'':36} {columns}")
        for story in stories:
            print(f"  {story.title:34} " + " ".join(f"{value:9}" for value in story.figures().values()))
        for story in stories if options.list else []:
            print(f"\n{story.title}")
            for file, functions in story.files().items():
                print(f"  {file}: {', '.join(functions)}")


if __name__ == "__main__":
    main()
