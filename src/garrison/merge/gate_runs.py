"""Gate runs of a queue: start them in slots, record their verdicts, end unneeded ones.

Several runs may be in progress, each in its own slot. A run (`gate.py`) is identified by the tree that it tests; every
step checks whether its verdict is still wanted, and ends it if not. `test` is journaled before a run starts, so that
the next processor finds the run, and `verdict` before it has any effect.
"""

from __future__ import annotations

import contextlib
import select
from contextlib import suppress
from typing import TYPE_CHECKING

from garrison.config import PROJECT_FILE
from garrison.ends import RETRY_SECONDS, Wait, WaitKind
from garrison.errors import Fenced, GarrisonError, Refused, Shortage
from garrison.merge.failing_tests import MAX_NAMES, find_failures, read_reports
from garrison.merge.gate import (
    KILL_GRACE,
    PROXY_AFTER,
    GateRun,
    gate_marker,
    list_targets_files,
    open_attestations,
    remove_folder,
)
from garrison.merge.gate_files import find_gate_files
from garrison.merge.gates_by_path import GateBook, GateRules, parse_rules
from garrison.merge.queue import StepResult
from garrison.merge.records import GateStarted, QueueHindered, VerdictGiven
from garrison.merge.slots import Slot, acquire_slot
from garrison.merge.suspects import suspect
from garrison.merge.touched import TouchedFiles
from garrison.records import log_retention
from garrison.records.names import INTEGRATION, is_run_branch
from garrison.records.run import RunFiles
from garrison.sandbox.confine import leave_session_keyring
from garrison.sandbox.place import Mode, Role
from garrison.sandbox.proxy.allowed_hosts import OF_GATE, write_refused
from garrison.sandbox.rights import read_rights
from garrison.system import failpoint, machine, process_control, processes
from garrison.system.command import read_tail
from garrison.system.event_loop import FolderChanges
from garrison.system.git import GitError
from garrison.system.git.commits import literal_pattern

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from garrison.merge.config import QueueConfig
    from garrison.merge.entry import MergeEntry
    from garrison.merge.gate import GateVerdict
    from garrison.merge.gates_by_path import ChosenGate
    from garrison.merge.queue import QueueWriter
    from garrison.merge.records import Subject
    from garrison.merge.state import QueueState, RunningGate

MAX_SCRIPT = 1 << 20
"""Maximum size in bytes of a script that is searched for further calls."""
MAX_STOPPED = 5
"""Maximum number of stopped runs on one tree that do not count; further ones count as lost."""
MAX_LOG, MAX_LINES = 256 * 1024, 20_000
"""Bytes and lines at the end of a red run's log that are searched for failing tests."""
MAX_NAME = 200
"""Recorded characters of a failing test's name."""


