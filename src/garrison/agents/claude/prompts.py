"""What a session is told: its system prompt, and the first words of each stretch: filled templates of `agents/prompts`.

Pure but for reading the templates and the attempt's files.
"""

from __future__ import annotations

from importlib import resources
from string import Template
from typing import TYPE_CHECKING

from garrison.agents import prompt
from garrison.agents.claude.attempt_files import read_json
from garrison.agents.graph.control import HEADING, control_block

if TYPE_CHECKING:
    from collections.abc import Sequence

    from garrison.agents.base import Assignment
    from garrison.agents.claude.attempt_files import ClaudeFiles
    from garrison.agents.claude.settings import ClaudeSettings

FRESH = {"go_on": "task", "report": "task", "answer": "task", "person": "task"}
"""What a session without a past is told where a resumed one would be told something shorter."""


def system(assignment: Assignment, settings: ClaudeSettings, part: str = "worker") -> str:
    """What garrison adds to the CLI's own system prompt."""
    task = assignment.task
    text = _fill(_SYSTEM[part], run=task.run_id, node=task.node, attempt=str(task.attempt),
                 control=_control(assignment), ways=_ways(task.ways))
    return f"{text}\n\n{settings.system_prompt}" if settings.system_prompt else text


_SYSTEM = {"worker": "claude_system.md", "validator": "claude_validator.md", "session": "session_system.md"}


def _ways(ways: Sequence[str]) -> str:
    """What the agent may choose between with its report."""
    return "" if not ways else "\n" + _fill("claude_ways.md", ways="\n".join(f"- {way}" for way in ways))


def _control(assignment: Assignment) -> str:
    """The same block as in an agent graph: the garrison's layers are one."""
    task = assignment.task
    block = control_block(f"orchestrator-{task.node}@{task.run_id}", assignment.controllers)
    return block or f"{HEADING}\nNobody directs you but the person who began this."


def first_words(say: str, assignment: Assignment, files: ClaudeFiles) -> str:
    """The prompt that a stretch begins with."""
    return _SAYERS[say](assignment, files)


def _task(assignment: Assignment, files: ClaudeFiles) -> str:
    head = prompt.head(assignment.task)
    told = assignment.prompt_file.read_text().removeprefix(head)
    return ("" if files.past() else head) + told + _answered(files)


def _go_on(assignment: Assignment, files: ClaudeFiles) -> str:
    """A session with the past of an earlier node may have been interrupted before it heard of this one."""
    task = _task(assignment, files) + "\n" if files.past() else ""
    return task + _fill("claude_go_on.md", wisdom=assignment.wisdom) + ("" if task else _answered(files))


def _person(assignment: Assignment, files: ClaudeFiles) -> str:
    return _fill("claude_person.md") + _answered(files)


def _report(assignment: Assignment, files: ClaudeFiles) -> str:
    return _fill("claude_report.md", node=assignment.task.node)  # names both tools: a session knows which it has


def _answer(assignment: Assignment, files: ClaudeFiles) -> str:
    return _answered(files).strip()


def _hand_over(assignment: Assignment, files: ClaudeFiles) -> str:
    notes = assignment.notes.read_text() if assignment.notes.exists() else ""
    return _task(assignment, files) + "\n" + _fill("claude_hand_over.md", notes=notes.strip() or "none were left")


def _answered(files: ClaudeFiles) -> str:
    """The last question with its answer; said again after a death, since nobody knows whether it was heard."""
    asked, answer = read_json(files.question), read_json(files.answer)
    if not asked or not answer or asked["id"] != answer["id"]:
        return ""
    return "\n" + _fill("claude_answer.md", question=asked["text"], answer=answer["text"])


_SAYERS = {"task": _task, "go_on": _go_on, "report": _report, "answer": _answer, "hand_over": _hand_over,
           "person": _person}


LONGEST = 100_000
"""Characters of a conversation that a person's CLI is told; an argument of a program has 128 KiB."""


def taken_over(conversation: str) -> str:
    """The first words of a person's CLI in the place of an agent that is a session: the conversation's end."""
    told = conversation if len(conversation) <= LONGEST else f"…{conversation[-LONGEST:]}"
    while len(told.encode()) > LONGEST:
        told = f"…{told[len(told) // 10:]}"
    return _fill("session_taken_over.md", conversation=told)


def person_was_there() -> str:
    """What such an agent is told when they have left."""
    return _fill("session_person.md").strip()


def _fill(name: str, **values: str) -> str:
    text = resources.files("garrison.agents").joinpath(f"prompts/{name}").read_text()
    return Template(text).safe_substitute(values).strip() + "\n"
