"""Command agent: run any program in the worktree with its output in a file.

Exit code 0 is success (rule `exit_zero`, which a profile's table can change: `success_rule`), or the program writes its
own status to GARRISON_RESULT_FILE (rule `result_file`). Under either rule it may report there where the pipeline
continues and values for its context (see `result`); GARRISON_CONTEXT_FILE contains the current context. `garrison
report` reports the same through the agent's socket (`channel`), and takes precedence. The orchestrator commits what the
program leaves uncommitted.

Its standard input is empty, or the prompt, or its own terminal (`pseudo_terminal`). If it prints lines of JSON,
`program_stream` reads them; after a death its session is then resumed by `resume_argv`.

A node's own command (`command=`) runs below a shell that records its exit code. If the orchestrator dies before it has
written the result, its successor adopts that code and repeats nothing.

A `CommandAttempt` has the program's runs, and the waits between them while something else prevents work. A program that
ends because of a limit, an overload, an unreachable API or an update that has just removed it proves nothing about the
task. How it ended is recorded like a session's endings (`conversation.files`), so the wait continues after any kill;
`conversation.policy.decide_program` says until when, by the table of `agents.trouble`. Nothing runs while it waits, and
no attempt, rework or restart is spent. Only a failed run is examined: the API's answer to its last call, as seen by the
run's proxy; else its last output, or the error event that ends its stream. A program that reports its own status is
believed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.agents import template
from garrison.agents.base import EXIT, WORKER, AgentReport, Trouble, Work, WorkResult
from garrison.agents.command_profile import PROMPT, SHELL, CommandProfile
from garrison.agents.conversation import policy, questions
from garrison.agents.conversation.attempt import SuspendableAttempt
from garrison.agents.conversation.policy import ConnectionEnd, NextStepKind
from garrison.agents.result import LANDING, read_report
from garrison.agents.success_rule import EXIT_ZERO, MAX_SEARCHED
from garrison.agents.trouble import (
    TRANSIENT,
    TroubleKind,
    Witness,
    find_witness,
    hosts_of,
    judge,
    read_reset,
    read_told,
)
from garrison.agents.variables import expand, fill_variables
from garrison.ends import NOT_FOUND, End, EndKind
from garrison.errors import GarrisonError, Refused
from garrison.records import atomic
from garrison.records.api_answers import NETWORK, read_answer
from garrison.sandbox.confine import confine
from garrison.sandbox.place import Mode
from garrison.system import untrusted
from garrison.system.clock import local_zone
from garrison.system.command import Job, read_tail
from garrison.system.exit_info import describe_end, describe_failure, quote_command
from garrison.system.pseudo_terminal import PseudoTerminal
from garrison.system.terminal_text import clean, clean_lines
from garrison.values import Value, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Sequence

    from garrison.agents.base import Assignment
    from garrison.agents.conversation.policy import NextStep
    from garrison.agents.program_stream import ProgramState, ProgramStream
    from garrison.records.api_answers import ApiAnswer

# `$PPID` is the shell's original parent, /proc has the current one: they differ if the orchestrator has died. The
# shell's own stderr is discarded: dash and bash would report that the command was killed.
_RECORDING = """\
exec 3>&2 2>/dev/null
/bin/sh -c "$1" 2>&3 3>&-
code=$?
read -r _ _ _ parent _ </proc/$$/stat
if [ "$parent" = "$PPID" ] && { [ "$code" -le 128 ] || [ "$code" -ge 160 ]; }; then
    printf '%s %s %s\\n' "$2" "$3" "$code" >"$4"
fi
exit "$code"
"""
"""Runs the command ($1) and records how it ended ($2: the attempt, $3: the incarnation, $4: the file). Codes of signals
are not recorded, nor anything after the orchestrator's death: how the command ends then is no verdict on it."""
MAX_EXIT = 100
"""Bytes of a recorded exit code."""
_PLACEHOLDER = re.compile(r"\{(prompt_file|prompt|tree|node|run|attempt|result_file|session)\}")
_LAUNCHER = Path(__file__).resolve().parents[1] / "sandbox" / "pty_launcher.py"
_TERM = "xterm-256color"
"""Kind of a terminal if the caller's environment names none."""
_PACE = 0.25
"""Seconds between two reads of a growing stream."""
_MAX_REASON = 300
_MAX_LAST, _MAX_LAST_BYTES = 80, 16_000
"""Lines and bytes at the end of the output that are searched for why a program could not work."""
_MAX_NOTES = 4000
"""Characters of a last message that become the summary of work without a report."""
PROGRESS_AFTER = 60.0
"""Seconds of work after which the next failure is a new one, and its pauses restart."""
_START_SECONDS = 15.0
"""Seconds within which a program with a missing part fails."""
_PROGRAMS = frozenset({TroubleKind.VANISHED, TroubleKind.BROKEN})
"""Classes about the program itself."""
_BROKEN = re.compile(r"cannot find (?:module|package)|ERR_MODULE_NOT_FOUND|ModuleNotFoundError|No module named|"
                     r"text file busy|bad interpreter|exec format error|bwrap: (?:execvp|Can't find source path)|"
                     r"cannot execute", re.IGNORECASE)
