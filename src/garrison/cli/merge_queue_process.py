"""Process a merge queue by hand: enqueue a branch, test and land entries, or wait for the active processor.

`enqueue` and `process_next` are also functions: agents' prompts import them by these names. An ad-hoc run's runner ends
once its branch is enqueued, so this module archives the branch and closes its hook after the landing.
"""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from garrison import plugins
from garrison.cli.authority import guarded
from garrison.cli.commands import Command
from garrison.cli.options import PluginChoice, output_options, repo_root_option, target_option
from garrison.cli.output import print_message, print_result
from garrison.cli.resolve import observer_of, open_queue
from garrison.cli.sandbox import sandbox_option, settle_mode
from garrison.config import Timing, read_config
from garrison.directories import find_home, trees_root
from garrison.ends import Wait, WaitKind
from garrison.errors import GarrisonError, RecordError, Refused, UsageError
from garrison.merge import commands
from garrison.merge.config import QueueConfig
from garrison.merge.decision import MAX_BATCH
from garrison.merge.entry import FAILED, PRIORITIES, STRATEGIES, WITHDRAWABLE, EntryOptions, MergeEntry
from garrison.merge.preflight import identify
from garrison.merge.queue import MergeQueue, StepResult
from garrison.merge.target import check_target
from garrison.records import hook as hooks
from garrison.records import run as run_records
from garrison.records.hook import Hook
from garrison.records.identity import Identity
from garrison.records.names import Key, branch_name, check_run
from garrison.records.run import Launch, RunFiles
from garrison.records.store import Store
from garrison.system.clock import SystemClock
from garrison.values import Value

if TYPE_CHECKING:
    from garrison.merge.entry import EntryFact
    from garrison.merge.processor import MergeProcessor


class Processed(Value):
    """Result of processing a queue: a verdict on an entry, or a refusal; with neither, the queue is empty."""

    success: bool = True
    entry: MergeEntry | None = None
    error: str | None = None

    @property
    def is_verdict(self) -> bool:
        return self.entry is not None and (self.success or self.entry.status in FAILED)

    @property
    def is_empty(self) -> bool:
        return self.success and self.entry is None

    def body(self) -> dict[str, object]:
        """Return it as JSON values."""
        return {"success": self.success, "entry": self.entry.to_dict() if self.entry else None, "error": self.error}

    def describe(self) -> str:
        """Return it in one line."""
        entry = self.entry
        if entry is None:
            return self.first_line or "nothing waits to land"
        if self.success:
            return f"{entry.branch} has landed on {entry.target} as {entry.commit[:10]}"
        return f"{entry.branch} did not land: {self.first_line}"

    @property
    def first_line(self) -> str:
        """Return why it failed, in one line."""
        return (self.error or "").partition("\n")[0]


class Enqueued(Value):
    """Entry of an enqueued branch."""

    entry: MergeEntry

    def body(self) -> dict[str, object]:
        """Return it as JSON values."""
        return {"status": "ok", "entry": self.entry.to_dict()}


_REF_LOCK_TIMEOUT = 10.0
"""Seconds to wait for a locked target ref."""
_WATCH_POLL = 0.2
"""Seconds between two reads of a watched queue that has nothing to do."""

# ----------------------------------------------------------------------------------------------------------- functions


@guarded("merge-queue enqueue")
def enqueue(node: str, branch: str, repo_root: str | os.PathLike[str] | None = None, target: str | None = None,
            run: str = "", home: str | os.PathLike[str] | None = None, *, priority: int | None = None,
            depends_on: Sequence[str] | None = None, strategy: str | None = None) -> Enqueued:
    """Enqueue a branch; Refused if branch or target is missing."""
    if run:
        check_run(run)
    options = EntryOptions(priority, None if depends_on is None else tuple(depends_on), strategy).check()
    queue = open_queue(repo_root, target, home)
    check_target(queue.git, queue.target)
    return Enqueued(queue.enqueue_by_hand(node, branch, run=run, recipient=_runner_by_hand(queue.home, run, node),
                                          options=options))


def _runner_by_hand(home: Path, run: str, node: str) -> str:
    """Return the full name of the node's runner if one is played by hand, '' otherwise.

    A run's own runners enqueue themselves, and would mistake this entry's outcome for theirs.
    """
    store, key = Store(home), Key("runner", node, run)
    is_by_hand = not run or not RunFiles(home, run).launch.exists()
    return key.full if is_by_hand and store.path(Identity, key).exists() else ""


