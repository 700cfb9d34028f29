"""Connection: a process that runs an agent's program for one prompt of a session, and records how it ends.

It decides nothing about the attempt: it writes how it ended to `endings.jsonl` and exits, and the orchestrator decides
what follows (`attempt`). It dies with its orchestrator, and the program with it. The common part of every kind of agent
is here, in this order:

1. `run` records the leftovers of a dead predecessor, waits until no other process runs the session and a start slot is
   free, and opens the program.
2. `_converse` sends the prompt, and another one for new messages of the user. The kind passes each event to `_write`
   (or, for usage, to `usage.jsonl`) and to `_observe`, which detects a looping session.
3. `_turn_ended` finds out how a turn has ended: by a report, a question, a failure, or none of these.
4. `_ending` names the end of the connection, by the API's own answer if the run's proxy has seen it;
   `run_connection` records it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from garrison.agents.base import WORKER, ConnectionOrder
from garrison.agents.conversation import messages, policy, questions
from garrison.agents.conversation.files import AttemptFiles
from garrison.agents.conversation.policy import ConnectionEnd
from garrison.agents.conversation.recorder import AttemptRecorder, shorten
from garrison.agents.conversation.start_watch import start_slot
from garrison.agents.result import LANDING
from garrison.agents.trouble import TroubleKind
from garrison.ends import End, EndKind
from garrison.records import atomic
from garrison.records.json_io import read_json
from garrison.records.life_lock import LifeLock
from garrison.records.record import from_data
from garrison.system.processes import die_with_parent
from garrison.values import replace

if TYPE_CHECKING:
    from garrison.agents.conversation.loop_detector import LoopDetector
    from garrison.agents.conversation.messages import Undelivered
    from garrison.agents.conversation.stream import Event

_LOCK_TIMEOUT = 30.0
"""Seconds to wait for an earlier incarnation's connection to release the session."""
_STOP_TIMEOUT = 0.5
"""Seconds by which our stop signal may arrive later than the program's."""
_MAX_LAST = 400
"""Characters of an agent's last message that are kept if it made no report."""
_SHOWN_REPEATS = 4
"""Consecutive identical calls from which `status` shows them."""


_EARLIER = {"incarnation": "life", "worktree": "tree", "role": "part"}
"""Names in the order of an ACP agent from an orchestrator started before an update."""
OrderT = TypeVar("OrderT", bound=ConnectionOrder)


