"""Process a merge queue by hand: enqueue a branch, test and land entries, or wait for the processor that does.

`enqueue` and `process_next` are also importable: the seeds' prompts call them by these names. After an ad-hoc branch
has landed, its branch is archived and its hook is closed here, because an ad-hoc run's runner ends once it has
enqueued.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from garrison.cli.commands import Command
from garrison.cli.options import home_option, json_option, repo_root_option, target_option
from garrison.cli.output import print_json
from garrison.cli.resolve import observer_of, open_queue
from garrison.config import Timing, trees_root
from garrison.errors import GarrisonError, RecordError, Refused, UsageError
from garrison.merge.batch import MAX_BATCH
from garrison.merge.config import QueueConfig
from garrison.merge.entry import FAILED, PRIORITIES, STRATEGIES, EntryOptions, MergeEntry
from garrison.merge.queue import Progress, Wait
from garrison.merge.target import check_target
from garrison.records import hook as hooks
from garrison.records import run as run_records
from garrison.records.hook import Hook
from garrison.records.identity import Identity
from garrison.records.names import Key, branch_name, check_run
from garrison.records.run import Launch, RunFiles
from garrison.records.store import Store
from garrison.system.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from garrison.merge.entry import MergeEntry
    from garrison.merge.outcome_signals import Outcome
    from garrison.merge.processor import MergeProcessor
    from garrison.merge.queue import MergeQueue


EMPTY: dict[str, Any] = {"success": True, "entry": None, "error": None}
"""What processing an empty queue gives."""
_PATIENCE = 10.0
"""Seconds a locked target ref is waited for."""
_LOOK = 0.2
"""Seconds between two looks at a queue that is watched and has nothing to do."""


def enqueue(node: str, branch: str, repo_root: str | os.PathLike[str] | None = None, target: str | None = None,
            run: str = "", home: str | os.PathLike[str] | None = None, *, priority: int | None = None,
            depends_on: Sequence[str] | None = None, strategy: str | None = None) -> dict[str, Any]:
    """Enqueue a branch: `{"status": "ok", "entry": {…}}`. Refused if the branch or the target is missing."""
    if run:
        check_run(run)
    options = EntryOptions(priority, None if depends_on is None else tuple(depends_on), strategy).check()
    queue = open_queue(repo_root, target, home)
    check_target(queue.git, queue.target)
    return {"status": "ok", "entry": queue.enqueue_by_hand(node, branch, run=run, options=options).to_dict()}


def process_next(repo_root: str | os.PathLike[str] | None = None, *, gate: str | None = None, no_gate: bool = False,
                 setup: str | None = None, target: str | None = None, wait: bool = True,
                 home: str | os.PathLike[str] | None = None, say: Callable[[str], None] | None = None,
                 ) -> dict[str, Any]:
    """Work the queue until its next verdict: `{"success", "entry", "error"}`; empty is a success without entry.

    A living processor is waited for instead (not with `wait=False`). `gate`, `setup` and `no_gate` are recorded.
    What garrison refuses is told in `error`.
    """
    return next(process(repo_root, gate=gate, no_gate=no_gate, setup=setup, target=target, wait=wait, max_batch=1,
                        home=home, say=say))


def process(repo_root: str | os.PathLike[str] | None = None, *, gate: str | None = None, no_gate: bool = False,
            setup: str | None = None, target: str | None = None, wait: bool = True, watch: bool = False,
            max_batch: int = MAX_BATCH, home: str | os.PathLike[str] | None = None,
            say: Callable[[str], None] | None = None) -> Iterator[dict[str, Any]]:
    """As `process_next`, one result a verdict, until the queue is empty or cannot go on; with `watch` for ever.

    `max_batch`: entries that are tested together at max_batch.
    """
    told = say or _to_stderr
    try:
        queue = open_queue(repo_root, target, home, busy=True)
        if gate or no_gate or setup:
            recorded = queue.state.config
            queue.configure(QueueConfig(gate or (recorded.gate if recorded and not no_gate else None),
                                   setup or (recorded.setup if recorded else None), no_gate,
                                   Timing.read(os.environ).gate_timeout))
    except UsageError:
        raise
    except GarrisonError as error:
        yield _failure(None, str(error))
        return
    hand = Hand(queue, told, max_batch)
    try:
        yield from _watched(hand) if watch else _results(hand, wait)
    finally:
        hand.close()


def _results(hand: Hand, wait: bool) -> Iterator[dict[str, Any]]:
    """Results until the queue is empty, or somebody else's, or cannot go on."""
    while True:
        try:
            result = hand.next(wait)
        except GarrisonError as error:
            result = _failure(None, str(error))
        hand.tidy()
        yield result
        if result is EMPTY or not is_verdict(result):
            return


