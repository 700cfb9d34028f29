"""Pipelines within a pipeline: their files, node names and contexts, and the manager loop. Pure but for reading a file.

The file a `subgraph` or manager node names is read when the run is launched and stored with the run, which never reads
the user's file again. A node `test` of the pipeline run by the node `checks` is called `checks__test` in the run.

A manager (`stack.manager_loop`) polls its child every `manager.poll_interval`, at most `manager.max_cycles` times. Of
its `manager.actions`, `observe` copies the child's state to `stack.child.*`, `steer` sends the node's prompt to the
child's agents (`manager.steer_cooldown` apart), and `wait` waits between cycles. It ends with its child, or when
`manager.stop_condition` holds, which ends the child.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from garrison.errors import GarrisonError, Refused, UsageError
from garrison.pipeline.condition import Condition, holds, parse_condition
from garrison.pipeline.graph import Graph, Node, flag, number, seconds, text
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


SUBGRAPH = "subgraph"
FILES = ("graph_ref", "subgraph", "dotfile", "stack.child_dotfile")
MAX_DEPTH = 4
JOINT = "__"

Loader: TypeAlias = "Callable[[str, Graph, str], tuple[str, str]]"
"""(name of the node in the run, its graph, the file as the node has it) → (text, source) of that file."""


def file_of(node: Node, graph: Graph) -> str:
    """The file that a subgraph or manager node names, or its graph for all managers; Refused if there is none."""
    manager = node.handler == MANAGER
    named = next((str(node.attrs[name]) for name in FILES if text(node.attrs, name)), "") or (
        text(graph.attrs, "stack.child_dotfile", "") if manager else "")
    if not named:
        raise Refused(f"node {node.id} ({node.handler}) names no pipeline; give it "
                      f"{'stack.child_dotfile' if manager else 'graph_ref'}=FILE.dot")
    return named


def beside(name: str, graph: Graph, named: str) -> tuple[str, str]:
    """The file as it stands beside the graph's own; Refused if there is none."""
    path = Path(graph.source).parent / named
    try:
        return path.read_text(encoding="utf-8"), str(path)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise Refused(f"node {name} (subgraph) runs {named}, but {path} cannot be read: {why}") from error


def kept(folder: Path) -> Loader:
    """The files as a run keeps them."""
    def load(name: str, graph: Graph, _named: str) -> tuple[str, str]:
        return beside(name, Graph(source=str(folder / "graph.dot")), f"{name}.dot")

    return load


def inner(name: str, node: str) -> str:
    """What a node of the pipeline that `name` runs is called in the run."""
    return f"{name}{JOINT}{node}"


# ---- what one pipeline and another know of each other's context ------------------------------------------------------

_OWN = ("graph.", "internal.", "stack.")
_ENGINE = frozenset({"outcome", "preferred_label", "current_node", "failure_reason", "failure_class", "last_stage",
                     "last_failure", "last_failed_node"})


def given(context: Mapping[str, Any], node: Node) -> dict[str, Any]:
    """What the pipeline that `node` runs begins with: all but what each has of its own, and the node's `var.NAME` as
    NAME."""
    own = {key.removeprefix("var."): str(value) for key, value in node.attrs.items() if key.startswith("var.")}
    return {**_common(context), **own}


def written(context: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """What the pipeline within wrote, of its `context`, that the one around it did not have `before`."""
    return {key: value for key, value in _common(context).items() if before.get(key, _ABSENT) != value}


def child_failed(reason: str, updates: Mapping[str, Any]) -> Outcome:
    """What a pipeline that failed is to the node that ran it."""
    return Outcome(FAIL, failure_reason=f"its pipeline failed: {reason}", failure_class="child",
                   context_updates=updates)


def _common(context: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in context.items() if not key.startswith(_OWN) and key not in _ENGINE}


_ABSENT = object()
