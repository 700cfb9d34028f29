"""Gate runs: start set-up and gate in a slot, adopt running ones after a crash, watch them and record their verdicts.

A run is a folder: `pid` (pid, start ticks and boot id, written by the wrapper itself) and `verdict` (exit code, 1 if
its time was up), each a line, which counts once it is complete. The next processor finds there what the last one
started. The wrapper is sh and coreutils' timeout, so that it outlives the processor, and starts nothing else: that
would be most of what a short gate costs. After the verdict every process that bears the run's marker is ended.

Several runs may go on at a time, each in a slot of its own. A run is identified by the tree it tests; whether its
verdict is still wanted is decided at every step, and a run that nothing needs is ended.
"""

from __future__ import annotations

import select
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.errors import GarrisonError, Refused
from garrison.merge import failpoint, verdicts
from garrison.merge.queue import Progress, Wait
from garrison.merge.slots import Slot, acquire_slot, read_line, read_pid
from garrison.records import atomic, log_retention
from garrison.system import disk_space, kill_tree, processes
from garrison.system.environment import child_environment, explain_missing_command
from garrison.system.jobs import is_signal_exit, read_tail

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from garrison.merge.config import QueueConfig
    from garrison.merge.entry import MergeEntry
    from garrison.merge.queue import QueueWriter
    from garrison.merge.state import QueueState, RunningGate


WRAPPER = r"""
folder=$1 limit=$2 command=$3
read -r stat < "/proc/$$/stat"; set -- ${stat##*) }
boot=${GARRISON_BOOT_ID:-}; [ "$boot" ] || read -r boot < /proc/sys/kernel/random/boot_id
printf '%s %s %s\n' "$$" "${20}" "$boot" > "$folder/pid" || exit 1
read -r begun rest < /proc/uptime
timeout -k 5 "$limit" /bin/sh -c "$command" < /dev/null
code=$?
read -r now rest < /proc/uptime
late=0
case $code in 124|137) [ $(( ${now%.*} - ${begun%.*} + 1 )) -lt "${limit%.*}" ] || late=1;; esac
printf '%s %s\n' "$code" "$late" > "$folder/verdict"
"""
TAIL_LINES = 30
"""Lines of the log that a failure brings."""
_BIRTH_SECONDS = 2.0
"""How long a started wrapper may take to write its pid."""


@dataclass(frozen=True)
class Verdict:
    """How a run was judged: class, exit code, one line in words, the log's tail."""

    result: verdicts.Class
    code: int
    reason: str
    tail: str
    log: Path