def _watched(hand: Hand) -> Iterator[dict[str, Any]]:
    """Verdicts for ever; what keeps the queue from going on is said once, and tried again."""
    said = ""
    while True:
        try:
            result = hand.next(True)
        except GarrisonError as error:
            result = _failure(None, str(error))
        if result is not EMPTY and is_verdict(result):
            said = ""
            hand.tidy()
            yield result
            continue
        hand.close()  # nothing to do: whoever else wants to may
        if result["error"] and result["error"] != said:
            said = result["error"]
            hand.say(said.splitlines()[0])
        time.sleep(_LOOK)


def is_verdict(result: dict[str, Any]) -> bool:
    """Whether a result tells what became of an entry."""
    return result["entry"] is not None and (result["success"] or result["entry"]["status"] in FAILED)


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr)


class Hand:
    """Somebody who processes by hand."""

    def __init__(self, queue: MergeQueue, say: Callable[[str], None], max_batch: int) -> None:
        self.queue, self.say, self._most = queue, say, max_batch
        self._seen = self._told = queue.state.seq
        """Numbers of the last record whose outcome was given back, and whose runner was told."""
        self._processor: MergeProcessor | None = None
        self._quiet = False

    def close(self) -> None:
        """Let go of the queue; a test under way goes on, and whoever processes next adopts it."""
        if self._processor:
            self._processor.close()
            self._processor = None

    def next(self, wait: bool) -> dict[str, Any]:
        """The next verdict, our own or that of the processor that lives."""
        outcome = self._outcome()
        if outcome:
            return self._result(outcome)
        if not self.queue.state.unfinished():
            return EMPTY
        return (None if self._processor else self._take(wait)) or self._own()

    def _take(self, wait: bool) -> dict[str, Any] | None:
        """Take the processor's place; or what the one that lives comes to."""
        from garrison.merge.processor import MergeProcessor
        from garrison.system.environment import child_environment

        processor = MergeProcessor(self.queue, trees=trees_root(), environment=child_environment(os.environ),
                                   max_batch=self._most)
        while not processor.acquire():
            if not wait:
                raise Refused(f"{self.queue.state.holder or 'another processor'} works this queue; leave it to it")
            found = self._others()
            if found:
                return found
        self._processor = processor
        processor.recover()
        self.queue.lift_own_pause("asked for by hand")
        return None

    def _others(self) -> dict[str, Any] | None:
        """What the living processor comes to; None if it died meanwhile."""
        self.say(f"{self.queue.state.holder} works this queue; waiting for its next verdict")
        while self.queue.processor_alive():
            outcome = self._outcome()
            if outcome:
                return self._result(outcome)
            state = self.queue.state
            if not state.unfinished():
                return EMPTY
            if state.pause:
                return _failure(self._stuck(), state.pause.describe())
            time.sleep(0.05)
        return None

    def _own(self) -> dict[str, Any]:
        processor, patience = self._processor, time.monotonic() + _PATIENCE
        assert processor is not None
        while True:
            done = processor.step()
            for outcome in processor.outcomes_since(self._told):
                _signal(self.queue.home, outcome)
                self._told = max(self._told, outcome.seq)
            found = self._outcome()
            if found:
                return self._result(found)
            if isinstance(done, Progress):
                self.say(f"{done.what} {done.entry}".rstrip())
            elif done.kind == "gate" or (done.kind == "ref_locked" and time.monotonic() < patience):
                _sleep(done)
                processor.heartbeat()
            elif done.kind == "empty":
                self._tell_held()
                return EMPTY
            else:
                return _failure(self._stuck(), done.reason)

    def _stuck(self) -> MergeEntry:
        """The entry that a failure without a verdict is told of: the first that would go on."""
        unfinished = self.queue.state.unfinished()
        return next((entry for entry in unfinished if entry.status != "held"), unfinished[0])

    def _tell_held(self) -> None:
        held = [entry.id for entry in self.queue.state.unfinished() if entry.status == "held"]
        if held and not self._quiet:
            self._quiet = True
            self.say(f"note: held, and left alone: {', '.join(held)}; `garrison merge-queue release` lets one go on")

    def _outcome(self) -> Outcome | None:
        return next((one for one in self.queue.state.outcomes if one.seq > self._seen
                     and one.type.startswith("MERGE_")), None)

    def _result(self, outcome: Outcome) -> dict[str, Any]:
        self._seen = outcome.seq
        if outcome.entry.status in FAILED:
            return _failure(outcome.entry, outcome.entry.reason)
        return {"success": True, "entry": outcome.entry.to_dict(), "error": None}

    def tidy(self) -> None:
        """What landed has landed, whatever becomes of its branch."""
        try:
            tidy_landed(self.queue)
        except GarrisonError as error:
            self.say(f"note: what an ad-hoc run left is not tidied: {error}")


