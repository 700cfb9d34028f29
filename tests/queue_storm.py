"""Storm test of merge queues: kills, stops, stolen locks, foreign moves and gc; then every entry is accounted for.

    python -m tests.queue_storm [--kills 1000] [--seeds 1..] [--each 40] [--keep]

What is done is drawn from the seed; the result is checked by `queue_checker` and the checker of runs, which use no code
of the queue, and by the outcome that each kind of branch must have (`EXPECTED`). A processor is a forked process that
works until it is killed: at a random moment, at a failpoint, or while it is stopped and another one has taken over.
After every `--each` kills the queue is left alone until it is idle and checked, and another repository is started.
Exit code 0: nothing was lost, landed twice, untested or recorded otherwise than it happened, and nothing is left.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from garrison.ends import Wait
from garrison.errors import Fenced, GarrisonError, LockLost
from garrison.merge import processor as merge_processor
from garrison.merge.config import QueueConfig
from garrison.merge.entry import EntryOptions
from garrison.merge.gate import attestations_of
from garrison.merge.processor import MergeProcessor
from garrison.merge.queue import MergeQueue
from garrison.system.environment import child_environment
from garrison.testing.checker import CheckedRepository, Promise, check, read_attestations, read_events
from garrison.testing.checker.promises import living_processes
from garrison.values import asdict
from garrison.views.event_log import EventLog
from queue_checker import Case, examine, git
from storm import make_parser, play_all, send
from support import UserWorld

FORK = multiprocessing.get_context("fork")
DEADLINE = 400.0
"""Seconds in which a queue that is left alone becomes idle."""
REPORTED: set[str] = set()
"""Errors that this process has printed."""
EXPECTED = {"good": {"landed"}, "bad": {"rejected"}, "clash": {"conflict", "landed"}, "pair": {"landed", "rejected"},
           "there": {"landed"}, "flaky": {"landed"}, "gone": {"landed"}}
"""Kind of branch → how its entry may end. Of a pair exactly one lands; of clashing ones the first. A tree with a flaky
branch is red when it is tested for the first time."""
EVENTS = {"moment": 10.0, "failpoint": 10.0, "with all": 2.0, "lock": 3.0, "child": 2.0, "foreign": 1.0, "gc": 0.5}
"""What is done to a processor, and its weight."""
GATE = """
cd "$GARRISON_TREE" || exit 9
tree=$(git rev-parse 'HEAD^{tree}')
red() { echo $tree >> ROOT/red; exit 1; }
sleep 0.0$(( $(od -An -N1 -tu1 /dev/urandom) % 10 ))
for file in bad-*; do test ! -e "$file" || red; done
for file in pair-*-a; do test ! -e "${file%a}b" || red; done
for file in flaky-*; do test ! -e "$file" || test -e "ROOT/seen-$tree" || { touch "ROOT/seen-$tree"; red; }; done
echo $tree >> ROOT/green
"""


class World:
    """One repository with its queue, and the kind of each branch."""

    def __init__(self, root: Path, dice: random.Random) -> None:
        self.user, self.dice = UserWorld(root), dice
        self.root = self.user.root  # where its gate keeps its books
        self.repo, self.home, self.trees = self.user.repo, self.user.home, self.user.trees
        self.kinds: dict[str, str] = {}
        self.enqueued: dict[str, str] = {}
        """Entry → node."""
        self.foreign: list[str] = []
        self.count = 0
        self.logged = True
        self.repo.mkdir(parents=True)
        git(self.repo, "init", "-q", "-b", "main")
        with (self.repo / ".git/config").open("a") as config:
            config.write("[user]\n\tname = A\n\temail = a@x\n[gc]\n\tauto = 0\n")
        self._commit("main", {"lines.txt": "".join(f"{n}\n" for n in range(30))}, "")
        git(self.repo, "reset", "-q", "--hard")
        self.upstream = root / "upstream" if dice.random() < 0.3 else None
        """The remote's repository, if the entries land there."""
        self.open = self.upstream is None and dice.random() < 0.5
        """Whether the target is checked out."""
        self.together = dice.random() < 0.7
        """Whether its short gates run in batches."""
        self.bounds = {"short_gate": -1.0, "max_batch": 128 if self.together else 1,
                       "snapshot_every": dice.choice((10, 40, 2000))}
        cores = len(os.sched_getaffinity(0)) if dice.random() < 0.5 else 1
        if not self.open:
            git(self.repo, "checkout", "-q", "-b", "work")
        self.start = git(self.repo, "rev-parse", "main")
        if self.upstream:
            git(root, "clone", "-q", "--bare", str(self.repo), str(self.upstream))
            git(self.upstream, "config", "core.logAllRefUpdates", "always")
            git(self.repo, "remote", "add", "origin", str(self.upstream))
        (self.root / "gate").write_text(GATE.replace("ROOT", str(self.root)))
        self.queue.configure(QueueConfig(f"sh {self.root}/gate", None, False, 30.0, gate_cores=cores))

    @property
    def queue(self) -> MergeQueue:
        """Return a new handle on it."""
        return MergeQueue(self.home, self.repo, self.target, token="storm")

    @property
    def target(self) -> str:
        return "origin:main" if self.upstream else "main"

    def _commit(self, name: str, files: dict[str, str], start: str = "main") -> None:
        stream = [f"commit refs/heads/{name}", "committer A <a@x> 1700000000 +0000", f"data {len(name)}", name]
        stream += [f"from {git(self.repo, 'rev-parse', start)}"] if start else []
        for path, text in files.items():
            stream += [f"M 100644 inline {path}", f"data {len(text)}", text]
        subprocess.run(["git", "fast-import", "--quiet", "--force"], cwd=self.repo, input="\n".join(stream) + "\n",
                       text=True, check=True)

    def make(self) -> list[str]:
        """Make one or two branches of a random kind on the current tip; return their names."""
        if self.upstream:
            git(self.repo, "fetch", "-q", "origin", "+main:main", check=False)  # a push that outlives us
        self.count += 1
        number = self.count
        kind = self.dice.choices(list(EXPECTED), weights=[8, 3, 2, 1, 1, 1, 1])[0]
        plans: dict[str, dict[str, str]] = {f"{kind}{number}": {f"{kind}-{number}": "x\n"}}
        if kind == "pair":
            plans = {f"pair{number}{half}": {f"pair-{number}-{half}": "x\n"} for half in "ab"}
        elif kind == "clash":
            plans = {f"clash{number}{half}": {"lines.txt": f"{half}{number}\n"} for half in "ab"}
        for name, files in plans.items():
            if kind == "there":
                git(self.repo, "branch", "-f", name, "main")
            else:
                self._commit(name, files)
            self.kinds[name] = kind
        return list(plans)

    def enqueue(self, name: str) -> None:
        """Enqueue as a runner does; its own process may be killed amid it, then it tries again."""
        if self.dice.random() < 0.15:
            child = FORK.Process(target=lambda: self.queue.enqueue("r", name, 1, name))
            child.start()
            time.sleep(self.dice.uniform(0.0, 0.03))
            kill(child)
        strategy = self.dice.choice(["merge", "merge", "merge", "squash", "rebase"])
        entry = self.queue.enqueue("r", name, 1, name, options=EntryOptions(strategy=strategy))
        self.enqueued[entry.id] = name
        if self.kinds[name] == "gone":
            git(self.repo, "branch", "-D", name)

    def unfinished(self) -> int:
        """Return how many entries wait."""
        return len(self.queue.state.unfinished())

    def findings(self) -> list[str]:
        """Return the checker's findings, and each branch with another outcome than expected."""
        wrong = self._broken_promises()
        told = {entry.id: entry.status for entry in self.queue.entries()}
        wrong += examine(Case(
            self.repo, self.home, self.start, self.target, self.upstream, foreign=self.foreign, told=told,
            enqueued=list(self.enqueued), witness=self.root / "green", reds=self.root / "red", logged=self.logged))
        pairs: Counter[str] = Counter()
        for entry, node in self.enqueued.items():
            kind, status = self.kinds[node], told.get(entry, "absent")
            if status not in EXPECTED[kind]:
                wrong.append(f"outcome: {entry} of {node} is {status}: {self.queue.entry(entry).reason[:300]}")
            if kind in ("pair", "clash"):
                pairs[node[:-1]] += status == "landed"
        wrong += [f"outcome: {landed} of {pair} landed" for pair, landed in pairs.items()
                  if landed != 1 and pair.startswith("pair")]
        return wrong


    def _broken_promises(self) -> list[str]:
        """Return what the checker of runs finds; no runner keeps a branch here, so that no commit counts as lost."""
        if self.upstream:
            git(self.repo, "fetch", "-q", "origin")
        history = read_events(json.dumps(asdict(event)) for event in EventLog(self.home, "r").read())
        attested = read_attestations(map(attestations_of, sorted((self.home / "merge-queue").glob("*/*"))))
        found = check(history, CheckedRepository(self.repo), attested)
        return [f"promised: {finding}" for finding in found if finding.promise is not Promise.KEPT]


