"""Orchestrator: run one attempt's agent in a terminal session, record its progress and write its result.

An orchestrator outlives its runner. It prints the agent's output for a person to watch; output.log is the record. Its
result is stamped with run, node, attempt and incarnation, and fenced.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.agents import prompt
from garrison.agents.base import Assignment, Outcome
from garrison.agents.registry import agent
from garrison.errors import GarrisonError
from garrison.processes.agent_activity import stat_stamp
from garrison.processes.control_graph import CONTROL_KINDS
from garrison.processes.fingerprint import fingerprint_of
from garrison.processes.loop import exit_gracefully
from garrison.processes.spawn import close_sessions
from garrison.processes.worktree import adopt_commits
from garrison.records import atomic, record, signals
from garrison.records import hook as hooks
from garrison.records import run as run_records
from garrison.records.hook import Hook
from garrison.records.identity import Identity
from garrison.records.names import Key
from garrison.records.run import Result
from garrison.records.signals import Signal, find_objection
from garrison.records.wisdom import build_wisdom_prompt_block
from garrison.supervise.start import require_unfenced
from garrison.system import disk_space, failpoint, reaper
from garrison.system.environment import explain_missing_command
from garrison.system.exit_info import REAPER_GONE, TERMINAL_GONE, cgroup_of, describe_exit, oom_counter, oom_kills
from garrison.system.git import Git
from garrison.system.jobs import read_tail
from garrison.system.terminal import choose_terminal

if TYPE_CHECKING:
    from garrison.agents.base import Work
    from garrison.processes.fingerprint import Fingerprint
    from garrison.processes.runtime import Runtime
    from garrison.records.run import Launch, Task
    from garrison.supervise.start import Incarnation
    from garrison.system.event_loop import EventLoop


SUBJECT = 72
"""Characters of a commit's subject line at most."""


