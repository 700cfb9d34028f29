"""Working a queue by hand: enqueue a branch, process the next entries or wait for whoever does.

`enqueue` and `process_next` are what `garrison merge-queue` calls, and the names the seeds' prompts use.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

from garrison.cli.merge_queue_where import open_queue
from garrison.errors import GarrisonError, Refused, UsageError
from garrison.merge.batch import CAP
from garrison.merge.commands import Wishes
from garrison.merge.config import Config
from garrison.merge.entry import FAILED, Entry
from garrison.merge.queue import Progress, Wait
from garrison.merge.target import check_target
from garrison.records.names import check_run
from garrison.settings import Timing, trees_root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from garrison.merge.processor import MergeProcessor
    from garrison.merge.queue import MergeQueue
    from garrison.merge.state import Outcome

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
    wishes = Wishes(priority, None if depends_on is None else tuple(depends_on), strategy).check()
    queue = open_queue(repo_root, target, home)
    check_target(queue.git, queue.target)
    return {"status": "ok", "entry": queue.enqueue_by_hand(node, branch, run=run, wishes=wishes).to_dict()}


def process_next(repo_root: str | os.PathLike[str] | None = None, *, gate: str | None = None, no_gate: bool = False,
                 setup: str | None = None, target: str | None = None, wait: bool = True,
                 home: str | os.PathLike[str] | None = None, say: Callable[[str], None] | None = None,
                 ) -> dict[str, Any]:
    """Work the queue until its next verdict: `{"success", "entry", "error"}`; empty is a success without entry.

    A living processor is waited for instead (not with `wait=False`). `gate`, `setup` and `no_gate` are recorded.
    What garrison refuses is told in `error`.
    """
    return next(process(repo_root, gate=gate, no_gate=no_gate, setup=setup, target=target, wait=wait, most=1,
                        home=home, say=say))


def process(repo_root: str | os.PathLike[str] | None = None, *, gate: str | None = None, no_gate: bool = False,
            setup: str | None = None, target: str | None = None, wait: bool = True, watch: bool = False,
            most: int = CAP, home: str | os.PathLike[str] | None = None,
            say: Callable[[str], None] | None = None) -> Iterator[dict[str, Any]]:
    """As `process_next`, one result a verdict, until the queue is empty or cannot go on; with `watch` for ever.

    `most`: entries that are tested together at most.
    """
    told = say or _to_stderr
    try:
        queue = open_queue(repo_root, target, home, busy=True)
        if gate or no_gate or setup:
            recorded = queue.state.config
            queue.configure(Config(gate or (recorded.gate if recorded and not no_gate else None),
                                   setup or (recorded.setup if recorded else None), no_gate,
                                   Timing.read(os.environ).gate_timeout))
    except UsageError:
        raise
    except GarrisonError as error:
        yield _failure(None, str(error))
        return
    hand = Hand(queue, told, most)
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

    def __init__(self, queue: MergeQueue, say: Callable[[str], None], most: int) -> None:
        self.queue, self.say, self._most = queue, say, most
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
                                   most=self._most)
        while not processor.take():
            if not wait:
                raise Refused(f"{self.queue.state.holder or 'another processor'} works this queue; leave it to it")
            found = self._others()
            if found:
                return found
        self._processor = processor
        processor.recover()
        self.queue.resume("asked for by hand")
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
                return _failure(self._stuck(), state.pause.told())
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
                processor.beat()
            elif done.kind == "empty":
                self._tell_held()
                return EMPTY
            else:
                return _failure(self._stuck(), done.reason)

    def _stuck(self) -> Entry:
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
        from garrison.cli.adhoc_tidy import tidy_landed

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
    from garrison.merge.outcome_signals import signal_of
    from garrison.records import signals

    signal = signal_of(outcome)
    if signal:
        signals.post(home, signal, outcome.seq)


def _failure(entry: Entry | None, why: str) -> dict[str, Any]:
    return {"success": False, "entry": entry.to_dict() if entry else None, "error": why}