def work(world: World, point: str = "", until: str = "empty") -> None:
    """Run a processor in a process of its own: exit 0 when idle, 3 when another has taken over."""
    if point:
        os.environ["GARRISON_FAILPOINT"] = point
    processor = MergeProcessor(_queue(world), trees=world.trees,
                               environment=child_environment({**os.environ, **world.user.variables()}), **world.bounds)
    try:
        while not processor.acquire():
            time.sleep(0.005)
        processor.recover()
        while True:
            processor.heartbeat()
            done = _step(processor)
            if isinstance(done, Wait):
                if done.kind == until:
                    processor.close()
                    os._exit(0)
                time.sleep(0.01)
    except (Fenced, LockLost):
        os._exit(3)


def _queue(world: Any) -> MergeQueue:
    return MergeQueue(world.home, world.repo, getattr(world, "target", "main"), token=f"p{os.getpid()}")


def _step(processor: MergeProcessor) -> Any:
    try:
        return processor.step()
    except (Fenced, LockLost):
        raise
    except GarrisonError as error:  # as the process does: report it and try again
        if str(error) not in REPORTED:
            REPORTED.add(str(error))
            print(f"      {error}", file=sys.stderr)
        time.sleep(0.02)
        return None


def count_kills(did: Counter[str]) -> int:
    """Return the number of processors that were killed."""
    return did["moment"] + did["failpoint"] + did["with all"] + did["lock"]


