"""Orchestrator process: runs one attempt's agent in a terminal session, records its progress, writes its result.

It outlives its runner. It prints the agent's output for the user to watch, and keeps it in output.log. The result is
stamped with run, node, attempt and incarnation, and fenced. An orchestrator that ends without a result counts as dead:
its runner starts a successor, whose prompt contains the hook's notes (`_begin`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from garrison.agents.base import Assignment, PendingQuestion, Trouble, WorkResult
from garrison.agents.channel import Channel, open_channel
from garrison.agents.channel_client import INSIDE, VARIABLE
from garrison.agents.failover import START, find_trouble
from garrison.agents.registry import agent, excluded_by
from garrison.agents.reports import NOTES, AgentReports
from garrison.config import GuardHooks
from garrison.ends import Departure, End, Refusal, RefusalKind, RefusedBy, to_fields
from garrison.errors import GarrisonError, Hindered, Refused
from garrison.merge.target import describe_moved
from garrison.node.agents_in_turn import AgentsInTurn
from garrison.node.briefing import Briefer
from garrison.node.commit_hooks import HookJob, find_hooks
from garrison.node.places import begin_network, git_variables, node_place, open_network, read_hooks_mode
from garrison.node.worktree import (
    adopt_commits,
    collect_commits,
    is_hindered,
    restore_committed_output,
    undo_foreign_move,
)
from garrison.processes.loop import exit_gracefully, fingerprint_of, log_line
from garrison.processes.spawn import close_sessions
from garrison.records import atomic, log_retention, record, signals
from garrison.records import hook as hooks
from garrison.records import run as run_records
from garrison.records.atomic import digest_of
from garrison.records.identity import KEYBOARD, Identity
from garrison.records.json_io import append_line, read_lines
from garrison.records.run import Result
from garrison.records.signals import (
    InputResponse,
    NeedsInput,
    Signal,
    describe_own,
    find_objection,
    is_own,
    parse,
)
from garrison.sandbox import setups
from garrison.sandbox.git_view import GitView, give_back
from garrison.sandbox.place import Mount, Role
from garrison.sandbox.probe import explain_missing_file
from garrison.sandbox.rights import read_rights
from garrison.supervise.death_classes import FAILOVER, MEMORY, SHORTAGE
from garrison.supervise.incarnation import require_unfenced
from garrison.system import failpoint, machine, process_control, untrusted
from garrison.system.command import read_tail
from garrison.system.environment import explain_missing_command
from garrison.system.exit_info import cgroup_of, describe_end, oom_counter, oom_kills
from garrison.system.git import Git
from garrison.system.git.bounds import Excess
from garrison.system.git.commits import write_excludes
from garrison.system.processes import probe
from garrison.system.terminal_choice import choose_terminal
from garrison.system.terminal_text import clean_lines
from garrison.values import replace

if TYPE_CHECKING:
    from collections.abc import Callable

    from garrison.agents.base import Work
    from garrison.agents.briefing import WorkState
    from garrison.processes.loop import Fingerprint
    from garrison.processes.runtime import Runtime
    from garrison.records.run import Launch, Task
    from garrison.sandbox.network import NamespaceInMaking, NetworkPlace
    from garrison.supervise.incarnation import Incarnation
    from garrison.system.event_loop import EventLoop

MAX_SUBJECT = 72
"""Characters of a commit's subject line."""

MAX_SHOWN = 8 << 20
"""Bytes of output that are printed in one turn, and after which the logs are bounded."""
POLL_WITH_OUTPUT = 0.25
"""Seconds between two turns while there is output for the user to follow."""


def lacked_room(outcome: WorkResult, output: str, lack: str) -> bool:
    """Return whether the machine lacked room for a failed agent, by its last output. Pure.

    `lack` is what the machine lacks now, '' for nothing. Without it an agent's reported failure is believed: its
    output may be about such a lack, as in a test of descriptors.
    """
    is_told = outcome.status != "success" and machine.reports_shortage(output)
    return is_told and (bool(lack) or not outcome.report.get("status"))


