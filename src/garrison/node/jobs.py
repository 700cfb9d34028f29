"""Jobs of a runner in its node's worktree, one at a time: set-up, acceptance, validation, a judge's command.

The result of each job is journaled as a fact. A job that was killed, hung, or found its disk full proves nothing about
the work: it is repeated a few times. No job starts while the disk is full.

Validation by an independent agent is a read-only session in its own worktree, detached at the finished branch. An
ACP agent gives its verdict through its own socket, or at the end of its last message. A validator that ends
without a verdict (its API refuses, it is silent, it cannot start) proves nothing about the work, either: it judges
again, in a fresh session; then the finished branch is held, and the user is asked about it (`HeldValidation`).
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import time
from contextlib import suppress
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from garrison.agents import prompt, registry
from garrison.agents.base import Assignment, PendingQuestion, Trouble, Work, WorkResult
from garrison.agents.channel import open_channel
from garrison.agents.channel_client import INSIDE, VARIABLE
from garrison.agents.conversation.files import AttemptFiles
from garrison.agents.failover import START
from garrison.agents.reports import ValidatorReports
from garrison.ends import End, EndKind
from garrison.errors import GarrisonError, Shortage
from garrison.node.agents_in_turn import AgentsInTurn
from garrison.node.places import git_variables, node_place, open_network
from garrison.node.worktree import remove_validator_worktree, validator_worktree
from garrison.processes.loop import log_line
from garrison.processes.spawn import worktree_environment
from garrison.records import atomic
from garrison.records.failover import FILE as FAILOVERS
from garrison.records.json_io import read_json, write_json
from garrison.sandbox import setups
from garrison.sandbox.collect import find_checkout
from garrison.sandbox.confine import confine
from garrison.sandbox.devcontainer import image_key
from garrison.sandbox.place import Mount, Role, sandbox_folder
from garrison.sandbox.probe import explain_missing_file, mode_here
from garrison.sandbox.rights import read_rights
from garrison.sandbox.setups import SetupLayer
from garrison.supervise.job_watch import JobWatch
from garrison.system import machine, untrusted
from garrison.system.clock import format_age
from garrison.system.command import Job, read_tail
from garrison.system.environment import explain_missing_command
from garrison.system.exit_info import describe_failure, quote_command
from garrison.system.processes import ProcessId
from garrison.system.worktree_files import setup_key
from garrison.values import Value, asdict, replace

if TYPE_CHECKING:
    from garrison.agents.channel import Channel
    from garrison.processes.runtime import Runtime
    from garrison.records.life_lock import LifeLock
    from garrison.records.run import Launch, Task
    from garrison.sandbox.network import NetworkPlace
    from garrison.supervise.incarnation import Incarnation
    from garrison.system.event_loop import EventLoop
    from garrison.system.git import Git

SETUP, ACCEPTANCE, VALIDATOR, JUDGE = "setup", "acceptance", "validator", "judge"
_ROLES = {SETUP: Role.SETUP, ACCEPTANCE: Role.ACCEPTANCE, JUDGE: Role.ACCEPTANCE}

_BEFORE = "setup-before.json"
"""File of a worktree's sandbox folder that lists the untracked files before its set-up."""
_SETUP_WAIT = 0.2
"""Seconds between two polls of a set-up that another process runs."""
UNDECIDED = "undecided.json"
"""File of a validation that has ended without a verdict."""
MAX_UNDECIDED = 2
"""Sessions of a validator that end without a verdict before the user is asked."""
AGAIN, LAND = "again", "land"
"""Answers to that question; any other names the agent that validates instead."""
MAX_INCONCLUSIVE = 5
"""Times in a row that a job may be killed or find its disk full before that counts as its result."""


_NO_ROOM = "had no room for its processes on this machine"


class JobFact(NamedTuple):
    """Result of a job: `ok`, or the reason of its failure."""

    name: str
    value: str
    end: End = End(None)
    """How a command that failed ended."""
    said: str = ""
    """Why a validator refused the work, in its own words; the number that a judge's command printed."""


