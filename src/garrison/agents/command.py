"""The command agent: any program, run in the worktree with its output in a file.

Exit 0 is success (rule `exit_zero`), or the program writes GARRISON_RESULT_FILE itself (rule `result_file`). Under
either rule it may write there which way the pipeline should go, and values for its context (see `said`);
GARRISON_CONTEXT_FILE holds the context as it is. What it leaves uncommitted the orchestrator commits.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from garrison.agents import result as said
from garrison.agents.base import Outcome, Profile, Work
from garrison.errors import Refused
from garrison.system.exit_info import describe_exit
from garrison.system.jobs import Job, JobResult, read_tail

if TYPE_CHECKING:
    from pathlib import Path

    from garrison.agents.base import Assignment

SHELL = Profile("command", ("/bin/sh", "-c", "{command}"))
"""The node's own `command`, by a shell."""


_PLACES = re.compile(r"\{(prompt_file|prompt|tree|node|run|attempt|result_file)\}")


class CommandAgent:
    """Runs one profile."""

    def __init__(self, profile: Profile = SHELL) -> None:
        self.profile = profile
        self.name = profile.name

    def start(self, assignment: Assignment, now: float) -> CommandWork:
        """Start the program in the worktree; Refused if the node gives it no command."""
        if "{command}" in self.profile.argv and not assignment.task.command:
            raise Refused(f"node {assignment.task.node} has no command=; give it one, or an agent that needs none")
        claim = assignment.folder / "agent-result.json"
        claim.unlink(missing_ok=True)
        environment = {**assignment.environment, "GARRISON_PROMPT_FILE": str(assignment.prompt_file),
                       "GARRISON_RESULT_FILE": str(claim), "GARRISON_NOTES_FILE": str(assignment.notes),
                       "GARRISON_CONTEXT_FILE": str(assignment.context_file)}
        if "script" in assignment.task.attributes:
            environment["GARRISON_SCRIPT"] = str(assignment.tree / str(assignment.task.attributes["script"]))
        job = Job.start([fill(word, assignment, claim) for word in self.profile.argv], env=environment,
                        cwd=assignment.tree, log=assignment.output, timeout_s=assignment.task.timeout_s, now=now)
        return CommandWork(job, assignment, self.profile.success, claim)


def fill(word: str, assignment: Assignment, claim: Path) -> str:
    """One word of an argv template with its {names} put in; other braces stay as they are."""
    task = assignment.task
    values = {"prompt_file": str(assignment.prompt_file), "tree": str(assignment.tree), "node": task.node,
              "run": task.run_id, "attempt": str(task.attempt), "result_file": str(claim),
              "command": task.command or ""}
    if word == "{command}":
        return values["command"]

    def put(match: re.Match[str]) -> str:
        name = match[1]
        return assignment.prompt_file.read_text() if name == "prompt" else values[name]

    return _PLACES.sub(put, word)  # in one pass: a path that holds {node} is not filled again



class CommandWork(Work):
    """A running program."""

    def __init__(self, job: Job, assignment: Assignment, success: str, claim: Path) -> None:
        self.job, self.assignment, self.success, self.claim = job, assignment, success, claim

    def poll(self, now: float) -> Outcome | None:
        """The outcome once the program and all it started are gone."""
        result = self.job.poll(now)
        if result is None:
            return None
        return settled(self.success, self.claim, result, read_tail(self.assignment.output, 3))

    def stop(self, now: float) -> None:
        """TERM, then KILL."""
        self.job.kill(now)

    def process(self) -> tuple[int, int]:
        """The program."""
        return self.job.pid, self.job.ticks

    def wake_at(self) -> float | None:
        """Its timeout, or the next step of ending it."""
        return self.job.wake_at


def judged(result: JobResult, said: str) -> Outcome:
    """The outcome of rule `exit_zero`; `said` are the program's last lines. Pure."""
    if result.ok:
        return Outcome("success", exit_code=0)
    if result.timed_out:
        return Outcome("fail", f"timed out after {result.seconds:.0f} s: {said}", result.exit_code)
    how = describe_exit(result.exit_code) or "it ended"
    return Outcome("fail", f"{how}: {said}" if said.strip() else how, result.exit_code, killed=result.struck)


def settled(rule: str, claim: Path, result: JobResult, printed: str) -> Outcome:
    """The outcome by the profile's rule and by what the program wrote into its result file."""
    try:
        told = said.read(claim)
    except ValueError as error:
        how = "" if result.ok else f"; {describe_exit(result.exit_code)}"
        wrong = f"its result file is not what it should be: {error}{how}"
        return Outcome("fail", wrong, result.exit_code, killed=result.struck)
    if rule == "result_file":
        return claimed(told, result)
    found = judged(result, printed)
    word = told.get("status", "")
    if found.status == "success" and word and word not in said.LANDS:
        found = Outcome("fail", told.get("failure_reason") or f"it says {word}", result.exit_code)
    return replace(found, said=told)


def claimed(told: dict[str, Any], result: JobResult) -> Outcome:
    """The outcome of rule `result_file`: nothing is a success that the program did not say. Pure."""
    if not told.get("status"):
        return Outcome("fail", told.get("failure_reason") or f"it wrote no status; {describe_exit(result.exit_code)}",
                       result.exit_code, killed=result.struck, said=told)
    if told["status"] in said.LANDS and result.ok:
        return Outcome("success", exit_code=0, said=told)
    return Outcome("fail", told.get("failure_reason") or "it did not say success", result.exit_code, said=told)
