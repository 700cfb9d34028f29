"""Prompts of ACP sessions: the prompt of each connection, from `agents/prompts/*.md`.

The protocol has no system prompt, so a new session's first prompt starts with what garrison expects of its agent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from garrison.agents import prompt as task_prompt
from garrison.agents.base import VALIDATOR, WORKER
from garrison.agents.conversation.policy import Prompt
from garrison.agents.conversation.prompts import (
    answer_alone,
    answer_of,
    choices_block,
    interruption_of,
    left_behind,
    loop,
    means_of_proof,
)
from garrison.agents.report_block import LANGUAGE
from garrison.agents.template import fill

if TYPE_CHECKING:
    from garrison.agents.base import Assignment
    from garrison.agents.conversation.files import AttemptFiles


def first_message(prompt: Prompt, assignment: Assignment, files: AttemptFiles, *, knows_task: bool,
                  has_past: bool, role: str = WORKER) -> str:
    """Return the prompt of a connection.

    Args:
        knows_task: whether the session certainly has the task; otherwise it is repeated.
        has_past: whether an earlier session worked on it.
    """
    if role == VALIDATOR:
        return _judge(prompt, assignment, files, knows_task=knows_task)
    if not knows_task:
        return _new_session(assignment, files, has_past=has_past)
    return _BUILDERS.get(prompt, _continue)(assignment, files)


def _judge(prompt: Prompt, assignment: Assignment, files: AttemptFiles, *, knows_task: bool) -> str:
    """Return the prompt of a validator; after a lost session it starts again, since it has no work to hand over."""
    if not knows_task:
        return task_prompt.join([validator_rules(assignment), assignment.read_prompt()])
    if prompt is Prompt.REPORT:
        return fill("acp_verdict.md", language=LANGUAGE, what=_missing(files, "a valid verdict"))
    resume = task_prompt.resumption(interruption_of(assignment, files), "This session")
    return fill("acp_judge_on.md", resume=resume, language=LANGUAGE)


def _new_session(assignment: Assignment, files: AttemptFiles, *, has_past: bool) -> str:
    parts = [rules(assignment), assignment.read_prompt()]
    if has_past:
        parts.append(left_behind(assignment))
    return task_prompt.join([*parts, answer_of(files)])


def told(text: str, *, had_reported: bool) -> str:
    """Return the prompt with the user's messages during the session's last turn."""
    again = "What you reported is set aside. " if had_reported else ""
    return fill("acp_told.md", told=text, again=again, language=LANGUAGE)


def rules(assignment: Assignment) -> str:
    """Return what garrison expects of its agent."""
    task = assignment.task
    return fill("acp_system.md", run=task.run_id, node=task.node, attempt=str(task.attempt), language=LANGUAGE,
                setting=task_prompt.setting(assignment.lands, assignment.confinement), ways=choices_block(task.ways),
                **task_prompt.rules())


def validator_rules(assignment: Assignment) -> str:
    """Return what garrison expects of a validator."""
    task = assignment.task
    return fill("claude_validator.md", run=task.run_id, node=task.node, attempt=str(task.attempt),
                verdict=fill("acp_validator_verdict.md", language=LANGUAGE).strip(), **task_prompt.rules(),
                **means_of_proof(can_run=assignment.can_run))


def _continue(assignment: Assignment, files: AttemptFiles) -> str:
    resume = task_prompt.resumption(interruption_of(assignment, files), "This session")
    return fill("acp_continue.md", resume=resume, language=LANGUAGE, left=assignment.left) + answer_of(files)


def _report(_assignment: Assignment, files: AttemptFiles) -> str:
    return fill("acp_report.md", language=LANGUAGE, what=_missing(files, "a report"))


def _missing(files: AttemptFiles, what: str) -> str:
    """Return what was missing at the end of the last turn, and why an invalid one does not count."""
    why = next((ending.unreadable for ending in files.read_endings()[-1:]), "")
    return f"{what} ({why})" if why else what


def _person(_assignment: Assignment, files: AttemptFiles) -> str:
    return fill("acp_person.md", language=LANGUAGE) + answer_of(files)


def _rework(assignment: Assignment, _files: AttemptFiles) -> str:
    return task_prompt.join([assignment.rework, fill("acp_ends.md", language=LANGUAGE)])


_BUILDERS: Mapping[Prompt, Callable[[Assignment, AttemptFiles], str]] = {
    Prompt.LOOP: loop, Prompt.REWORK: _rework, Prompt.PERSON: _person, Prompt.REPORT: _report,
    Prompt.ANSWER: answer_alone}
"""Prompt of a continued session → its builder; any other is sent unchanged."""