"""Output of a program that is being replaced."""


class CommandAgent:
    """Runs one profile."""

    def __init__(self, profile: CommandProfile = SHELL) -> None:
        self.profile = profile
        self.name = profile.name

    def start(self, assignment: Assignment, now: float) -> Work:
        """Start the program in the worktree, unless it must still wait; Refused if the node has no command for it."""
        if "{command}" in self.profile.argv and not assignment.task.command:
            raise Refused(f"node {assignment.task.node} has no command=; give it one, or an agent that needs none")
        return CommandAttempt(self, assignment, now)

    def run(self, assignment: Assignment, now: float) -> CommandWork:
        """Start the program once; GarrisonError if it cannot be started."""
        task = assignment.task
        result_file = assignment.result_file
        is_own_command, what = self.is_own_command, self.describe(task.command)
        printed = assignment.output.stat().st_size if assignment.output.exists() else 0
        if is_own_command and (code := recorded_exit_code(assignment)) is not None:
            ended = EndedJob(End(code))
            if assignment.reports is not None:
                assignment.reports.recall()
            return CommandWork(ended, assignment, self.profile, what)
        atomic.make_directory(assignment.exchange)
        # Before the start: an earlier incarnation's file would be mistaken for this one's result.
        for name in (result_file.name, EXIT):
            untrusted.remove(assignment.exchange, name)
        if assignment.reports is not None:
            assignment.reports.takes_result = True
            assignment.reports.forget()
        if is_own_command:
            argv = ("/bin/sh", "-c", _RECORDING, "sh", task.command or "", str(task.attempt),
                    str(assignment.incarnation), str(assignment.exit_file))
            return CommandWork(self._launch(assignment, argv, now), assignment, self.profile, what,
                               Beside(printed=printed))
        stream = self._open_stream(assignment)
        session = stream.told.session if stream is not None and self.profile.resume_argv else ""
        terminal = PseudoTerminal(assignment.output, is_lent=assignment.lends_terminal) if self.profile.tty else None
        # Only until the stream has output: from then on its session knows the refusal.
        message = assignment.rework if stream is not None and stream.mends and not stream.offset else ""
        job = self._launch(assignment, self._words(assignment, session), now, terminal, stream, message)

        def start_anew(later: float) -> Job:
            assert stream is not None
            stream.mends = False
            return self._launch(assignment, self._words(assignment, ""), later, None, stream)

        return CommandWork(job, assignment, self.profile, what, Beside(
            terminal, stream, start_anew if session else None, printed))

    @property
    def is_own_command(self) -> bool:
        """Return whether it runs the node's own command, without a known agent in it."""
        profile = self.profile
        return profile.argv == SHELL.argv and not (profile.tty or profile.stdin or profile.stream)

    def programs(self, command: str | None) -> list[str]:
        return self.profile.programs(command)

    def not_run(self, assignment: Assignment) -> CommandWork:
        """Return the work of a missing program, with a shell's exit code."""
        what = self.describe(assignment.task.command)
        return CommandWork(EndedJob(End(NOT_FOUND)), assignment, self.profile, what)

    def describe(self, command: str | None) -> str:
        return f"command {quote_command(command or '')}" if "{command}" in self.profile.argv else f"agent {self.name}"

    def _open_stream(self, assignment: Assignment) -> ProgramStream | None:
        """Open the stream where the predecessor's program ended; None for an agent without a stream."""
        form = self.profile.format
        if form is None:
            return None
        from garrison.agents.conversation.loop_detector import (
            MAX_REPEATS,
            LoopDetector,  # most agents print no stream
        )
        from garrison.agents.program_stream import ProgramStream
        from garrison.system.stamps import ContentWatch

        stream = ProgramStream(form, assignment.folder, assignment.output)
        stream.catch_up()
        stream.loops = LoopDetector(MAX_REPEATS, None, ContentWatch(assignment.worktree).state)
        if self.profile.resume_argv:
            stream.take_refused(assignment.refused)
        return stream

    def _words(self, assignment: Assignment, session: str) -> list[str]:
        """Return the command line, the resuming one if there is a session."""
        words, environment = self.profile.resume_argv if session else self.profile.argv, self._environment(assignment)
        known = [fill_variables(word, environment, self.name) for word in words]
        return [fill_placeholders(word, assignment, assignment.result_file, session) for word in known]

    def _launch(self, assignment: Assignment, argv: Sequence[str], now: float, terminal: PseudoTerminal | None = None,
                stream: ProgramStream | None = None, message: str = "") -> Job:
        """Start a command line in its place, with a `message` to its session if that differs from the prompt."""
        environment = self._environment(assignment)
        descriptors: tuple[int, ...] = ()
        launcher: list[str] = []
        if terminal is not None:
            environment.setdefault("TERM", _TERM)
            descriptors = (terminal.descriptor,)
            launcher = [sys.executable, "-I", "-S", str(_LAUNCHER), str(terminal.descriptor), *map(str, terminal.size)]
        confined = confine([*launcher, *argv], environment, assignment.place)
        # One prevents processes inside from opening a terminal for another, the other passes only its own.
        if launcher and confined.mode in (Mode.LANDLOCK, Mode.CONTAINER):
            confined = confine(argv, environment, assignment.place)
            confined = replace(confined, argv=(*launcher, *confined.argv))
        text = (message or assignment.read_prompt()) if self.profile.stdin == PROMPT else None
        with _standard_input(text) as stdin:
            job = Job.start(confined.argv, env=confined.env, cwd=assignment.start, log=assignment.output,
                            timeout_s=assignment.task.timeout_s, now=now, stdin=stdin, extra_fds=descriptors,
                            stdout=stream.files.lines if stream is not None else None)
        if terminal is not None:
            terminal.begin()
        return job

    def _environment(self, assignment: Assignment) -> dict[str, str]:
        task = assignment.task
        own = {key: expand(value, assignment.environment, f"agent {self.name}: set.{key}")
               for key, value in self.profile.set.items() if key not in assignment.network_variables}
        environment = {**assignment.environment, **own, "GARRISON_PROMPT_FILE": str(assignment.prompt_file),
                       "GARRISON_RESULT_FILE": str(assignment.result_file),
                       "GARRISON_NOTES_FILE": str(assignment.notes),
                       "GARRISON_CONTEXT_FILE": str(assignment.context_file)}
        if "script" in task.attributes:
            environment["GARRISON_SCRIPT"] = str(assignment.tree / str(task.attributes["script"]))
        return environment