class SessionConnection(Generic[OrderT]):
    """One connection to a session."""

    program: ClassVar[str]
    """The agent's program in messages."""
    failures: ClassVar[tuple[type[Exception], ...]]
    """Errors of the program, which `_failed` names."""

    def __init__(self, job: OrderT, starts: int, loops: LoopDetector, executable: str, path: str | None = None) -> None:
        self.job, self.files, self._starts = job, AttemptFiles(job.attempt_folder), starts
        self._executable, self._path = executable, path
        """The program, and the PATH to search for it."""
        self._prompt, self._loops = job.prompt, loops
        self._stop, self._started = asyncio.Event(), asyncio.Event()
        self._recorder = AttemptRecorder(self.files, job.incarnation)
        self._write, self._note = self._recorder.write, self._recorder.note
        self._told: Undelivered | None = None
        """The user's message sent with the current prompt; None once the agent has answered."""
        self._shows_repeats = False
        self._lock: LifeLock | None = None
        """Held until this process ends: no other may run the session."""

    # ---- implemented by each kind of agent

    @property
    def _answered(self) -> bool:
        """Return whether the model has answered in this connection."""
        raise NotImplementedError

    async def _open(self) -> ConnectionEnd | None:
        """Start the program and its session; return the ending if they cannot start."""
        raise NotImplementedError

    async def _turn(self, prompt: str) -> ConnectionEnd:
        """Send a prompt, and record the events of its turn; return how that ended."""
        raise NotImplementedError

    async def _close(self) -> None:
        """End the program."""
        raise NotImplementedError

    async def _failed(self, error: Exception) -> ConnectionEnd:
        """Return the ending for an error of the program."""
        raise NotImplementedError

    def _prepare(self) -> ConnectionEnd | None:
        """Return the ending if the program may not start."""
        return None

    @property
    def _is_in_call(self) -> bool:
        """Return whether a tool call is in progress, which may change the report."""
        return False

    def _take_report(self, _message: str = "") -> Mapping[str, object] | None:
        """Return the agent's report, which is then in report.json; ValueError if its report is unreadable.

        Args:
            message: its last message, which may contain the report.
        """
        report: Mapping[str, object] | None = read_json(self.files.report)
        return report

    def _text_of(self, told: Undelivered) -> str:
        """Return the prompt with the user's messages during the last turn."""
        return told.text

    def _asks(self, said: str) -> str:
        """Return the question to the user in a worker's last message; '' for none."""
        return questions.plain_question(said) if self.job.role == WORKER else ""

    # ---- from start to end

    async def run(self) -> ConnectionEnd:
        """Run the connection to its end."""
        # Before anything is awaited: a stop while we wait for the lock or a start slot must record an ending, or it
        # would count as a crash.
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stop.set)
        self._show_trouble("")
        if ending := self._left_over() or await self._lock_session() or self._prepare():
            return ending
        try:
            return await self._connect()
        except self.failures as error:
            return await self._failed(error)

    def _left_over(self) -> ConnectionEnd | None:
        """Return the ending that a predecessor died before recording."""
        if report := self._take_report():
            return self._reported(report)
        question = self._open_question()
        return self._ending(policy.QUESTION, question) if question else None

    async def _lock_session(self) -> ConnectionEnd | None:
        """Wait until no other process runs the session; return the ending if that takes too long or we must stop."""
        until = time.monotonic() + _LOCK_TIMEOUT
        while not self._stop.is_set() and time.monotonic() < until:
            # Polled, since a blocking flock could not be abandoned for a stop.
            self._lock = LifeLock.try_acquire(self.files.lock)
            if self._lock is not None:
                return None
            await asyncio.sleep(0.05)
        return self._ending(policy.STOPPED) if self._stop.is_set() else self._ending(
            TroubleKind.CRASH, "another process still runs the session")

    async def _connect(self) -> ConnectionEnd:
        async with start_slot(Path(self.job.home), self._starts, self._show_wait, self._stop) as self._started:
            self.files.waiting.unlink(missing_ok=True)
            if self._stop.is_set():
                return self._ending(policy.STOPPED)
            try:
                return await self._open() or await self._converse()
            finally:
                await self._close()

    async def _converse(self) -> ConnectionEnd:
        """Send the prompt, and another one for new messages of the user; return how the last turn ended."""
        self._told = told = messages.pending(self.files)
        ending = await self._turn(f"{self._prompt}\n\n{told.text}" if told else self._prompt)
        while ending.kind == policy.SILENT and (told := messages.pending(self.files)):
            self._told = told
            ending = await self._turn(self._text_of(told))
        return ending

    def _confirm(self) -> None:
        """Count the user's message as delivered, once the agent has answered."""
        if self._told is not None:
            messages.confirm(self.files, self._told)
            self._told = None

    def _observe(self, event: Event) -> str:
        """Return why the session is looping, '' if it is not; show what repeats."""
        reason = self._loops.observe(event)
        if event["kind"] == "tool_result" and (self._loops.repeated >= _SHOWN_REPEATS or self._shows_repeats):
            self._shows_repeats = self._loops.repeated >= _SHOWN_REPEATS
            self._show_trouble(f"the last {self._loops.repeated} calls brought nothing new"
                               if self._shows_repeats else "")
        return reason

    def _goes_round(self, reason: str) -> ConnectionEnd:
        return self._ending(*questions.loop_ending(self.files, self.job.role, reason))

    def _turn_ended(self, said: str, failure: ConnectionEnd | None = None) -> ConnectionEnd:
        """Return how a turn ended: by a report, a question or a failure, or without any of them.

        Args:
            said: its last message.
        """
        unreadable = ""
        try:
            if report := self._take_report(said):
                return self._reported(report)
        except ValueError as error:
            self._note(unreadable := str(error))
        if question := self._open_question():
            return self._ending(policy.QUESTION, question)
        if failure is not None:
            return failure
        if question := self._asks(said):
            questions.ask(self.files, question)
            return self._ending(policy.QUESTION, question)
        silent = self._ending(policy.SILENT, said.strip()[-_MAX_LAST:] or "it said nothing")
        return replace(silent, unreadable=unreadable) if silent.kind == policy.SILENT else silent

    def _open_question(self) -> str:
        """Return the question that ends the turn; '' for none, or if the program itself waits for the answer."""
        question = read_json(self.files.question)
        return questions.unanswered(self.files) if question and not question.get("call") else ""

    # ---- endings

    def _ending(self, kind: str, reason: str = "", *, resets_at: float | None = None) -> ConnectionEnd:
        """Return how the connection ends: by its report, else by the recorder's judgement of the program's output. A
        failure after the report is no reason to repeat the work."""
        # The report of a connection that is stopped or crashes is found by the next one (`_left_over`).
        if kind not in (policy.STOPPED, TroubleKind.CRASH) and not self._is_in_call and (report := self._take_report()):
            return self._reported(report)
        return self._recorder.ending(kind, reason, resets_at=resets_at, answered=self._answered)

    def _reported(self, report: Mapping[str, object]) -> ConnectionEnd:
        return ConnectionEnd(policy.REPORTED, time.time(), shorten(str(report["summary"])), report["status"] in LANDING,
                             None, self._answered)

    async def _program_ended(self, end: End, said: str, kind: str) -> ConnectionEnd:
        """Return the ending of a program that exited by itself.

        Args:
            said: the end of its error output.
            kind: class of an exit with an error, by that output.
        """
        if end.signal == signal.SIGTERM:  # a stop signals the program and us; ours may arrive later
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), _STOP_TIMEOUT)
        if self._stop.is_set():
            return self._ending(policy.STOPPED)
        if end.kind is EndKind.SIGNAL:
            return ConnectionEnd(TroubleKind.CRASH, time.time(), f"{self.program} was killed (exit code {end.code})",
                                 progress=self._answered)
        if end.kind is EndKind.LOST:
            return self._ending(TroubleKind.CRASH, f"{self.program} closed its output")
        # A program that has answered was not missing: its own output says why it ended.
        if not self._answered and (gone := self._vanished(was_run=end.kind is not EndKind.NOT_RUN)):
            return gone
        if end.kind is EndKind.NOT_RUN:
            return self._ending(TroubleKind.INVALID, f"{self.program} cannot be started: {said}")
        return self._ending(kind, f"{self.program} ended with exit code {end.code}: {said or 'it said nothing'}")

    def _vanished(self, *, was_run: bool) -> ConnectionEnd | None:
        """Return the ending for a program that failed to start and is missing, None if it exists: an update replaces
        it, so wait for it."""
        program = self._executable
        if shutil.which(program, path=self._path) is None:
            return self._ending(TroubleKind.VANISHED, f"{program} is missing; waiting until it is back")
        before = self.files.read_endings()[-1:]
        if not was_run and before and before[0].kind == TroubleKind.VANISHED:  # it was missing when we were started
            return self._ending(TroubleKind.VANISHED, f"{program} cannot be run yet; waiting until it can")
        return None

    # ---- what is shown

    def _show_wait(self, what: str) -> None:
        """Show what the session waits for, in the output and in `status`."""
        self._note(f"waits {what}")
        atomic.write(self.files.waiting, what.encode(), durable=False)

    def _show_trouble(self, what: str) -> None:
        """Show a problem of the working session in `status`; '' for none."""
        if what:
            atomic.write(self.files.trouble, what.encode(), durable=False)
        else:
            self.files.trouble.unlink(missing_ok=True)


def run_connection(connection: Callable[[OrderT], SessionConnection[OrderT]], order: type[OrderT],
                   argv: list[str] | None) -> int:
    """Run a connection by the order in the file that the command line names; exit 0 once its ending is on disk."""
    path = Path((sys.argv[1:] if argv is None else argv)[0])
    # A connection without its orchestrator would continue while the successor's connection waits for the lock.
    die_with_parent()
    job = from_data(order, {_EARLIER.get(name, name): value for name, value in (read_json(path) or {}).items()})

    async def run() -> ConnectionEnd:
        return await connection(job).run()

    return run_to_ending(AttemptFiles(job.attempt_folder), run)


def run_to_ending(files: AttemptFiles, run: Callable[[], Coroutine[object, object, ConnectionEnd]]) -> int:
    """Run a connection and record how it ended; return the process's exit code."""
    try:
        files.add_ending(asyncio.run(run()))
    except OSError as error:  # such as a full disk: a later connection continues
        with contextlib.suppress(OSError):
            os.write(1, f"the connection ends: {error}\n".encode(errors="replace"))
        os._exit(1)  # unflushed output would print a traceback
    return 0
