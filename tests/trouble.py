"""Stories of trouble: runs, failures, rejections, clean-ups, new homes, `git gc`, targets moved or gone, branches made
by hand, full disks, damaged worktrees and clock steps, in random order, against a checker that asks git alone.

`Story` does with the engine's own functions what runs do to a repository, in one process and one repository; its books
say what became of each piece of work, which is a file of its own. After each step `Story.check` compares them with git:
the target has what was accepted and nothing else that an agent or a stranger made, no work is lost, no ref points to
what is gone, nothing is left of what was cleaned. `python -m tests.trouble [--minutes N] [--seeds N..]` plays stories
until the time is over, `tests/integration/test_trouble.py` one that does everything and a random one. `PLANTED` are
bugs that those find: `python -m tests.proof --only trouble`, which reads them here and so loads nothing of garrison.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tests.simulator.mutations import at, bug

if TYPE_CHECKING:  # a proof loads this module before it plants a bug in garrison's
    from garrison.node.worktree import AttemptWorktree
    from garrison.records.run import Launch
    from garrison.system.git import Git

T = TypeVar("T")
HOUR = 3600.0
PLANTED = (
    bug("trouble: adopted", "a branch that another home or a user made is taken for the run's own",
        at("node/worktree.py", "AttemptWorktree.prepare", "condition", "False", "BEGUN")),
    bug("trouble: same id", "a new home takes the id of another one's run",
        at("system/git/rescues.py", "Rescues.find_refs_of_runs", "return", "{}"),
        at("launch/launch.py", "_hold_id", "return", "''", nth=2)),
    bug("trouble: foreign clean", "a clean-up touches what another home's run of that id made",
        at("doctor/cleanup.py", "plan_cleanup", "condition", "False", "holds_id")),
    bug("trouble: no room", "a full disk is no reason to wait",
        at("system/machine.py", "find_hindrance", "return", "None")),
    bug("trouble: registration", "a damaged registration of a worktree is left as it is",
        at("system/git/repository.py", "Repository._mend", "condition", "True", "REPAIR")),
    bug("trouble: gc", "nothing checks whether a gc took what was written before it had a ref",
        at("system/git/damage.py", "GcWatch.has_seen_gc", "return", "False")),
    bug("trouble: clock", "a paused queue waits for a time that was skipped when the clock was set back",
        at("merge/state.py", "Pause.is_retry_due", "comparison", "0 <= x1 - from_iso(p1.at)", "retry_after", 2)),
    bug("trouble: target gone", "a target that is gone is no reason to wait",
        at("merge/processor.py", "MergeProcessor._find_tip", "condition", "False", nth=1)),
    bug("trouble: undone", "landings that a person took back stay landed",
        at("merge/queue.py", "find_undone", "return", "[]", "LandingsUndone")),
    bug("trouble: leftovers", "what a clean-up archives stays, whatever was asked for",
        at("doctor/cleanup.py", "plan_cleanup", "value", "[]", "dropped")),
)
"""Rows of trouble that happened, as bugs."""


class Broken(AssertionError):
    """The repository is not as it has to be."""


class Story:
    """One repository and its homes: does `steps`, or `count` at random by the seed, and checks after each."""

    def __init__(self, seed: int, folder: Path, steps: Sequence[str] = (), count: int = 12) -> None:
        from merge_support import World

        self.random, self.folder = random.Random(seed), folder
        (folder / "world").mkdir()
        self.world = World(folder / "world")
        self.repo, self.trees = self.world.repo, self.world.trees
        self.steps = steps or [""] * count
        self.did: Counter[str] = Counter()
        self.told: list[str] = []
        self.clock = _Clock()
        self.git = self._make_git()
        self.numbers, self.homes = itertools.count(1), itertools.count(1)
        self.accepted: dict[int, tuple[str, str, str]] = {}
        """Work that has landed → its home, merge entry and commit."""
        self.undone: set[int] = set()
        """The part of it that has been taken back since."""
        self.refused: dict[int, str] = {}
        """Work that must never land → its commit, '' once it may be gone."""
        self.ended: list[tuple[Launch, int]] = []
        """Runs of the present home that can be cleaned, and their work."""
        self.found: dict[str, int] = {}
        """Run → work of a stranger that it found in its way, and saved as its rescue."""
        self._surprise = False
        """Set for a branch of the name of the next node, made by hand just after its launch."""
        self._enter_home()

    # ---- the world

    def _make_git(self) -> Git:
        """Make a handle whose git fails, or finds a gc before it, as the files `fault` and `gc` say."""
        from garrison.system.git import Git

        folder, real = self.folder / "bin", shutil.which("git")
        folder.mkdir()
        self.fault, self.gc = self.folder / "fault", self.folder / "gc"
        (folder / "git").write_text(f"""#!/bin/sh