class Orchestrator:
    """One incarnation of a node's orchestrator."""

    is_event_driven = True

    def __init__(self, runtime: Runtime, incarnation: Incarnation, launch: Launch, task: Task) -> None:
        self.runtime, self.incarnation, self.launch = runtime, incarnation, launch
        assert incarnation.identity.worktree is not None
        self.worktree = Path(incarnation.identity.worktree)
        self.git = Git(Path(launch.repo), home=runtime.home)
        folder = atomic.make_directory(runtime.files(launch.run_id).attempt(task.node, task.attempt))
        self.agents = self._make_agents(task, folder)
        self.task = task = self.agents.begin(is_first=not (folder / "prompt.md").exists())
        self.hook = incarnation.read_hook()
        self.reports = AgentReports(folder, can_ask=not launch.adhoc)
        self.channel = self._open_channel(folder)
        environment = self._make_environment()
        if self.channel is not None:
            environment[VARIABLE] = str(self.channel.path)
        self.assignment = Assignment(task, self.worktree, folder, environment, incarnation.number,
                                     attempts=folder.parent.parent, lends_terminal=True,
                                     programs=tuple(launch.programs), reports=self.reports)
        environment["GARRISON_SIGNALS_FILE"] = str(self.assignment.signals_file)
        self.mailbox = Mailbox(runtime, incarnation, launch)
        self.work: Work | None = None
        self.network: NetworkPlace | None = None
        """Network of the agent's processes, from their start."""
        self._begun: NamespaceInMaking | None = None
        """Namespace for the agent that is about to start."""
        self.stopping = False
        self.exit_code: int | None = None
        self._is_hangup = False
        self._worktree_gone = False
        self._lacked_space = False
        """Set if the disk of its worktree or of its output was full when the agent ended."""
        self._reaper = os.getppid()
        self._oom_counter = oom_counter(cgroup_of(os.getpid()))
        self._oom_kills = oom_kills(self._oom_counter) or 0
        self._reflogs = [self.git.git_dir(self.worktree) / "logs" / "HEAD", GitView(self.git, self.worktree).reflog]
        self._progress_stamp: Fingerprint | None = None
        self._named: tuple[str, str | None] = ("", None)
        """Range of commits that was asked about last, and the title of its newest commit."""
        self._refusal = ""
        """Last reason why the agent's commits could not be collected."""
        self._refusal_of_work: Refusal | None = None
        """Why the work of an agent that reported success is not accepted as it is."""
        self._hooks: HookJob | None = None
        """The repository's commit hooks, while they check what the agent left uncommitted."""
        self._pace = RetryPace()
        """Pace of collecting: an agent can commit endlessly."""
        self._has_output, self._is_successor = True, False
        self._watched_paths = [str(path) for path in (
            runtime.store.path(Identity, incarnation.key), signals.inbox_path(runtime.home, incarnation.key), folder,
            self.assignment.output, self.assignment.notes, *self._reflogs)]
        self._shown = self.assignment.output.stat().st_size if self.assignment.output.exists() else 0
        self._output_start = self._shown
        self._unbounded = 0
        """Bytes that the agent has printed since its logs were bounded."""

    # ---- what the loop calls

    def turn(self) -> bool:
        """Start the agent, or poll it and record its progress, or finish."""
        now = self.runtime.clock.monotonic()
        if self.work is None:
            return self._begin(now)
        if self._hooks is not None:
            return self._poll_hooks(self._hooks, now)
        if self.network is not None:
            self.network.keep()
        has_request = self.channel is not None and self.channel.poll(now)
        has_answer = self._pass_answers(self.work, now)
        outcome = self.work.poll(now)
        if outcome is not None:  # noted now: a turn that cannot write is repeated, until there is room
            self._lacked_space |= any(map(machine.is_full, (self.worktree, self.assignment.folder)))
        if self._fail_over(self.work, outcome):
            return True
        self._record_progress(self._pace)
        self._record_session(self.work)
        self.mailbox.ask(self._with_tried(self.work.question) or self.reports.question, self.task)
        self._show_output()
        if outcome is None:
            return self._stop_without_worktree(now) or has_answer or has_request
        self._end_with(outcome)
        return True

    def fingerprint(self) -> Fingerprint | None:
        if self.stopping or self._has_output or self.work is None or self.work.process() is None:
            return None
        return fingerprint_of([*self._watched_paths, *map(str, self.work.watched_files)])

    def watch(self, event_loop: EventLoop) -> None:
        """Wake when the agent's process exits or writes notes, and at any answer."""
        process = self.work.process() if self.work else None
        if process is not None:
            event_loop.watch_process(*process)
        if self.channel is not None:
            event_loop.watch_descriptor(self.channel.fileno())
        if self._hooks is not None:
            self._hooks.watch(event_loop)
        elif self.network is not None:
            self.network.watch(event_loop)
        for folder in (self.assignment.folder, self.assignment.exchange):
            if folder.is_dir():
                event_loop.watch_directory(folder)
        if not self._has_output:
            streams = self.work.watched_files if self.work is not None else ()
            for path in (self.assignment.output, *self._reflogs, *streams):
                event_loop.watch_file(path)
        self.mailbox.watch(event_loop)

    def next_wake(self) -> float | None:
        """Return the seconds until the agent must be polled; a fraction of a second while it prints output."""
        times = (self.work.wake_at() if self.work else None, self.channel.wake_at() if self.channel else None,
                 self._pace.wake_at(), self.agents.wake_at(), self._hooks.wake_at if self._hooks else None)
        due = [at - self.runtime.clock.monotonic() for at in times if at is not None]
        return min([*due, POLL_WITH_OUTPUT]) if self._has_output else min(due, default=None)

    def stop(self, signum: int) -> None:
        """Stop the agent without a result: the attempt continues later."""
        if not self.stopping:
            self._is_hangup = signum == signal.SIGHUP
        self.stopping = True
        if self.work is not None:
            self.work.stop(self.runtime.clock.monotonic())

    def abandon(self, why: str) -> None:
        """Kill the agent when fenced: a successor works in the same worktree."""
        self.runtime.processes.kill_tree(None, self.incarnation.marker, grace=self.runtime.timing.sweep_grace)

    def handle_persistent_error(self, why: str) -> None:
        """Fail the attempt with the error."""
        self._finish(WorkResult("fail", why))

    # ---- start

    def _make_agents(self, task: Task, folder: Path) -> AgentsInTurn:
        return AgentsInTurn(self.runtime, self.incarnation, task, folder)

    def _make_environment(self) -> dict[str, str]:
        """Return the environment of the agent's processes; its own commits need an author."""
        return {**self.runtime.environ, **self.git.author(self.worktree),
                **git_variables(self.runtime, self.git, self.worktree, self.task.agent, self._write_excludes())}

    def _open_channel(self, folder: Path) -> Channel | None:
        """Open the agent's socket; None, and a line in the log, on a file system without sockets."""
        this = probe(os.getpid())
        assert this is not None
        try:  # all descendants of this process are the agent's: its program, and its orphans
            return open_channel(folder / "agent.sock", lambda: (this.id,), self.reports.handle, log_line,
                                self.task.words)
        except OSError as error:
            log_line(f"the agent has no socket, only files: {error.strerror}: {folder}")
            return None

    def _write_excludes(self) -> Path | None:
        """Write the patterns of files that the agent leaves uncommitted; return their file, None without any."""
        try:
            patterns = [*excluded_by(self.task.agent, self.runtime.home), *setups.patterns_of(self.worktree)]
        except GarrisonError:
            return None  # told when the agent is started
        return write_excludes(self.git, self.worktree, patterns)

    def _begin(self, now: float) -> bool:
        """Write the prompt, with the notes of earlier incarnations, and start the agent; end at once if the attempt
        already has a result."""
        task, path = self.task, self.assignment.folder / "result.json"
        announced = self.hook.result_digest
        if run_records.read_result(path, task.run_id, task.node, task.attempt, announced)[0] is not None:
            self._end(Departure.DONE, Departure.DONE)
            return True
        if announced is None:
            # Before the agent runs: from here on only a result whose digest is in the hook counts, so that a
            # file that a process of the worktree puts in its place is ignored. Outside a sandbox an agent is the user,
            # and can forge both.
            self._announce_result("")
        if self.stopping:
            self._end(*self._why_stopped())
            return True
        machine.require_space(self.worktree)
        machine.require_room(machine.MIN_FOR_WORK)
        try:
            self._begin_work(now)
        finally:
            if self._begun is not None:
                self._begun.close()
                self._begun = None
        return True

    def _begin_work(self, now: float) -> None:
        """Write the prompt and start the agent; Shortage if the machine lacks room."""
        self._record_progress()  # a predecessor may have died before it recorded its last commit
        self._prepare(is_successor=self.assignment.prompt_file.exists())  # an earlier incarnation's, in this attempt
        failpoint.here(":prompted")
        self._move_hook("executing")
        try:
            self.work = self._start(now)
            if self.work.has_keyboard:
                self.incarnation.update(lambda old: replace(old, metadata={**old.metadata, KEYBOARD: True}))
            failpoint.here(":working")
            if self.network is not None and self.task.agent != "command":
                self.network.serve()  # while the program starts: the first thing it does is call its model
        except GarrisonError as error:
            if machine.is_shortage(error):
                raise  # the loop tries again
            if not self._hand_over(Trouble(START, str(error), given_up=True)):
                self._finish(WorkResult("fail", str(error)))

    def _write_prompt(self) -> Assignment:
        """Write the prompt with all that is known now; return the assignment with the content of further messages."""
        briefer = Briefer(self.runtime, self.launch, self.task, self.git, self.worktree, self.agents.failovers)
        notes = self.hook.resumption_instructions or ""
        assignment, text = briefer.prepare(self.assignment, notes, is_successor=self._is_successor)
        assignment.write_prompt(text)

        def look() -> WorkState:
            """Read the state again, with the agent's commits since the last collection."""
            with contextlib.suppress(GarrisonError):  # told when progress is recorded
                self._collect()
            return briefer.progress()

        return replace(assignment, look=look)

    def _prepare(self, *, is_successor: bool) -> None:
        """Write the prompt and the agent's other files, and decide on its place."""
        task, self._is_successor = self.task, is_successor
        self._begun = begin_network(self.runtime, Role.AGENT, task.agent)  # Linux needs as long as the prompt does
        self.assignment = self._write_prompt()
        self.assignment.write_context(task.context)
        self.assignment.signals_file.touch()  # a file created after mounting is not visible inside
        place = node_place(self.runtime, self.launch, task, self.worktree, Role.AGENT, agent=task.agent,
                           turn=self.agents.turn, home_of=task.attempt - 1 if self.assignment.refused else 0,
                           mounts=(*self.assignment.mounts(), *self._channel_mount()))
        self.assignment = replace(self.assignment, place=place)

    def _start(self, now: float) -> Work:
        """Start the agent; GarrisonError if that is impossible."""
        chosen = agent(self.task.agent, self.runtime.home, attributes=self.task.attributes)
        if not untrusted.is_folder(self.worktree, self.task.subfolder):
            raise Refused(f"its path {self.task.subfolder} is not a folder of the branch that it starts from: correct "
                          "path=, or make that folder before it starts")
        self._open_network()
        return chosen.start(self.assignment, now)

    def _open_network(self) -> None:
        """Prepare the agent's network, and give it the variables that lead there."""
        env, place = self.assignment.environment, self.assignment.place
        self.network = open_network(self.runtime, self.task, Role.AGENT, self.assignment.folder, env,
                                    agent=self.task.agent, place=place, begun=self._begun)
        self.assignment = replace(self.assignment, environment=self.network.apply(env),
                                  network_variables=self.network.names, place=self.network.open_in(place),
                                  account=self.network.account)

    def _channel_mount(self) -> tuple[Mount, ...]:
        return (Mount(self.channel.path, Path(INSIDE)),) if self.channel is not None else ()

    # ---- while the agent works

    def _record_progress(self, pace: RetryPace | None = None) -> None:
        """Copy the last commit and the agent's notes to the hook, for a successor; not before it is due by `pace`."""
        names = [*map(str, self._reflogs), str(self.assignment.notes), str(self.assignment.folder / NOTES)]
        if fingerprint_of(names) == self._progress_stamp:  # else git would run several times a second
            return
        began = self.runtime.clock.monotonic()
        if pace is not None and not pace.allows(began):
            return
        before = fingerprint_of(names[1:])
        try:
            self._collect()
        except GarrisonError as error:  # it may be resolved before the agent ends
            if str(error) != self._refusal:
                log_line(str(error))
            self._refusal = str(error)
        self._progress_stamp = (fingerprint_of(names[:1]) or ()) + before  # a commit in between is collected next
        written, reported = self.assignment.read_notes(), self.reports.notes
        both = f"{written.rstrip()}\n{reported}" if written and reported else written or reported
        notes = both or self.hook.resumption_instructions
        last = self._last_commit() or self.hook.last_committed_node
        if (last, notes) != (self.hook.last_committed_node, self.hook.resumption_instructions):
            now = self.runtime.clock.utc()
            self.hook = self.incarnation.hook(lambda old: hooks.update_notes(old, now, text=notes, last_committed=last))
        self._pace.record(began, self.runtime.clock.monotonic())

    def _collect(self) -> str:
        """Bring a confined agent's commits to its branch; return '', or why they cannot continue it."""
        return collect_commits(self.git, self.worktree, self.task.run_id, self.task.node, self.task.attempt)

    def _record_session(self, work: Work) -> None:
        """Copy the session's id and the phase that the agent reported to the hook."""
        session = work.session
        is_earlier_agents = session is None and self.agents.turn and self.hook.claude_session_id is not None
        if is_earlier_agents or (session is not None and session != self.hook.claude_session_id):
            now = self.runtime.clock.utc()
            self.hook = self.incarnation.hook(lambda old: hooks.remember_session(old, now, session))
        if (work.phase or self.reports.phase) == "impl_complete" and self.hook.phase == "executing":
            self._move_hook("impl_complete")

    def _pass_answers(self, work: Work, now: float) -> bool:
        """Pass arrived answers on: to a process of the agent by its socket, or to its session."""
        def deliver(given: InputResponse) -> None:
            from garrison.agents.conversation.files import AttemptFiles  # few attempts ask
            from garrison.agents.conversation.questions import keep_answer

            question, text = given.question_id, given.text
            asked = next((each for each in (work.question, self.reports.question)
                          if each is not None and each.id == question), PendingQuestion(question, given.asked))
            keep_answer(AttemptFiles(self.assignment.folder), asked, text, self.runtime.clock.utc())
            if not self.reports.answer(question, text):
                work.answer(question, text)
            elif self.channel is not None:
                self.channel.answer(question, text, now)

        has_answer = self.mailbox.read(deliver, self._keep_signal)
        if has_answer:  # a fresh session of this attempt, or another agent, reads it there
            self._write_prompt()
        return has_answer

    def _keep_signal(self, received: Signal) -> None:
        """Append a user's signal to a file that the agent can read, unless it is a repetition after a crash."""
        path = self.assignment.signals_file
        if all(each.get("id") != received.id for each in read_lines(path)):
            append_line(path, {"id": received.id, "type": received.signal_type, "at": received.timestamp,
                               "from": received.sender.full, "payload": received.payload})
        log_line(f"{received.signal_type} from {received.sender.full}: {describe_own(received)}")

    def _last_commit(self) -> str | None:
        """Return the newest commit of this branch that is not on the target, as `<oid> <subject>`."""
        head = self.git.head(self.worktree)
        # The target branch may be gone; the runner reports that.
        base = self.git.branch_tip(self.launch.onto) or self.launch.base_oid
        if head in (None, base):
            return None
        if self._named[0] != (span := f"{base}..{head}"):
            self._named = span, next(iter(self.git.log_oneline(span, 1, self.worktree)), None)
        return self._named[1]

    def _show_output(self) -> None:
        """Print the agent's new output; a closed terminal stops nothing."""
        with contextlib.suppress(OSError), self.assignment.output.open("rb") as file:
            file.seek(self._shown)
            data = file.read(MAX_SHOWN)
            self._shown += len(data)
            self._has_output = bool(data)
            self._bound_logs(len(data))
            if self.work is not None and self.work.has_keyboard:
                return  # its own terminal shows it at once
            sys.stdout.buffer.write(data)
            sys.stdout.flush()

    def _bound_logs(self, written: int) -> None:
        """Occasionally bound the agent's log and this process's own, which contains its output."""
        self._unbounded += written
        if self._unbounded >= MAX_SHOWN:
            self._unbounded = 0
            own = self.runtime.files(self.launch.run_id).process_log(f"orchestrator-{self.task.node}")
            for log in (self.assignment.output, own):
                log_retention.bound_log(log)

    def _stop_without_worktree(self, now: float) -> bool:
        """Stop an agent whose worktree was removed: its further work would be lost."""
        if self._worktree_gone or self.worktree.is_dir() or self.work is None:
            return False
        self._worktree_gone = True
        self.work.stop(now)
        return True

    # ---- another agent

    def _fail_over(self, work: Work, outcome: WorkResult | None) -> bool:
        """Hand the work over to the next agent if this one cannot continue and its processes have ended."""
        if self.stopping or self._worktree_gone or (outcome is not None and outcome.status == "success"):
            return False
        trouble = work.trouble
        if trouble is None and outcome is not None and not outcome.report.get("status"):
            tail = self._output_tail() if outcome.exit_code else outcome.reason
            trouble = find_trouble(End(outcome.exit_code), f"{tail}\n{outcome.reason}")
        return trouble is not None and self._hand_over(trouble)

    def _hand_over(self, trouble: Trouble) -> bool:
        """End this incarnation so that the next one starts with the next agent; False if there is none."""
        if self.task.agent == "command":
            return False
        failover = self.agents.choose(trouble)
        if failover is None:
            return False
        # Before it is recorded: the next incarnation starts in this worktree.
        process_control.kill_leftovers()
        self.agents.record(failover)
        with contextlib.suppress(OSError), self.assignment.output.open("a") as log:
            log.write(f"── {' '.join(clean_lines(failover.describe()))}\n")
        self._record_progress()
        self._end_without_result(failover.describe(), death_class=FAILOVER)
        return True

    def _with_tried(self, question: PendingQuestion | None) -> PendingQuestion | None:
        """Return the question, with the agents that were tried before the one whose work it stops."""
        if question is None or self.work is None or self.work.trouble is None or not self.agents.tried:
            return question
        return replace(question, text=f"{question.text}; tried before: {self.agents.tried}")

    # ---- end

    def _end_with(self, outcome: WorkResult) -> None:
        """End with a result; or without one, so that the runner records a death and starts a successor."""
        failpoint.here(":ended")
        if self.stopping:
            self._end_without_result(*self._why_stopped())
        elif outcome.killed and not self._worktree_gone:
            was_out_of_memory = (oom_kills(self._oom_counter) or 0) > self._oom_kills
            memory = describe_end(End(outcome.exit_code), memory=True) if was_out_of_memory else ""
            self._end_without_result("; ".join(text for text in (memory, outcome.reason or "killed") if text))
        elif not self._worktree_gone and self._ran_out_of_space(outcome):
            self._end_without_result(f"no space left on the disk of its worktree or output; {outcome.reason}")
        elif not self._worktree_gone and lacked_room(outcome, self._output_tail(), lack := machine.find_shortage()):
            # Without a visible lack now it may be the program's own fault: then it counts, but little.
            self._end_without_result(f"its agent had no room for its processes on this machine; {outcome.reason}",
                                     death_class=SHORTAGE if lack else MEMORY)
        elif not self._begin_hooks(outcome):
            self._finish(outcome)

    def _begin_hooks(self, outcome: WorkResult) -> bool:
        """Run the repository's commit hooks, if any, on what the agent left uncommitted, if anything."""
        if outcome.status != "success" or not self.worktree.is_dir() or self.stopping:
            return False
        if read_hooks_mode(self.runtime.home) is not GuardHooks.AGENT or not find_hooks(self.git):
            return False
        with contextlib.suppress(GarrisonError):  # told when the result is written
            self._collect()
        if not self.git.is_dirty(self.worktree):
            return False
        self._hooks = HookJob(self.runtime, self.launch, self.task, self.worktree, self._make_environment(),
                              self.assignment.folder, commit_message(self.task), outcome,
                              self.runtime.clock.monotonic())
        return True

    def _poll_hooks(self, job: HookJob, now: float) -> bool:
        if self.stopping:
            job.kill(now)
        result = job.poll(now)
        if result is None:
            return False
        if self.stopping or result.signal:
            self._end_without_result(*self._why_stopped() if self.stopping else ("a signal ended its commit hook",))
            return True
        self._refusal_of_work = refusal = job.refusal(result)
        if refusal is None:
            self._finish(job.outcome)
        else:
            from garrison.node.unfinished import describe  # few agents are refused by hooks

            self._finish(WorkResult("fail", describe(refusal, self.incarnation.identity.branch or ""),
                                    job.outcome.exit_code, failure_kind=refusal.failure_kind))
        return True

    def _end_without_result(self, reason: str, departure: Departure = Departure.EARLY, death_class: str = "") -> None:
        """End so that a successor repeats the work."""
        if self.work is not None:
            self.work.forget()
        self._end(reason, departure, death_class)

    def _why_stopped(self) -> tuple[str, Departure]:
        """Return why and how it was stopped. A dead reaper, the terminal's first process, also closes the terminal;
        by itself a reaper ends only after its orchestrator."""
        if not self._is_hangup:
            return "stopped", Departure.STOPPED
        if os.getppid() != self._reaper:
            return "its reaper, the process above it in its terminal, was killed", Departure.EARLY
        return "its terminal is gone", Departure.HANGUP

    def _ran_out_of_space(self, outcome: WorkResult) -> bool:
        """Return whether the agent failed on a full disk: that proves nothing about the work, and a successor waits for
        space."""
        if outcome.status == "success":
            return False
        return self._lacked_space or machine.reports_no_space(self._output_tail())

    def _output_tail(self) -> str:
        """Return the end of the output of this incarnation's agent."""
        with contextlib.suppress(OSError), self.assignment.output.open("rb") as file:
            file.seek(max(self._output_start, self._shown - 4000))
            return file.read(4000).decode(errors="replace")
        return ""

    def _finish(self, outcome: WorkResult) -> None:
        """Commit remaining changes, write the stamped result unless fenced, and end."""
        if not Path(self.launch.repo).is_dir():
            raise Hindered(describe_moved(self.launch.repo, self.launch.run_id))
        if not self.worktree.is_dir():
            outcome = WorkResult("fail", f"its worktree {self.worktree} was removed while it worked", outcome.exit_code,
                                 failure_kind=RefusedBy.LOST)
        branch = self.incarnation.identity.branch or ""
        if outcome.status == "success" and self._is_own_history and (
                reason := undo_foreign_move(self.git, self.task, self.worktree, branch)):
            failpoint.here(":undone")
            outcome = WorkResult("fail", reason, outcome.exit_code, failure_kind=RefusedBy.LOST)
        if outcome.status == "success":
            reason, self._refusal_of_work = self._land_on_branch(branch)
            if self._refusal_of_work is not None:
                from garrison.node.unfinished import describe  # loaded by now

                outcome = WorkResult("fail", describe(self._refusal_of_work, branch), outcome.exit_code,
                                     failure_kind=self._refusal_of_work.failure_kind)
            elif reason:
                outcome = WorkResult("fail", reason, outcome.exit_code)
            self._progress_stamp = None
            self._record_progress()
        self._write_result(outcome)
        failpoint.here(":resulted")
        log_retention.shorten_log(self.assignment.output)
        if outcome.status == "success":
            self._move_hook("impl_complete")
        departure = Departure.DONE if outcome.status == "success" else Departure.FAILED
        self._end(departure, departure)

    @property
    def _is_own_history(self) -> bool:
        """Return whether the worktree's log has all of its agent's work: without a sandbox, or from a git view."""
        return self.assignment.place is None or GitView(self.git, self.worktree).exists

    def _land_on_branch(self, branch: str) -> tuple[str, Refusal | None]:
        """Bring all of the agent's work to its branch; return why that is impossible, and why its work is refused."""
        try:
            reason = self._collect()
        except Excess as error:
            return "", Refusal(RefusalKind.EXCESS, (error.what,), 1)
        except GarrisonError as error:
            if is_hindered(self.git, self.worktree, error):
                raise
            reason = str(error)
        failpoint.here(":collected")
        if reason:
            return reason, None
        restore_committed_output(self.git, self.worktree)
        from garrison.node.unfinished import WorkInspector  # not while the agent's start waits for imports

        inspector = WorkInspector(self.git, self.runtime.home, self.launch, self.task, self.worktree, branch,
                                  self.assignment.folder)
        if refusal := inspector.inspect_worktree():
            return "", refusal
        try:
            self.git.commit_all(self.worktree, commit_message(self.task), seen=inspector.seen)
        except Refused as error:
            return str(error), None
        failpoint.here(":committed")
        reason, refusal = adopt_commits(self.git, self.worktree, branch)
        return reason, refusal or (None if reason else inspector.inspect_branch())

    def _write_result(self, outcome: WorkResult) -> None:
        hint = explain_missing_command(self.launch.held_back, self.assignment.output, End(outcome.exit_code))
        if outcome.exit_code:
            rights = read_rights(self.runtime.home, Role.AGENT, self.task.agent, self.runtime.environ)
            tail = read_tail(self.assignment.output, 12)
            hint = explain_missing_file(rights, "sandbox", End(outcome.exit_code), tail,
                                        self.launch.path or os.defpath) + hint
        if outcome.status != "success" and self.agents.tried:
            hint += f"; tried before: {self.agents.tried}"
        first, *rest = outcome.reason.split("\n", 1)  # the advice belongs to the line that the user sees
        result = Result(self.task.run_id, self.task.node, self.task.attempt, self.incarnation.number, outcome.status,
                        self.runtime.clock.utc(), "\n".join([first + hint, *rest]), outcome.exit_code,
                        self.git.head(self.worktree), read_tail(self.assignment.output, 20), dict(outcome.report),
                        self._session_for_others(), outcome.failure_kind, to_fields(self._refusal_of_work))
        data = record.encode(result)
        # Announced first: its runner wakes at the file, and ignores one that is not announced.
        self._announce_result(digest_of(data))
        # Under the lock of the record, which a fence also needs: a fenced incarnation writes no result next to its
        # successor.
        with self.runtime.store.locked(Identity, self.incarnation.key, incarnation=self.incarnation.number) as identity:
            require_unfenced(identity, self.incarnation.key)
            atomic.write(self.assignment.folder / "result.json", data)

    def _session_for_others(self) -> str:
        """Return the session that later nodes of its thread continue, '' for none: they start with the first agent."""
        return (self.work.session if self.work is not None and not self.agents.turn else None) or ""

    def _announce_result(self, digest: str) -> None:
        """Record in the hook which result is written next: no other one counts."""
        now = self.runtime.clock.utc()
        self.hook = self.incarnation.hook(lambda old: hooks.announce_result(old, now, digest))

    def _move_hook(self, phase: str) -> None:
        """Move the orchestrator's own hook forward; a later phase that a predecessor reached stays."""
        now = self.runtime.clock.utc()
        order = list(hooks.PHASES)
        is_rework = (self.hook.phase, phase) == ("impl_complete", "executing")
        if is_rework or order.index(self.hook.phase) < order.index(phase):
            self.hook = self.incarnation.hook(lambda old: hooks.change_phase(old, phase, now))

    def _end(self, reason: str, departure: Departure, death_class: str = "") -> None:
        self._show_output()
        if self.channel is not None:
            self.channel.close()
        process_control.kill_leftovers()
        if self.network is not None:
            self.network.close()
        with contextlib.suppress(GarrisonError, OSError):
            give_back(self.git, self.worktree)
        exit_gracefully(self.incarnation, str(reason), departure, int(departure is Departure.FAILED), death_class)
        self.exit_code = 0
        if self.launch.adhoc and self.incarnation.identity.parent is None:
            self._close_terminal()

    def _close_terminal(self) -> None:
        """Close the session, and with the last one the terminal's server, for an orchestrator that was started by hand
        and has no runner to do it."""
        terminal, _ = choose_terminal(self.launch.terminal, self.runtime.home)
        close_sessions(terminal, self.runtime.store.get(Identity, self.incarnation.key), self.runtime.home)
        terminal.shutdown()