@dataclass
class GateRun:
    """One set-up (if due) and gate on the commit that `slot` shows, driven by `poll`."""

    slot: Slot
    config: QueueConfig
    folder: Path
    """This run's own; made by `begin`."""
    log: Path
    marker: str
    environment: Mapping[str, str]
    held_back: Sequence[str] = ()
    """Names of variables that were kept from it, for the one whose command is not found."""
    child: processes.Child | None = None
    refusal: str = ""
    """Why the tree could not be made ready, so that its verdict is red without any run."""
    _born: float = 0.0

    @property
    def pidfd(self) -> int:
        """Readable once the running stage has ended; -1 if there is none to watch."""
        return self.child.pidfd if self.child else -1

    @property
    def setup_log(self) -> Path:
        """Where set-up's output goes."""
        return self.log.with_suffix(".setup.log")

    def begin(self, commit: str) -> None:
        """Prepare the slot and start set-up or gate, in a fresh folder."""
        shutil.rmtree(self.folder, ignore_errors=True)
        atomic.make_directory(self.log.parent)
        try:
            self.slot.prepare(commit, self.config.clean, self.config.keep)
        except Refused as error:  # a submodule that cannot be had: the commit's own fault, if the target has none such
            self._refuse(str(error))
            return
        key = self.slot.setup_due(self.config.setup, self.config.lock_files)
        if key:
            atomic.make_directory(self.folder)
            atomic.write(self.folder / "setup_key", key.encode(), durable=False)
            self._start("setup", self.config.setup or "", self.setup_log)
        else:
            self._start("gate", self.config.gate or "", self.log)

    def _refuse(self, why: str) -> None:
        self.refusal = why
        folder = atomic.make_directory(self.folder / "gate")
        self.log.write_text(f"{why}\n")
        atomic.write(folder / "verdict", b"1 0\n", durable=False)

    def _start(self, stage: str, command: str, log: Path) -> None:
        folder = atomic.make_directory(self.folder / stage)
        self.slot.starts(folder)
        own = {processes.MARKER: self.marker, "GARRISON_TREE": str(self.slot.path),
               "GARRISON_SLOT": str(self.slot.number)}
        argv = ["/bin/sh", "-c", WRAPPER, "garrison-gate", str(folder), f"{self.config.timeout:g}", command]
        self._drop_child()
        self.child = processes.spawn(argv, env=child_environment(self.environment, self.environment, own),
                                     cwd=self.slot.path, log=log)

    def adopt(self, now: float) -> bool:
        """Take charge of what an earlier processor started in this folder; False if nothing of it can be used.

        A wrapper that has not written its pid yet is waited for by `poll`, known by its marker.
        """
        stage = self._stage()
        if stage is None:
            return False
        found = read_pid(self.folder / stage)
        if (self.folder / stage / "verdict").exists():
            return True
        if found is None:
            self._born = now
            return bool(processes.find_marked(self.marker))
        pidfd = processes.open_verified(*found)
        if pidfd is None:
            return (self.folder / stage / "verdict").exists()
        self.child = processes.Child(*found, pidfd)
        return True

    def _stage(self) -> str | None:
        return next((stage for stage in ("gate", "setup") if (self.folder / stage).is_dir()), None)

    def poll(self, now: float) -> Verdict | None:
        """The verdict once there is one; None while set-up or gate runs (set-up's green starts the gate)."""
        stage = self._stage()
        if stage is None:
            return Verdict("lost", -1, verdicts.WORDS["lost"], "", self.log)
        running = self._running(stage, now)
        found = self._read(stage)
        if found is None:
            return None if running else self._judge(stage, -1, False)
        if running:
            return None
        code, late = found
        if stage == "setup" and code == 0:
            self._sweep()
            self.slot.setup_done((self.folder / "setup_key").read_text())
            self._start("gate", self.config.gate or "", self.log)
            return None
        return self._judge(stage, code, late)

    def _running(self, stage: str, now: float) -> bool:
        """Whether the stage's wrapper lives; collects it if it was our child."""
        if self.child is None:
            found = read_pid(self.folder / stage)
            if found is None:
                return now - self._born < _BIRTH_SECONDS
            pidfd = processes.open_verified(*found)
            self.child = processes.Child(*found, -1 if pidfd is None else pidfd)
        processes.exit_code(self.child.pid)
        return processes.is_running(self.child.pid, self.child.ticks)

    def _read(self, stage: str) -> tuple[int, bool] | None:
        told = read_line(self.folder / stage / "verdict")
        if not told:
            return None
        code, late = told.split()
        return int(code), late == "1"

    def _judge(self, stage: str, code: int, late: bool) -> Verdict:
        self._sweep()
        log = self.setup_log if stage == "setup" else self.log
        held = explain_missing_command(self.held_back, log, code)
        told = read_tail(log, TAIL_LINES)
        result: verdicts.Class = "lost" if self._says_nothing(code, late, told) else \
            verdicts.classify(code, timed_out=late, tail=told, stage=stage)
        words = verdicts.describe_result(result, code, self.config.timeout, timed_out=late)
        return Verdict(result, code, words + held, told, log)

    def _says_nothing(self, code: int, late: bool, told: str) -> bool:
        """Whether this end is no judgement of the tree: it vanished, a signal ended it, or there was no room."""
        if code == -1 or (not late and is_signal_exit(code)):
            return True
        return code != 0 and (disk_space.reports_no_space(told) or disk_space.is_full(self.slot.path))

    def _sweep(self) -> None:
        """End what the stage left running, and forget it."""
        child = self.child
        kill_tree.kill_tree(processes.ProcessId(child.pid, child.ticks) if child else None, self.marker, grace=0.2)
        self._drop_child()

    def abandon(self) -> None:
        """End the run; its verdict is not wanted any more."""
        child = self.child
        self._sweep()
        if child:
            processes.exit_code(child.pid)

    def forget(self) -> None:
        """Remove the folder after its verdict was recorded; the logs stay, as far as `old_logs` has it."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for log in (self.log, self.setup_log):
            log_retention.shorten_log(log)

    def detach(self) -> None:
        """Leave it running for a successor."""
        self._drop_child()

    def _drop_child(self) -> None:
        if self.child:
            self.child.close()
            self.child = None


def gate_marker(home: Path, run: str, entry: str, number: int) -> str:
    """The value of GARRISON_LIFE of a gate run."""
    return f"{home}:{run}:gate-{entry}#{number}"


class GateRuns:
    """The gate runs of one queue. `folder` has the slots; `environment` is what gates get (and `held_back` not)."""

    def __init__(self, writer: QueueWriter, folder: Path, environment: Mapping[str, str],
                 held_back: Sequence[str]) -> None:
        self.writer, self.queue, self.git = writer, writer.queue, writer.git
        self.folder, self.environment, self.held_back = folder, environment, held_back
        self._runs: dict[str, GateRun] = {}
        self._idle: list[Slot] = []

    @property
    def folders(self) -> list[Path]:
        """Where the running gates will write their verdicts."""
        return [run.folder for run in self._runs.values()]

    def close(self, *, end: bool) -> None:
        """Let go; running gates go on and are adopted by the next processor, unless they are to end."""
        for run in self._runs.values():
            if end:
                run.abandon()
            else:
                run.detach()
            run.slot.release()
        for slot in self._idle:
            slot.release()
        self._runs, self._idle = {}, []

    def running(self, state: QueueState) -> set[str]:
        """The trees under test."""
        return {state.tests[job].tree for job in self._runs if job in state.tests}

    # --- beginning --------------------------------------------------------------------------------------------------

    def begin(self, entries: Sequence[MergeEntry], commit: str, tree: str, of: str) -> Progress | Wait:
        """Start a gate run on a commit, asked for by these entries; not where it could write nothing."""
        if full := self._full():
            return Wait("no_room", f"No space left on device: {full}; {entries[0].id} is tested when there is room")
        config = ready(self.queue.state)
        first, number = entries[0], entries[0].tests + 1
        slot = self._idle.pop() if self._idle else acquire_slot(self.git, self.folder)
        run = self._gate_run(config, slot, f"{first.id}.{number}", first, number)
        self._runs[run.folder.name] = run
        log_retention.remove_old_logs(run.log.parent,
                                      [log for one in self._runs.values() for log in (one.log, one.setup_log)])
        self.writer.append("test", {
            "entry": first.id, "entries": [entry.id for entry in entries], "of": of, "number": number,
            "job": run.folder.name, "commit": commit, "tree": tree, "slot": slot.number, "command": self.key(config),
            "log": str(run.log)})
        failpoint.here("test_recorded")
        try:
            run.begin(commit)
        except GarrisonError as error:  # git's trouble with the slot is no judgement of anybody
            self._over(run.folder.name, run)
            self.writer.append("verdict", {
                "entry": first.id, "of": of, "job": run.folder.name, "tree": tree, "command": self.key(config),
                "result": "lost", "code": -1, "reason": str(error), "log": str(run.log), "uncounted": True})
            raise
        failpoint.here("test_started")
        return Progress("testing", first.id)

    def key(self, config: QueueConfig) -> str:
        """By what verdicts are given here: gate, set-up and environment."""
        return verdicts.verdict_key(config, self.environment)

    def _full(self) -> Path | None:
        """Where a gate could not write: its tree, or its verdict (which so is lost, and counts as none)."""
        return next((path for path in (self.folder, self.queue.folder) if disk_space.is_full(path)), None)

    def _gate_run(self, config: QueueConfig, slot: Slot, job: str, entry: MergeEntry, number: int) -> GateRun:
        marker = gate_marker(self.queue.home, entry.run, entry.id, number)
        return GateRun(slot, config, self.queue.folder / "tests" / job, self.queue.folder / "logs" / f"{job}.log",
                       marker, self.environment, self.held_back)

    # --- taking over ------------------------------------------------------------------------------------------------

    def adopt(self, state: QueueState) -> None:
        """Take charge of the gate runs that the journal says were begun; those that cannot be are ended."""
        for test in state.tests.values():
            if state.config is not None and test.command == self.key(state.config):
                self._adopt(test, state, state.config)
        self._clear_jobs(state)

    def _adopt(self, test: RunningGate, state: QueueState, config: QueueConfig) -> None:
        try:
            slot = acquire_slot(self.git, self.folder, test.slot)
        except Refused:
            return  # somebody else has that slot: the run is ended with the others
        run = self._gate_run(config, slot, test.job, state.entry(test.entry), test.number)
        if run.adopt(self.writer.clock.monotonic()):
            self._runs[test.job] = run
        else:
            self._idle.append(slot)

    def _clear_jobs(self, state: QueueState) -> None:
        """End runs nobody waits for (their entry was superseded, or they could not be adopted)."""
        for folder in (self.queue.folder / "tests").glob("*.*"):
            name, _, number = folder.name.rpartition(".")
            if name in state.entries and folder.name not in self._runs:
                marker = gate_marker(self.queue.home, state.entries[name].run, name, int(number))
                if processes.find_marked(marker):
                    kill_tree.kill_tree(None, marker, grace=0.2)
                shutil.rmtree(folder, ignore_errors=True)

    # --- watching ---------------------------------------------------------------------------------------------------

    def keep(self, wanted: Collection[str], state: QueueState) -> None:
        """End the runs on trees other than these: their entries were superseded, or others have answered already."""
        for job, run in list(self._runs.items()):
            test = state.tests.get(job)
            if test is None or test.tree not in wanted:
                run.abandon()
                self._over(job, run)

    def watch(self, state: QueueState) -> Progress | None:
        """Record the verdict of a run that has ended, before anything follows from it; None if all go on."""
        for job, run in list(self._runs.items()):
            test = state.tests.get(job)
            verdict = run.poll(self.writer.clock.monotonic()) if test else None
            if test and verdict:
                del self._runs[job]
                self._idle.append(run.slot)
                self._record(test, verdict)
                run.forget()
                return Progress("verdict", test.entry)
        return None

    def wait(self, state: QueueState) -> Wait:
        """For the runs that go on."""
        named = next((state.tests[job].entry for job in self._runs if job in state.tests), "")
        fds = [run.pidfd for run in self._runs.values() if run.pidfd >= 0]
        return Wait("gate", f"the gate runs for {named}", self._any_of(fds))

    def _any_of(self, fds: list[int]) -> int:
        if len(fds) < 2:
            return fds[0] if fds else -1
        self._poll = select.epoll()
        for fd in fds:
            self._poll.register(fd, select.EPOLLIN)
        return self._poll.fileno()

    def _record(self, test: RunningGate, verdict: Verdict) -> None:
        failpoint.here("verdict_before")
        uncounted = {"uncounted": True} if verdict.result == "lost" and self._full() else {}
        self.writer.append("verdict", {
            "entry": test.entry, "entries": list(test.entries), "of": test.of, "job": test.job, "tree": test.tree,
            "command": test.command, "result": verdict.result, "code": verdict.code, "reason": _told(verdict),
            "log": str(verdict.log), **uncounted}, sync=True)
        failpoint.here("verdict")

    def _over(self, job: str, run: GateRun) -> None:
        del self._runs[job]
        run.forget()
        self._idle.append(run.slot)


def ready(state: QueueState) -> QueueConfig:
    """What the queue runs; GarrisonError if nothing is recorded."""
    if state.config is None:
        raise GarrisonError("this queue has an entry under way but no recorded gate; record one with --gate")
    return state.config


def _told(verdict: Verdict) -> str:
    """The reason with the log's tail below it."""
    return verdict.reason + (f"\n{verdict.tail}" if verdict.reason and verdict.tail else "")
