"""Nested pipelines: their files, node names and contexts, and the manager loop. Pure except for reading a file.

The file of a `subgraph` or manager node is read when the run is launched and stored with the run, which never reads
the user's file again. A node `test` of the pipeline of the node `checks` has the name `checks__test` in the run.

A manager (`stack.manager_loop`) polls its child every `manager.poll_interval`, at most `manager.max_cycles` times.
Among its `manager.actions`, `observe` copies the child's state to `stack.child.*`, `steer` sends the node's prompt to
the child's agents (`manager.steer_cooldown` apart), and `wait` waits between cycles. It ends with its child, or when
`manager.stop_condition` holds, which ends the child.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from garrison.errors import GarrisonError, Refused, UsageError
from garrison.pipeline.condition import Condition, holds, parse_condition
from garrison.pipeline.graph import NAME_SEPARATOR, Graph, Node, flag, number, seconds, text
from garrison.pipeline.outcome import ENGINE_KEYS, FAIL, SUCCESS, Outcome
from garrison.values import Value

if TYPE_CHECKING:
    from garrison.pipeline.flow import FlowState
    from garrison.pipeline.store import Checkpoint

SUBGRAPH, MANAGER = "subgraph", "stack.manager_loop"
CHILD_FILES = ("stack.child_dotfile", "stack.child_workflow")
"""Attributes of a manager, or of the graph for its managers; the second is an alias of the first."""
FILE_ATTRIBUTES = ("graph_ref", "subgraph", "dotfile", *CHILD_FILES)
"""Attributes that name a pipeline's file."""


# ---- files and names -------------------------------------------------------------------------------------------------

MAX_DEPTH = 4
"""Levels of pipelines within pipelines in a garrison run, whose node names grow with each."""

Loader: TypeAlias = "Callable[[str, Graph, str], tuple[str, str]]"
"""(name of the node in the run, its graph, its file) → (text, source) of that file."""


def pipeline_file(node: Node, graph: Graph) -> str:
    """Return the file that a subgraph or manager node names; Refused if it names none."""
    file = find_pipeline_file(node, graph)
    if file is None:
        raise Refused(f"node {node.id} ({node.handler}) names no pipeline; give it {file_attribute(node)}=FILE.dot")
    return file


def find_pipeline_file(node: Node, graph: Graph) -> str | None:
    """Return the file that a subgraph or manager node names, a manager's graph for it; None if there is none."""
    own = next((str(node.attrs[name]) for name in FILE_ATTRIBUTES if text(node.attrs, name)), None)
    return own or (next((found for name in CHILD_FILES if (found := text(graph.attrs, name))), None)
                   if node.handler == MANAGER else None)


def file_attribute(node: Node) -> str:
    """Return the attribute in which a node names its file."""
    return "stack.child_dotfile" if node.handler == MANAGER else "graph_ref"


