"""Command agent: run any program in the worktree with its output in a file.

Exit code 0 is success (rule `exit_zero`), or the program writes its own status to GARRISON_RESULT_FILE (rule
`result_file`). Under either rule it may report there where the pipeline goes next and values for its context (see
`result`); GARRISON_CONTEXT_FILE holds the present context. `garrison report` reports the same through the agent's
socket (`channel`), and takes precedence. The orchestrator commits what the program leaves uncommitted.

A node's own command (`command=`) runs below a shell that records its exit code. If the orchestrator dies before it has
written the result, its successor adopts that code and repeats nothing.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from garrison.agents.base import EXIT, AgentReport, Outcome, Work
from garrison.agents.result import LANDING, read_report
from garrison.errors import Refused
from garrison.frozen import frozen
from garrison.records import atomic
from garrison.records.costs import NO_LIMITS, Limits
from garrison.sandbox.confine import confine
from garrison.system import untrusted
from garrison.system.exit_info import describe_exit, describe_failure, quote_command
from garrison.system.jobs import Job, JobResult, read_tail

if TYPE_CHECKING:
    from collections.abc import Container
    from pathlib import Path

    from garrison.agents.base import Assignment

RULES = ("exit_zero", "result_file")


@frozen
class CommandProfile:
    """A command agent as the configuration names it."""

    name: str
    argv: tuple[str, ...] = ()
    """Words with {prompt_file} {prompt} {tree} {node} {run} {attempt} {result_file} {command} filled in."""
    env: tuple[str, ...] = ()
    """Variables of the caller's environment that it may see."""
    success: str = "exit_zero"
    """`exit_zero`, or `result_file`: the program itself writes GARRISON_RESULT_FILE with {"status": "success"}."""
    limits: Limits = NO_LIMITS
    """On what its calls of model APIs may cost, where the run's proxy makes them."""


