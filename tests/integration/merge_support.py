"""Support for the merge tests: small real repositories, a processor to drive, and the checker."""

from __future__ import annotations

import multiprocessing
import os
import select
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from garrison.ends import Wait
from garrison.merge.config import QueueConfig
from garrison.merge.processor import MergeProcessor, StepResult
from garrison.merge.queue import MergeQueue
from garrison.system.environment import child_environment
from queue_checker import Case, judge
from support import DEADLINE, UserWorld

FORK = multiprocessing.get_context("fork")


def git(path: Path, *arguments: str, check: bool = True) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    env |= {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "GIT_AUTHOR_NAME": "A",
            "GIT_AUTHOR_EMAIL": "a@x", "GIT_COMMITTER_NAME": "A", "GIT_COMMITTER_EMAIL": "a@x"}
    done = subprocess.run(["git", *arguments], cwd=path, env=env, capture_output=True, text=True, check=False,
                          stdin=subprocess.DEVNULL)
    assert not check or done.returncode == 0, done.stderr
    return done.stdout.strip()


class World:
    """A repository on main with `lines.txt` (10 lines), a home, a directory of trees, a queue with a gate."""

    bounds: ClassVar[dict[str, Any]] = {}
    """Bounds of its processors, other than the usual ones."""

    def __init__(self, tmp: Path, *, gate: str | None = "test ! -e bad", setup: str | None = None,
                 timeout: float = 30.0) -> None:
        self.user = UserWorld(tmp.with_name(f"{tmp.name}-user"))
        self.user.root = tmp  # where a test's gates keep their books
        self.user.configure()
        self.repo, self.home, self.trees = self.user.repo, self.user.home, self.user.trees
        self.environment = child_environment(self.user.variables())
        self.witness = tmp / "witness"
        self.repo.mkdir()
        git(self.repo, "init", "-q", "-b", "main")
        with (self.repo / ".git/config").open("a") as config:
            config.write("[user]\n\tname = A\n\temail = a@x\n")
        self.branch("main", {"lines.txt": "".join(f"{n}\n" for n in range(10))}, start="")
        git(self.repo, "reset", "-q", "--hard")
        self.start = self.tip()
        self.queue = MergeQueue(self.home, self.repo)
        self.config = QueueConfig(gate and f"{gate} && git rev-parse 'HEAD^{{tree}}' >> {self.witness}", setup,
                                  gate is None, timeout)
        self.queue.configure(self.config)

    def tip(self) -> str:
        return git(self.repo, "rev-parse", "main")

    def branch(self, name: str, changes: dict[str, str | None], start: str = "main") -> str:
        """Make a branch with one commit on `start`, without touching the checkout."""
        stream = [f"commit refs/heads/{name}", "committer A <a@x> 1700000000 +0000", f"data {len(name)}", name]
        stream += [f"from {git(self.repo, 'rev-parse', start)}"] if start else []
        for path, text in changes.items():
            stream += [f"D {path}"] if text is None else [f"M 100644 inline {path}", f"data {len(text)}", text]
        subprocess.run(["git", "fast-import", "--quiet", "--force"], cwd=self.repo, input="\n".join(stream) + "\n",
                       text=True, check=True)
        return git(self.repo, "rev-parse", name)

    def processor(self, queue: MergeQueue | None = None) -> MergeProcessor:
        made = MergeProcessor(queue or MergeQueue(self.home, self.repo, token="test"), trees=self.trees,
                              environment=self.environment, **self.bounds)
        assert made.acquire()
        made.recover()
        return made

    def drain(self, *, until: str = "empty") -> Wait:
        processor = self.processor()
        try:
            return drive(processor, until)
        finally:
            processor.close()

    def drained(self) -> dict[str, str]:
        """Process the queue until it is empty; return the status of each node's latest entry."""
        self.drain()
        return self.statuses()

    def results(self) -> list[str]:
        """Process the queue until it is empty; return the status of each entry, oldest first."""
        self.drain()
        return [entry.status for entry in self.queue.entries()]

    def land(self, *nodes: str) -> None:
        """Process the queue until it is empty, and check that these nodes landed, or else all."""
        known = self.drained()
        assert {node: known[node] for node in nodes or known} == dict.fromkeys(nodes or known, "landed")

    def statuses(self) -> dict[str, str]:
        """Return the status of each node's latest entry."""
        return {entry.node: entry.status for entry in self.queue.entries()}

    def entry(self, node: str):
        return self.queue.state.entries_of("r", node)[-1]

    def enqueue(self, node: str, attempt: int = 1, branch: str | None = None, *, by_hand: bool = False):
        """Enqueue a branch; one that is enqueued by hand has no runner, and so no turn after a conflict."""
        return self.queue.enqueue("r", node, attempt, branch or node, recipient="" if by_hand else f"runner-{node}@r")

    def add(self, node: str, changes: dict[str, str | None] | None = None, start: str = "main"):
        """Make a branch with one commit, which adds `NODE.txt` or makes `changes`, and enqueue it."""
        self.branch(node, changes or {f"{node}.txt": "1\n"}, start)
        return self.enqueue(node)

    def gates(self) -> int:
        """Return how often the gate passed."""
        return len(self.witness.read_text().split()) if self.witness.exists() else 0


