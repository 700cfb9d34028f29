"""Prompts of Claude sessions: system prompt and first message of each connection, from `agents/prompts/*.md`.

After a death, the first message to the resumed session is `_continue`; a new session gets the whole task, which
`agents.prompt` wrote to prompt.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from garrison.agents import prompt as task_prompt
from garrison.agents.base import VALIDATOR, WORKER
from garrison.agents.claude import questions
from garrison.agents.claude.policy import Prompt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from garrison.agents.base import Assignment
    from garrison.agents.claude.attempt_files import AttemptFiles
    from garrison.agents.claude.settings import ClaudeSettings

SESSION = "session"
"""Role of an agent that runs as a garrison session."""
_SYSTEM = {WORKER: "claude_system.md", VALIDATOR: "claude_validator.md", SESSION: "session_system.md"}
MAX_CONVERSATION = 100_000
"""Bytes of a conversation that are passed to a person's CLI: Linux limits a program's argument to 128 KiB."""


def system_prompt(assignment: Assignment, settings: ClaudeSettings, role: str = WORKER) -> str:
    """Return what garrison appends to the CLI's own system prompt."""
    task = assignment.task
    text = _fill(_SYSTEM[role], run=task.run_id, node=task.node, attempt=str(task.attempt),
                 control=controllers_block(assignment), ways=choices_block(task.ways))
    return f"{text}\n\n{settings.system_prompt}" if settings.system_prompt else text


def first_message(prompt: Prompt, assignment: Assignment, files: AttemptFiles, *, fresh: bool) -> str:
    """Return the prompt of a connection; a `fresh` session needs the whole task, which a resumed one knows."""
    if fresh and prompt is not Prompt.HAND_OVER:
        prompt = Prompt.TASK
    return _BUILDERS[prompt](assignment, files)


def conversation_for_person(conversation: str) -> str:
    """Return the first message for a person who takes over an agent's session: the end of its conversation."""
    text = conversation if len(conversation) <= MAX_CONVERSATION else f"…{conversation[-MAX_CONVERSATION:]}"
    while len(text.encode()) > MAX_CONVERSATION:
        text = f"…{text[len(text) // 10:]}"
    return _fill("session_taken_over.md", conversation=text)


def after_person() -> str:
    """Return the message to an agent's session after a person has worked in its place."""
    return _fill("session_person.md").strip()


def choices_block(ways: Sequence[str]) -> str:
    """Return the edges between which the agent chooses with its report."""
    return "" if not ways else "\n" + _fill("claude_edges.md", ways="\n".join(f"- {way}" for way in ways))


def controllers_block(assignment: Assignment) -> str:
    """Return the block of an agent graph, which names the controllers."""
    task = assignment.task
    block = task_prompt.control_block(f"orchestrator-{task.node}@{task.run_id}", assignment.controllers)
    return block or f"{task_prompt.CONTROL_HEADING}\nNo agent directs you; the person who started this run does."


def _task(assignment: Assignment, files: AttemptFiles) -> str:
    preamble = task_prompt.preamble(assignment.task)
    text = assignment.read_prompt().removeprefix(preamble)
    return ("" if files.parent_session() else preamble) + text + _answer(files)


def _continue(assignment: Assignment, files: AttemptFiles) -> str:
    """Repeat the task if the session has a parent: it may have been interrupted before it received the task."""
    task = _task(assignment, files) + "\n" if files.parent_session() else ""
    return task + _fill("claude_continue.md", wisdom=assignment.wisdom) + ("" if task else _answer(files))


def _person(_assignment: Assignment, files: AttemptFiles) -> str:
    return _fill("claude_person.md") + _answer(files)


def _report(assignment: Assignment, _files: AttemptFiles) -> str:
    return _fill("claude_report.md", node=assignment.task.node)  # names both tools: each session has one of them


def _loop(_assignment: Assignment, files: AttemptFiles) -> str:
    return _fill("claude_loop.md", reason=files.read_endings()[-1].reason)


def _answer_alone(_assignment: Assignment, files: AttemptFiles) -> str:
    return _answer(files).strip()


def _hand_over(assignment: Assignment, files: AttemptFiles) -> str:
    notes = assignment.read_notes()
    return _task(assignment, files) + "\n" + _fill("claude_hand_over.md", notes=notes.strip() or "none were left")


def _answer(files: AttemptFiles) -> str:
    """Return the last question with its answer; repeated after a death, since it may not have arrived."""
    answered = questions.last_answer(files)
    return "" if answered is None else "\n" + _fill("claude_answer.md", question=answered[0], answer=answered[1])


_BUILDERS: Mapping[Prompt, Callable[[Assignment, AttemptFiles], str]] = {
    Prompt.TASK: _task, Prompt.CONTINUE: _continue, Prompt.REPORT: _report, Prompt.ANSWER: _answer_alone,
    Prompt.HAND_OVER: _hand_over, Prompt.PERSON: _person,
    Prompt.LOOP: _loop}


def _fill(name: str, **values: str) -> str:
    return task_prompt.fill_template(name, **values).strip() + "\n"