class Undecided(Value):
    """Ends of a validation without a verdict."""

    sessions: int = 0
    """Consecutive sessions without a verdict."""
    reason: str = ""
    """Why the last one ended without a verdict."""
    agent: str = ""
    """Agent that the user has chosen to validate instead, '' for the node's own."""

    @classmethod
    def read(cls, validation: Path) -> Undecided:
        """Read the record in a validation's folder."""
        return cls(**(read_json(validation / UNDECIDED) or {}))

    def write(self, validation: Path) -> None:
        """Write it durably."""
        write_json(validation / UNDECIDED, asdict(self))


class RunnerJobs:
    """Runs one job at a time; `name` is the running job's, '' if there is none."""

    def __init__(self, runtime: Runtime, incarnation: Incarnation, launch: Launch, task: Task, git: Git,
                 worktree: Path) -> None:
        self.runtime, self.incarnation, self.launch, self.task = runtime, incarnation, launch, task
        self.git, self.worktree = git, worktree
        self.folder = runtime.files(launch.run_id).attempt(task.node, task.attempt)
        self.name = ""
        self._job: _AnyJob | None = None
        self._network: NetworkPlace | None = None
        self._watch: JobWatch | None = None
        self._hung = ""
        """Why the running job is being ended as hung."""
        self._inconclusive = 0
        self._retry_at = 0.0
        """When a job may start that had no room on the machine, in monotonic seconds."""

    def command(self, name: str) -> str:
        """Return the command of a job: a shell line, or the validator's agent; '' if the node has no such job."""
        if name == VALIDATOR:
            return registry.validator_agent(self.task.attributes)
        return {SETUP: self.task.setup, ACCEPTANCE: self.task.acceptance, JUDGE: self.task.judge}[name] or ""

    def require_room(self, now: float) -> None:
        """Raise if a job started now would fail only because the disk is full or the machine lacks room."""
        machine.require_space(self.worktree)
        machine.require_room(machine.MIN_FOR_WORK)
        if now < self._retry_at:
            raise Shortage(f"the last try {_NO_ROOM}")

    def start(self, name: str, branch: str, now: float) -> None:
        """Start a job; a validator judges `branch`."""
        self._watch, self._hung = None, ""
        if name == VALIDATOR and Undecided.read(self.folder / VALIDATOR).sessions >= MAX_UNDECIDED:
            self.begin(name, HeldValidation(self))
        elif name == VALIDATOR:
            job = ValidatorJob(self.runtime, self.incarnation, self.launch, self.task, self.git, self.worktree, branch,
                               now)
            self._network = job.network
            self.begin(name, job)
        elif name == SETUP and (checkout := self._checkout()) is not None:
            self.begin(name, SetupJob(self, checkout, now))
        else:
            self.begin(name, self.start_command(name, now))  # retried if it cannot be started

    def begin(self, name: str, job: _AnyJob) -> None:
        """Adopt a started job as the running one."""
        self.name, self._job = name, job

    def _checkout(self) -> Path | None:
        """Return the worktree's path in a set-up's sandbox; None where no layer can be mounted under it."""
        rights = read_rights(self.runtime.home, Role.SETUP, "", self.runtime.environ)
        return find_checkout(self.git, rights, self.runtime.environ)

    @property
    def environment(self) -> dict[str, str]:
        return worktree_environment(self.runtime, self.launch, self.task, self.worktree, self.incarnation.marker)

    def start_command(self, name: str, now: float) -> Job:
        """Start the command of a job in its place."""
        timing = self.runtime.timing
        env = self.environment
        place = node_place(self.runtime, self.launch, self.task, self.worktree, _ROLES[name])
        self._network = open_network(self.runtime, self.task, _ROLES[name], self.folder, env, place=place)
        command, begins = self.command(name), self.worktree
        if name in (ACCEPTANCE, JUDGE) and self.task.subfolder:
            if untrusted.is_folder(self.worktree, self.task.subfolder):
                begins /= self.task.subfolder
            else:
                place = None if place is None else replace(place, subfolder="")
                command = f"echo {shlex.quote(f'{self.task.subfolder} is not a folder of the branch')} >&2; exit 1"
        confined = confine(["/bin/sh", "-c", command], self._network.apply(env), self._network.open_in(place))
        return Job.start(confined.argv, env=confined.env, cwd=begins, log=self.log(name), now=now,
                         timeout_s=timing.setup_timeout if name == SETUP else timing.acceptance_timeout)

    def poll(self, now: float) -> JobFact | None:
        """Return the job's result once it has ended; None while it runs, and if it must be repeated."""
        if self._network is not None:
            self._network.keep()
        result = self._job.poll(now) if self._job else None
        if result is None:
            self._end_if_hung(now)
            return None
        name, job = self.name, self._job
        self.name, self._job = "", None
        self._close_network()
        if isinstance(job, ValidatorJob) and job.handed_over:
            self._inconclusive = 0
            log_line(job.handed_over)
            return None  # it is started again, with the next agent
        why, lacked_room = ("", False) if result.ok else self._why_inconclusive(name, result)
        self._inconclusive = self._inconclusive + 1 if why else 0
        if lacked_room:
            self._retry_at = now + machine.retry_pause(self._inconclusive)
        if 0 < self._inconclusive < MAX_INCONCLUSIVE:
            log_line(f"{name} {why}, which proves nothing about the work; repeating it")
            return None
        if result.ok:
            return self._read_score() if name == JUDGE else JobFact(name, "ok")
        return self._conclude(name, job, result, why)

    def _read_score(self) -> JobFact:
        """Return the fact of a judge's command that succeeded: the number in the last line of its output."""
        last = next((line.strip() for line in reversed(read_tail(self.log(JUDGE), 5).splitlines()) if line.strip()), "")
        with suppress(ValueError):
            if isfinite(float(last)):
                return JobFact(JUDGE, "ok", said=repr(float(last)))
        return JobFact(JUDGE, f"{self._describe(JUDGE)} should print a number last, but its last line is {last!r:.60}")

    def _conclude(self, name: str, job: _AnyJob | None, result: End, why: str) -> JobFact | None:
        """Return the fact of a job that has failed; None if a validation restarts."""
        if isinstance(job, ValidatorJob) and not job.has_verdict and (self._hung or not job.is_stopping):
            return self._end_without_verdict(job, why or job.reason)
        if isinstance(job, HeldValidation):
            return None  # the user wants another validation, or the runner stops
        if self._hung:
            return JobFact(name, f"{self._describe(name)} {self._hung}")
        if isinstance(job, ValidatorJob):
            said = job.reason or "it gave no reason"
            return JobFact(name, f"the validator {job.agent} refused it: {said}", said=said)
        return JobFact(name, self._describe_failure(name, result), result)

    def _end_without_verdict(self, job: ValidatorJob, reason: str) -> JobFact | None:
        """Repeat a validation in a fresh session, or ask the user; the work has failed if no user can be asked."""
        before = Undecided.read(job.folder)
        undecided = replace(before, sessions=before.sessions + 1, reason=reason or "it gave no reason")
        job.set_session_aside(undecided.sessions)
        undecided.write(job.folder)
        self._inconclusive = 0
        log_line(f"the validator {job.agent} gave no verdict: {undecided.reason}")
        if undecided.sessions >= MAX_UNDECIDED and self.launch.adhoc:
            return JobFact(VALIDATOR, f"the validator {job.agent} could not judge it: {undecided.reason}")
        return None

    def _close_network(self) -> None:
        if self._network is not None:
            self._network.close()
            self._network = None

    def _end_if_hung(self, now: float) -> None:
        """End a job that hangs by the rules for agents; `poll` then repeats it."""
        job = self._job
        if job is None or not job.pid or self.question is not None:
            self._watch = None
            return
        root = ProcessId(job.pid, job.ticks)
        if self._watch is None or self._watch.root != root:
            log = job.log if isinstance(job, ValidatorJob) else self.log(self.name)
            self._watch = JobWatch(root, self.incarnation.marker, self.runtime.timing.beat_timeout,
                                   silence=self._silence, logs=[log])
        if not self._hung and (hang := self._watch.inspect(now)) is not None:
            self._hung = f"hung: {hang.why}"
            job.kill(now)

    @property
    def _silence(self) -> float | None:
        """Return the seconds of silence after which the running job hangs. A validator's session ends its own silence
        (`stale`), and knows which tools are at work in it."""
        return None if isinstance(self._job, ValidatorJob) else self.task.silence_s

    def _why_inconclusive(self, name: str, result: End) -> tuple[str, bool]:
        """Return why the job's end proves nothing about the work, '' if it does, and whether the machine lacked room
        for it."""
        if self._hung:
            return self._hung, False
        if result.kind is EndKind.SIGNAL:
            return "was ended by a signal", False
        tail = read_tail(self.log(name), 12)
        if machine.is_full(self.worktree) or machine.reports_no_space(tail):
            return "had no space left on its disk", False
        lacked_room = machine.reports_shortage(tail) or bool(machine.find_shortage(1))
        return _NO_ROOM if lacked_room else "", lacked_room

    def _describe(self, name: str) -> str:
        return f"{'set-up' if name == SETUP else name} {quote_command(self.command(name))}"

    def _describe_failure(self, name: str, result: End) -> str:
        what = self._describe(name)
        hint = explain_missing_command(self.launch.held_back, self.log(name), result)
        tail, role = read_tail(self.log(name), 12), _ROLES[name]
        rights = read_rights(self.runtime.home, role, "", self.runtime.environ)
        hint = explain_missing_file(rights, f"sandbox.{role}", result, tail, self.launch.path or os.defpath,
                                    self.command(name)) + hint
        limit = SETUP if name == SETUP else ACCEPTANCE
        hint += f"; GARRISON_{limit.upper()}_TIMEOUT sets the limit" if result.timed_out else ""
        return describe_failure(what, result, tail, hint=hint)

    def log(self, name: str) -> Path:
        return atomic.make_directory(self.folder) / f"{name}.log"

    def kill(self, now: float) -> None:
        """Stop the job; keep calling `poll` until it has ended."""
        if self._job is not None:
            self._job.kill(now)

    def watch(self, event_loop: EventLoop) -> None:
        """Wake when the job ends; a validation that waits has no process."""
        if self._job is not None and self._job.pid:
            event_loop.watch_process(self._job.pid, self._job.ticks)
        if self._network is not None:
            self._network.watch(event_loop)
        if isinstance(self._job, ValidatorJob) and self._job.channel is not None:
            event_loop.watch_descriptor(self._job.channel.fileno())

    @property
    def wake_at(self) -> float | None:
        """Return when `poll` is due, in monotonic seconds."""
        if self._job is None:
            return None
        due = [self._job.wake_at, self._watch.due if self._watch is not None else None]
        return min((at for at in due if at is not None), default=None)

    @property
    def question(self) -> PendingQuestion | None:
        return self._job.question if isinstance(self._job, (ValidatorJob, HeldValidation)) else None

    def answer(self, question_id: str, text: str) -> None:
        """Pass an answer to the validator, if it asked that question."""
        question = self.question
        if question is not None and question.id == question_id and \
                isinstance(self._job, (ValidatorJob, HeldValidation)):
            self._job.answer(question_id, text)