class GateRuns:
    """Gate runs of one queue, in the slots below `folder`, with `environment` (without the variables `held_back`)."""

    def __init__(self, writer: QueueWriter, folder: Path, environment: Mapping[str, str],
                 held_back: Sequence[str], touched: TouchedFiles | None = None, *,
                 proxy_after: float = PROXY_AFTER) -> None:
        self.writer, self.queue, self.git = writer, writer.queue, writer.git
        self.folder, self.environment, self.held_back = folder, environment, held_back
        self.proxy_after = proxy_after
        self.touched = touched or TouchedFiles(self.git)
        self.active: dict[str, GateRun] = {}
        """Runs in progress, by job."""
        self._idle: list[Slot] = []
        self._stopped: dict[str, int] = {}
        """Tree → number of its stopped runs that do not count."""
        self._changes: FolderChanges | None = None
        """Watches verdict files: a wrapper with orphans stays after its verdict."""
        self._watched: set[Path] = set()
        self._book: tuple[str, GateBook] | None = None
        """Tip, and its gates."""

    @property
    def folders(self) -> list[Path]:
        """Return the folders to which set-ups and gates will write their verdicts."""
        return [folder for run in self.active.values() if (folder := run.stage_folder) is not None]

    def in_progress(self, state: QueueState) -> dict[str, RunningGate]:
        return {job: state.gates[job] for job in self.active if job in state.gates}

    def book(self, config: QueueConfig) -> GateBook:
        """Return the gates in this environment on the current target."""
        tip = self.writer.tip() or ""
        if self._book is None or self._book[0] != tip or self._book[1].config != config:
            files = list_targets_files(self.git, tip, config.gate_from_target)
            self._book = (tip, GateBook(config, self._read_rules(config, tip), self.environment, files))
        return self._book[1]

    def _read_rules(self, config: QueueConfig, tip: str) -> GateRules:
        # A run's own branch has only the gate of its nodes: gates by path run where the branch lands.
        if not (config.gate and tip) or is_run_branch(self.queue.target):
            return GateRules()
        if self._book is not None and self._book[1].config == config and self._book[0]:
            changes = self.git.known_changes(self._book[0], tip)  # known from our own landing
            if changes is not None and all(change.name != PROJECT_FILE for change in changes):
                return self._book[1].rules
        return parse_rules(self._read_blob(tip, PROJECT_FILE) or b"")

    def choose(self, state: QueueState, entries: Sequence[MergeEntry], base: str, tree: str) -> ChosenGate:
        """Return the gate for the tree of these entries, merged onto `base`: the whole gate whenever it is due."""
        book = self.book(require_config(state))
        if any(entry.node == INTEGRATION for entry in entries):  # a run that lands as a whole
            return book.whole
        return book.choose(state, [entry.id for entry in entries], self._changed(book, base, tree))

    def find_passed(self, state: QueueState, entries: Sequence[MergeEntry], base: str, tree: str) -> ChosenGate | None:
        """Return a gate that such a tree has passed and that covers the required one; None if none does."""
        return self.book(require_config(state)).find_passed(state, tree, self.choose(state, entries, base, tree))

    def select(self, config: QueueConfig, base: str, tree: str) -> ChosenGate:
        """Return the gate selected by the paths in which a tree differs from `base`; () for the whole gate."""
        book = self.book(config)
        return book.select(self._changed(book, base, tree))

    def _changed(self, book: GateBook, base: str, tree: str) -> Sequence[str]:
        """Return the paths in which a tree differs from a commit, if any rule depends on paths."""
        return self.git.changed_paths(self.git.tree_of(base), tree) if book.rules.rules else ()

    def start(self, entries: Sequence[MergeEntry], commit: str, tree: str, subject: Subject, gate: ChosenGate, *,
              base: str = "", why: str = "") -> StepResult | Wait:
        """Start a gate run on a commit, for these entries merged onto `base`; wait if the disk is full."""
        if full := self._full_disk():
            return Wait(WaitKind.NO_ROOM,
                        f"No space left on device: {full}; {entries[0].id} is tested when there is room")
        if lack := self._lack_of_room():
            return Wait(WaitKind.NO_ROOM,
                        f"no room for a gate run: {lack}; {entries[0].id} is tested when there is room")
        first, number = entries[0], entries[0].tests + 1
        slot = self._idle.pop() if self._idle else acquire_slot(self.git, self.folder)
        run = self._gate_run(gate, slot, f"{first.id}.{number}", entries, number, base)
        job, key = run.folder.name, gate.key
        self.active[job] = run
        log_retention.remove_old_logs(run.log.parent,
                                      [log for each in self.active.values() for log in (each.log, each.setup_log)])
        self.writer.append(GateStarted(tuple(entry.id for entry in entries), subject, number, job, commit, tree,
                                       slot.number, key, str(run.log), base, why, gate.config.gate or "",
                                       gate.names))
        failpoint.here("test_recorded")
        try:
            run.start(commit, tree)
        except GarrisonError as error:  # git could not prepare the slot: not a verdict on the entries
            self._finish(job, run)
            self.writer.append(VerdictGiven((first.id,), subject, tree, key, "lost", str(error), str(run.log), job, -1,
                                            uncounted=True, gates=gate.names))
            raise
        failpoint.here("test_started")
        try:
            self.writer.state()
        except Fenced:  # the processor that took over had looked for running gates before this one started
            run.abandon()
            raise
        return StepResult("testing", first.id)

    def check_preparing(self, commit: str) -> None:
        """Prepare a slot for that commit as for a gate run; GitError if git cannot."""
        config = require_config(self.queue.state)
        slot = self._idle.pop() if self._idle else acquire_slot(self.git, self.folder)
        self._idle.append(slot)
        slot.prepare(commit, config.clean, config.keep)

    def _full_disk(self) -> Path | None:
        """Return the folder that a gate could not write to: its worktree's, or its verdict's."""
        return next((path for path in (self.folder, self.queue.folder) if machine.is_full(path)), None)

    def _lack_of_room(self) -> str:
        """Return which resource the machine lacks for a gate run, '' if none."""
        if lack := machine.find_shortage(machine.MIN_FOR_WORK):
            return lack
        if read_rights(self.queue.home, Role.GATE, environ=self.environment).mode is not Mode.NONE:
            try:  # before journaling a gate run: this may be retried for long
                leave_session_keyring()
            except Shortage as error:
                return str(error)
        return ""

    def _gate_run(self, gate: ChosenGate, slot: Slot, job: str, entries: Sequence[MergeEntry], number: int,
                  base: str) -> GateRun:
        config = gate.config
        marker = gate_marker(self.queue.home, entries[0].run, entries[0].id, number)
        tip = self.writer.tip() or ""
        return GateRun(slot, config, self.queue.folder / "tests" / job, self.queue.folder / "logs" / f"{job}.log",
                       marker, self.environment, self.queue.home, self.held_back, target=tip,
                       attestations=open_attestations(self.queue.folder, self.queue.clock.utc()), gates=gate.names,
                       is_run_branch=is_run_branch(self.queue.target), proxy_after=self.proxy_after,
                       from_target=(*config.gate_from_target, *self._scripts(config, entries, base, tip)))

    def _scripts(self, config: QueueConfig, entries: Sequence[MergeEntry], base: str, tip: str) -> tuple[str, ...]:
        """Return patterns of the gate's scripts on the target, unless these entries, or those in `base`, may change
        them: the user approved it, or `[guard]` allows it. A set-up, which belongs to the branch, may not."""
        if not (config.gate and tip and all(entry.keeps_gate for entry in entries)):
            return ()

        scripts = find_gate_files(config.gate, lambda name: self._read_blob(tip, name)).scripts
        is_other = bool(scripts) and base not in ("", tip) and not scripts.isdisjoint(self.git.changed_paths(tip, base))
        return () if is_other else tuple(map(literal_pattern, sorted(scripts)))

    def _read_blob(self, commit: str, name: str) -> bytes | None:
        with suppress(GitError):  # missing or too large
            return self.git.run("cat-file", "blob", f"{commit}:{name}", exact=True, most=MAX_SCRIPT).out.encode(
                errors="surrogateescape")
        return None

    def adopt(self, state: QueueState) -> None:
        """Adopt the gate runs in the journal, and end those that cannot be adopted."""
        for gate in state.gates.values():
            chosen = self.book(state.config).of(gate.gates) if state.config is not None else None
            # otherwise the gate has changed since and the verdict is useless: the run is ended below
            if chosen is not None and gate.key == chosen.key:
                self._adopt(gate, state, chosen)
        self._end_unwanted(state)

    def _adopt(self, gate: RunningGate, state: QueueState, chosen: ChosenGate) -> None:
        try:
            slot = acquire_slot(self.git, self.folder, gate.slot)
        except Refused:
            return  # its slot is taken: ended with the other unwanted runs
        run = self._gate_run(chosen, slot, gate.job, [state.entry(name) for name in gate.entries], gate.number,
                             gate.base)
        run.tree = gate.tree
        if run.adopt(self.writer.clock.monotonic()):
            self.active[gate.job] = run
        else:
            self._idle.append(slot)

    def _end_unwanted(self, state: QueueState) -> None:
        """End runs of superseded entries, and runs that could not be adopted."""
        for folder in (self.queue.folder / "tests").glob("*.*"):
            name, _, number = folder.name.rpartition(".")
            if name in state.entries and folder.name not in self.active:
                marker = gate_marker(self.queue.home, state.entries[name].run, name, int(number))
                if processes.find_marked(marker):
                    process_control.kill_tree(None, marker, grace=KILL_GRACE)
                remove_folder(folder)

    def keep(self, jobs: Collection[str]) -> None:
        """End all other runs, whose verdicts are no longer needed."""
        for job, run in list(self.active.items()):
            if job not in jobs:
                run.abandon()
                self._finish(job, run)

    def record_verdict(self, state: QueueState) -> StepResult | None:
        """Record the verdict of an ended run before it has any effect; None if all runs are in progress."""
        if self._changes is not None:
            self._changes.read()  # watch before checking: a verdict written after the check wakes the processor
        for job, run in list(self.active.items()):
            gate = state.gates.get(job)
            verdict = run.poll(self.writer.clock.monotonic()) if gate else None
            if gate and verdict:
                del self.active[job]
                self._idle.append(run.slot)
                is_repeated = self._record(gate, verdict, run, state)
                self._tell_refused_hosts(run, [state.entries[name] for name in gate.entries if name in state.entries])
                run.remove()
                return StepResult("stopped" if is_repeated else "verdict", gate.first)
        return None

    def _record(self, gate: RunningGate, verdict: GateVerdict, run: GateRun, state: QueueState) -> bool:
        """Record a verdict; return whether the run was stopped and is repeated, so that the verdict does not count."""
        failpoint.here("verdict_before")
        is_told = verdict.tail and verdict.reason and verdict.result != "green"
        reason = verdict.reason + (f"\n{verdict.tail}" if is_told else "")
        failing, suspicion = self._read_failures(gate, verdict, run, state)
        stops = self._stopped[gate.tree] = self._stopped.get(gate.tree, 0) + 1 if verdict.was_stopped else 0
        is_repeated = 0 < stops <= MAX_STOPPED
        self.writer.append(VerdictGiven(
            gate.entries, gate.subject, gate.tree, gate.key, verdict.result, reason, str(verdict.log), gate.job,
            verdict.code, verdict.note, failing=failing, suspicion=suspicion,
            uncounted=is_repeated or (verdict.result == "lost" and self._full_disk() is not None),
            gates=gate.gates), sync=True)
        failpoint.here("verdict")
        if is_repeated:
            self.writer.append(QueueHindered(f"{verdict.reason}; run again ({stops} of {MAX_STOPPED})"))
        return is_repeated

    def _read_failures(self, gate: RunningGate, verdict: GateVerdict, run: GateRun, state: QueueState,
                       ) -> tuple[tuple[str, ...], tuple[float, ...]]:
        """Return the failures from the log and reports of a red run, and the resulting suspicion of each entry."""
        if verdict.result != "red":
            return (), ()
        failures = find_failures(read_tail(verdict.log, MAX_LINES, MAX_LOG))
        failures = failures.with_cases(read_reports(run.slot.path, run.started_at))
        entries = [state.entries[name] for name in gate.entries if name in state.entries]
        ratios: dict[str, float] = {}
        if failures and gate.subject == "entry" and len(entries) == len(gate.entries):
            touched = self.touched.of_all(entries, state.tip)
            ratios = suspect(failures, {name: each.files for name, each in touched.items()}, state.flaky_tests)
        named = failures.tests or failures.files
        return (tuple(name[:MAX_NAME] for name in named[:MAX_NAMES]),
                tuple(ratios[name] for name in gate.entries) if ratios else ())

    def _tell_refused_hosts(self, run: GateRun, entries: Sequence[MergeEntry]) -> None:
        """Notify the attempts under test of the hosts denied to their gate, as the folder of the gate run is
        removed."""
        hosts = run.refused_hosts
        for entry in entries if hosts else ():
            folder = RunFiles(self.queue.home, entry.run).attempt(entry.node, entry.attempt)
            if folder.is_dir():
                write_refused(folder / OF_GATE, hosts)

    def wait(self, state: QueueState) -> Wait:
        """Return a wait for the runs in progress."""
        first = next((state.gates[job].first for job in self.active if job in state.gates), "")
        fds = [run.pidfd for run in self.active.values() if run.pidfd >= 0]
        if folders := self.folders:
            self._changes = self._changes or FolderChanges()
            for folder in self._watched - set(folders):
                self._changes.forget(folder)
            for folder in folders:
                self._changes.watch(folder)
            self._watched = set(folders)
            fds += [fd] if (fd := self._changes.fileno()) is not None else []
        dues = [due for run in self.active.values() if (due := run.serves_in) is not None]
        seconds = min(dues, default=RETRY_SECONDS)
        return Wait(WaitKind.GATE, f"the gate runs for {first}", fd=self._any_of(fds),
                    seconds=min(seconds, RETRY_SECONDS))

    def _any_of(self, fds: list[int]) -> int:
        if len(fds) < 2:
            return fds[0] if fds else -1
        # An epoll is itself readable once one of its descriptors is. The reference keeps it open.
        self._poll = select.epoll()
        with contextlib.suppress(OSError):  # out of inotify watches: the timer suffices
            for fd in fds:
                self._poll.register(fd, select.EPOLLIN)
            return self._poll.fileno()
        return fds[0]

    def _finish(self, job: str, run: GateRun) -> None:
        del self.active[job]
        run.remove()
        self._idle.append(run.slot)

    def close(self, *, end: bool) -> None:
        """Release all slots; the next processor adopts running gates unless `end` ends them now."""
        for run in self.active.values():
            if end:
                run.abandon()
            else:
                run.leave()
            run.slot.release()
        for slot in self._idle:
            slot.release()
        self.active, self._idle = {}, []
        if self._changes is not None:
            self._changes.close()


def require_config(state: QueueState) -> QueueConfig:
    """Return the configuration of the queue; GarrisonError if nothing is recorded."""
    if state.config is None:
        raise GarrisonError("this queue has an entry in progress but no recorded gate; record one with --gate")
    return state.config
