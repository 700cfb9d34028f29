"""What the end-to-end tests share: a place of their own, launching, waiting, a checker that trusts no garrison code.

A place is one directory with a repository, a home, trees and a user's HOME. Nothing of the caller's environment that
could reach garrison is passed on. The ledger and the witness lie outside the repository: nodes append to the ledger at
their successful end, the gate writes each tree it passed to the witness.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from explanations import check_explanations

T = TypeVar("T")
PROGRAM = [sys.executable, "-P", "-m", "garrison.cli.main"]
DEADLINE = 300.0
"""Seconds until a wait is a failure, in every test: twenty times what the longest takes on a quiet machine. Only what
never comes is waited for that long, so no test needs a shorter one of its own."""
ORDER = ("launch", "guardian", "runner", "orchestrator", "processor")


def git(path: Path, *arguments: str, check: bool = True) -> str:
    """One git command in `path`, its output."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    env |= {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(["git", *arguments], cwd=path, env=env, capture_output=True, text=True, check=False,
                          stdin=subprocess.DEVNULL)
    assert not check or done.returncode == 0, done.stderr
    return done.stdout.strip()


def make_repository(path: Path) -> None:
    """A small Python project with one commit on main."""
    path.mkdir(parents=True)
    git(path, "init", "-q", "-b", "main")
    with (path / ".git/config").open("a") as config:
        config.write("[user]\n\tname = A User\n\temail = user@example.org\n")
    (path / "calc.py").write_text("def add(a, b):\n    return a + b\n")
    (path / "notes.txt").write_text("".join(f"line {number}\n" for number in range(20)))
    git(path, "add", "-A")
    git(path, "commit", "-qm", "Begin")


def wait_for(what: str, condition: Callable[[], Any], seconds: float = DEADLINE) -> Any:
    """Poll until `condition()` is true; its value. Fails with `what` at the deadline.

    A dear look is taken less often: several tests wait at once, and what they wait for needs the processor too.
    """
    end = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        if value := condition():
            return value
        now = time.monotonic()
        assert now < end, f"not within {seconds:.0f} s: {what}"
        time.sleep(min(max(0.01, 2 * (now - began)), 0.5))


def until(look: Callable[[], T]) -> T:
    """What `look()` gives once that is true; for what comes within milliseconds."""
    end = time.monotonic() + DEADLINE
    while not (found := look()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.002)
    return found


@dataclass(frozen=True)
class Process:
    """A process as /proc shows it; pid and start ticks name it for ever."""

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
    """(state, start ticks, parent) of a process; None if there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return fields[0], int(fields[19]), int(fields[1])


def look(pid: int, holds: str = "") -> Process | None:
    """Everything about one process; None if it is gone, a zombie, another user's, or `holds` stands neither in its
    command line nor in its environment."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123  # hundreds a look
            raw = file.read()
        with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123
            line = file.read()
    except OSError:
        return None
    wanted = os.fsencode(holds)
    if (wanted not in raw and wanted not in line) or (found := stat(pid)) is None or found[0] == "Z":
        return None
    environ = dict(item.split("=", 1) for item in raw.decode(errors="replace").split("\0") if "=" in item)
    return Process(pid, found[1], line.decode(errors="replace").replace("\0", " ").strip(), environ, found[2])


def processes(holds: str = "") -> Iterator[Process]:
    """Every living process that we may look at, and in whose command line or environment `holds` stands."""
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit() and (found := look(int(name), holds)):
            yield found


@dataclass
class Node:
    """One node of a test's graph. Its work: `{name}-{run}.txt` with one line, committed, then a line in the ledger."""

    name: str
    after: tuple[str, ...] = ()
    before: str = ""
    """Shell run first, in the tree."""
    then: str = ""
    """Shell run after the commit, before the ledger's line."""
    attributes: str = ""
    command: str | None = None