@guarded("merge-queue process")
def process_next(repo_root: str | os.PathLike[str] | None = None, *, gate: str | None = None, no_gate: bool = False,
                 setup: str | None = None, target: str | None = None, wait: bool = True,
                 home: str | os.PathLike[str] | None = None, report: Callable[[str], None] | None = None) -> Processed:
    """Process the queue until its next verdict.

    For an empty queue the result is a success without an entry; a refusal has an `error`. If another processor is
    alive, its verdict is awaited instead, unless `wait` is False. `gate`, `setup` and `no_gate` are recorded in the
    queue's configuration.
    """
    return next(process(repo_root, gate=gate, no_gate=no_gate, setup=setup, target=target, wait=wait, max_batch=1,
                        home=home, report=report))


def process(repo_root: str | os.PathLike[str] | None = None, *, gate: str | None = None, no_gate: bool = False,
            setup: str | None = None, target: str | None = None, wait: bool = True, watch: bool = False,
            max_batch: int = MAX_BATCH, home: str | os.PathLike[str] | None = None,
            report: Callable[[str], None] | None = None) -> Iterator[Processed]:
    """Yield a result like `process_next`'s for each verdict, until the queue is empty or blocked; with `watch` forever.

    Args:
        max_batch: maximum number of entries that are tested together.
        report: prints progress (default: on stderr).
    """
    report = report or print_message
    try:
        queue = open_queue(repo_root, target, home, busy=True)
        if not queue.state.unfinished():
            _report_other_queues(queue.home, queue.folder, report)
        if gate or no_gate or setup:
            recorded = queue.state.config
            committer, signer = identify(queue.git, os.environ, report)
            queue.configure(QueueConfig(gate or (recorded.gate if recorded and not no_gate else None),
                                        setup or (recorded.setup if recorded else None), no_gate,
                                        Timing.read(os.environ).gate_timeout, committer=committer, signer=signer))
    except UsageError:
        raise
    except GarrisonError as error:
        _report_other_queues(find_home(home), None, report)
        yield Processed(False, error=str(error))
        return
    processing = ManualProcessing(queue, report, max_batch)
    try:
        yield from _watch(processing) if watch else _drain(processing, wait)
    finally:
        processing.close()


def _drain(processing: ManualProcessing, wait: bool) -> Iterator[Processed]:
    """Yield results until the queue is empty, blocked, or processed by another processor."""
    while True:
        result = processing.next_or_failure(wait)
        processing.clean_up_landed()
        yield result
        if not result.is_verdict:
            return


def _watch(processing: ManualProcessing) -> Iterator[Processed]:
    """Yield verdicts forever, reporting once what blocks the queue."""
    reported = ""
    while True:
        result = processing.next_or_failure(wait=True)
        if result.is_verdict:
            reported = ""
            processing.clean_up_landed()
            yield result
            continue
        processing.close()  # idle: another processor may take over
        if result.error and result.error != reported:
            reported = result.error
            processing.report(result.first_line)
        time.sleep(_WATCH_POLL)


def _report_other_queues(home: Path, own: Path | None, report: Callable[[str], None]) -> None:
    """Report waiting entries in the home's other queues: the user may be in the wrong repository."""
    from garrison.merge.queue import list_queues

    for queue in list_queues(home):
        waiting = [] if queue.folder == own else queue.state.unfinished()
        if waiting:
            names = ", ".join(entry.node for entry in waiting[:3]) + (" …" if len(waiting) > 3 else "")
            report(f"note: {names} waits to land on {waiting[0].target} of {waiting[0].repo}: "
                   f"pass --repo-root {shlex.quote(waiting[0].repo)} --target {shlex.quote(waiting[0].target)}")


