"""Runs and the butler's specialists in an editor: a plan, and a tool call for each node. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from acp.helpers import plan_entry, start_tool_call, text_block, tool_content, update_plan, update_tool_call
from acp.schema import ToolCallProgress, ToolCallStart

from garrison.delegation.models import BUTLER
from garrison.pipeline.node_status import LandingWord

if TYPE_CHECKING:
    from acp.schema import AgentPlanUpdate, PlanEntryStatus, ToolCallStatus

    from garrison.delegation.models import ChatEvent
    from garrison.mcp.crew import SeenNode, SeenRun

NODES = 100
"""Most nodes of a run that are shown: a panel has no room for a thousand."""
_ENDED = frozenset({"landed", LandingWord.NO_CHANGE.value, LandingWord.UNDONE.value, "skipped", "failed"})
_NOT_BEGUN = frozenset({"waiting", "stopped", "parked"})


def to_plan(runs: Sequence[SeenRun]) -> AgentPlanUpdate:
    """Return the plan of the runs that a panel follows: each node as an entry, with its run's name if there are
    several."""
    return update_plan([plan_entry(f"{f'{seen.run}: ' * (len(runs) > 1)}{_describe(node)}", status=_progress(node))
                        for seen in runs for node in seen.nodes[:NODES]])


def to_calls(old: SeenRun | None, new: SeenRun, shown: Collection[str]) -> list[ToolCallStart | ToolCallProgress]:
    """Return the updates for an editor on the nodes that have changed between two polls of a run.

    Args:
        shown: ids of the tool calls shown in the editor.
    """
    before = {node.node: node.status for node in old.nodes} if old is not None else {}
    calls = list[ToolCallStart | ToolCallProgress]()
    for node in new.nodes[:NODES]:
        name = f"{new.run}/{node.node}"
        if name in shown:
            if before.get(node.node) != node.status:
                calls.append(update_tool_call(name, title=_describe(node), status=_state(node)))
        elif node.status not in _NOT_BEGUN:
            calls.append(start_tool_call(name, _describe(node), kind="execute", status=_state(node)))
    return calls


def describe_end(seen: SeenRun) -> str:
    """Return the result of a run that is over, and what to do now."""
    if not seen.nodes:
        return f"Run `{seen.run}` did not start: {seen.reason}."
    parts = (f"Run `{seen.run}` is over: {seen.status}", seen.progress, seen.reason, seen.next)
    return "; ".join(filter(None, parts)) + "."


def fence(text: str) -> str:
    """Return a command's output as a block of Markdown."""
    ticks = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{ticks}\n{text}\n{ticks}"


def specialist_call(event: ChatEvent, said: str, turn: str) -> ToolCallStart | ToolCallProgress | None:
    """Return the tool call of a specialist that starts or ends its work for the butler; None for any other event.

    Args:
        said: all of its text so far.
        turn: distinguishes its call from those of earlier messages.
    """
    if event.type == "agent_delegate":
        return start_tool_call(f"{turn}/{event.to}", str(event.to), kind="think", status="in_progress")
    if event.type == "agent_complete" and event.agent != BUTLER:
        return update_tool_call(f"{turn}/{event.agent}", status="completed" if event.success else "failed",
                                content=[tool_content(text_block(said))] if said else None)
    return None


def _describe(node: SeenNode) -> str:
    if not node.doing or node.doing.startswith(node.status):
        return f"{node.node}: {node.doing or node.status}"
    return f"{node.node}: {node.status}, {node.doing}"


def _progress(node: SeenNode) -> PlanEntryStatus:
    return "completed" if node.status in _ENDED else "pending" if node.status in _NOT_BEGUN else "in_progress"


def _state(node: SeenNode) -> ToolCallStatus:
    return "failed" if node.status == "failed" else _progress(node)