class SetupJob:
    """Set-up of a node's worktree where a layer can be laid under it; has the interface of `system.command.Job`.

    A kept layer is used; one that another process is making is waited for; else the set-up runs here, and its layer is
    kept if it ran over a commit of the target in which no agent had worked.
    """

    def __init__(self, jobs: RunnerJobs, checkout: Path, now: float) -> None:
        self._jobs, self._started = jobs, now
        self._git, self._worktree, self._command = jobs.git, jobs.worktree, jobs.command(SETUP)
        self._store = setups.store_of(self._worktree.parent.parent)
        key = setup_key(self._command, self._worktree, jobs.launch.lock_files)
        rights = read_rights(jobs.runtime.home, Role.SETUP, "", jobs.runtime.environ)
        key += image_key(rights, jobs.git)
        self._digest = setups.digest_of(key, self._command, self._worktree, jobs.environment, checkout, self._store)
        self._lock: LifeLock | None = None
        self._job: Job | None = None
        self._before: list[str] = []
        self._is_stopping = self._is_told = False

    @property
    def pid(self) -> int:
        """Return the command's pid, 0 while there is none."""
        return self._job.pid if self._job is not None else 0

    @property
    def ticks(self) -> int:
        """Return the command's start ticks."""
        return self._job.ticks if self._job is not None else 0

    @property
    def wake_at(self) -> float | None:
        """Return when `poll` is due, in monotonic seconds."""
        return self._started if self._job is None else self._job.wake_at

    def kill(self, now: float | None = None) -> None:
        """End it."""
        self._is_stopping = True
        if self._job is not None:
            self._job.kill(now)

    def poll(self, now: float) -> End | None:
        """Do one step; return the result once the layer is mounted under the worktree, or the command has failed."""
        if self._job is not None:
            return self._finish(self._job.poll(now))
        if self._is_stopping:
            return self._end(End(-signal.SIGTERM))
        own = setups.layer_of(self._worktree)
        if own is not None and own.digest == self._digest and not own.kept:
            return self._end(End(0))
        kept = setups.find_kept(self._store, self._digest)
        if kept is not None and self._use(kept):
            self._tell(f"set-up: kept from {format_age(time.time() - kept.created)} ago")
            return self._end(End(0))
        self._lock = self._lock or setups.lock_of(self._store, self._digest)
        if self._lock is None:
            self._started = now + _SETUP_WAIT
            if not self._is_told:
                self._tell("set-up: waiting for the same set-up, which runs now in another worktree")
            self._is_told = True
            return None
        setups.take_away(self._worktree)
        self._remember_before()
        self._job = self._jobs.start_command(SETUP, now)
        return None

    def _use(self, kept: SetupLayer) -> bool:
        own = setups.layer_of(self._worktree)
        if own is not None and own.folder != kept.folder:
            setups.take_away(self._worktree)
        return setups.lay(self._worktree, kept, self._store)

    def _remember_before(self) -> None:
        """Record what is untracked before the command runs; remove what a killed set-up had made."""
        path = atomic.make_directory(sandbox_folder(self._worktree)) / _BEFORE
        now = setups.list_untracked(self._git, self._worktree)
        known = atomic.read(path)
        if known is not None:
            self._before = json.loads(known)
            untrusted.remove_below(self._worktree, [name for name in now if name not in self._before])
        else:
            self._before = now
            atomic.write(path, json.dumps(now).encode())

    def _remove_made(self) -> None:
        """Remove what the command left in its worktree and home."""
        made = [name for name in setups.list_untracked(self._git, self._worktree) if name not in self._before]
        untrusted.remove_below(self._worktree, made)
        untrusted.remove(sandbox_folder(self._worktree), Role.SETUP)

    def _finish(self, result: End | None) -> End | None:
        if result is None:
            return None
        if not result.ok:
            if machine.is_full(self._worktree):
                self._remove_made()  # it may have filled the disk itself: nothing restarts before there is room
            return self._end(result)
        head = self._git.head(self._worktree) or ""
        layer = SetupLayer("", self._digest, self._command, seconds=result.seconds, kept=self._may_keep(head),
                           commit=head)
        try:
            done = setups.capture(self._git, self._worktree, sandbox_folder(self._worktree) / Role.SETUP / "home",
                                  self._before, layer, self._store)
        except GarrisonError as error:
            self._tell(str(error))
            return self._end(End(1, False, result.seconds))
        (sandbox_folder(self._worktree) / _BEFORE).unlink(missing_ok=True)
        if done.changed:
            named = ", ".join(done.changed[:5]) + (" …" if len(done.changed) > 5 else "")
            self._tell(f"set-up: it changed tracked files, which were put back: {named}")
        setups.sweep(self._store, setups.read_limits(self._jobs.runtime.home))
        return self._end(result)

    def _may_keep(self, head: str) -> bool:
        """Return whether other worktrees may use its output: nothing in it comes from an agent."""
        jobs, git = self._jobs, self._git
        targets = filter(None, [jobs.launch.base_oid, git.rev(jobs.launch.base_ref)])
        is_untouched = jobs.task.attempt == 1 and not (jobs.folder / "prompt.md").exists()
        return is_untouched and bool(head) and any(git.is_ancestor(head, target) for target in targets)

    def _end(self, result: End) -> End:
        if self._lock is not None:
            self._lock.release()
            self._lock = None
        return result

    def _tell(self, line: str) -> None:
        log_line(line)
        with self._jobs.log(SETUP).open("a") as file:
            file.write(f"{line}\n")


