"""Running set-up and gate in a slot: detached, adopted after a crash, never waited for.

A run is a folder: `pid` (pid, start ticks and boot id, written by the wrapper itself) and `verdict` (exit code, 1 if
its time was up), each a line, which counts once it is whole. Whoever polls next finds there what the last one started.
The wrapper is sh and coreutils' timeout, so that it outlives us, and starts nothing else: that would be most of what a
short gate costs. After the verdict all that bears the run's marker is ended.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.errors import Refused
from garrison.light import dataclass
from garrison.merge import decide
from garrison.merge.slot import Slot, read_line, read_pid
from garrison.records import atomic, old_logs
from garrison.system import disk, ending, processes
from garrison.system.environment import child_environment
from garrison.system.held_back import tell_held_back
from garrison.system.jobs import struck, tail

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from garrison.merge.config import Config

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

    result: decide.Class
    code: int
    reason: str
    tail: str
    log: Path


@dataclass
class GateRun:
    """One set-up (if due) and gate on the commit that `slot` shows, driven by `poll`."""

    slot: Slot
    config: Config
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
            return bool(processes.bearers(self.marker))
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
            return Verdict("lost", -1, decide.WORDS["lost"], "", self.log)
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
        return processes.living(self.child.pid, self.child.ticks)

    def _read(self, stage: str) -> tuple[int, bool] | None:
        told = read_line(self.folder / stage / "verdict")
        if not told:
            return None
        code, late = told.split()
        return int(code), late == "1"

    def _judge(self, stage: str, code: int, late: bool) -> Verdict:
        self._sweep()
        log = self.setup_log if stage == "setup" else self.log
        held = tell_held_back(self.held_back, log, code)
        told = tail(log, TAIL_LINES)
        result: decide.Class = "lost" if self._says_nothing(code, late, told) else \
            decide.classify(code, timed_out=late, tail=told, stage=stage)
        words = decide.in_words(result, code, self.config.timeout, timed_out=late)
        return Verdict(result, code, words + held, told, log)

    def _says_nothing(self, code: int, late: bool, told: str) -> bool:
        """Whether this end is no judgement of the tree: it vanished, a signal ended it, or there was no room."""
        if code == -1 or (not late and struck(code)):
            return True
        return code != 0 and (disk.lacking(told) or disk.full(self.slot.path))

    def _sweep(self) -> None:
        """End what the stage left running, and forget it."""
        child = self.child
        ending.sweep(processes.ProcessId(child.pid, child.ticks) if child else None, self.marker, grace=0.2)
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
            old_logs.shorten(log)

    def detach(self) -> None:
        """Leave it running for a successor."""
        self._drop_child()

    def _drop_child(self) -> None:
        if self.child:
            self.child.close()
            self.child = None


def marker_of(home: Path, run: str, entry: str, number: int) -> str:
    """The value of GARRISON_LIFE of a gate run."""
    return f"{home}:{run}:gate-{entry}#{number}"