class ManualProcessing:
    """Processing of a queue for one call, as its processor or by waiting for a living one."""

    def __init__(self, queue: MergeQueue, report: Callable[[str], None], max_batch: int) -> None:
        self.queue, self.report, self._max_batch = queue, report, max_batch
        self._returned = self._signalled = queue.state.seq
        """Sequence numbers of the last returned outcome, and of the last one sent to its runner."""
        self._processor: MergeProcessor | None = None
        self._held_reported = False

    def close(self) -> None:
        """Release the queue; a running gate continues, and the next processor adopts it."""
        if self._processor:
            self._processor.close()
            self._processor = None

    def next_or_failure(self, wait: bool) -> Processed:
        """Return the next result; a refusal becomes a failure."""
        try:
            return self._next(wait)
        except GarrisonError as error:
            return Processed(False, error=str(error))

    def _next(self, wait: bool) -> Processed:
        if outcome := self._new_outcome():
            return self._result(outcome)
        if not self.queue.state.unfinished():
            return Processed()
        return (None if self._processor else self._acquire(wait)) or self._process()

    def _acquire(self, wait: bool) -> Processed | None:
        """Become the queue's processor (None), or return the result of a living one."""
        from garrison.merge.processor import MergeProcessor
        from garrison.system.environment import child_environment

        processor = MergeProcessor(self.queue, trees=trees_root(), environment=child_environment(os.environ),
                                   max_batch=self._max_batch, turn=read_config(self.queue.home).merge().turn)
        while not processor.acquire():
            if not wait:
                raise Refused(f"{self.queue.state.holder or 'another processor'} is processing this queue")
            if result := self._wait_for_other_processor():
                return result
        self._processor = processor
        processor.recover()
        # The user may have repaired target or gate; a queue that paused itself would notice only at the end of its
        # backoff. A pause by the user stays.
        self.queue.resume_own_pause("requested by hand")
        return None

    def _wait_for_other_processor(self) -> Processed | None:
        """Return the next result of the living processor, None if it dies first."""
        self.report(f"{self.queue.state.holder} is processing this queue; waiting for its next verdict")
        while self.queue.is_processor_running():
            if outcome := self._new_outcome():
                return self._result(outcome)
            state = self.queue.state
            if not state.unfinished():
                return Processed()
            if state.pause:
                return Processed(False, self._first_unheld(), state.pause.describe())
            time.sleep(0.05)
        return None

    def _process(self) -> Processed:
        """Step our own processor to its next verdict."""
        processor, ref_lock_deadline = self._processor, time.monotonic() + _REF_LOCK_TIMEOUT
        assert processor is not None
        while True:
            step = processor.step()
            for outcome in processor.outcomes_since(self._signalled):
                # post before returning the verdict, since the caller may then exit: a later call only signals outcomes
                # after its own start
                _signal_runner(self.queue.home, outcome)
                self._signalled = max(self._signalled, outcome.seq)
            if new := self._new_outcome():
                return self._result(new)
            if isinstance(step, StepResult):
                self.report(f"{step.what} {step.entry}".rstrip())
            elif step.kind is WaitKind.GATE or (step.kind is WaitKind.REF_LOCKED
                                                  and time.monotonic() < ref_lock_deadline):
                _sleep(step)
                processor.heartbeat()
            elif step.kind is WaitKind.EMPTY:
                self._report_held()
                return Processed()
            else:
                return Processed(False, self._first_unheld(), step.text)

    def _first_unheld(self) -> MergeEntry:
        """Return the entry to which a failure without a verdict is attributed."""
        unfinished = self.queue.state.unfinished()
        return next((entry for entry in unfinished if entry.status != "held"), unfinished[0])

    def _report_held(self) -> None:
        held = [entry.id for entry in self.queue.state.unfinished() if entry.status == "held"]
        if held and not self._held_reported:
            self._held_reported = True
            self.report(f"note: held entries were skipped: {', '.join(held)}; `garrison merge-queue release "
                        f"{held[0]}` releases one, `garrison review NODE --approve` one that waits for approval")

    def _new_outcome(self) -> EntryFact | None:
        return next((outcome for outcome in self.queue.state.outcomes if outcome.seq > self._returned
                     and outcome.type.startswith("MERGE_")), None)

    def _result(self, outcome: EntryFact) -> Processed:
        self._returned = outcome.seq
        failed = outcome.entry.status in FAILED
        return Processed(not failed, outcome.entry, outcome.entry.reason if failed else None)

    def clean_up_landed(self) -> None:
        """Clean up after landed ad-hoc branches; a failure here does not undo a landing."""
        try:
            clean_up_landed(self.queue)
        except GarrisonError as error:
            self.report(f"note: could not clean up after an ad-hoc run: {error}")