def leave_daemon(pids: Path) -> str:
    """Return shell that leaves two processes behind, with no parent, session or variable in common with it; it
    appends the pid of the first to `pids`."""
    daemon = f"(env -i setsid sh -c 'echo $$ >> {pids}; sleep 600 & sleep 600' >/dev/null 2>&1 &)"
    return f"{daemon}; while ! test -s {pids}; do sleep 0.01; done"


def await_gate(processor: MergeProcessor) -> None:
    """Step until a gate runs, which must last until the test ends it."""
    def is_running() -> bool:
        step = processor.step()
        assert not isinstance(step, Wait) or step.kind in ("gate", "ref_locked", "hindered"), "no gate lasts"
        return isinstance(step, Wait) and step.kind == "gate"

    until(is_running, "a running gate")


def drive(processor: MergeProcessor, until: str = "empty", seconds: float = DEADLINE) -> Wait:
    """Step until it waits for something else than a gate; that must be `until`, or one of several (`empty|blocked`)."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done = processor.step()
        processor.heartbeat()
        if isinstance(done, StepResult):
            continue
        if done.kind in until.split("|"):
            return done
        assert done.kind in ("gate", "ref_locked", "hindered"), done
        wait(done.fd, min(done.seconds, 0.05) if done.fd < 0 else 1.0)
    raise AssertionError("the queue did not come to rest")


def run_in_child(target: Callable[..., None], *arguments: object) -> int | None:
    """Run a function in a child process; return its exit code, negative for the signal that killed it."""
    child = FORK.Process(target=target, args=arguments)
    child.start()
    child.join(DEADLINE)
    return child.exitcode


def finish(processor: MergeProcessor, *nodes: str) -> None:
    """Step until the queue is empty, and close the processor; check that these nodes landed."""
    drive(processor)
    processor.close()
    known = {entry.node: entry.status for entry in processor.queue.entries()}
    assert {node: known[node] for node in nodes} == dict.fromkeys(nodes, "landed")


def compact(world: World) -> None:
    processor = world.processor()
    processor.writer.compact()
    processor.close()


def wait(fd: int, seconds: float) -> None:
    poller = select.poll()
    if fd >= 0:
        poller.register(fd, select.POLLIN)
    poller.poll(seconds * 1000)


def until(condition, what: str):
    deadline = time.monotonic() + DEADLINE
    while not (found := condition()):
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.01)
    return found


def check(world: World, *, foreign: int = 0) -> None:
    """Run the checker on journal, refs and history. `foreign`: how many commits on the target name no entry."""
    commits = [line.partition(" ")[::2] for line in git(
        world.repo, "log", "--first-parent", f"{world.start}..main",
        "--format=%H %(trailers:key=Merge-Queue-Entry,valueonly,separator=%x2C)").splitlines()]
    unnamed = [commit for commit, name in commits if not name]
    assert len(unnamed) == foreign
    statuses = {entry.id: entry.status for entry in world.queue.entries()}
    judge(Case(world.repo, world.home, world.start, foreign=unnamed, told=statuses, enqueued=list(statuses),
               witness=None if world.config.no_gate else world.witness, edits=None,
               resting=all(entry.is_final for entry in world.queue.entries())))