@contextlib.contextmanager
def _standard_input(text: str | None) -> Iterator[int | None]:
    """Open a text as standard input, None for an empty one.

    Sealed memory, not the file: an agent could reopen its input for writing.
    """
    if text is None:
        yield None
        return
    descriptor = os.memfd_create("prompt", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(text.encode(errors="replace"))
        os.lseek(descriptor, 0, os.SEEK_SET)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS,
                    fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
        yield descriptor
    finally:
        os.close(descriptor)


def recorded_exit_code(assignment: Assignment) -> int | None:
    """Return the exit code that the command left in an earlier incarnation of this attempt; None if there is none."""
    line = untrusted.read_text(assignment.exchange, EXIT, MAX_EXIT)
    words = line.split()
    # Without a line feed it was torn by a kill. Forging the file gains nothing: the command could exit with that code.
    if not line.endswith("\n") or len(words) != 3 or not all(word.isascii() and word.isdigit() for word in words):
        return None
    attempt, incarnation, code = map(int, words)
    return code if attempt == assignment.task.attempt and incarnation < assignment.incarnation else None


class EndedJob:
    """Stands in for a job: a command that ended in an earlier incarnation, of which nothing runs."""

    wake_at = None

    def __init__(self, result: End) -> None:
        self.result = result

    def poll(self, _now: float) -> End:
        return self.result

    def kill(self, _now: float | None = None) -> None:
        """Do nothing."""


class Beside(Value):
    """What accompanies a program."""

    terminal: PseudoTerminal | None = None
    stream: ProgramStream | None = None
    start_anew: Callable[[float], Job] | None = None
    """Starts it without its session, if it should resume one."""
    printed: int = 0
    """Bytes in the output from before its start."""


NOTHING = Beside()


class CommandWork(Work):
    """A running program."""

    def __init__(self, job: Job | EndedJob, assignment: Assignment, profile: CommandProfile, what: str,
                 beside: Beside = NOTHING) -> None:
        self._what = what
        """Its command, for reasons."""
        self._job, self._assignment, self._profile = job, assignment, profile
        self._terminal, self._stream, self._start_anew = beside.terminal, beside.stream, beside.start_anew
        self._printed = beside.printed
        self._is_stopping = self.timed_out = False
        self.goes_round = ""
        """Why it was ended for looping, '' if it was not."""
        self._read_next: float | None = None
        """When a growing stream is read next: not at each line."""

    def poll(self, now: float) -> WorkResult | None:
        """Return the outcome once the program and everything it started have ended."""
        result = self._job.poll(now)
        if self._stream is not None:
            before = self._stream.offset
            self._stream.read()
            self._read_next = now + _PACE if self._stream.offset != before else None
            if result is None and self._stream.goes_round and not self.goes_round:
                self.goes_round = self._stream.goes_round
                self._job.kill(now)
        if result is None:
            return None
        self.timed_out = result.timed_out
        if self._stream is not None:
            self._stream.finish()
        if self._terminal is not None:
            self._terminal.close()
        if self._was_not_resumed(result):
            self._say("its session could not be resumed; starting a new one")
            assert self._start_anew is not None
            self._job, self._start_anew = self._start_anew(now), None
            return None
        try:
            reported = self._reported()
        except ValueError as error:
            return WorkResult("fail", f"{self._what}: {error}", result.code, killed=bool(result.signal))
        # Its output before a deadly signal is not why it ended.
        told = self.told.failure if self.told is not None and not result.signal else ""
        output = clean(told)[:_MAX_REASON] or read_tail(self._assignment.output, 3, since=self._printed)
        outcome = outcome_of(self._profile, self._assignment.result_file, result, output, self._what,
                             self._assignment.task.words, reported)
        return self._with_stream(self._objected(outcome))

    def _reported(self) -> AgentReport:
        """Return the report through its socket, else the one in its stream's last message; ValueError for a bad one."""
        reports = self._assignment.reports
        if (reports is not None and reports.result) or self._stream is None:
            return reports.result if reports is not None else {}
        from garrison.agents.conversation.tools import to_agent_report
        from garrison.agents.report_block import find_report  # most agents print no stream

        body = find_report(self._stream.told.message, self._assignment.task.words)
        report = to_agent_report(body)
        if report.get("status") and report["status"] not in LANDING:
            report["failure_reason"] = clean(str((body or {}).get("summary", "")))[:_MAX_REASON]
        return report

    def _was_not_resumed(self, result: End) -> bool:
        """Return whether the program refused to resume its session: it failed before that had started."""
        return self._start_anew is not None and not self._is_stopping and not result.ok \
            and not result.signal and self.told is not None and not self.told.has_begun

    def _objected(self, outcome: WorkResult) -> WorkResult:
        """Apply the profile's rules about the output to a success."""
        rule, told = self._profile.rule, self.told
        if outcome.status != "success" or rule == EXIT_ZERO:
            return outcome
        why = rule.objection(self._read_output(), told.result if told is not None else None)
        return replace(outcome, status="fail", reason=f"{self._what}: {why}") if why else outcome

    def _with_stream(self, outcome: WorkResult) -> WorkResult:
        """Add what the stream reported: a failed turn, or the last message as the summary."""
        if (told := self.told) is None:
            return outcome
        if outcome.status == "success" and told.failure:
            return replace(outcome, status="fail", reason=f"{self._what} failed: {clean(told.failure)[:_MAX_REASON]}")
        if outcome.status == "success" and told.message.strip() and not outcome.report:
            text = told.message.strip().encode(errors="replace").decode()
            return replace(outcome, report={"notes": text[-_MAX_NOTES:]})
        return outcome

    def _read_output(self) -> str:
        """Return the end of what this incarnation's program printed."""
        with contextlib.suppress(OSError), self._assignment.output.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self._printed, size - 4 * MAX_SEARCHED))
            return "\n".join(clean_lines(file.read(4 * MAX_SEARCHED).decode(errors="replace")))
        return ""

    def _say(self, text: str) -> None:
        with self._assignment.output.open("ab") as output:
            output.write(f"── {text}\n".encode())

    def stop(self, now: float) -> None:
        """Send TERM, later KILL."""
        self._is_stopping = True
        self._job.kill(now)

    def process(self) -> tuple[int, int] | None:
        """Return the program; None if it ended in an earlier incarnation."""
        return None if isinstance(self._job, EndedJob) else (self._job.pid, self._job.ticks)

    @property
    def session(self) -> str | None:
        return (self.told.session or None) if self.told is not None else None

    @property
    def has_keyboard(self) -> bool:
        return self._terminal is not None and self._terminal.is_shown

    @property
    def watched_files(self) -> tuple[Path, ...]:
        return (self._stream.files.lines,) if self._stream is not None and self._read_next is None else ()

    @property
    def last_words(self) -> str:
        return read_tail(self._assignment.output, _MAX_LAST, _MAX_LAST_BYTES, self._printed)

    @property
    def told(self) -> ProgramState | None:
        """Return what its stream reported; None for a program without a stream."""
        return self._stream.told if self._stream is not None else None

    def forget(self) -> None:
        """Remove the recorded exit code."""
        untrusted.remove(self._assignment.exchange, EXIT)

    def wake_at(self) -> float | None:
        """Return its timeout, the next step of ending it, or when its stream is read next."""
        return min((at for at in (self._job.wake_at, self._read_next) if at is not None), default=None)