def _sleep(wait: Wait) -> None:
    import select

    poller = select.poll()
    if wait.fd >= 0:
        poller.register(wait.fd, select.POLLIN)
    poller.poll(wait.seconds * 1000)


def _signal_runner(home: Path, outcome: EntryFact) -> None:
    from garrison.merge.entry import to_signal
    from garrison.records import signals

    signal = to_signal(outcome)
    if signal:
        signals.post(home, signal, outcome.seq)


def process_entry(queue: MergeQueue, entry: MergeEntry, report: Callable[[str], None]) -> MergeEntry:
    """Process a queue until an entry has landed or was refused, or until it is blocked; return the entry."""
    for _ in process(queue.repo, target=queue.target, home=queue.home, report=report):
        entry = queue.entry(entry.id)
        if entry.is_final:
            break
    return entry


def land_commit(queue: MergeQueue, node: str, branch: str, commit: str, title: str) -> MergeEntry:
    """Land a commit on the target, or withdraw it if it has to wait; return its entry."""
    entry = queue.enqueue_by_hand(node, branch, oid=commit, title=title, options=EntryOptions(strategy="squash"))
    entry = process_entry(queue, entry, print_message)
    if entry.status in WITHDRAWABLE:
        # left in the queue it would land with the next run's work, after the command reported that it did not land
        commands.cancel(queue, entry.id, "its command does not wait")
    return entry


# ------------------------------------------------------------------------------------------- clean up after ad-hoc runs


def clean_up_landed(queue: MergeQueue) -> None:
    """Archive the branches and close the hooks of ad-hoc runs that have landed; idempotent.

    A branch that has moved since, or that is checked out, stays.
    """
    branches = queue.git.refs("refs/heads/garrison/")
    for entry in queue.entries():
        ref = f"refs/heads/{entry.branch}"
        if entry.status == "landed" and branches.get(ref) == entry.oid and _is_finished_adhoc(queue.home, entry):
            # The hook first, since the next call finds the entry by its branch: with the branch archived first, a kill
            # in between would leave the hook open for good.
            _close_hook(queue.home, entry)
            _archive_branch(queue, entry, ref)


def _is_finished_adhoc(home: Path, entry: MergeEntry) -> bool:
    """Return whether the entry belongs to an ad-hoc run with an ended runner."""
    try:
        launch = run_records.load(Launch, RunFiles(home, entry.run).launch) if entry.run else None
        if launch is None or not launch.adhoc or entry.branch != branch_name(entry.run, entry.node):
            return False
        store = Store(home)
        runner = store.read(Identity, Key("runner", entry.node, entry.run))
        return runner is not None and not observer_of(store).judge(runner).living
    except RecordError:
        return False  # reported by `status`; the landing is not affected


def _close_hook(home: Path, entry: MergeEntry) -> None:
    store, now = Store(home), SystemClock().utc()

    def merged(old: Hook | None) -> Hook:
        assert old is not None
        return hooks.change_phase(old, "merged", now) if old.phase == "validating" else old

    key = Key("runner", entry.node, entry.run)
    if store.read(Hook, key) is not None:
        store.update(Hook, key, merged)


def _archive_branch(queue: MergeQueue, entry: MergeEntry, ref: str) -> None:
    if any(worktree.branch == entry.branch for worktree in queue.git.worktrees()):
        return
    # archive before deleting: after a kill in between the commit has two refs, never none
    if queue.git.update_ref(f"refs/garrison/archive/{entry.run}/{entry.node}", entry.oid):
        queue.git.delete_refs([ref])


# ------------------------------------------------------------------------------------------------------------ commands


@click.command("enqueue", cls=Command, examples=(
    ("garrison merge-queue enqueue work/tests", "in the repository; returns at once"),
    ("garrison merge-queue enqueue add_tests work/tests", "as the work of the node add_tests"),
    ("garrison merge-queue enqueue docs work/docs --depends-on add_tests --strategy squash",
     "after another entry, as one commit"),
    ("garrison merge-queue enqueue fix work/fix --target origin:main --priority 5",
     "onto a remote branch, ahead of other entries"),
))
@click.argument("node", metavar="[NODE] BRANCH")
@click.argument("branch", required=False, metavar="")
@repo_root_option
@target_option
@click.option("--run", default="", metavar="RUN", help="Run of the node.")
@click.option("--priority", type=click.IntRange(PRIORITIES[0], PRIORITIES[-1]), metavar="N",
              help="Higher priorities land first; the default is 0, and waiting raises the effective priority.")
