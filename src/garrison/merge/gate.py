"""Gate run: start set-up and gate in a slot, adopt a running one after a crash, watch it, judge its end.

A run is a folder with two files of one line, valid once complete: `pid` (pid, start ticks and boot id, written by the
wrapper itself) and `verdict` (exit code, and 1 if it timed out). From it, the next processor finds what its predecessor
started. The wrapper is sh and coreutils' timeout, so that it outlives the processor; more processes would dominate the
cost of a short gate. After the verdict every process with the run's marker, or below the wrapper, is ended.
`gate_runs.py` manages the runs of a queue and their journal records.
"""

from __future__ import annotations

import contextlib
import os
import time
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from garrison.config import Timing, config_path, read_config
from garrison.ends import End, EndKind
from garrison.errors import GarrisonError, Refused
from garrison.merge.slots import Slot, read_line, read_pid
from garrison.merge.verdicts import UNKNOWN, Result, classify, describe_result
from garrison.records import atomic, costs, log_retention
from garrison.records.names import parse_marker
from garrison.sandbox import network, services, setups
from garrison.sandbox.collect import begin_view, find_checkout, git_mounts
from garrison.sandbox.confine import confine
from garrison.sandbox.devcontainer import image_key, with_devcontainer
from garrison.sandbox.file_system import show_named_programs
from garrison.sandbox.network import NamespaceInMaking, NetworkPlace, NetworkUser
from garrison.sandbox.place import NETWORK_FOLDER, Mode, Place, Rights, Role
from garrison.sandbox.probe import explain_missing_file, held_mode, mode_here
from garrison.sandbox.proxy.allowed_hosts import (
    REFUSED,
    REFUSED_PORTS,
    REFUSED_SERVICES,
    HostRights,
    RefusedHost,
    describe_permission,
    read_refused,
)
from garrison.sandbox.rights import read_rights
from garrison.sandbox.services import ServiceUser
from garrison.sandbox.setups import SetupLayer
from garrison.supervise.job_watch import JobWatch, LostTime
from garrison.system import machine, process_control, processes, untrusted, worktree_files
from garrison.system.command import read_tail
from garrison.system.environment import child_environment, explain_missing_command
from garrison.system.exit_info import quote_command
from garrison.system.stamps import modified_at
from garrison.system.terminal_text import list_some
from garrison.values import Value, replace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from garrison.merge.config import QueueConfig
    from garrison.sandbox.git_view import BegunView
    from garrison.supervise.hang_detector import Hang
    from garrison.system.git import Git

WRAPPER = r"""
folder=$1 limit=$2 attestations=$3 tree=$4 gates=$5
shift 5
started() { ticks=${20}; }
read -r stat < "/proc/$$/stat"; started ${stat##*) }
boot=${GARRISON_BOOT_ID:-}; [ "$boot" ] || read -r boot < /proc/sys/kernel/random/boot_id
printf '%s %s %s\n' "$$" "$ticks" "$boot" > "$folder/pid" || exit 1
head=-
if [ "$attestations" ]; then { read -r rest git < .git && read -r head < "$git/HEAD"; } 2>/dev/null; fi
read -r begun rest < /proc/uptime
# killed before it writes a verdict: the pid is gone without one, so the run is lost, not red
timeout -k 5 "$limit" "$@" < /dev/null
code=$?
read -r now rest < /proc/uptime
late=0  # 124 and 137 may also be the command's own: only the time that passed tells
case $code in 124|137) [ $(( ${now%.*} - ${begun%.*} + 1 )) -lt "${limit%.*}" ] || late=1;; esac
# before the verdict: its reader ends this shell as soon as that is there
[ -z "$attestations" ] || printf '%s %s %s %s\n' "$head" "$tree" "$code" "$late${gates:+ $gates}" >> "$attestations"
printf '%s %s\n' "$code" "$late" > "$folder/verdict"
for pause in 0.01 0.02 0.04 end; do
  left= children=
  read -r children 2>/dev/null < "/proc/$$/task/$$/children"
  for child in $children; do
    read -r stat 2>/dev/null < "/proc/$child/stat" || continue
    case ${stat##*) } in Z*) ;; *) left=$child;; esac
  done
  [ "$left" ] || exit 0
  [ $pause = end ] || sleep $pause
done
exec sleep 86400
"""
"""Shell that runs the command and records its verdict. As a subreaper it becomes the parent of all orphans of the
command. While any are left it stays, so that the reader of the verdict finds and ends them; the sandbox's init may exit
a moment after the command, and its zombie does not count. A gate's wrapper also attests the commit that it found
checked out, for `garrison verify`, independently of the queue."""
MAX_NAMED = 5
"""Maximum number of files named in a verdict."""
TAIL_LINES = 30
"""Lines of the log recorded with a failure."""
PROXY_AFTER = 0.25
"""Seconds after which a running stage gets a proxy even without a connection: it may outlive its processor, and the
listener of a stage without a proxy ends with the processor. Shorter stages need none."""
UNSERVED = "unserved"
"""Content of a stage's file `proxy` if it has no proxy; else the file contains the proxy's pid and start ticks."""
LIMITS = {"setup": "GARRISON_SETUP_TIMEOUT", "gate": "GARRISON_GATE_TIMEOUT"}
"""Stage → environment variable of its time limit."""
CUT = "; its network had ended with the processor that started it"
_PID_TIMEOUT = 2.0
"""Seconds within which a started wrapper must write its pid."""
KILL_GRACE = 0.2
"""Seconds between TERM and KILL for what a run left behind."""