@dataclass
class Place:
    """One directory that holds all that a test touches."""

    root: Path
    env: dict[str, str] = field(default_factory=dict)
    terminal: str = "process"
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.repo, self.home, self.trees = self.root / "repo", self.root / "home", self.root / "trees"
        self.ledger, self.witness, self.points = self.root / "ledger", self.root / "witness", self.root / "points"
        self.user = self.root / "user"
        self.edits = ""  # what `git status` shall say of the user's checkout
        for folder in (self.user, self.root / "fired", self.root / "rt"):
            folder.mkdir(exist_ok=True)
        kept = ("PATH", "LANG", "LC_ALL", "TERM", "TZ", "TMPDIR")
        self.env = {name: os.environ[name] for name in kept if name in os.environ} | {
            "HOME": str(self.user), "GARRISON_HOME": str(self.home), "GARRISON_TREES": str(self.trees),
            "XDG_STATE_HOME": str(self.root / "state"), "XDG_RUNTIME_DIR": str(self.root / "rt"),
            "LEDGER": str(self.ledger), "WITNESS": str(self.witness),
            "GARRISON_FAILPOINT_DIR": str(self.root / "fired"), **self.env}
        (self.root / "rt").chmod(0o700)
        self.start = git(self.repo, "rev-parse", "main")

    # ------------------------------------------------------------------------------------------------ graphs

    def graph(self, *nodes: Node, name: str = "crew", attributes: str = "") -> Path:
        """Write a graph of `nodes`; returns the file."""
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

    # ------------------------------------------------------------------------------------------------ commands

    def command(self, *arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
        """One garrison command to its end."""
        return subprocess.run(
            [*PROGRAM, *map(str, arguments)], env={**self.env, **self.coverage(), **env}, cwd=self.root,
            capture_output=True, text=True, check=False, timeout=DEADLINE, stdin=subprocess.DEVNULL)

    def launch_arguments(self, graph: Path, run: str, *more: object, gate: str = "",
                         repo: Path | None = None) -> list[str]:
        """The arguments of an ordinary launch."""
        gate = gate or 'git rev-parse "HEAD^{tree}" >> "$WITNESS"; test -f calc.py'
        return ["launch", str(graph), "--target-dir", str(repo or self.repo), "--run", run, "--gate", gate,
                "--terminal", self.terminal, "--env", "LEDGER", "--env", "WITNESS",
                *(word for name in self.coverage() for word in ("--env", name)), *map(str, more)]

    def coverage(self) -> dict[str, str]:
        """What a process must be told to have its coverage measured too: nothing, but in tests that are `traced`."""
        if not any(name.startswith("COVERAGE_PROCESS") for name in os.environ):
            return {}
        return {name: value for name, value in os.environ.items() if name.startswith("COVERAGE_")}

    def begin(self, *arguments: object, log: str = "out", **env: str) -> subprocess.Popen[bytes]:
        """Start a garrison command in a session of its own; its output is appended to `log`."""
        with (self.root / log).open("ab") as output:
            child = subprocess.Popen(
                [*PROGRAM, *map(str, arguments)], env={**self.env, **self.coverage(), **env}, cwd=self.root,
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
        self.started.append(child)
        return child

    def launch(self, graph: Path, run: str = "r1", *more: object, gate: str = "",
               **env: str) -> subprocess.Popen[bytes]:
        """Launch a run in the background; its launcher has the returned pid."""
        return self.begin(*self.launch_arguments(graph, run, *more, gate=gate), **env)

    def resume(self, run: str = "r1", **env: str) -> subprocess.Popen[bytes]:
        """`launch --resume`."""
        return self.begin("launch", "--resume", run, **env)

    def finish(self, child: subprocess.Popen[bytes], run: str = "r1", *, resumes: int = 0) -> int:
        """Wait for a launcher's end; one that was killed is followed by `--resume`, at most `resumes` times, unless it
        had nothing left to do."""
        while True:
            try:
                code = child.wait(DEADLINE)
            except subprocess.TimeoutExpired:
                raise AssertionError(f"run {run} has not ended\n{self.told()}") from None
            if code != -signal.SIGKILL:
                return code
            if self.identity("launch", run)["status"] == "terminated":
                return int(self.identity("launch", run)["exit"])
            assert resumes > 0, f"the launcher was killed too often\n{self.told()}"
            resumes -= 1
            child = self.resume(run)

    def told(self) -> str:
        """What garrison printed, for a failure's message: the commands' output and the layers' logs."""
        logs = [self.root / "out", *sorted(self.home.glob("runs/*/layers/*.log"))]
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in logs
                         if path.exists())

    # ------------------------------------------------------------------------------------------------ looking

    def identity(self, stem: str, run: str = "r1") -> dict[str, Any]:
        """An identity as it stands on disk; empty if there is none. `stem` is role-name, or launch."""
        return load(self.home / "identities" / f"{stem}@{run}.json")

    def hook(self, stem: str, run: str = "r1") -> dict[str, Any]:
        return load(self.home / "hooks" / f"{stem}@{run}.json")

    def identities(self, run: str = "r1") -> dict[str, dict[str, Any]]:
        """role-name → identity, of one run."""
        return {path.name.partition("@")[0]: load(path) for path in (self.home / "identities").glob(f"*@{run}.json")}

    def pid(self, stem: str, run: str = "r1", *, life: int = 1) -> int:
        """The pid of a layer once it is active in that life or a later one."""
        def active() -> int | None:
            found = self.identity(stem, run)
            if found.get("status") != "active" or found["incarnation"] < life:
                return None
            return found["pid"] if alive(found) else None

        return int(wait_for(f"{stem} is active in life {life}", active))

    def kill(self, *stems: str, run: str = "r1", life: int = 1) -> None:
        """kill -9 these layers together, once all of them live."""
        pids = [self.pid(stem, run, life=life) for stem in stems]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def journal(self, run: str = "r1", stem: str = "") -> list[dict[str, Any]]:
        """The records of the guardian's journal, or of the layer `stem`'s; a torn tail is left out."""
        path = self.home / "runs" / run / (f"layers/{stem}.jsonl" if stem else "journal.jsonl")
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in lines]

    def status(self, run: str = "r1") -> str:
        """The run's status as its journal's last word on it."""
        return str(([record["data"]["status"] for record in self.journal(run) if record["kind"] == "run"] or [""])[-1])

    def nodes(self, run: str = "r1") -> dict[str, dict[str, Any]]:
        """Node → the last thing the guardian's journal says about it."""
        found = {}
        for record in self.journal(run):
            data = record["data"] if record["kind"] == "node" else record["data"].get("effect")
            if data:
                found[data["node"]] = data
        return found

    def deaths(self, run: str = "r1") -> dict[str, list[int]]:
        """role-name → the lives whose death its supervisor journaled."""
        found: dict[str, list[int]] = {}
        stems = ["", *(path.stem for path in (self.home / "runs" / run / "layers").glob("*.jsonl"))]
        for record in (record for stem in stems for record in self.journal(run, stem)):
            if record["kind"] == "death":
                found.setdefault(record["data"]["full"].partition("@")[0], []).append(record["data"]["incarnation"])
        return found

    def worked(self, run: str = "r1") -> list[tuple[str, int, int]]:
        """The ledger's lines of a run: (node, attempt, life), one for each time a node's work came to its end."""
        lines = self.ledger.read_text().splitlines() if self.ledger.exists() else []
        return [(node, int(attempt), int(life)) for which, node, attempt, life in map(str.split, lines) if which == run]

    def passed_points(self) -> set[str]:
        """The failpoints that were passed (needs GARRISON_FAILPOINT_LIST)."""
        return set(self.points.read_text().splitlines()) if self.points.exists() else set()

    def fired(self) -> Counter[str]:
        """Failpoint → how often somebody was killed there."""
        return Counter(path.name.rpartition(".")[0] for path in (self.root / "fired").iterdir())

    # ------------------------------------------------------------------------------------------------ holding

    def hold(self, name: str) -> str:
        """Shell that says it has arrived at `name` (again) and waits there until the test frees it."""
        return f"touch {self.root}/at-{name}; until test -e {self.root}/go-{name}; do sleep 0.1; done"

    def arrived(self, name: str) -> None:
        """Wait until somebody holds at `name`, and forget it: the next arrival is waited for anew."""
        wait_for(f"somebody arrives at {name}\n", (self.root / f"at-{name}").exists)
        (self.root / f"at-{name}").unlink()

    def free(self, *names: str) -> None:
        """Let go who holds there, now and later."""
        for name in names:
            (self.root / f"go-{name}").touch()

    # ------------------------------------------------------------------------------------------------ judging

    def check(self, *names: str, run: str = "r1", history: bool = True) -> None:
        """The run ended right: everything done, landed once and tested, history complete (`history`; not where lives
        ended in order), nothing left. No garrison code is asked; then, whether garrison can explain it all."""
        assert self.status(run) == "done", self.told()
        assert {name: node["status"] for name, node in self.nodes(run).items()} == dict.fromkeys(names, "validated")
        self.check_landed(*names, run=run)
        self.check_work(*names, run=run)
        if history:
            self.check_history(run)
        for name in names:
            assert self.hook(f"runner-{name}", run)["phase"] == "merged"
        check_explanations(self.home, run)
        self.check_left(run)

    def check_landed(self, *names: str, run: str = "r1") -> None:
        """Each node's branch was merged into main exactly once, with its work; the gate had passed each tree that main
        ever was (of a batch that lands at once, the last)."""
        subjects = git(self.repo, "log", "--first-parent", "--format=%s|%T", f"{self.start}..main").splitlines()
        merges = [line.partition("|")[0] for line in subjects if f"garrison/{run}/" in line]
        assert len(merges) == len(set(merges)), "landed twice"
        assert sorted(merges) == sorted(f"Merge garrison/{run}/{name} into main" for name in names), subjects
        was = [line for line in git(self.repo, "log", "-g", "--format=%s|%T", "main").splitlines()
               if f"garrison/{run}/" in line]
        tested = set(self.witness.read_text().split())
        assert {line.partition("|")[2] for line in was} <= tested, "landed untested"
        assert not merges or was, "main keeps no reflog"
        for name in names:
            assert git(self.repo, "show", f"main:{name}-{run}.txt") == name, f"the work of {name} is not right on main"

    def check_work(self, *names: str, run: str = "r1") -> None:
        """No node's work was done twice.

        The rule: work is repeated only by a successor of a life that died before its result was recorded. So a life
        brings its work to an end at most once, every life that did so, but the one whose result counts, died, and
        after a recorded result nobody works.
        """
        deaths = self.deaths(run)
        for name in names:
            lives = [life for node, attempt, life in self.worked(run) if (node, attempt) == (name, 1)]
            result = load(self.home / "runs" / run / "nodes" / name / "1" / "result.json")
            assert lives, f"{name} landed without work"
            assert len(set(lives)) == len(lives), f"{name} worked twice in one life: {lives}"
            assert max(lives) <= result["incarnation"], f"{name} worked after its result: {lives}, {result}"
            assert set(lives) - {result["incarnation"]} <= set(deaths.get(f"orchestrator-{name}", [])), lives

    def check_history(self, run: str = "r1") -> None:
        """Every life but the last of each layer has its death in its supervisor's journal, and the last ended in order
        (or died too, when there was no more to do)."""
        deaths = self.deaths(run)
        for stem, identity in self.identities(run).items():
            died_last = identity["status"] == "crashed" and stem.startswith(("orchestrator-", "processor-"))
            assert died_last or identity["status"] == "terminated", f"{stem} is {identity['status']}"
            if stem == "launch":  # nobody is above it; its own journal counts its lives
                continue
            lives = deaths.get(stem, [])
            assert len(lives) == len(set(lives)), f"a death of {stem} was counted twice: {lives}"
            assert sorted(lives) == list(range(1, identity["incarnation"] + died_last)), f"{stem}: {lives}, {identity}"
            assert identity["respawns"] == identity["incarnation"] - 1

    def check_left(self, run: str = "r1") -> None:
        """The run left no branch, worktree, session, waiting order or damage; the user's checkout is clean."""
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

    def check_left_but_failed(self, *names: str, run: str = "r1") -> None:
        """Of failed nodes the branch, and all the work under a rescue ref, are kept; the trees are not."""
        refs = git(self.repo, "for-each-ref", "--format=%(refname)").splitlines()
        assert [ref for ref in refs if ref.startswith(f"refs/heads/garrison/{run}/")] == [
            f"refs/heads/garrison/{run}/{name}" for name in sorted(names)]
        for name in names:
            assert f"refs/garrison/rescue/{run}/{name}/1" in refs
        assert not list(self.trees.glob(f"*/{run}"))
        assert git(self.repo, "status", "--porcelain") == self.edits

    def only_last_lives(self, run: str = "r1") -> None:
        """Nothing bears the marker of a life that has a successor: neither a layer nor what its agent had started."""
        lives = {stem: identity["incarnation"] for stem, identity in self.identities(run).items()}
        for one in self.mine():
            stem, _, life = one.environ.get("GARRISON_LIFE", "").rpartition(":")[2].partition("#")
            assert int(life or 0) == lives.get(stem, int(life or 0)), f"{one} outlived its life, {stem} is at {lives}"

    def refused(self, stem: str, run: str = "r1") -> list[str]:
        """Why signals to a layer were refused."""
        return [path.read_text() for path in sorted((self.home / "signals" / f"{stem}@{run}").glob("refused/*.reason"))]

    def mine(self) -> list[Process]:
        """Living processes of this place: its root stands in their command line, marker or home."""
        root = f"{self.root}/"
        return [one for one in processes(root) if one.pid != os.getpid() and (
            root in one.argv or any(root in one.environ.get(name, "") for name in ("GARRISON_LIFE", "GARRISON_HOME")))]

    def leave(self) -> list[str]:
        """End whatever is left; returns what it was."""
        for child in self.started:
            child.poll()
        left = []
        end = time.monotonic() + 60
        while (found := self.mine()) and time.monotonic() < end:  # a session may be on its last step
            time.sleep(0.05)
        for one in found:
            left.append(f"{one.pid} {one.argv} {one.environ.get('GARRISON_LIFE', '')}")
        end = time.monotonic() + 60
        while (found := self.mine()) and time.monotonic() < end:
            for one in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one.pid, signal.SIGKILL)
            for child in self.started:
                child.poll()
            time.sleep(0.05)
        return left


def work(node: Node) -> str:
    """The command of a node: write its file, commit, then say in the ledger that it came to its end."""
    done = f'echo "$GARRISON_RUN {node.name} $GARRISON_ATTEMPT $GARRISON_INCARNATION" >> "$LEDGER"'
    steps = [node.before, f"echo {node.name} > {node.name}-$GARRISON_RUN.txt", "git add -A",
             f"git commit -qm 'Add {node.name}' || git diff --quiet HEAD", node.then, done]
    return "set -e; " + "; ".join(step for step in steps if step)


def load(path: Path) -> dict[str, Any]:
    """A JSON file; empty if there is none. A torn one fails the test."""
    try:
        return dict(json.loads(path.read_text()))
    except FileNotFoundError:
        return {}


def alive(identity: dict[str, Any]) -> bool:
    """Whether the process of an identity lives."""
    found = stat(identity["pid"]) if identity.get("pid") else None
    return found is not None and found[0] != "Z" and found[1] == identity["start_ticks"]