class CommandAttempt(SuspendableAttempt):
    """An attempt's runs of one program."""

    makes_files = False

    def __init__(self, agent: CommandAgent, assignment: Assignment, now: float, *,
                 wall: Callable[[], float] = time.time) -> None:
        # Before `super().__init__`, which takes the first step at once and needs them.
        self._agent, self._begun, self._begun_at = agent, now, wall()
        self._answer: ApiAnswer | None = None
        """The API's refusal of the ended run's last call, as seen by the run's proxy."""
        self._ran: CommandWork | None = None
        """The current or last run."""
        self._trouble: Trouble | None = None
        """Failure of its last run, if it is not waited for."""
        self._prompt = ""
        """The orchestrator's original prompt, once text has been added."""
        self._gone = ""  # missing program that prevented the last run; it may be back before that is judged
        self.shares_outages = not agent.is_own_command
        super().__init__(assignment, now, wall=wall)

    # ---- hooks of a suspendable attempt

    def _is_of_api(self) -> bool:
        return self._answer is not None  # its output may be about anything

    def _decide(self) -> NextStep:
        if self.endings and self.endings[-1].kind in (TroubleKind.LOOP, policy.QUESTION):
            return policy.decide(self.endings, questions.is_answered(self.files))
        return policy.decide_program(self.endings) if self.endings else policy.RESUME

    def _start(self, decision: NextStep, now: float) -> Work:
        """Start the program, unless it is still missing."""
        self._begun, self._begun_at, self._answer = now, self._wall(), None
        if self.endings and not self._agent.is_own_command:
            self._tell_why(self.endings[-1])
        self._gone = self._missing() if self.endings and self.endings[-1].kind in _PROGRAMS else ""
        try:
            self._ran = (self._agent.not_run(self.assignment) if self._gone else self._agent.run(self.assignment, now))
        except GarrisonError:
            self._gone = self._missing()
            if not self._gone:
                raise
            self._ran = self._agent.not_run(self.assignment)
        return self._ran

    def _conclude(self, ended: WorkResult, *, recorded: bool) -> WorkResult | None:
        if self._ran is not None and self._ran.goes_round and not (self._stopping or ended.report.get("status")):
            self._ran.forget()
            self.files.make()
            kind, reason = questions.loop_ending(self.files, WORKER, self._ran.goes_round)
            self.files.add_ending(ConnectionEnd(kind, self._wall(), reason))
            self.endings = self.files.read_endings()
            return None
        witness = self._find_witness(ended)
        if witness is None:
            return ended
        at = self._wall()
        reason = clean(witness.line)[:_MAX_REASON]
        if witness.kind not in TRANSIENT:
            self._trouble = Trouble(witness.kind, reason, at, given_up=True)
            return ended
        told, answer = self._ran.told if self._ran is not None else None, self._answer
        resets_at = (answer.resets_at if answer is not None else None) or \
            (told.resets_at if told is not None else None) or read_reset(witness.around, at, local_zone())
        ending = ConnectionEnd(witness.kind, at, reason, resets_at=resets_at if witness.kind not in _PROGRAMS else None,
                               progress=time.monotonic() - self._begun >= PROGRESS_AFTER,
                               status=answer.status if answer is not None else None)
        if self._ran is not None:
            # Before the ending is recorded: in the other order, after a kill in between, our successor would adopt the
            # exit code of a run that proves nothing, instead of running the program again.
            self._ran.forget()
        self.files.make()
        self.files.add_ending(ending)
        self.endings.append(ending)
        if policy.decide_program(self.endings).step is NextStepKind.FINISH:
            self._trouble = Trouble(witness.kind, reason, at, given_up=True)
            return replace(ended, reason=policy.decide_program(self.endings).reason)
        self.decision = self._decide()
        return None

    # ---- why it cannot work

    def _find_witness(self, ended: WorkResult) -> Witness | None:
        """Return why a failed run could not work; None for a verdict on the task."""
        work = self._ran
        if self._stopping or work is None or ended.status == "success" or ended.killed or work.timed_out \
                or ended.report.get("status"):
            return None
        # The most reliable evidence first: the machine, the API's own answer, the program's error event, its last
        # output.
        if (gone := self._find_gone(ended, work)) is not None:
            return gone
        answer = read_answer(self.assignment.folder / NETWORK, self._begun_at)
        if answer is not None and (seen := judge(TroubleKind.CRASH, answer)) is not None:
            self._answer = answer
            return Witness(seen, answer.describe(), answer.words)
        told = work.told
        if told is not None and told.failure:
            return read_told(told.status, told.error, told.failure)
        # With exit code 0 the reason contains what the success rule found in the output, such as an error that aider
        # printed.
        output = work.last_words if ended.exit_code else f"{work.last_words}\n{ended.reason}"
        return find_witness(output, is_agent=not self._agent.is_own_command,
                            hosts=hosts_of(self.assignment.environment))

    def _find_gone(self, ended: WorkResult, work: CommandWork) -> Witness | None:
        """Return which program is missing since the launch, or has a missing part; None for none."""
        if not ended.exit_code:
            return None
        if missing := self._gone or self._missing():
            return Witness(TroubleKind.VANISHED, f"{missing} is no longer on the PATH", "")
        broken = self._find_broken(ended, work)
        return Witness(TroubleKind.BROKEN, broken, "") if broken else None

    def _find_broken(self, ended: WorkResult, work: CommandWork) -> str:
        seen = self._seen()
        if not seen:
            return ""
        last = next((line for line in reversed(work.last_words.splitlines()) if line.strip()), "")
        # A shell's own message, `sh: 1: NAME: not found`, is about the program; any other failure may be about the
        # task.
        if self._agent.is_own_command:
            name = next((name for name in seen if re.search(rf"(?:^|[\s/]){re.escape(name)}: ", last)), "")
            return f"{name} could not be run" \
                if name and End(ended.exit_code).kind is EndKind.NOT_RUN else ""
        is_broken = End(ended.exit_code).kind is EndKind.NOT_RUN or any(
            _BROKEN.search(line) for line in work.last_words.splitlines())
        # Later, "No module named" is about the work, such as a test that the agent ran.
        is_early = time.monotonic() - self._begun < _START_SECONDS and not (work.told and work.told.has_begun)
        return f"{seen[0]} cannot be run now ({clean(last)[:120]})" if is_broken and is_early else ""

    def _seen(self) -> list[str]:
        return [word for word in self._agent.programs(self.assignment.task.command) if word in self.assignment.programs]

    def _missing(self) -> str:
        """Return a program that existed at the launch and is missing; '' for none."""
        path = self.assignment.environment.get("PATH", os.defpath)
        return next((name for name in self._seen() if shutil.which(name, path=path) is None), "")

    def _tell_why(self, ending: ConnectionEnd) -> None:
        """Add to the prompt how the previous run ended: its work is there."""
        self._prompt = self._prompt or self.assignment.read_prompt()
        answered = questions.last_answer(self.files)
        added = [template.fill("claude_loop.md", reason=ending.reason) if ending.kind == TroubleKind.LOOP
                 else template.fill("command_waited.md", why=ending.reason)]
        if answered is not None:
            added.append(template.fill("claude_answer.md", question=answered[0], answer=answered[1]))
        self.assignment.write_prompt("\n\n".join([self._prompt.rstrip(), *added]))

    # ---- the protocol `Work`

    @property
    def trouble(self) -> Trouble | None:
        """Return why the program cannot work: it has already retried before it ended, so another agent may take over at
        once, except after a network failure, which affects all."""
        if self._trouble is not None:
            return self._trouble
        is_waiting = self.decision.step is NextStepKind.WAIT or bool(self._held)
        if self.program is not None or self.outcome is not None or not is_waiting:
            return None
        found = super().trouble
        return replace(found, given_up=found.kind != TroubleKind.NETWORK) if found is not None else None

    @property
    def session(self) -> str | None:
        return self._ran.session if self._ran is not None else None

    @property
    def has_keyboard(self) -> bool:
        return self._ran is not None and (self.program is not None or self.outcome is not None) \
            and self._ran.has_keyboard

    @property
    def watched_files(self) -> tuple[Path, ...]:
        return self._ran.watched_files if self._ran is not None and self.program is not None else ()

    def process(self) -> tuple[int, int] | None:
        """Return the program; None while it waits."""
        return self.program.process() if self.program is not None else None

    def forget(self) -> None:
        """Remove the recorded exit code."""
        if self._ran is not None:
            self._ran.forget()


