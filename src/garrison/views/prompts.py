"""Prompts of an attempt for users: what its agent got, or would get now."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.agents import registry
from garrison.agents.base import VALIDATOR, Assignment
from garrison.agents.conversation.files import AttemptFiles
from garrison.agents.prompt import estimate_tokens
from garrison.errors import NotFound
from garrison.node.briefing import Briefer
from garrison.processes.spawn import worktree_path
from garrison.records import journal
from garrison.records import run as run_records
from garrison.records.json_io import read_json, read_lines
from garrison.records.run import Task
from garrison.run import flow_policy
from garrison.run.plan import build_task, replay_with_plan
from garrison.system.git import Git
from garrison.values import Value

if TYPE_CHECKING:
    from garrison.processes.runtime import Runtime
    from garrison.records.run import Launch

SYSTEM = "system prompt, added to the program's own"


class PromptPart(Value):
    """Text that the agent got, or would get: its name `what` and approximate number of tokens."""

    what: str
    text: str
    tokens: int

    @classmethod
    def of(cls, what: str, text: str) -> PromptPart:
        return cls(what, text, estimate_tokens(text))


class AttemptPrompts(Value):
    """All prompts of an attempt's agent, in order; `sent` is False if it has not started."""

    run: str
    node: str
    attempt: int
    sent: bool
    parts: list[PromptPart]
    tokens_are: str = "estimated from the length"


def read_prompts(runtime: Runtime, run: str, node: str, attempt: int | None, *, validator: bool) -> AttemptPrompts:
    """Return the prompts of a node's attempt, by default the latest; NotFound if there is none."""
    launch, files = runtime.launch(run), runtime.files(run)
    latest = files.latest_attempt(node)
    number = attempt or max(latest, 1)
    folder = files.attempt(node, number)
    if validator:
        parts = _sent(folder / VALIDATOR)
        if not parts:
            raise NotFound(f"attempt {number} of {node} has not been validated; leave out --validator to see its "
                           "agent's prompts")
        return AttemptPrompts(run, node, number, True, parts)
    if parts := _sent(folder):
        return AttemptPrompts(run, node, number, True, parts)
    if number > max(latest, 1):
        raise NotFound(f"{node} of run {run} has had {latest} attempts, no attempt {number}")
    return AttemptPrompts(run, node, number, False, _would_send(runtime, launch, node, folder))


def _sent(folder: Path) -> list[PromptPart]:
    """Return the prompts of the agent in an attempt's folder; empty if it has not started."""
    files, task = AttemptFiles(folder), folder / "prompt.md"
    parts: list[PromptPart] = []
    for line in read_lines(files.prompts):
        parts += [PromptPart.of(SYSTEM, line["system"])] if line.get("system") else []
        at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(line["at"]))
        parts.append(PromptPart.of(f"message ({line['kind'].replace('_', ' ')}), {at}", line["message"]))
    told = [PromptPart.of(f"from the user (`garrison tell`), {line.get('at', '')}", str(line.get("text", "")))
            for line in read_lines(files.messages) if isinstance(line, dict)]
    if parts or not task.exists():
        return [*parts, *told]
    order = read_json(files.order) or read_json(folder / "session_order.json") or {}
    system = str(order.get("system") or "")
    text = order.get("prompt") or task.read_text(errors="replace")
    return [*([PromptPart.of(SYSTEM, system)] if system else []), PromptPart.of("prompt", str(text)), *told]


def _would_send(runtime: Runtime, launch: Launch, node: str, folder: Path) -> list[PromptPart]:
    """Return the prompts that the agent of an unstarted attempt would get now."""
    task = run_records.load(Task, folder / "task.json") or _next_task(runtime, launch, node)
    worktree = worktree_path(launch, node)
    git = Git(Path(launch.repo), home=runtime.home)
    # without copying the log for the agent: showing a prompt must not change anything
    briefer = Briefer(runtime, launch, task, git, worktree, copies=False)
    assignment, text = briefer.prepare(Assignment(task, worktree, folder, {}), "", is_successor=False)
    is_session = registry.session_options(task.agent, node, task.attributes, runtime.home) is not None
    shown = registry.model_profile(task.agent, runtime.home).prompts_of(assignment, text, is_session=is_session)
    return [PromptPart.of(what, each) for what, each in shown]


def _next_task(runtime: Runtime, launch: Launch, node: str) -> Task:
    """Return the task of an unstarted node, as its guardian would build it now."""
    files = runtime.files(launch.run_id)
    plan, state = replay_with_plan(files, launch, journal.read_history(files.journal))
    if node not in plan.tasks:
        raise NotFound(f"{node} of run {launch.run_id} is not a task; only tasks have a prompt")
    planned = plan.tasks[node]
    context, carried = flow_policy.task_context(state, node, planned.kind)
    landed = flow_policy.landed_upstream(plan, state, node)
    return build_task(planned, launch, plan, state.nodes[node], context, carried, landed)