class Unstarted(Work):
    """A validator that could not be started."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def poll(self, now: float) -> WorkResult:
        del now
        return WorkResult("fail", self._reason)

    def stop(self, now: float) -> None:
        """Do nothing."""

    def process(self) -> None:
        """Return no process."""

    def wake_at(self) -> float | None:
        return 0.0

    @property
    def trouble(self) -> Trouble:
        return Trouble(START, self._reason, given_up=True)


class ValidatorJob:
    """One validation; has the interface of `system.command.Job`."""

    def __init__(self, runtime: Runtime, incarnation: Incarnation, launch: Launch, task: Task, git: Git,
                 node_worktree: Path, branch: str, now: float) -> None:
        self.started, self.reason, self.is_stopping = now, "", False
        self.handed_over = ""
        """How another agent continues, once this one has ended for it; '' if none does."""
        self.git, self.node_worktree, self.task = git, node_worktree, task
        folder = atomic.make_directory(runtime.files(launch.run_id).attempt(task.node, task.attempt) / VALIDATOR)
        self.folder = folder
        # The validator does not get the context of the agent that did the work.
        validator = Undecided.read(folder).agent or registry.validator_agent(task.attributes)
        judged = replace(task, agent=validator, preamble="", continues="", ways=[])
        self.agents = AgentsInTurn(runtime, incarnation, judged, folder,
                                    lambda name: registry.can_validate(name, runtime.home))
        judged = self.agents.begin(is_first=not (folder / "prompt.md").exists())
        self.agent = agent = judged.agent
        worktree = validator_worktree(node_worktree)
        head = git.branch_tip(branch) or launch.base_oid
        # An earlier incarnation's may be at another commit.
        remove_validator_worktree(git, node_worktree, task, keeps_home=True)
        git.add_worktree(worktree, None, head)
        environment = worktree_environment(runtime, launch, task, worktree, incarnation.marker)
        environment |= git_variables(runtime, git, worktree, agent)
        has_socket = registry.find_profile(agent, runtime.home).gives_verdict_by_socket
        self.channel = self._open_channel(folder) if has_socket else None
        if self.channel is not None:
            environment[VARIABLE] = str(self.channel.path)
        rights = read_rights(runtime.home, Role.VALIDATOR, agent, runtime.environ)
        can_run = mode_here(rights.mode).mounts
        assignment = Assignment(judged, worktree, folder, environment, incarnation.number, can_run=can_run,
                                programs=tuple(launch.programs))
        from garrison.node.briefing import read_judgement  # here: few runners ever validate

        judgement = read_judgement(runtime, launch, task, git, head, assignment.diff_file, can_run=can_run)
        assignment.write_prompt(prompt.validation(judged, judgement))
        socket = (Mount(self.channel.path, Path(INSIDE)),) if self.channel is not None else ()
        place = node_place(runtime, launch, task, worktree, Role.VALIDATOR, agent=agent, turn=self.agents.turn,
                           mounts=(*assignment.mounts(), *socket))
        self.network = open_network(runtime, task, Role.VALIDATOR, folder, environment, agent=agent, place=place)
        assignment = replace(assignment, environment=self.network.apply(environment),
                             network_variables=self.network.names, place=self.network.open_in(place),
                             account=self.network.account)
        self.log = assignment.output
        try:
            self.work: Work = registry.agent(agent, runtime.home, VALIDATOR).start(assignment, now)
        except GarrisonError as error:
            self.work = Unstarted(str(error))
            if machine.is_shortage(error):
                self._close()
                raise  # the loop tries again

    def _open_channel(self, folder: Path) -> Channel | None:
        """Open the socket for the verdict; None, and a line in the log, on a file system without sockets."""
        def process() -> tuple[ProcessId, ...]:
            return (ProcessId(self.pid, self.ticks),) if self.pid else ()

        try:
            return open_channel(folder / "agent.sock", process, ValidatorReports(folder).handle, log_line)
        except OSError as error:
            log_line(f"the validator has no socket, only its last message: {error.strerror}: {folder}")
            return None

    def _close(self) -> None:
        if self.channel is not None:
            self.channel.close()
        self.network.close()

    @property
    def has_verdict(self) -> bool:
        return (self.folder / "claude" / "report.json").exists()

    def set_session_aside(self, number: int) -> None:
        """Let the next validation start its own session; this one's ending stays for inspection."""
        files = AttemptFiles(self.folder)
        if files.endings.exists():
            files.endings.rename(files.folder / f"endings-{number}.jsonl")
        for path in (files.session, files.question, files.answer, files.lifted, files.waiting):
            path.unlink(missing_ok=True)

    def _hand_over(self, outcome: WorkResult | None) -> bool:
        """Record that the next agent judges if this one cannot and has no process left; return whether one does."""
        trouble = self.work.trouble
        if trouble is None or self.is_stopping or (outcome is not None and outcome.status == "success"):
            return False
        failover = self.agents.choose(trouble)
        if failover is None:
            return False
        self.agents.record(failover)
        self.handed_over = f"the validator {failover.describe()}"
        return True

    @property
    def pid(self) -> int:
        """Return the process to watch, 0 if the session waits without one."""
        return (self.work.process() or (0, 0))[0]

    @property
    def ticks(self) -> int:
        """Return the process's start ticks."""
        return (self.work.process() or (0, 0))[1]

    @property
    def wake_at(self) -> float | None:
        """Return when `poll` is due, in monotonic seconds."""
        due = (self.work.wake_at(), self.agents.wake_at(),
               self.channel.wake_at() if self.channel is not None else None)
        return min((at for at in due if at is not None), default=None)

    @property
    def question(self) -> PendingQuestion | None:
        return self.work.question

    def answer(self, question_id: str, text: str) -> None:
        """Pass the user's answer on."""
        self.work.answer(question_id, text)

    def kill(self, now: float | None = None) -> None:
        """End the session; the next validation continues it."""
        self.is_stopping = True
        self.work.stop(self.started if now is None else now)

    def poll(self, now: float) -> End | None:
        """Return the result once there is a verdict, or none is possible."""
        if self.channel is not None:
            self.channel.poll(now)
        outcome = self.work.poll(now)
        is_handed_over = self._hand_over(outcome)
        if outcome is None and not is_handed_over:
            return None
        if self.channel is not None:
            self.channel.close()
        if outcome is None:
            outcome = WorkResult("fail", self.handed_over)
        remove_validator_worktree(self.git, self.node_worktree, self.task,
                                  keeps_home=outcome.killed or self.is_stopping or is_handed_over)
        self.reason = outcome.reason
        code = 0 if outcome.status == "success" else -signal.SIGKILL if outcome.killed else 1
        return End(code, False, now - self.started)