class GateVerdict(Value):
    """Result of a run, with exit code, a one-line reason, the log and its tail."""

    result: Result
    code: int
    reason: str
    tail: str
    log: Path
    note: str = ""
    """Part of the reason beyond how the command ended."""
    was_stopped: bool = False
    """Set if its time-out is void: it was stopped, or the machine suspended."""
    refused_hosts: tuple[str, ...] = ()
    """Hosts to which set-up or gate were denied access."""


class GateRun(msgspec.Struct):
    """One set-up (if due) and gate on the commit that `slot` shows, driven by `poll`."""

    slot: Slot
    config: QueueConfig
    folder: Path
    """Folder of this run, created by `start`."""
    log: Path
    marker: str
    environment: Mapping[str, str]
    home: Path
    """garrison's home, whose configuration defines the rights of set-up and gate."""
    held_back: Sequence[str] = ()
    """Names of withheld variables, to explain a command that is not found."""
    hang_timeout: float = msgspec.field(default_factory=lambda: Timing.read(os.environ).beat_timeout)
    """Seconds without any activity after which a stopped gate is ended."""
    setup_timeout: float = msgspec.field(default_factory=lambda: Timing.read(os.environ).setup_timeout)
    """Time limit of the set-up in seconds; default: the gate's."""
    limit_option: str = ""
    """Command-line option that set the time limits; '' if the environment or the queue did."""
    child: processes.Child | None = None
    target: str = ""
    """Commit of the target that supplies the files of `from_target`."""
    from_target: tuple[str, ...] = ()
    """Patterns of files that the gate sees in the target's version."""
    attestations: Path | None = None
    """File to which the gate's wrapper appends what it tested (`garrison.testing.checker.attestations`)."""
    gates: tuple[str, ...] = ()
    """Gates by path to run; () for the whole gate."""
    tree: str = ""
    """Tree of the commit according to the queue."""
    is_base: bool = False
    """Set if the commit is the target's: its set-up output may be shared by every worktree."""
    is_run_branch: bool = False
    """Set if the target is a run's own branch, which collects the agents' work before it is tested."""
    layer: SetupLayer | None = None
    """Set-up output mounted under the worktree."""
    refusal: str = ""
    """Why the worktree could not be prepared; then the verdict is red without a run."""
    proxy_after: float = PROXY_AFTER
    """Seconds after which a running stage always gets a proxy."""
    _adopted_at: float = 0.0
    _watch: JobWatch | None = None
    _lost_time: LostTime | None = None
    """Time lost by the running stage."""
    altered: str = ""
    """Changes by its commands that another branch's gate must not see (`Slot.find_altered`)."""
    network: NetworkPlace | None = None
    """Network of the running stage; None if an earlier processor started it, so that only its proxy serves it."""
    _begun: NamespaceInMaking | None = None
    """Namespace for the next stage."""
    _view: BegunView | None = None
    """Begun git view, if the next stage is the gate."""
    is_cut: bool = False
    """Set if the network of an adopted stage ended before the stage: its failure then proves nothing."""
    _is_closed: bool = False
    """Set if this process started the stage in a PID namespace, which no process can leave."""
    _serve_at: float = 0.0
    _is_served: bool = False

    @property
    def pidfd(self) -> int:
        """Return a descriptor that becomes readable when the running stage ends, -1 if none."""
        return self.child.pidfd if self.child else -1

    @property
    def stage_folder(self) -> Path | None:
        """Return the folder for the verdict of the running stage; None before the first stage."""
        stage = self._stage()
        return self.folder / stage if stage is not None else None

    @property
    def started_at(self) -> float:
        """Return the start time of its gate in seconds since 1970; 0 if unknown."""
        return modified_at(self.folder / "gate" / "pid")

    @property
    def setup_log(self) -> Path:
        return self.log.with_suffix(".setup.log")

    def _log_of(self, stage: str) -> Path:
        return self.setup_log if stage == "setup" else self.log

    # --- starting ---------------------------------------------------------------------------------------------------

    def start(self, commit: str, tree: str) -> None:
        """Prepare the slot for a commit with that tree, and start set-up or gate in a fresh folder."""
        self.tree = tree
        remove_folder(self.folder)  # otherwise an earlier run's verdict would be read as this one's
        for name in (REFUSED, REFUSED_PORTS, REFUSED_SERVICES):
            (self._costs / NETWORK_FOLDER / name).unlink(missing_ok=True)
        atomic.make_directory(self.log.parent)
        rights = self._rights("gate", self.environment)
        self._begun = network.begin_ahead(rights, mode_here(rights.mode))  # created while git checks the commit out
        try:
            self._prepare(commit)
        finally:
            if self._begun is not None:
                self._begun.close()
                self._begun = None

    def _prepare(self, commit: str) -> None:
        try:
            self.slot.prepare(commit, self.config.clean, self.config.keep, meanwhile=self._begin_view)
        except Refused as error:  # a submodule cannot be fetched: the commit's fault, since the target passed
            self._refuse(str(error))
            return
        self._restore_from_target(commit)
        if self._is_setup_due(commit):
            self.slot.begin_setup()
            self._start_stage("setup", self.config.setup or "", self.setup_log)
        else:
            self._start_stage("gate", self.config.gate_command, self.log)

    def _begin_view(self) -> None:
        rights = self._rights("gate", self.environment)
        if rights.mode is not Mode.NONE:
            with contextlib.suppress(GarrisonError, OSError):  # the gate's start reports why
                self._view = begin_view(self.slot.git, self.slot.path, rights, Role.GATE)

    def _limit(self, stage: str) -> float:
        """Return the time limit of a stage in seconds."""
        has_own = stage == "setup" and not self.limit_option and self.setup_timeout != Timing().setup_timeout
        return self.setup_timeout if has_own else self.config.timeout

    def _is_setup_due(self, commit: str) -> bool:
        """Mount kept set-up output under the worktree if possible; return whether set-up has to run."""
        command, slot = self.config.setup, self.slot
        checkout = self._checkout("setup")
        if checkout is None:
            key = slot.setup_due(command, self.config.lock_files)
            if key:
                atomic.make_directory(self.folder)
                atomic.write(self.folder / "setup_key", key.encode(), durable=False)
            return bool(key)
        store = setups.store_of(slot.path.parent)
        digest = "" if not command else setups.digest_of(
            worktree_files.setup_key(command, slot.path, self.config.lock_files)
            + image_key(self._rights("setup", self.environment), slot.git), command, slot.path,
            self.environment, checkout, store)
        target = "" if self.is_run_branch else self.target
        self.layer = slot.lay_setup(command, digest, commit, store, target)
        if not command or self.layer is not None:
            return False
        slot.clear_ignored()  # may be a leftover of another branch's gate
        is_of_target = self.is_base or bool(target and slot.git.is_ancestor(commit, target))
        made = SetupLayer("", digest, command, created=time.time(), commit=commit,
                          kept=is_of_target and not (self.folder / "from_target").exists())
        atomic.make_directory(self.folder)
        atomic.write(self.folder / "setup.json", setups.encode(made), durable=False)
        return True

    def _checkout(self, stage: str) -> Path | None:
        return find_checkout(self.slot.git, self._rights(stage, self.environment), self.environment)

    def _record_setup(self) -> None:
        """Record that set-up passed: its output is from now on mounted under the worktree, or stays in it."""
        begun = atomic.read(self.folder / "setup.json")
        if begun is None:
            self.slot.record_setup((self.folder / "setup_key").read_text())
            return
        layer = setups.decode(begun)
        store = setups.store_of(self.slot.path.parent)
        self.layer = self.slot.capture_setup(self.slot.sandbox / "setup/home",
                                             replace(layer, seconds=max(0.0, time.time() - layer.created)), store)
        setups.sweep(store, setups.read_limits(self.home))

    def _restore_from_target(self, commit: str) -> None:
        if not (self.target and self.from_target):
            return
        self._note_restored(self.slot.restore_from(self.target, commit, self.from_target))

    def _restore_after_setup(self) -> None:
        if self.target and self.from_target and not self.is_base:
            self._note_restored(self.slot.restore_after_setup(self.target, self.from_target, self.layer))

    def _note_restored(self, names: Sequence[str]) -> None:
        if names:
            known = (atomic.read(self.folder / "from_target") or b"").decode().splitlines()
            told = [name.encode(errors="backslashreplace").decode() for name in names]
            atomic.make_directory(self.folder)
            atomic.write(self.folder / "from_target", "\n".join(dict.fromkeys([*known, *told])).encode(), durable=False)

    def _describe_restored(self) -> str:
        """Return a note on the branch's changes that the gate did not see, '' for none."""
        names = (atomic.read(self.folder / "from_target") or b"").decode().splitlines()
        return f"tested with the target's {list_some(names, MAX_NAMED)}, which the branch changes" if names else ""

    def _refuse(self, why: str) -> None:
        self.refusal = why
        folder = atomic.make_directory(self.folder / "gate")
        self.log.write_text(f"{why}\n")
        atomic.write(folder / "verdict", b"1 0\n", durable=False)

    def _start_stage(self, stage: str, command: str, log: Path) -> None:
        folder = atomic.make_directory(self.folder / stage)
        self.slot.record_job(folder)  # before the start: a slot without a job can be acquired by the next run
        variables = {processes.MARKER: self.marker, "GARRISON_TREE": str(self.slot.path),
                     "GARRISON_SLOT": str(self.slot.number)}
        env = child_environment(self.environment, self.environment, {**services.variables(self.home), **variables})
        place = self._place(stage, command, env)
        self.network = self._open_network(stage, env, place)
        confined = confine(["/bin/sh", "-c", command], self.network.apply(env), self.network.open_in(place))
        is_attested = self.attestations is not None and stage == "gate" and bool(command)
        attestations = str(self.attestations) if is_attested else ""
        argv = ["/bin/sh", "-c", WRAPPER, "garrison-gate", str(folder), f"{self._limit(stage):g}", attestations,
                self.tree, ",".join(self.gates), *confined.argv]
        self.detach()
        self._is_closed = confined.mode is Mode.BUBBLEWRAP
        self.is_cut, self._is_served, self._serve_at = False, False, time.monotonic() + self.proxy_after
        self._lost_time = None
        # Before the start: a stage without this file counts as using no network, so after our death its failure would
        # be red, not lost.
        if self.network.client is not None:
            proxy = self.network.process
            (folder / "proxy").write_text(UNSERVED if proxy is None else f"{proxy.pid} {proxy.ticks}")
        # Detached, and it writes its own pid: if this processor ends, or is killed between the start and our record,
        # the next processor must still find the gate.
        self.child = processes.spawn(argv, env=confined.env, cwd=self.slot.path, log=log, subreaper=True)
        self.network.serve_until_end_of(self.child.id)
        services.use_until_end_of(self.slot.sandbox / services.FOLDER, self.child.id)

    def _open_network(self, stage: str, env: Mapping[str, str], place: Place | None) -> NetworkPlace:
        _, run, name, _ = parse_marker(self.marker) or ("", "", "gate", 0)
        folder = self._costs
        shared = self._service_user(run) if place is not None else None
        forwards = () if shared is None else services.provide(self.home, shared, env,
                                                              self._costs / NETWORK_FOLDER / REFUSED_SERVICES)
        user = NetworkUser(self.home, run, name, 1, folder, network.lowest_limits(self.home), forwards=forwards,
                           run_directory=None if run else self.folder.parent)
        opened = network.prepare(self._rights(stage, env), held_mode(place), env, user, begun=self._begun)
        opened.tend = partial(services.tend, self.home, shared, env) if shared is not None else None
        return opened

    def _service_user(self, run: str) -> ServiceUser | None:
        """Return this gate run as a user of services of its own; None if there are none."""
        if not read_config(self.home).services():
            return None
        folder, own = self.slot.sandbox / services.FOLDER, processes.probe(os.getpid())
        return ServiceUser(run or "queue", folder, folder, self.slot.path.parent / services.TEMPLATES,
                           process=own.id if own is not None else None)

    @property
    def _costs(self) -> Path:
        """Return the folder of its model costs, which is kept: they count against the run's budget."""
        _, run, name, number = parse_marker(self.marker) or ("", "", "gate", 0)
        return self.home / "usage" / costs.GATES / (run or "queue") / quote(name, safe=" ")[:200] / str(number)

    @property
    def serves_in(self) -> float | None:
        """Return the seconds until the running stage gets a proxy; None if it has or needs none."""
        if self.network is None or self.network.client is None or self._is_served:
            return None
        return max(0.0, self._serve_at - time.monotonic())

    def _keep_network(self, stage: str, *, at_once: bool = False, is_over: bool = False) -> None:
        """Give the stage a proxy once it has connected or run for long, unless it is over, and record the proxy."""
        if self.network is None or self.network.client is None:
            return
        is_due = at_once or (self.serves_in == 0.0 and not is_over)
        is_new = self.network.serve() if is_due else self.network.keep()
        self._is_served = self.network.process is not None
        if is_new and (proxy := self.network.process) is not None:
            atomic.write(self.folder / stage / "proxy", f"{proxy.pid} {proxy.ticks}".encode(), durable=False)

    def _notice_cut(self, stage: str) -> None:
        """Detect that the proxy of an adopted stage is gone, or that it never had one."""
        proxy = (atomic.read(self.folder / stage / "proxy") or b"").decode()
        if proxy:
            self.is_cut |= proxy == UNSERVED or not processes.is_running(*map(int, proxy.split()))

    def _rights(self, stage: str, env: Mapping[str, str]) -> Rights:
        """Return the rights of a stage; the stages are named like their roles."""
        return read_rights(self.home, Role(stage), environ=env)

    def _place(self, stage: str, command: str, env: Mapping[str, str]) -> Place | None:
        """Return the confinement of set-up or gate; None if not confined. Each starts with a fresh home that no earlier
        candidate has touched; the gate sees the set-up's home."""
        role, rights = Role(stage), self._rights(stage, env)
        begun, self._view = self._view if role is Role.GATE else None, None
        if rights.mode is Mode.NONE:
            return None
        rights = with_devcontainer(show_named_programs(rights, command), self.slot.git)
        private = self.slot.sandbox / stage
        untrusted.set_aside(self.slot.sandbox, stage)
        git = self.slot.git
        checkout = find_checkout(git, rights, env)
        layer = setups.layer_of(self.slot.path) if role is Role.GATE else None
        left = self.slot.sandbox / "setup/home" if layer is None else layer.home
        return Place(role, rights, self.slot.path, private,
                     git_mounts(git, self.slot.path, rights, role, checkout=checkout, begun=begun), checkout=checkout,
                     secret=(git.root, git.common),
                     under_home=(left,) if role is Role.GATE else (),
                     under_worktree=() if layer is None else (layer.tree,),
                     caches=read_config(self.home).setup().caches,
                     under_caches=None if layer is None else layer.caches)

    def adopt(self, now: float) -> bool:
        """Adopt the run that an earlier processor started in this folder; return False if there is none.

        `poll` waits for a wrapper that has the marker but has not written its pid yet.
        """
        stage = self._stage()
        if stage is None:
            return False
        process = read_pid(self.folder / stage)
        if (self.folder / stage / "verdict").exists():
            return True
        if process is None:
            self._adopted_at = now
            return bool(processes.find_marked(self.marker))
        pidfd = processes.open_verified(*process)
        if pidfd is None:
            # it has ended since the first check, maybe with a verdict
            return (self.folder / stage / "verdict").exists()
        self.child = processes.Child(*process, pidfd)
        return True

    # --- watching ---------------------------------------------------------------------------------------------------

    def poll(self, now: float) -> GateVerdict | None:
        """Return the verdict, None while set-up or gate runs; start the gate after a green set-up."""
        stage = self._stage()
        if stage is None:
            reason = describe_result("lost", self.config.gate or "", End(None), self.config.timeout)
            return GateVerdict("lost", UNKNOWN, reason, "", self.log)
        running = self._is_running(stage, now)  # before reading the verdict: a wrapper may write it and exit in between
        if running and self.network is None:
            self._notice_cut(stage)
        end = self._read_verdict(stage)
        if running and self.network is not None:
            self._keep_network(stage, is_over=end is not None)
        if end is None:
            if running and (hang := self._find_hang(stage, now)) is not None:
                return self._end_hung(stage, hang)
            return None if running else self._judge(stage, End(None), now)
        if stage == "setup" and end.code == 0:
            self.abandon(has_verdict=True)
            try:
                self._record_setup()
                self._restore_after_setup()
            except (GarrisonError, OSError) as error:  # its output cannot be read or kept
                log = self.setup_log
                result: Result = "lost" if machine.passes(error) else "red"
                return GateVerdict(result, 1, f"after the set-up: {error}", read_tail(log, TAIL_LINES), log)
            self._start_stage("gate", self.config.gate_command, self.log)
            return None
        return self._judge(stage, end, now)

    def _stage(self) -> str | None:
        return next((stage for stage in ("gate", "setup") if (self.folder / stage).is_dir()), None)

    def _is_running(self, stage: str, now: float) -> bool:
        """Return whether the stage's wrapper is alive; reap it if it was our child."""
        if self.child is None:
            process = read_pid(self.folder / stage)
            if process is None:
                # a wrapper writes its pid first: without one by then it was killed
                return now - self._adopted_at < _PID_TIMEOUT
            pidfd = processes.open_verified(*process)
            self.child = processes.Child(*process, -1 if pidfd is None else pidfd)
        processes.exit_code(self.child.pid)
        return processes.is_running(self.child.pid, self.child.ticks)

    def _find_hang(self, stage: str, now: float) -> Hang | None:
        """Apply the hang detection of agents: a stopped gate would block the queue until its timeout."""
        if self.child is None:
            return None
        if self._watch is None or self._watch.root != self.child.id:
            self._watch = JobWatch(self.child.id, self.marker, self.hang_timeout, limit=self._limit(stage),
                                   logs=[self._log_of(stage)])
        hang = self._watch.inspect(now)
        self._note_time(now, self._watch.is_stopped)
        return hang

    def _note_time(self, now: float, stopped: bool | None) -> None:
        if self._lost_time is None:
            self._lost_time = LostTime(self._limit(self._stage() or "gate"))
        # while the machine is suspended, the boot clock runs and the monotonic clock stands still
        suspended = time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)
        self._lost_time.note(now, suspended, stopped)

    def _describe_lost_time(self, end: End, now: float) -> str:
        """Return why a time-out is not a verdict, '' if it is one."""
        if not end.timed_out or self._lost_time is None:
            return ""
        self._note_time(now, None)
        if not self._lost_time.is_decisive:
            return ""
        return (f"it was stopped for about {self._lost_time.seconds:.0f} of its {self._lost_time.limit:g} s (SIGSTOP, "
                "or a suspended machine), so its time-out is not a verdict")

    def _end_hung(self, stage: str, hang: Hang) -> GateVerdict:
        """End a hung stage. It proves nothing about the tree, so it is repeated, like one ended by a signal."""
        self.abandon()
        log = self._log_of(stage)
        what, command = ("set-up", self.config.setup) if stage == "setup" else ("gate", self.config.gate)
        reason = f"the {what} {quote_command(command or '')} hung and was ended: {hang.why}"
        return GateVerdict("lost", UNKNOWN, reason, read_tail(log, TAIL_LINES), log, hang.why, was_stopped=True)

    def _read_verdict(self, stage: str) -> End | None:
        line = read_line(self.folder / stage / "verdict")
        if not line:
            return None
        code, timed_out = line.split()
        return End(int(code), timed_out == "1")

    def _judge(self, stage: str, end: End, now: float) -> GateVerdict:
        lost_time = self._describe_lost_time(end, now)
        # before reading the log: processes left by the stage may still write to it
        self.abandon(has_verdict=end.code is not None)
        is_disk_full = end.code != 0 and machine.is_full(self.slot.path)
        if is_disk_full:
            self.slot.empty()  # it may have filled the disk, and recording needs space
        log = self._log_of(stage)
        held_back = explain_missing_command(self.held_back, log, end)  # before the tail: this adds to the log
        tail = read_tail(log, TAIL_LINES)
        is_disk_full |= machine.reports_no_space(tail)
        command = (self.config.setup if stage == "setup" else self.config.gate) or ""
        hint = explain_missing_file(self._rights(stage, self.environment), f"sandbox.{stage}", end, tail,
                                    self.environment.get("PATH", os.defpath), command) + held_back
        hint += self._describe_refused_hosts() if end.code != 0 else ""
        # red is the branch's fault; lost (a full disk, a cut network, a killed wrapper) is repeated
        is_lost = lost_time or (end.code != 0 and (is_disk_full or self.is_cut)) or self._is_lost(end, tail)
        result: Result = "lost" if is_lost else classify(end, tail=tail, stage=stage)
        reason = describe_result(result, command, end, self._limit(stage), stage=stage,
                                 is_disk_full=is_disk_full)
        hint += f"; {self.limit_option or LIMITS[stage]} sets the limit" if end.timed_out and not lost_time else ""
        hint += CUT if end.code != 0 and self.is_cut else ""
        altered = f"it left {self.altered}, so its worktree is made again" if self.altered else ""
        restored = self._describe_restored()
        code = UNKNOWN if end.code is None else end.code
        more = list(filter(None, (lost_time, restored, altered)))
        note = "; ".join(filter(None, [hint.lstrip("; "), *more]))
        return GateVerdict(result, code, "; ".join(filter(None, [reason + hint, *more])), tail, log, note,
                           bool(lost_time), refused_hosts=tuple(host.place for host in self.refused_hosts))

    @property
    def refused_hosts(self) -> list[RefusedHost]:
        return [host for name in (REFUSED, REFUSED_PORTS, REFUSED_SERVICES)
                for host in read_refused(self._costs / NETWORK_FOLDER / name)]

    def _describe_refused_hosts(self) -> str:
        """Return the hosts denied to set-up and gate: a failed download is not the branch's fault."""
        refused = self.refused_hosts
        rights = self._rights("gate", self.environment)
        hint = describe_permission(refused, HostRights(config_path(self.home), rights.hosts, rights.host_ports))
        return "".join(f"; {host.describe()}" for host in refused[:MAX_NAMED]) + (f"; {hint}" if hint else "")

    def _is_lost(self, end: End, tail: str) -> bool:
        """Return whether the run proves nothing about the tree: it vanished, a signal ended it, or the machine lacked
        resources."""
        if end.kind in (EndKind.LOST, EndKind.SIGNAL):
            return True
        return end.code != 0 and machine.reports_shortage(tail)

    # --- ending -----------------------------------------------------------------------------------------------------

    def abandon(self, *, has_verdict: bool = False) -> None:
        """End all processes of the stage: its leftovers, or the stage itself if its verdict is no longer wanted."""
        child = self.child
        # no process leaves a PID namespace: after a verdict only descendants of the wrapper can be left
        process_control.kill_tree(processes.ProcessId(child.pid, child.ticks) if child else None, self.marker,
                                  grace=KILL_GRACE, is_closed=has_verdict and self._is_closed)
        if child:
            processes.exit_code(child.pid)
        self.altered = self.slot.find_altered() or self.altered
        if self.network is not None:
            self.network.close()
            self.network = None
        self.detach()

    def remove(self) -> None:
        """Remove the folder of an ended run, and its services; its logs are kept, shortened."""
        services.stop(self.slot.sandbox / services.FOLDER)
        remove_folder(self.folder)  # otherwise an earlier run's verdict would be read as this one's
        for log in (self.log, self.setup_log):
            log_retention.shorten_log(log)

    def leave(self) -> None:
        """Hand the running stage over to the next processor, with a proxy."""
        stage = self._stage()
        if stage is not None and self.child is not None and self._read_verdict(stage) is None:
            self._keep_network(stage, at_once=True)
        self.detach()

    def detach(self) -> None:
        """Close our handle on the running stage without ending it."""
        if self.child:
            self.child.close()
            self.child = None