if [ "$1" != config ] && [ -e {self.fault} ]; then
    read left < {self.fault}
    [ "$left" = 0 ] && {{ echo 'fatal: unable to write new file .git/x: No space left on device' >&2; exit 128; }}
    echo $((left - 1)) > {self.fault}
fi
case " $* " in
*" commit-tree "*) [ -e {self.gc} ] && touch {self.gc}.due ;;
*" update-ref "*) [ -e {self.gc}.due ] && rm {self.gc} {self.gc}.due && {real} gc --quiet --prune=now ;;
esac
exec {real} "$@"
""")
        (folder / "git").chmod(0o755)
        return Git(self.repo, {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"})

    def _enter_home(self) -> None:
        from garrison.merge.queue import MergeQueue
        from garrison.processes.runtime import Runtime

        self.home = self.folder / f"home-{next(self.homes)}"
        self.home.mkdir(mode=0o700)
        shutil.copy(self.world.home / "config.toml", self.home / "config.toml")
        self.runtime, self.ended = Runtime.real(self.home), []
        self.queue = MergeQueue(self.home, self.repo, git=self.git, clock=self.clock, token="trouble")
        self.queue.configure(self.world.config)

    def ask(self, *words: str, check: bool = True) -> str:
        """Ask git itself, alongside the engine."""
        from merge_support import git

        return git(self.repo, *words, check=check)

    def patiently(self, act: Callable[[], T]) -> T:
        """Do what the engine waits with while something passes: it is repeated once that is over."""
        from garrison.errors import GarrisonError
        from garrison.system.machine import passes

        try:
            return act()
        except GarrisonError as error:
            if not self.fault.exists() or not passes(error):
                raise
            self.fault.unlink()
            return act()

    # ---- what is done

    def play(self) -> list[str]:
        """Play the story; return what was done and how it broke, [] if the repository is as it has to be."""
        try:
            for name in self.steps:
                self.step(name or self.random.choice(STEPS))
        except Exception as error:
            return [f"{type(error).__name__}: {error}", " → ".join(self.told)]
        return []

    def step(self, name: str) -> None:
        """Do what `name` says, and check."""
        self.told.append(name)
        self.did[name] += 1
        getattr(self, f"do_{name}")()
        self.fault.unlink(missing_ok=True)
        self.gc.unlink(missing_ok=True)
        self.gc.with_name("gc.due").unlink(missing_ok=True)
        self.check()

    def _begin(self) -> tuple[Launch, int, AttemptWorktree, str]:
        """Launch a run, and let its one agent commit; return the run, the work, its worktree and its commit."""
        from garrison.launch.launch import claim_run
        from garrison.node.worktree import AttemptWorktree
        from garrison.records.run import Launch, Task

        tip, number = self.ask("rev-parse", "main"), next(self.numbers)
        launch, _ = self.patiently(lambda: claim_run(self.runtime, Launch(
            "", "crew", str(self.repo), "main", self.clock.utc(), str(self.trees), base_oid=tip), self.told.append))
        branch, run = f"garrison/{launch.run_id}/node", launch.run_id
        if self._surprise:
            self._surprise = False
            self._stray(branch)
            self.found[run] = max(self.refused)
        folder, path = self.runtime.files(run).attempt("node", 1), self.trees / self.git.key / run / "node"
        folder.mkdir(parents=True)
        worktree = AttemptWorktree(self.git, launch, Task(run, "node", 1), path, branch, folder, lambda ref: None)
        self.patiently(lambda: worktree.prepare(tip, is_new_attempt=False, agent_alive=False, is_first=True))
        (path / f"work-{number}").write_text(f"{number}\n")
        commit = self.patiently(lambda: self.git.commit_all(path, f"work {number}")) or ""
        (path / f"rest-{number}").write_text("not committed\n")
        return launch, number, worktree, commit

    def _enqueue(self, launch: Launch, *, approval: bool = False) -> str:
        from garrison.merge.entry import EntryOptions

        return self.patiently(lambda: self.queue.enqueue(
            launch.run_id, "node", 1, f"garrison/{launch.run_id}/node", options=EntryOptions(approval=approval))).id

    def _drain(self, until: str = "empty") -> None:
        from merge_support import drive

        from garrison.merge.processor import MergeProcessor

        processor = MergeProcessor(self.queue, trees=self.trees, environment=self.world.environment)
        assert self.patiently(processor.acquire)
        try:
            self.patiently(processor.recover)
            drive(processor, until, 60.0)
        finally:
            processor.close()

    def _end(self, launch: Launch, number: int, worktree: AttemptWorktree, *, landed: bool) -> None:
        if landed:
            self.patiently(worktree.save_rest)
        else:
            self.patiently(lambda: worktree.save("left when it failed"))
        self.patiently(worktree.remove)
        if landed:
            self.patiently(worktree.archive)
        self.ended.append((launch, number))

    def do_run(self) -> None:
        """A run lands its work."""
        launch, number, worktree, commit = self._begin()
        entry = self._enqueue(launch)
        self._drain()
        if (found := self.queue.entry(entry)).status != "landed":
            raise Broken(f"{entry} is {found.status}: {found.reason}")
        self.accepted[number] = (str(self.home), entry, commit)
        self._end(launch, number, worktree, landed=True)

    def do_fail(self) -> None:
        """A node fails; its branch stays."""
        launch, number, worktree, commit = self._begin()
        self.refused[number] = commit
        self._end(launch, number, worktree, landed=False)

    def do_damage(self) -> None:
        """A node fails whose registration as a worktree is damaged."""
        launch, number, worktree, commit = self._begin()
        self.refused[number] = commit
        path = self.git.git_dir(worktree.path) / self.random.choice(["commondir", "gitdir", "HEAD"])
        path.write_bytes(bytes(len(path.read_bytes())))
        self._end(launch, number, worktree, landed=False)

    def do_reject(self) -> None:
        """A user rejects a node's work."""
        from garrison.merge import commands

        launch, number, worktree, commit = self._begin()
        self.refused[number] = commit
        commands.reject(self.queue, self._enqueue(launch, approval=True), "not this")
        self._end(launch, number, worktree, landed=False)

    def do_clean_all(self) -> None:
        """Every run of the home that has ended is cleaned, with all that it saved."""
        while self.ended:
            self._clean(everything=True)

    def do_clean(self) -> None:
        """A run is cleaned, with all that it saved or without."""
        if self.ended:
            self._clean(everything=self.random.random() < 0.6)

    def _clean(self, *, everything: bool) -> None:
        from garrison.doctor import cleanup
        from garrison.run.status import RunStatus

        launch, number = self.ended.pop(self.random.randrange(len(self.ended)))
        options = cleanup.CleanupOptions(archives=everything, rescues=everything, include_unlanded=everything)
        status = RunStatus(launch.run_id, "failed", launch)
        plan = self.patiently(lambda: cleanup.plan_cleanup(self.runtime, status, options))
        self.patiently(lambda: cleanup.clean_repository(self.runtime, self.git, plan))
        if everything:
            for each in {number, self.found.pop(launch.run_id, number)} & self.refused.keys():
                self.refused[each] = ""
            if number in self.undone:  # a user took it back, and wants nothing of it
                self.undone.remove(number)
                del self.accepted[number]
            left = self.ask("for-each-ref", "--format=%(refname)", f"refs/heads/garrison/{launch.run_id}",
                            f"refs/garrison/archive/{launch.run_id}", f"refs/garrison/run/{launch.run_id}")
            if left:
                raise Broken(f"{launch.run_id} was cleaned, and {left.split()} are left")
        if slots := list(self.trees.rglob("slot-*")):
            raise Broken(f"{launch.run_id} was cleaned, and {slots} are left")

    def do_foreign_clean(self) -> None:
        """Another home, whose older run has the id of one of this home's, is cleaned: nothing of ours goes."""
        from garrison.doctor import cleanup
        from garrison.run.status import RunStatus
        from garrison.values import replace

        before = self.ask("for-each-ref")
        for launch, _ in self.ended[-1:]:
            status = RunStatus(launch.run_id, "failed", replace(launch, holds_id=False))
            options = cleanup.CleanupOptions(archives=True, rescues=True, include_unlanded=True)
            plan = cleanup.plan_cleanup(self.runtime, status, options)
            if not plan.note:
                cleanup.clean_repository(self.runtime, self.git, plan)
        if self.ask("for-each-ref") != before:
            raise Broken("a clean-up touched what another home's run made")

    def do_new_home(self) -> None:
        """Another home works from now on; its runs have the same default ids."""
        self._enter_home()

    def do_gc(self) -> None:
        """A `git gc --prune=now` runs between a commit and its ref."""
        self.gc.touch()
        self.random.choice([self.do_fail, self.do_run])()

    def do_full(self) -> None:
        """The disk is full, from one of the next calls of git on."""
        self.fault.write_text(f"{self.random.randrange(12)}\n")
        self.random.choice([self.do_fail, self.do_reject])()

    def do_by_hand(self) -> None:
        """A user makes a branch of the name that the next run's node will have: before the launch, or just after."""
        if self.random.random() < 0.5:
            self._surprise = True
            return self.do_run()
        there = self.ask("for-each-ref", "--format=%(refname:lstrip=3)", "refs/heads/garrison").split()
        taken = {path.name for path in (self.home / "runs").glob("*")} | {ref.split("/")[0] for ref in there}
        run = next(name for each in itertools.count(1) if (name := f"crew-{each}") not in taken)
        return self._stray(f"garrison/{run}/node")

    def _stray(self, branch: str) -> None:
        number = next(self.numbers)
        self.refused[number] = self.world.branch(branch, {f"work-{number}": f"{number}\n"})

    def do_moved(self) -> None:
        """A user moves the target: on by a commit of their own, or back behind landings."""
        line = self.ask("rev-list", "--first-parent", f"{self.world.start}..main").split()
        if len(line) < 2 or self.random.random() < 0.3:
            self.ask("commit", "-q", "--allow-empty", "-m", "by hand")
            return
        self.ask("reset", "-q", "--hard", f"main~{self.random.randrange(1, min(3, len(line)))}")
        self._note_moved()
        self._land_again()

    def _note_moved(self) -> None:
        present = set(self.ask("rev-list", "main").split())
        self.undone = {number for number, (_, _, commit) in self.accepted.items() if commit not in present}

    def _land_again(self) -> None:
        """Land again what was taken back of this home's work: by its commit, as a new attempt."""
        for number in sorted(self.undone):
            home, entry, commit = self.accepted[number]
            if home != str(self.home) or self.random.random() < 0.3:
                continue
            old = self.queue.entry(entry)
            again = self.queue.enqueue_by_hand(old.node, old.branch, run=old.run, oid=commit)
            self._drain()
            if (now := self.queue.entry(again.id)).status != "landed":
                raise Broken(f"{now.id}, enqueued again, is {now.status}: {now.reason}")
            self.accepted[number] = (home, again.id, commit)
            self._note_moved()
            if number in self.undone:
                raise Broken(f"{now.id} is recorded as landed again, and main does not have {commit}")

    def do_gone(self) -> None:
        """The target has another name for a while."""
        launch, number, worktree, commit = self._begin()
        entry = self._enqueue(launch)
        self.ask("branch", "-m", "main", "away")
        try:
            self._drain("no_target")
        finally:
            self.ask("branch", "-m", "away", "main")
        self._drain()
        if self.queue.entry(entry).status != "landed":
            raise Broken(f"{entry} did not land though its target is back")
        self.accepted[number] = (str(self.home), entry, commit)
        self._end(launch, number, worktree, landed=True)

    def do_clock(self) -> None:
        """The clock is set, mostly back, while a queue has paused itself."""
        from garrison.merge.records import QueuePaused

        with self.queue.locked():
            tip = self.ask("rev-parse", "main")
            self.queue.append(QueuePaused((), "gate_broken", "a signal ended it", tip, "", HOUR))
        self.clock.offset += self.random.choice([-2, -30, 2, 30]) * HOUR
        self.do_run()

    # ---- what has to be

    def check(self) -> None:
        """Raise Broken unless git has what the books say."""
        names = self.ask("ls-tree", "-r", "--name-only", "main").split()
        found = {int(name.partition("-")[2]) for name in names if name.startswith("work-")}
        if wrong := found & self.refused.keys():
            raise Broken(f"main has work {sorted(wrong)}, which no one accepted")
        if lost := self.accepted.keys() - self.undone - found:
            raise Broken(f"main has not work {sorted(lost)}, which landed")
        if rest := [name for name in names if name.startswith("rest-")]:
            raise Broken(f"main has {rest}, which no agent committed")
        tips = set(self.ask("for-each-ref", "--format=%(objectname)").split())
        kept = set(self.ask("rev-list", "HEAD", *tips).split())
        if gone := [number for number, commit in self.refused.items() if commit and commit not in kept]:
            raise Broken(f"no ref has the work {gone} any more")
        if gone := [number for number in self.undone if self.accepted[number][2] not in kept and
                    self.accepted[number][0] == str(self.home)]:
            raise Broken(f"no ref has the work {gone}, whose landing was undone")
        if told := self.ask("fsck", "--connectivity-only", "--no-dangling", "--no-progress"):
            raise Broken(told)


class _Clock:
    """The machine's clock with an offset."""

    offset = 0.0

    def time(self) -> float:
        return time.time() + self.offset

    def utc(self) -> str:
        from garrison.system.clock import iso

        return iso(self.time())

    def monotonic(self) -> float:
        return time.monotonic()


STEPS = tuple(name.removeprefix("do_") for name in vars(Story) if name.startswith("do_"))
EVERYTHING = ("run", "fail", "reject", "new_home", "run", "by_hand", "damage", "gc", "full", "clock", "gone", "moved",
              "foreign_clean", "clean", "clean_all")
"""A story in which everything happens."""


def main() -> int:
    """Play stories until the time is over; return 1 if one breaks."""
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent / "integration")]
    from storm import make_parser, play_all

    options = make_parser("python -m tests.trouble", __doc__, "0..", minutes=20.0).parse_args()
    return play_all("python -m tests.trouble", options.seeds, Story, keep=options.keep, minutes=options.minutes)


if __name__ == "__main__":
    raise SystemExit(main())