def fill_placeholders(word: str, assignment: Assignment, result_file: Path, session: str = "") -> str:
    """Fill the {names} in one word of an argv template; other braces stay as they are."""
    task = assignment.task
    if word == "{command}":
        return task.command or ""
    values = {"prompt_file": str(assignment.prompt_file), "tree": str(assignment.tree), "node": task.node,
              "run": task.run_id, "attempt": str(task.attempt), "result_file": str(result_file), "session": session}

    def fill(match: re.Match[str]) -> str:
        name = match[1]
        return assignment.read_prompt() if name == "prompt" else values[name]

    return _PLACEHOLDER.sub(fill, word)  # in one pass: a path that contains {node} is not expanded again


def outcome_of(profile: CommandProfile, result_file: Path, result: End, output: str, what: str = "the command",
               asked: Container[str] | None = (), reported: AgentReport | None = None) -> WorkResult:
    """Return the outcome by the profile's rule and the program's report.

    `output` are its last lines, `what` names it, `asked` are the words that edges of its node test for, and `reported`
    is its report through the socket; without that its result file counts.
    """
    try:
        report = reported or read_report(result_file, asked)
    except ValueError as error:
        reason = f"its result file is invalid: {error}" + ("" if result.ok else f"; {describe_end(result)}")
        return WorkResult("fail", reason, result.code, killed=bool(result.signal))
    if profile.success == "result_file":
        return outcome_by_report(report, result, what)
    outcome = outcome_by_exit_code(result, output, what, profile.rule.exit)
    status = report.get("status", "")
    if outcome.status == "success" and status and status not in LANDING:
        outcome = WorkResult("fail", report.get("failure_reason") or f"it reports {status}", result.code)
    return replace(outcome, report=report)


def outcome_by_exit_code(result: End, output: str, what: str = "the command",
                         codes: Container[int] = (0,)) -> WorkResult:
    """Apply the rule `exit_zero`, or the exit codes of the profile's own rule.

    `output` are the program's last lines, `what` names it.
    """
    if result.code in codes and not result.timed_out:
        return WorkResult("success", exit_code=result.code)
    if result.code == 0 and not result.timed_out:
        return WorkResult("fail", f"{what} ended with exit 0, which is not in success.exit", 0)
    reason = describe_failure(what, result, output)
    return WorkResult("fail", reason, result.code, killed=bool(result.signal))


def outcome_by_report(report: AgentReport, result: End, what: str = "the command") -> WorkResult:
    """Apply the rule `result_file`: only a program that reports success has succeeded; `what` names it."""
    status = report.get("status")
    reason = report.get("failure_reason")
    if not status:
        reason = reason or f"{what} wrote no status; {describe_end(result)}"
        return WorkResult("fail", reason, result.code, killed=bool(result.signal), report=report)
    if status in LANDING and result.ok:
        return WorkResult("success", exit_code=0, report=report)
    return WorkResult("fail", reason or f"{what} did not report success", result.code, report=report)