class Orchestrator:
    """One life of a node's orchestrator."""

    naps = True

    def __init__(self, world: Runtime, life: Incarnation, launch: Launch, task: Task) -> None:
        self.world, self.life, self.launch, self.task = world, life, launch, task
        assert life.identity.worktree is not None
        self.tree = Path(life.identity.worktree)
        self.git = Git(Path(launch.repo))
        folder = atomic.make_directory(world.files(launch.run_id).attempt(task.node, task.attempt))
        self.hook = world.store.get(Hook, life.key)
        environment = {**world.environ, **self.git.author(self.tree)}  # an agent's own commits need a name too
        self.assignment = Assignment(task, self.tree, folder, environment, life.incarnation,
                                     controllers=_controllers(life, launch), attempts=folder.parent.parent)
        self.mail = Mailbox(world, life, launch)
        self.work: Work | None = None
        self.stopping = False
        self._gone = False
        self._stopped = "stopped"
        self._keeper = os.getppid()
        self._oom_counter = oom_counter(cgroup_of(os.getpid()))
        self._oom_kills = oom_kills(self._oom_counter) or 0
        self.exit_code: int | None = None
        self._reflog = self.git.git_dir(self.tree) / "logs" / "HEAD"
        self._stamp: tuple[object, object] | None = None
        self._busy = True
        self._seen = [str(path) for path in (
            world.store.path(Identity, life.key), signals.inbox_path(world.home, life.key), folder,
            self.assignment.output,
            self.assignment.notes, self._reflog)]
        self._shown = self.assignment.output.stat().st_size if self.assignment.output.exists() else 0
        self._from = self._shown

    def turn(self) -> bool:
        """Begin, or look how far the work is, or end."""
        now = self.world.clock.monotonic()
        if self.work is None:
            return self._begin(now)
        answered = self.mail.read(self.work)
        outcome = self.work.poll(now)
        self._note_progress()
        self._note_session(self.work)
        self.mail.ask(self.work, self.task)
        self._show()
        if outcome is None:
            return self._let_go(now) or answered
        if self.stopping:
            self._end(self._asked())
        elif outcome.killed and not self._gone:
            # Without a result: the runner counts a death and starts a successor with wisdom.
            grew = (oom_kills(self._oom_counter) or 0) > self._oom_kills
            memory = describe_exit(outcome.exit_code, memory=True) if grew else ""
            self._end("; ".join(word for word in (memory, outcome.reason or "killed") if word))
        elif not self._gone and self._had_no_room(outcome):
            self._end(f"no room was left on the disk of its tree; {outcome.reason}")
        else:
            self._finish(outcome)
        return True

    def _asked(self) -> str:
        """Why it ends that was told to. A terminal is closed to all in it when its first process dies, the keeper."""
        if self._stopped == TERMINAL_GONE and os.getppid() != self._keeper:
            return REAPER_GONE
        return self._stopped

    def _had_no_room(self, outcome: Outcome) -> bool:
        """Whether the agent failed on a full disk: that is no verdict on the work, and its successor waits for room."""
        if outcome.status == "success":
            return False
        with contextlib.suppress(OSError), self.assignment.output.open("rb") as file:
            file.seek(max(self._from, self._shown - 4000))
            if disk_space.reports_no_space(file.read(4000).decode(errors="replace")):
                return True
        return disk_space.is_full(self.tree)

    def _let_go(self, now: float) -> bool:
        """Stop an agent whose tree was removed under it: whatever it still does is for nothing, and costs."""
        if self._gone or self.tree.is_dir() or self.work is None:
            return False
        self._gone = True
        self.work.stop(now)
        return True

    def _begin(self, now: float) -> bool:
        """Write the prompt with what earlier lives learned, start the agent. A result already there is not redone."""
        task, path = self.task, self.assignment.folder / "result.json"
        if run_records.read_result(path, task.run_id, task.node, task.attempt)[0] is not None:
            self._end("done")
            return True
        if self.stopping:
            self._end(self._asked())
            return True
        disk_space.require_space(self.tree)
        self._note_progress()  # a predecessor may have died between its commit and its note of it
        again = self.assignment.prompt_file.exists()  # an earlier life of this very attempt wrote it
        wisdom = build_wisdom_prompt_block(self.hook) if again else ""
        self.assignment = replace(self.assignment, wisdom=wisdom)
        text = prompt.build(self.task, self.life.identity.branch or "", wisdom, self._conflicts())
        self.assignment.write_context(self.task.context)
        self.assignment.write_prompt(text)
        failpoint.here(":prompted")
        self._move("executing")
        try:
            chosen = agent(self.task.agent, self.world.home, attributes=self.task.attributes)
            self.work = chosen.start(self.assignment, now)
            failpoint.here(":working")
        except GarrisonError as error:
            self._finish(Outcome("fail", str(error)))
        return True

    def _conflicts(self) -> list[str]:
        """The files in which this attempt began with conflict markers."""
        return _read(self.assignment.folder / "conflicts.txt").splitlines()

    def _marked(self) -> list[str]:
        """Those of them that still have a marker."""
        return [name for name in self._conflicts() if (self.tree / name).is_file()
                and b"\n<<<<<<< " in b"\n" + (self.tree / name).read_bytes()]

    def _note_progress(self) -> None:
        """Bring the last commit and the agent's notes into the hook, for a successor."""
        both = (stat_stamp(self._reflog), stat_stamp(self.assignment.notes))
        if both == self._stamp:  # asking git four times a second would cost more than the agent
            return
        self._stamp = both
        notes = _read(self.assignment.notes) or self.hook.resumption_instructions
        last = self._last_commit() or self.hook.last_committed_node
        if (last, notes) != (self.hook.last_committed_node, self.hook.resumption_instructions):
            now = self.world.clock.utc()
            self.hook = self.life.hook(lambda old: hooks.update_notes(old, now, text=notes, last_committed=last))

    def _note_session(self, work: Work) -> None:
        """Bring the session's id and the phase that the agent itself told into the hook."""
        session = work.session
        if session is not None and session != self.hook.claude_session_id:
            now = self.world.clock.utc()
            self.hook = self.life.hook(lambda old: hooks.remember_session(old, now, session))
        phase = work.phase
        if phase == "impl_complete" and self.hook.phase == "executing":
            self._move(phase)

    def _last_commit(self) -> str | None:
        """The newest commit of this branch that is not on the target, as `<oid> <subject>`."""
        head = self.git.head(self.tree)
        base = self.git.branch_tip(self.launch.base) or self.launch.base_oid  # the branch may be gone: not our trouble
        return next(iter(self.git.log_oneline(f"{base}..{head}", 1)), None) if head else None

    def _show(self) -> None:
        """Print what the agent printed since; a terminal that is gone is no reason to stop."""
        with contextlib.suppress(OSError), self.assignment.output.open("rb") as file:
            file.seek(self._shown)
            data = file.read()
            self._shown += len(data)
            self._busy = bool(data)
            sys.stdout.buffer.write(data)
            sys.stdout.flush()

    def _finish(self, outcome: Outcome) -> None:
        """Commit the leftovers, write the stamped result while nobody has taken our place, and go."""
        for what, path in (("its worktree", self.tree), ("the repository", Path(self.launch.repo))):
            if not path.is_dir():
                outcome = Outcome("fail", f"{what} {path} was removed under it", outcome.exit_code)
        marked = self._marked() if outcome.status == "success" else []
        if marked:
            outcome = Outcome("fail", f"conflict markers are left in {', '.join(marked)}", outcome.exit_code)
        if outcome.status == "success":
            self.git.commit_all(self.tree, _message(self.task))
            failpoint.here(":committed")
            if astray := adopt_commits(self.git, self.tree, self.life.identity.branch or ""):
                outcome = Outcome("fail", astray, outcome.exit_code)
            self._stamp = None
            self._note_progress()
        reason = outcome.reason + explain_missing_command(self.launch.held_back, self.assignment.output,
                                                          outcome.exit_code)
        result = Result(self.task.run_id, self.task.node, self.task.attempt, self.life.incarnation, outcome.status,
                        self.world.clock.utc(), reason, outcome.exit_code, self.git.head(self.tree),
                        read_tail(self.assignment.output, 20), dict(outcome.report),
                        (self.work.session if self.work is not None else None) or "")
        with self.world.store.locked(Identity, self.life.key, incarnation=self.life.incarnation) as found:
            require_unfenced(found, self.life.key)
            atomic.write(self.assignment.folder / "result.json", record.encode(result))
        failpoint.here(":resulted")
        if outcome.status == "success":
            self._move("impl_complete")
        self._end("done" if outcome.status == "success" else "failed")

    def _move(self, phase: str) -> None:
        """Move the own hook; a successor that begins at a later phase stays there."""
        now = self.world.clock.utc()
        order = list(hooks.PHASES)
        rework = (self.hook.phase, phase) == ("impl_complete", "executing")
        if rework or order.index(self.hook.phase) < order.index(phase):
            self.hook = self.life.hook(lambda old: hooks.change_phase(old, phase, now))

    def _end(self, reason: str) -> None:
        self._show()
        reaper.kill_leftovers()
        exit_gracefully(self.life, reason, 0 if reason != "failed" else 1)
        self.exit_code = 0
        if self.launch.adhoc and self.life.identity.parent is None:
            self._close_terminal()

    def _close_terminal(self) -> None:
        """Started by hand, nobody is above it to close its session, and with the last one the terminal's server."""
        terminal, _ = choose_terminal(self.launch.terminal, self.world.home)
        close_sessions(terminal, self.world.store.get(Identity, self.life.key))
        terminal.shutdown()

    def glance(self) -> Fingerprint | None:
        """While a program works whose end wakes the loop: its output, notes and commits, the inbox."""
        if self.stopping or self._busy or self.work is None or self.work.process() is None:
            return None
        return fingerprint_of(self._seen)

    def watch(self, waker: EventLoop) -> None:
        """Wake when the agent's process ends, or leaves notes."""
        process = self.work.process() if self.work else None
        if process is not None:
            waker.watch_process(*process)
        waker.watch_directory(self.assignment.folder)
        if not self._busy:
            for path in (self.assignment.output, self._reflog):
                waker.watch_file(path)
        self.mail.watch(waker)

    def next_wake(self) -> float | None:
        """Often while there is output for a person to follow."""
        at = self.work.wake_at() if self.work else None
        due = [] if at is None else [at - self.world.clock.monotonic()]
        return min([*due, 0.25]) if self._busy else min(due, default=None)

    def stop(self, signum: int) -> None:
        """End the agent in order, without a result: the attempt goes on later."""
        if not self.stopping:
            self._stopped = TERMINAL_GONE if signum == signal.SIGHUP else "stopped"
        self.stopping = True
        if self.work is not None:
            self.work.stop(self.world.clock.monotonic())

    def trouble(self, why: str) -> None:
        """What git refuses for too long is the attempt's result."""
        self._finish(Outcome("fail", why))

    def abandon(self, why: str) -> None:
        """Fenced: end the own agent; a successor works in the same tree."""
        self.world.processes.kill_tree(None, self.life.marker, grace=self.world.timing.sweep_grace)