def _sleep(wait: Wait) -> None:
    import select

    poller = select.poll()
    if wait.fd >= 0:
        poller.register(wait.fd, select.POLLIN)
    poller.poll(wait.seconds * 1000)


def _signal(home: Path, outcome: Outcome) -> None:
    from garrison.merge.outcome_signals import to_signal
    from garrison.records import signals

    signal = to_signal(outcome)
    if signal:
        signals.post(home, signal, outcome.seq)


def _failure(entry: MergeEntry | None, why: str) -> dict[str, Any]:
    return {"success": False, "entry": entry.to_dict() if entry else None, "error": why}


@click.command("enqueue", cls=Command, examples=(
    ("garrison merge-queue enqueue add_tests work/tests", "from inside the repository; nothing is waited for"),
    ("garrison merge-queue enqueue docs work/docs --depends-on add_tests --strategy squash",
     "after another, as one commit"),
    ("garrison merge-queue enqueue fix work/fix --target origin:main --priority 5", "onto a remote's branch, soon"),
))
@click.argument("node")
@click.argument("branch")
@repo_root_option
@target_option
@click.option("--run", default="", help="Run the node belongs to.")
@click.option("--priority", type=click.IntRange(PRIORITIES[0], PRIORITIES[-1]), metavar="N",
              help="Higher goes first, 0 is the default; who waits makes up for it.")
@click.option("--depends-on", multiple=True, metavar="ENTRY", help="Entry or node that must land first; repeatable.")
@click.option("--strategy", type=click.Choice(STRATEGIES), help="How the branch lands (default: the queue's, merge).")
@json_option
@home_option
def enqueue_command(node: str, branch: str, repo_root: str | None, target: str | None, run: str, priority: int | None,
                    depends_on: tuple[str, ...], strategy: str | None, as_json: bool, home: str | None) -> None:
    """Put BRANCH of NODE in the queue, at the commit it is at now; prints the entry as JSON.

    The same node and commit is the same entry, whose priority, dependencies and strategy may be said anew. Another
    commit takes the place of the one that waits.
    """
    print_json(enqueue(node, branch, repo_root, target, run, home, priority=priority, depends_on=depends_on or None,
                      strategy=strategy))