def load_from_source(name: str, graph: Graph, file: str) -> tuple[str, str]:
    """Read the file from the directory of the graph's own file; raise Refused if it cannot be read."""
    path = Path(graph.source).parent / file
    try:
        return path.read_text(encoding="utf-8"), str(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise Refused(f"node {name} (subgraph) runs {file}, but {path} cannot be read: {reason}") from error


def load_from_run(folder: Path) -> Loader:
    """Return a loader of the files stored with a run in `folder`."""
    def load(name: str, graph: Graph, _file: str) -> tuple[str, str]:
        return load_from_source(name, Graph(source=str(folder / "graph.dot")), f"{name}.dot")

    return load


def inner_name(name: str, node: str) -> str:
    """Return the name, in the run, of a node of the nested pipeline of `name`."""
    return f"{name}{NAME_SEPARATOR}{node}"


# ---- contexts --------------------------------------------------------------------------------------------------------

# Keys that describe a run, not the work: a child has its own goal, sessions and retry counts.
_OWN_PREFIXES = ("graph.", "internal.", "stack.")


def child_context(context: Mapping[str, object], node: Node) -> dict[str, object]:
    """Return the initial context of the nested pipeline of `node`: the shared keys, and each `var.NAME` as NAME."""
    variables = {key.removeprefix("var."): str(value) for key, value in node.attrs.items() if key.startswith("var.")}
    return {**_shared(context), **variables}


def context_changes(context: Mapping[str, object], before: Mapping[str, object]) -> dict[str, object]:
    """Return the shared keys of a child's `context` that its parent did not have `before`."""
    return {key: value for key, value in _shared(context).items() if before.get(key, _ABSENT) != value}


def child_failed(reason: str, updates: Mapping[str, object]) -> Outcome:
    return Outcome(FAIL, failure_reason=f"its pipeline failed: {reason}", failure_class="child",
                   context_updates=updates)


def _shared(context: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in context.items()
            if not key.startswith(_OWN_PREFIXES) and key not in ENGINE_KEYS}


_ABSENT = object()


# ---- the manager loop ------------------------------------------------------------------------------------------------

ACTIONS = ("observe", "steer", "wait")
_STATUS_WORDS: Mapping[str, str] = {"success": "completed", "fail": "failed"}


class ManagerSettings(Value):
    """Settings of a manager node; `interval` and `cooldown` in seconds, `prompt` is its message to the child's agents.

    With `autostart` it starts its child itself.
    """

    node: str
    actions: tuple[str, ...]
    interval: float
    cooldown: float
    cycles: int
    stop: Condition | None
    autostart: bool
    prompt: str

    def observation(self, telemetry: Mapping[str, object], cycle: int) -> dict[str, object]:
        return {"stack.child.cycle": cycle, **(telemetry if "observe" in self.actions else {})}

    def should_steer(self, cycle: int, last_steered: int | None) -> bool:
        """Return whether it steers in this cycle, given the last cycle in which it did."""
        return "steer" in self.actions and (
            last_steered is None or (cycle - last_steered) * self.interval >= self.cooldown)

    def stopped(self, context: Mapping[str, object], observation: Mapping[str, object]) -> Outcome | None:
        """Return its outcome if the stop condition holds; None otherwise."""
        if self.stop is None or not holds(self.stop, Outcome(SUCCESS), {**context, **observation}):
            return None
        return Outcome(SUCCESS, notes=f"the stop condition held in cycle {observation['stack.child.cycle']}",
                       context_updates=dict(observation))

    def out_of_cycles(self, telemetry: Mapping[str, object]) -> Outcome:
        return Outcome(FAIL, failure_reason=f"the child of {self.node} was not done after {self.cycles} cycles",
                       failure_class="max_cycles", context_updates=dict(telemetry))


def manager_of(node: Node) -> ManagerSettings:
    """Return the settings of a manager node; raise UsageError for an invalid one."""
    attrs = node.attrs
    actions = tuple(word.strip() for word in (text(attrs, "manager.actions") or "observe,wait").split(","))
    unknown = [word for word in actions if word not in ACTIONS]
    if unknown:
        raise UsageError(f"manager.actions of {node.id} has {unknown[0]!r:.40}; use {', '.join(ACTIONS)}")
    try:
        condition = text(attrs, "manager.stop_condition")
        stop = parse_condition(condition) if condition else None
    except GarrisonError as error:
        raise UsageError(f"manager.stop_condition of {node.id}: {error}") from error
    interval = seconds(attrs, "manager.poll_interval", 45.0)
    return ManagerSettings(node.id, actions, interval, seconds(attrs, "manager.steer_cooldown", interval),
                           int(number(attrs, "manager.max_cycles", 1000)), stop,
                           flag(attrs, "stack.child_autostart", True),
                           text(attrs, "prompt") or node.label)


def telemetry_of(state: FlowState, directory: object = "") -> dict[str, object]:
    """Return a manager's observations of its child, as context keys."""
    return _telemetry(state.shown_status, state.reason or state.detail, state.steps, state.next_nodes,
                      len(state.completed), directory)


def recorded_telemetry(checkpoint: Checkpoint, directory: object) -> dict[str, object]:
    """Return the same for a child that another process runs, from its checkpoint."""
    return _telemetry(checkpoint["status"], checkpoint["reason"], checkpoint["steps"], checkpoint["next_nodes"],
                      len(checkpoint["completed_nodes"]), directory)


def _telemetry(status: str, reason: str, steps: int, nodes: Sequence[str], completed: int,
               directory: object) -> dict[str, object]:
    return {"stack.child.status": _STATUS_WORDS.get(status, status), "stack.child.outcome": status,
            "stack.child.reason": reason, "stack.child.steps": steps,
            "stack.child.current_node": nodes[0] if nodes else "", "stack.child.completed": completed,
            "stack.child.directory": str(directory or "")}


def final_telemetry(outcome: Outcome, telemetry: Mapping[str, object]) -> dict[str, object]:
    return {**telemetry, "stack.child.status": "completed" if outcome.good else "failed",
            "stack.child.outcome": outcome.status}