class HeldValidation:
    """A finished branch that its validator could not judge, until the user decides; has the interface of
    `ValidatorJob`."""

    pid = ticks = 0
    wake_at: float | None = None

    def __init__(self, jobs: RunnerJobs) -> None:
        self._jobs, self._folder = jobs, jobs.folder / VALIDATOR
        self._undecided = Undecided.read(self._folder)
        self._answer, self._refused, self._is_stopping = "", 0, False

    @property
    def question(self) -> PendingQuestion | None:
        """Return the question to the person in charge."""
        if self._answer:
            return None
        agent, known = self._undecided.agent or self._jobs.command(VALIDATOR), self._undecided
        how = f"answer `{AGAIN}`, `{LAND}` (without a verdict), or the name of another agent that can validate"
        return PendingQuestion(f"undecided-{known.sessions}-{self._refused}",
                        f"the validator {agent} could not judge the finished branch, which is held: {known.reason} "
                        f"({known.sessions} sessions); {how}")

    def answer(self, _question_id: str, text: str) -> None:
        """Accept the user's decision; after anything else the question is asked again."""
        word = text.strip().strip("`")
        if word.lower() in (AGAIN, LAND):
            self._answer = word.lower()
        elif registry.can_validate(word, self._jobs.runtime.home):
            self._answer = word
            (self._folder / FAILOVERS).unlink(missing_ok=True)
        else:
            self._refused += 1
            return
        agent = self._undecided.agent if self._answer in (AGAIN, LAND) else self._answer
        Undecided(0, "", agent).write(self._folder)

    def kill(self, _now: float | None = None) -> None:
        """End the wait; the next runner asks again."""
        self._is_stopping = True

    def poll(self, _now: float) -> End | None:
        """Return the result once the user has decided: passed if the work lands without a verdict."""
        if not self._answer and not self._is_stopping:
            return None
        if self._answer == LAND:
            log_line("it lands without a verdict, as the user decided")
        return End(0 if self._answer == LAND else 1, False, 0.0)


_AnyJob = Job | SetupJob | ValidatorJob | HeldValidation