class Mailbox:
    """Signals between an orchestrator and its runner: one open question, and its answer.

    A question is sent once per incarnation, with an id that identifies repeats. An answer is delivered, which stores it
    in files of the attempt, before it is acknowledged.
    """

    def __init__(self, runtime: Runtime, incarnation: Incarnation, launch: Launch) -> None:
        self.runtime, self.incarnation, self.launch = runtime, incarnation, launch
        self._asked = ""
        # Only an existing folder can be watched.
        atomic.make_directory(signals.inbox_path(runtime.home, incarnation.key))

    def ask(self, question: PendingQuestion | None, task: Task) -> None:
        """Send the open question to the runner, once."""
        parent = self.incarnation.identity.parent
        if question is None or question.id == self._asked or parent is None:
            return
        key = self.incarnation.key
        source = {"role": key.role, "name": key.name, "incarnation": self.incarnation.number}
        payload = NeedsInput(question.text, question.id)
        signals.post(self.runtime.home, Signal(
            f"{self.launch.run_id}-{task.node}-{task.attempt}-{question.id}-asked", source, dict(parent),
            payload.type, self.launch.run_id, self.runtime.clock.utc(), task.node, task.attempt, payload.to_data()))
        self._asked = question.id

    def read(self, deliver: Callable[[InputResponse], None], keep: Callable[[Signal], None]) -> bool:
        """Deliver arrived answers and keep users' signals; return whether there was an answer."""
        has_answer = False
        incarnations = {self.incarnation.key.full: self.incarnation.number}
        for posted in signals.list_pending(self.runtime.home, self.incarnation.key):
            received = posted.signal
            why = posted.error if received is None else find_objection(received, self.launch.run_id, {}, incarnations)
            payload = parse(received) if received is not None else None
            if received is not None and not why and is_own(received.signal_type):
                keep(received)
                signals.acknowledge(posted.path)
                continue
            if why or not isinstance(payload, InputResponse):
                signals.refuse(posted.path, why or "an orchestrator accepts answers only")
                continue
            deliver(payload)
            signals.acknowledge(posted.path)
            has_answer = True
        return has_answer

    def watch(self, event_loop: EventLoop) -> None:
        """Wake at any answer."""
        folder = signals.inbox_path(self.runtime.home, self.incarnation.key)
        if folder.is_dir():
            event_loop.watch_directory(folder)