@click.option("--depends-on", multiple=True, metavar="ENTRY", help="Entry or node that must land first (repeatable).")
@click.option("--strategy", type=PluginChoice(STRATEGIES, plugins.PluginGroup.STRATEGIES),
              help="How the branch lands (default: the queue's, merge).")
@output_options
def enqueue_command(node: str, branch: str | None, repo_root: str | None, target: str | None, run: str,
                    priority: int | None, depends_on: tuple[str, ...], strategy: str | None, as_json: bool,
                    home: str | None) -> None:
    """Enqueue BRANCH at its current commit, as the work of NODE; prints the entry as JSON with --json or in a pipe.

    Enqueueing the same node and commit again changes the priority, dependencies and strategy of the existing entry. A
    new commit replaces the waiting entry.
    """
    node, branch = (re.sub(r"\W+", "_", node, flags=re.ASCII), node) if branch is None else (node, branch)
    enqueued = enqueue(node, branch, repo_root, target, run, home, priority=priority, depends_on=depends_on or None,
                       strategy=strategy)
    entry = enqueued.entry
    print_result(enqueued.body(), f"{branch} waits to land on {entry.target} as {entry.id}; `garrison merge-queue "
                                  f"process --target {entry.target}` tests and lands it", as_json=as_json)


@click.command("process", cls=Command, examples=(
    ('garrison merge-queue process --gate "make test"', "the first time: the gate is recorded"),
    ("garrison merge-queue process --drain", "until the queue is empty"),
    ("garrison merge-queue process --watch", "as a service, until it is interrupted"),
))
@click.option("--once", is_flag=True, help="Process until the next verdict (the default).")
@click.option("--drain", is_flag=True, help="Process until the queue is empty; one line or JSON object per verdict.")
@click.option("--watch", is_flag=True, help="Process forever; one line or JSON object per verdict.")
@repo_root_option
@click.option("--target", metavar="BRANCH", help="Branch of the queue (default: the one with waiting entries).")
@click.option("--gate", metavar="CMD", help="Command that tests a merged tree; recorded.")
@click.option("--no-gate", is_flag=True, help="Land without testing; recorded.")
@click.option("--setup", metavar="CMD", help="Command that prepares a worktree for the gate; recorded.")
@click.option("--no-wait", is_flag=True, help="Exit 1 at once if another processor is alive.")
@sandbox_option
@output_options
def process_command(once: bool, drain: bool, watch: bool, repo_root: str | None, target: str | None, gate: str | None,
                    no_gate: bool, setup: str | None, no_wait: bool, as_json: bool, home: str | None) -> None:
    """Test and land the next entry, or wait for the active processor; prints JSON with --json or in a pipe."""
    if once + drain + watch > 1:
        raise click.UsageError("--once, --drain and --watch are mutually exclusive")
    if gate and no_gate:
        raise click.UsageError("--gate and --no-gate are mutually exclusive")
    if watch and no_wait:
        raise click.UsageError("--watch waits while another processor is alive; omit --no-wait")
    settle_mode(find_home(home))
    failures: list[Processed] = []
    printed = False
    for result in process(repo_root, gate=gate, no_gate=no_gate, setup=setup, target=target, wait=not no_wait,
                          watch=watch, max_batch=MAX_BATCH if drain or watch else 1, home=home):
        if not (result.is_empty and printed):
            print_result(result.body(), result.describe(), as_json=as_json)
            printed = True
        if not (result.success or watch):
            failures.append(result)
        if not (drain or watch) or not result.is_verdict:
            break
    if failures:
        raise Refused(_summarize(failures))


def _summarize(failures: list[Processed]) -> str:
    """Return one line about all failures; if several entries failed, the reasons are in their results."""
    ids = [result.entry.id for result in failures if result.is_verdict and result.entry is not None]
    reasons = [result.first_line or "an entry did not land" for result in failures]
    if len(ids) < 2:
        return reasons[0]
    blocked = "" if failures[-1].is_verdict else f"; {reasons[-1]}"
    return f"{len(ids)} entries did not land: {', '.join(ids)}{blocked}"