SHELL = CommandProfile("command", ("/bin/sh", "-c", "{command}"))
"""Runs the node's own `command` in a shell."""
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
are not recorded, nor is anything once the orchestrator is dead: whatever ended the command then is no verdict on it."""
MAX_EXIT = 100
"""Bytes of a recorded exit code."""
_PLACEHOLDER = re.compile(r"\{(prompt_file|prompt|tree|node|run|attempt|result_file)\}")


class CommandAgent:
    """Runs one profile."""

    def __init__(self, profile: CommandProfile = SHELL) -> None:
        self.profile = profile
        self.name = profile.name

    def start(self, assignment: Assignment, now: float) -> CommandWork:
        """Start the program in the worktree; Refused if the node gives it no command."""
        task = assignment.task
        if "{command}" in self.profile.argv and not task.command:
            raise Refused(f"node {task.node} has no command=; give it one, or an agent that needs none")
        result_file = assignment.result_file
        is_own_command = self.profile.argv == SHELL.argv
        what = f"command {quote_command(task.command or '')}" if "{command}" in self.profile.argv else \
            f"agent {self.name}"
        if is_own_command and (code := recorded_exit_code(assignment)) is not None:
            ended = EndedJob(JobResult(code, False, 0.0))
            if assignment.reports is not None:
                assignment.reports.recall()
            return CommandWork(ended, assignment, self.profile.success, result_file, what)
        atomic.make_directory(assignment.exchange)
        for name in (result_file.name, EXIT):
            untrusted.remove(assignment.exchange, name)
        if assignment.reports is not None:
            assignment.reports.takes_result = True
            assignment.reports.forget()
        environment = {**assignment.environment, "GARRISON_PROMPT_FILE": str(assignment.prompt_file),
                       "GARRISON_RESULT_FILE": str(result_file), "GARRISON_NOTES_FILE": str(assignment.notes),
                       "GARRISON_CONTEXT_FILE": str(assignment.context_file)}
        if "script" in task.attributes:
            environment["GARRISON_SCRIPT"] = str(assignment.worktree / str(task.attributes["script"]))
        argv = [fill_placeholders(word, assignment, result_file) for word in self.profile.argv]
        if is_own_command:
            argv = ["/bin/sh", "-c", _RECORDING, "sh", task.command or "", str(task.attempt),
                    str(assignment.incarnation), str(assignment.exit_file)]
        confined = confine(argv, environment, assignment.place)
        job = Job.start(confined.argv, env=confined.env, cwd=assignment.worktree, log=assignment.output,
                        timeout_s=task.timeout_s, now=now)
        return CommandWork(job, assignment, self.profile.success, result_file, what)


def recorded_exit_code(assignment: Assignment) -> int | None:
    """Return the exit code that the command left in an earlier incarnation of this attempt; None if it left none."""
    line = untrusted.read_text(assignment.exchange, EXIT, MAX_EXIT)
    words = line.split()
    if not line.endswith("\n") or len(words) != 3 or not all(word.isascii() and word.isdigit() for word in words):
        return None
    attempt, incarnation, code = map(int, words)
    return code if attempt == assignment.task.attempt and incarnation < assignment.incarnation else None


class EndedJob:
    """A command that ended in an earlier incarnation, in place of a job; nothing of it runs."""

    wake_at = None

    def __init__(self, result: JobResult) -> None:
        self.result = result

    def poll(self, _now: float) -> JobResult:
        """Return its result."""
        return self.result

    def kill(self, _now: float | None = None) -> None:
        """Do nothing."""


class CommandWork(Work):
    """A running program."""

    def __init__(self, job: Job | EndedJob, assignment: Assignment, rule: str, result_file: Path, what: str) -> None:
        self._what = what
        """Its command, as a reason names it."""
        self._job, self._assignment, self._rule, self._result_file = job, assignment, rule, result_file

    def poll(self, now: float) -> Outcome | None:
        """Return the outcome once the program and everything it started have ended."""
        result = self._job.poll(now)
        if result is None:
            return None
        reports = self._assignment.reports
        return outcome_of(self._rule, self._result_file, result, read_tail(self._assignment.output, 3), self._what,
                          self._assignment.task.words, reports.result if reports is not None else {})

    def stop(self, now: float) -> None:
        """Send TERM, later KILL."""
        self._job.kill(now)

    def process(self) -> tuple[int, int] | None:
        """Return the program; None if it ended in an earlier incarnation."""
        return None if isinstance(self._job, EndedJob) else (self._job.pid, self._job.ticks)

    def forget(self) -> None:
        """Remove the recorded exit code."""
        untrusted.remove(self._assignment.exchange, EXIT)

    def wake_at(self) -> float | None:
        """Return its timeout, or the next step of ending it."""
        return self._job.wake_at


def fill_placeholders(word: str, assignment: Assignment, result_file: Path) -> str:
    """Fill the {names} in one word of an argv template; other braces stay as they are."""
    task = assignment.task
    if word == "{command}":
        return task.command or ""
    values = {"prompt_file": str(assignment.prompt_file), "tree": str(assignment.worktree), "node": task.node,
              "run": task.run_id, "attempt": str(task.attempt), "result_file": str(result_file)}

    def fill(match: re.Match[str]) -> str:
        name = match[1]
        return assignment.read_prompt() if name == "prompt" else values[name]

    return _PLACEHOLDER.sub(fill, word)  # in one pass: a path that holds {node} is not filled again


def outcome_of(rule: str, result_file: Path, result: JobResult, output: str, what: str = "the command",
               asked: Container[str] | None = (), reported: AgentReport | None = None) -> Outcome:
    """Return the outcome by the profile's rule and the program's report.

    `output` are its last lines, `what` names it, `asked` are the words that edges of its node ask for, and `reported`
    is what it reported through its socket; without that its result file counts.
    """
    try:
        report = reported or read_report(result_file, asked)
    except ValueError as error:
        how = "" if result.ok else f"; {describe_exit(result.exit_code)}"
        reason = f"its result file is invalid: {error}{how}"
        return Outcome("fail", reason, result.exit_code, killed=result.ended_by_signal)
    if rule == "result_file":
        return outcome_by_report(report, result, what)
    outcome = outcome_by_exit_code(result, output, what)
    status = report.get("status", "")
    if outcome.status == "success" and status and status not in LANDING:
        outcome = Outcome("fail", report.get("failure_reason") or f"it reports {status}", result.exit_code)
    return replace(outcome, report=report)


def outcome_by_exit_code(result: JobResult, output: str, what: str = "the command") -> Outcome:
    """Apply the rule `exit_zero`; `output` are the program's last lines, `what` names it."""
    if result.ok:
        return Outcome("success", exit_code=0)
    reason = describe_failure(what, result.exit_code, output, seconds=result.seconds if result.timed_out else None)
    return Outcome("fail", reason, result.exit_code, killed=result.ended_by_signal)


def outcome_by_report(report: AgentReport, result: JobResult, what: str = "the command") -> Outcome:
    """Apply the rule `result_file`: only a program that reports success has succeeded; `what` names it."""
    status = report.get("status")
    reason = report.get("failure_reason")
    if not status:
        reason = reason or f"{what} wrote no status; {describe_exit(result.exit_code)}"
        return Outcome("fail", reason, result.exit_code, killed=result.ended_by_signal, report=report)
    if status in LANDING and result.ok:
        return Outcome("success", exit_code=0, report=report)
    return Outcome("fail", reason or f"{what} did not report success", result.exit_code, report=report)