def commit_message(task: Task) -> str:
    """Return the commit message for changes that an agent left uncommitted: the node's label, then their origin."""
    subject = next((line.strip() for line in task.label.splitlines() if line.strip()), task.node)
    subject = subject if len(subject) <= MAX_SUBJECT else subject[:MAX_SUBJECT - 1].rstrip() + "…"
    return f"{subject}\n\nWhat {task.node} left uncommitted (run {task.run_id}, attempt {task.attempt})."


# ---- pace ------------------------------------------------------------------------------------------------------------

# Pace of work that an agent can cause at will. Pure.

SHARE = 0.1
"""Share of an orchestrator's time that such work may take."""
LONGEST_PAUSE = 60.0
"""Seconds after which it is repeated, however long it took."""


class RetryPace(msgspec.Struct):
    """When the work may be repeated: in between its orchestrator has to answer its agent and its runner."""

    due: float = 0.0
    is_awaited: bool = False
    """There is work to do once it is due."""

    def allows(self, now: float) -> bool:
        """Return whether the work may be done now; else it is awaited."""
        self.is_awaited = now < self.due
        return not self.is_awaited

    def record(self, began: float, ended: float) -> None:
        """Record that it was done."""
        self.due = ended + min(LONGEST_PAUSE, (ended - began) * (1 / SHARE - 1))

    def wake_at(self) -> float | None:
        """Return when it has to be done, None if there is nothing to do."""
        return self.due if self.is_awaited else None
