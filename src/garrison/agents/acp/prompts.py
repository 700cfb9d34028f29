"""Prompts of ACP sessions: the prompt of each connection, from `agents/prompts/*.md`.

The protocol knows no system prompt, so a new session's first prompt begins with what garrison expects of its agent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from garrison.agents import prompt as task_prompt
from garrison.agents.acp.report_block import LANGUAGE
from garrison.agents.claude import questions
from garrison.agents.claude.policy import Prompt
from garrison.agents.claude.prompts import choices_block, controllers_block

if TYPE_CHECKING:
    from garrison.agents.base import Assignment
    from garrison.agents.claude.attempt_files import AttemptFiles


def first_message(prompt: Prompt, assignment: Assignment, files: AttemptFiles, *, fresh: bool, has_past: bool) -> str:
    """Return the prompt of a connection.

    Args:
        fresh: the session is new and needs the whole task.
        has_past: an earlier session worked on it.
    """
    if fresh:
        return _new_session(assignment, files, has_past=has_past)
    return _BUILDERS.get(prompt, _continue)(assignment, files)


def _new_session(assignment: Assignment, files: AttemptFiles, *, has_past: bool) -> str:
    task = assignment.task
    parts = [_fill("acp_system.md", run=task.run_id, node=task.node, attempt=str(task.attempt), language=LANGUAGE,
                   control=controllers_block(assignment), ways=choices_block(task.ways)), assignment.read_prompt()]
    if has_past:
        parts.append(_fill("acp_hand_over.md", notes=assignment.read_notes().strip() or "none were left"))
    return "\n".join([*parts, _answer(files)]).strip() + "\n"


def _continue(assignment: Assignment, files: AttemptFiles) -> str:
    return _fill("acp_continue.md", wisdom=assignment.wisdom, language=LANGUAGE) + _answer(files)


def _report(assignment: Assignment, _files: AttemptFiles) -> str:
    return _fill("acp_report.md", node=assignment.task.node, language=LANGUAGE)


def _answer_alone(_assignment: Assignment, files: AttemptFiles) -> str:
    return _answer(files).strip()


def _answer(files: AttemptFiles) -> str:
    """Return the last question with its answer; repeated after a death, since it may not have arrived."""
    answered = questions.last_answer(files)
    return "" if answered is None else "\n" + _fill("claude_answer.md", question=answered[0], answer=answered[1])


_BUILDERS: Mapping[Prompt, Callable[[Assignment, AttemptFiles], str]] = {
    Prompt.REPORT: _report, Prompt.ANSWER: _answer_alone}
"""Prompt of a session that goes on → its builder; any other is told to continue."""


def _fill(name: str, **values: str) -> str:
    return task_prompt.fill_template(name, **values).strip() + "\n"