def _controllers(life: Incarnation, launch: Launch) -> tuple[tuple[str, str], ...]:
    """Who directs an orchestrator's agent, nearest first."""
    guardian = Key("guardian", launch.pipeline_id, launch.run_id).full
    above = () if launch.adhoc else ((guardian, CONTROL_KINDS["guardian", "orchestrator"]),)
    parent = life.identity.parent
    runner = Key(parent["role"], parent["name"], launch.run_id).full if parent else None
    return ((runner, CONTROL_KINDS["runner", "orchestrator"]), *above) if runner else above


def _message(task: Task) -> str:
    """The commit message of what an agent left uncommitted: what its node is called, then whence it comes."""
    subject = next((line.strip() for line in task.label.splitlines() if line.strip()), task.node)
    subject = subject if len(subject) <= SUBJECT else subject[:SUBJECT - 1].rstrip() + "…"
    return f"{subject}\n\nWhat {task.node} left uncommitted (run {task.run_id}, attempt {task.attempt})."


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")[-4000:]
    except OSError:
        return ""


class Mailbox:
    """The signals of one life."""

    def __init__(self, world: Runtime, life: Incarnation, launch: Launch) -> None:
        self.world, self.life, self.launch = world, life, launch
        self._asked = ""
        atomic.make_directory(signals.inbox_path(world.home, life.key))  # what is absent cannot be watched

    def ask(self, work: Work, task: Task) -> None:
        """Tell the runner the open question, once."""
        question, parent = work.question, self.life.identity.parent
        if question is None or question.id == self._asked or parent is None:
            return
        source = {"role": self.life.key.role, "name": self.life.key.name, "incarnation": self.life.incarnation}
        signals.post(self.world.home, Signal(
            f"{self.launch.run_id}-{task.node}-{task.attempt}-{question.id}-asked", source, dict(parent),
            "NEEDS_INPUT", self.launch.run_id, self.world.clock.utc(), task.node, task.attempt,
            {"question": question.text, "question_id": question.id}))
        self._asked = question.id

    def read(self, work: Work) -> bool:
        """Hand answers that came to the work; True if there was one."""
        found = False
        lives = {self.life.key.full: self.life.incarnation}
        for posted in signals.list_pending(self.world.home, self.life.key):
            signal = posted.signal
            why = posted.error if signal is None else find_objection(signal, self.launch.run_id, {}, lives)
            if signal is None or why or signal.signal_type != "INPUT_RESPONSE":
                signals.refuse(posted.path, why or "an orchestrator takes answers only")
                continue
            work.answer(str(signal.payload.get("question_id", "")), str(signal.payload.get("text", "")))
            signals.acknowledge(posted.path)
            found = True
        return found

    def watch(self, waker: EventLoop) -> None:
        """Wake at any answer."""
        folder = signals.inbox_path(self.world.home, Key("orchestrator", self.life.key.name, self.life.key.run))
        if folder.is_dir():
            waker.watch_directory(folder)