class Storm:
    """Events over one world, until so many processors were killed."""

    def __init__(self, folder: Path, seed: int, kills: int = 40, without: tuple[str, ...] = ()) -> None:
        self.folder, self.kills = folder, kills
        self.events = {what: weight for what, weight in EVENTS.items() if what not in without}
        self.dice = random.Random(seed)
        self.did: Counter[str] = Counter()
        self.handlers: dict[str, Callable[[World], None]] = {
            "moment": self._kill_at_moment, "failpoint": self._kill_at_failpoint, "with all": self._kill_with_all,
            "lock": self._steal_lock, "child": self._kill_child, "foreign": self._move_target, "gc": self._collect}

    def play(self) -> list[str]:
        """Disturb the queue, let it settle, and return what is wrong."""
        world = World(self.folder / "w", self.dice)
        self.did["remote target"] = world.upstream is not None
        while count_kills(self.did) < self.kills:
            self._disturb(world)
        return self._settle(world)

    def _disturb(self, world: World) -> None:
        while world.unfinished() < (9 if world.together else 3):
            for name in world.make():
                world.enqueue(name)
        what = self.dice.choices(list(self.events), weights=list(self.events.values()))[0]
        self.handlers[what](world)
        self.did[what] += 1

    def _start(self, world: World, point: str = "") -> BaseProcess:
        child = FORK.Process(target=work, args=(world, point))
        child.start()
        return child

    def _pause(self) -> None:
        time.sleep(self.dice.choice((0.02, 0.1, 0.4)) * self.dice.random())

    def _kill_at_moment(self, world: World) -> None:
        child = self._start(world)
        self._pause()
        kill(child)

    def _kill_at_failpoint(self, world: World) -> None:
        child = self._start(world, self.dice.choice(merge_processor.FAILPOINTS))
        child.join(3.0)
        kill(child)

    def _kill_with_all(self, world: World) -> None:
        """Kill the processor and all its descendants at once, as a crash of the machine."""
        child = self._start(world)
        self._pause()
        below = _descendants(child.pid or 0)
        kill(child)
        for pid in [*below, *(pid for pid, _ in living_processes(world.home))]:
            send(pid, signal.SIGKILL)

    def _steal_lock(self, world: World) -> None:
        """Stop it anywhere, remove its lock's file (`git clean -fdx`), let another one work; then continue it."""
        first = self._start(world)
        self._pause()
        send(first.pid or 0, signal.SIGSTOP)
        for lock in (world.repo / ".git/garrison").glob("*/processor.lock"):
            lock.unlink(missing_ok=True)
        second = self._start(world)
        self._pause()
        send(first.pid or 0, signal.SIGCONT)
        first.join(self.dice.choice((0.0, 1.0)))
        kill(first)
        kill(second)

    def _kill_child(self, world: World) -> None:
        """Kill a process that the processor started, not the processor."""
        child = self._start(world)
        self._pause()
        gates = {pid for pid, _ in living_processes(world.home)}
        below = [pid for pid in _descendants(child.pid or 0) if pid not in gates]
        if below:
            send(self.dice.choice(below), signal.SIGKILL)
        child.join(0.3)
        kill(child)

    def _move_target(self, world: World) -> None:
        """Move the target as someone else, where it is not checked out."""
        if world.open:
            return
        at = world.upstream or world.repo
        tip = git(at, "rev-parse", "main")
        identity = ("-c", "user.name=A", "-c", "user.email=a@x")
        commit = git(at, *identity, "commit-tree", f"{tip}^{{tree}}", "-p", tip, "-m", "foreign")
        if subprocess.run(["git", "update-ref", "refs/heads/main", commit, tip], cwd=at, check=False,
                          capture_output=True).returncode == 0:
            world.foreign.append(commit)

    def _collect(self, world: World) -> None:
        child = self._start(world)
        git(world.repo, "reflog", "expire", "--expire=now", "--all")
        world.logged = bool(world.upstream)
        git(world.repo, "gc", "-q", "--prune=now", check=False)
        kill(child)

    def _settle(self, world: World) -> list[str]:
        child, wrong = self._start(world), []
        child.join(DEADLINE)
        if child.exitcode != 0:
            states = Counter(entry.status for entry in world.queue.entries())
            wrong.append(f"hangs: not idle in {DEADLINE:g} s, exit code {child.exitcode}: {dict(states)}; "
                         f"{[entry.reason[:200] for entry in world.queue.state.unfinished()][:3]}")
            kill(child)
        return wrong + world.findings()


def kill(child: BaseProcess) -> None:
    if child.is_alive():
        child.kill()
    child.join()


def _descendants(pid: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                parents.setdefault(parent, []).append(int(entry.name))
    found, todo = [], [pid]
    while todo:
        for child in parents.get(todo.pop(), ()):
            found.append(child)
            todo.append(child)
    return found


def main() -> int:
    """Run the command; return 1 if something was found."""
    parser = make_parser("python -m tests.queue_storm", __doc__, "1..")
    parser.add_argument("--kills", type=int, default=1000, help="processors to kill (default: 1000)")
    parser.add_argument("--each", type=int, default=40, help="kills a repository (default: 40)")
    parser.add_argument("--without", action="append", default=[], choices=sorted(EVENTS), help="leave one kind out")
    options = parser.parse_args()
    return play_all(f"python -m tests.queue_storm --kills {options.each} --each {options.each}", options.seeds,
                    lambda seed, folder: Storm(folder, seed, options.each, tuple(options.without)), keep=options.keep,
                    enough=lambda did: count_kills(did) >= options.kills)


if __name__ == "__main__":
    sys.exit(main())