def list_targets_files(git: Git, commit: str, patterns: Sequence[str]) -> str:
    """Return the matching files of a target's commit with their blob names; '' without patterns."""
    if not commit or not patterns:
        return ""
    # the empty tree in the repository's hash function
    nothing = git.run("mktree", text="").out.strip()
    specs = [f":(top,glob){pattern}" for pattern in patterns]
    return git.run("diff-tree", "-r", "-z", "--no-renames", "--no-abbrev", nothing, commit, "--", *specs).out


def gate_marker(home: Path, run: str, entry: str, number: int) -> str:
    return f"{home}:{run}:gate-{entry}#{number}"


def remove_folder(folder: Path) -> None:
    """Remove the folder of a gate run as far as possible; remains are harmless."""
    with contextlib.suppress(OSError, untrusted.UnsafeFile):
        untrusted.remove(folder.parent, folder.name)


# ---- attestations ----------------------------------------------------------------------------------------------------

# The file to which every wrapper appends what it tested, for `garrison verify`.
#
# The first line, `since TIME`, tells from when on every run attests. The others are `COMMIT TREE EXIT-CODE TIMED-OUT`,
# followed by `GATE,…` for gates by path: the commit that the wrapper found checked out, the tree that the queue
# intended, and how the gate ended. No decision uses them: they are a second witness, independent of the queue's
# journal.

ATTESTATIONS, FORMER = "attestations", "attestations.old"
"""Names of the current file and its predecessor in a queue's folder."""
LONGEST = 4 << 20
"""Size in bytes at which a new file is started, about 40,000 runs; only the last full one is kept."""


def open_attestations(folder: Path, now: str) -> Path:
    """Return the current file of a queue's folder, starting it at `now` (UTC) if necessary."""
    path = atomic.make_directory(folder) / ATTESTATIONS
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > LONGEST:
            path.replace(folder / FORMER)
    # O_EXCL: a pre-flight and a processor may start it at the same moment, and only one writes the first line
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, f"since {now}\n".encode())
        finally:
            os.close(descriptor)
    return path


def attestations_of(folder: Path) -> str:
    """Return the text of a queue's attestations, oldest first; '' if there are none."""
    texts = []
    for name in (FORMER, ATTESTATIONS):
        with contextlib.suppress(FileNotFoundError):
            texts.append((folder / name).read_text(encoding="utf-8", errors="replace"))
    return "".join(texts)
