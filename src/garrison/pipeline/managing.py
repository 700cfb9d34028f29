"""What a `stack.manager_loop` node does to its child, whoever drives the two. Pure.

The rule of this room: a manager looks at its child once a cycle, `manager.poll_interval` apart, `manager.max_cycles`
times at most. Of its `manager.actions`, `observe` puts the child's state under `stack.child.*`, `steer` gives the
node's prompt to the child's agents (`manager.steer_cooldown` apart), and `wait` waits between two cycles. It ends with
its child, or when `manager.stop_condition` holds, which ends the child.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from garrison.errors import GarrisonError, UsageError
from garrison.pipeline.condition import Condition, holds, parse_condition
from garrison.pipeline.graph import Node, flag, number, seconds, text
from garrison.pipeline.outcome import FAIL, SUCCESS, Outcome

MANAGER = "stack.manager_loop"
ACTIONS = ("observe", "steer", "wait")
_WORDS: Mapping[str, str] = {"success": "completed", "fail": "failed"}


@dataclass(frozen=True)
class Manager:
    """One manager; `interval` and `cooldown` in seconds, `prompt` is its word to its child's agents. `autostart`: it
    starts its child itself."""

    node: str
    actions: tuple[str, ...]
    interval: float
    cooldown: float
    cycles: int
    stop: Condition | None
    autostart: bool
    prompt: str

    def seen(self, telemetry: Mapping[str, Any], cycle: int) -> dict[str, Any]:
        """What it knows in a cycle, as context keys."""
        return {"stack.child.cycle": cycle, **(telemetry if "observe" in self.actions else {})}

    def steers(self, cycle: int, steered: int | None) -> bool:
        """Whether it steers in this cycle, having done so last in the cycle `steered`."""
        return "steer" in self.actions and (steered is None or (cycle - steered) * self.interval >= self.cooldown)

    def stopped(self, context: Mapping[str, Any], seen: Mapping[str, Any]) -> Outcome | None:
        """How it ends where its stop condition holds; None where it does not."""
        if self.stop is None or not holds(self.stop, Outcome(SUCCESS), {**context, **seen}):
            return None
        return Outcome(SUCCESS, notes=f"the stop condition held in cycle {seen['stack.child.cycle']}",
                       context_updates=dict(seen))

    def worn_out(self, telemetry: Mapping[str, Any]) -> Outcome:
        """How it ends when its cycles are used up."""
        return Outcome(FAIL, failure_reason=f"the child of {self.node} was not done after {self.cycles} cycles",
                       failure_class="max_cycles", context_updates=dict(telemetry))


def manager_of(node: Node) -> Manager:
    """What a node says of its managing; UsageError, in one line, if it cannot be meant."""
    attrs = node.attrs
    actions = tuple(word.strip() for word in (text(attrs, "manager.actions") or "observe,wait").split(","))
    unknown = [word for word in actions if word not in ACTIONS]
    if unknown:
        raise UsageError(f"manager.actions of {node.id} has {unknown[0]!r:.40}; use {', '.join(ACTIONS)}")
    try:
        written = text(attrs, "manager.stop_condition")
        stop = parse_condition(written) if written else None
    except GarrisonError as error:
        raise UsageError(f"manager.stop_condition of {node.id}: {error}") from error
    interval = seconds(attrs, "manager.poll_interval", 45.0)
    return Manager(node.id, actions, interval, seconds(attrs, "manager.steer_cooldown", interval),
                   int(number(attrs, "manager.max_cycles", 1000)), stop, flag(attrs, "stack.child_autostart", True),
                   text(attrs, "prompt") or node.label)


def telemetry_of(checkpoint: Mapping[str, Any], directory: object = "") -> dict[str, Any]:
    """What a manager sees of its child, as context keys."""
    nodes = checkpoint.get("next_nodes") or []
    return {"stack.child.status": _WORDS.get(checkpoint["status"], checkpoint["status"]),
            "stack.child.outcome": checkpoint["status"], "stack.child.reason": checkpoint.get("reason", ""),
            "stack.child.steps": checkpoint.get("steps", 0), "stack.child.current_node": nodes[0] if nodes else "",
            "stack.child.completed": len(checkpoint.get("completed_nodes", ())),
            "stack.child.directory": str(directory or "")}


def ended(outcome: Outcome, telemetry: Mapping[str, Any]) -> dict[str, Any]:
    """What the context says of a child that has ended as `outcome`."""
    return {**telemetry, "stack.child.status": "completed" if outcome.good else "failed",
            "stack.child.outcome": outcome.status}
