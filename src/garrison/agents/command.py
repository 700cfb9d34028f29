"""The command agent: any program, run in the worktree with its output in a file.

Exit 0 is success (rule `exit_zero`), or the program writes GARRISON_RESULT_FILE itself (rule `result_file`). What it
leaves uncommitted the orchestrator commits.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from garrison.agents.seam import Outcome, Profile, Work
from garrison.errors import Refused
from garrison.supervise.postmortem import ending
from garrison.system.jobs import Job, JobResult, tail

if TYPE_CHECKING:
    from pathlib import Path

    from garrison.agents.seam import Assignment

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
                       "GARRISON_RESULT_FILE": str(claim), "GARRISON_NOTES_FILE": str(assignment.notes)}
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
        if self.success == "result_file":
            return claimed(self.claim, result)
        return judged(result, tail(self.assignment.output, 3))

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
    how = ending(result.exit_code) or "it ended"
    return Outcome("fail", f"{how}: {said}" if said.strip() else how, result.exit_code, killed=result.struck)


def claimed(path: Path, result: JobResult) -> Outcome:
    """The outcome of rule `result_file`: nothing is a success that the program did not say."""
    try:
        body = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        return Outcome("fail", f"it wrote no result ({error}); {ending(result.exit_code)}", result.exit_code,
                       killed=result.struck)
    if isinstance(body, dict) and body.get("status") == "success" and result.ok:
        return Outcome("success", exit_code=0)
    reason = body.get("reason", "it did not say success") if isinstance(body, dict) else "not a JSON object"
    return Outcome("fail", str(reason), result.exit_code)