@click.command("process", cls=Command, examples=(
    ('garrison merge-queue process --gate "make test"', "the first time: the gate is recorded"),
    ("garrison merge-queue process --drain", "until the queue is empty"),
    ("garrison merge-queue process --watch", "as a service, until it is interrupted"),
))
@click.option("--once", is_flag=True, help="Until the next verdict (the default).")
@click.option("--drain", is_flag=True, help="Work until the queue is empty; one JSON object a verdict.")
@click.option("--watch", is_flag=True, help="Work for ever; one JSON object a verdict.")
@repo_root_option
@click.option("--target", metavar="BRANCH", help="Branch whose queue to work (default: the one with waiting entries).")
@click.option("--gate", metavar="CMD", help="Command that tests a merged tree; recorded.")
@click.option("--no-gate", is_flag=True, help="Land without any test; recorded.")
@click.option("--setup", metavar="CMD", help="Command that makes a tree ready for the gate; recorded.")
@click.option("--no-wait", is_flag=True, help="Exit 1 at once if a living processor works the queue.")
@json_option
@home_option
def process_command(once: bool, drain: bool, watch: bool, repo_root: str | None, target: str | None, gate: str | None,
                    no_gate: bool, setup: str | None, no_wait: bool, as_json: bool, home: str | None) -> None:
    """Test and land the next entry, or wait for the processor that does; prints JSON."""
    if once + drain + watch > 1:
        raise click.UsageError("--once, --drain and --watch exclude each other")
    if gate and no_gate:
        raise click.UsageError("--gate and --no-gate exclude each other")
    if watch and no_wait:
        raise click.UsageError("--watch stands by while another processor works; leave --no-wait out")
    failures: list[dict[str, Any]] = []
    printed = False
    for result in process(repo_root, gate=gate, no_gate=no_gate, setup=setup, target=target, wait=not no_wait,
                          watch=watch, max_batch=MAX_BATCH if drain or watch else 1, home=home):
        if result is not EMPTY or not printed:
            print_json(result)
            printed = True
        if not (result["success"] or watch):
            failures.append(result)
        if not (drain or watch) or not (is_verdict(result)):
            break
    if failures:
        raise Refused(_why(failures))


def _why(failures: list[dict[str, Any]]) -> str:
    """One line about all that went wrong; the reasons of several entries are in their own results."""
    names = [result["entry"]["id"] for result in failures if is_verdict(result)]
    told = [str(result["error"] or "an entry did not land").splitlines()[0] for result in failures]
    if len(names) < 2:
        return told[0]
    return f"{len(names)} entries did not land: {', '.join(names)}" + ("" if is_verdict(failures[-1]) else
                                                                      f"; {told[-1]}")


def tidy_landed(queue: MergeQueue) -> None:
    """Tidy what landed ad-hoc branches left in this queue's repository."""
    branches = queue.git.refs("refs/heads/garrison/")
    for entry in queue.entries():
        ref = f"refs/heads/{entry.branch}"
        if entry.status == "landed" and branches.get(ref) == entry.oid and _is_over(queue.home, entry):
            _end_hook(queue.home, entry)
            _archive(queue, entry, ref)


def _is_over(home: Path, entry: MergeEntry) -> bool:
    """Whether the entry is of an ad-hoc run, and its runner has ended."""
    try:
        launch = run_records.load(Launch, RunFiles(home, entry.run).launch) if entry.run else None
        if launch is None or not launch.adhoc or entry.branch != branch_name(entry.run, entry.node):
            return False
        store = Store(home)
        runner = store.read(Identity, Key("runner", entry.node, entry.run))
        return runner is not None and not observer_of(store).judge(runner).living
    except RecordError:
        return False  # `status` tells of it; the landing is not undone by it


def _end_hook(home: Path, entry: MergeEntry) -> None:
    store, now = Store(home), SystemClock().utc()

    def merged(old: Hook | None) -> Hook:
        assert old is not None
        return hooks.change_phase(old, "merged", now) if old.phase == "validating" else old

    key = Key("runner", entry.node, entry.run)
    if store.read(Hook, key) is not None:
        store.update(Hook, key, merged)


def _archive(queue: MergeQueue, entry: MergeEntry, ref: str) -> None:
    if any(tree.branch == entry.branch for tree in queue.git.worktrees()):
        return
    if queue.git.update_ref(f"refs/garrison/archive/{entry.run}/{entry.node}", entry.oid):
        queue.git.delete_refs([ref])
