"""What a person decides at a gate: the last outcomes that lead to it, what they changed, and what that cost."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from garrison.errors import GarrisonError
from garrison.pipeline.node_status import shown
from garrison.processes.run_branch import node_queue
from garrison.processes.run_plan import read_plan
from garrison.processes.run_state import replay_run
from garrison.records import journal
from garrison.system.terminal_text import spell_hidden
from garrison.values import Value
from garrison.views.changes import change_of_entry
from garrison.views.diff import changed_files, totals
from garrison.views.usage import CostReader

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from garrison.merge.queue import MergeQueue
    from garrison.processes.run_state import NodeState
    from garrison.processes.runtime import Runtime
    from garrison.views.usage import RunCosts

NODES = 8
"""Nodes that are shown of those before a gate."""
REASON_CHARACTERS = 300
"""Longest reason of an outcome."""


class Outcome(Value):
    """Last outcome of a node before the gate. `files` is None for one whose change git does not have."""

    node: str
    state: str
    attempt: int
    reason: str = ""
    files: int | None = None
    added: int = 0
    removed: int = 0
    usd: float | None = None


class Decision(Value):
    """What is decided at a gate."""

    outcomes: list[Outcome]
    more: int
    """Further nodes before it, which are not shown."""
    usd: float | None
    """Costs of the whole run so far."""
    files: int = 0
    """With the lines that were added and removed: of all outcomes."""
    added: int = 0
    removed: int = 0


def tasks_before(edges: Iterable[tuple[str, str]], node: str, tasks: Collection[str]) -> list[str]:
    """Return the nearest tasks from which a node is reached, through nodes that are none. Pure."""
    sources: dict[str, list[str]] = {}
    for source, target in edges:
        sources.setdefault(target, []).append(source)
    found: list[str] = []
    todo, known = [node], {node}
    for each in todo:  # what is appended meanwhile is visited as well
        for source in sources.get(each, ()):
            if source not in known:
                known.add(source)
                (found if source in tasks else todo).append(source)
    return found


def read_decision(runtime: Runtime, run: str, gate: str, node: str = "") -> Decision:
    """Read what is decided at a gate of the pipeline, or, with `node`, about the work of that node."""
    launch = runtime.launch(run)
    state = replay_run(journal.read_all(runtime.files(run).journal))
    names = [node] if node else []
    if not node:
        with suppress(GarrisonError):
            plan = read_plan(runtime.files(run), launch)
            if plan.program is not None:
                edges = ((route.source, route.target) for route in plan.program.edges)
                names = [name for name in tasks_before(edges, gate, plan.tasks) if name in state.nodes]
    queue = node_queue(runtime, launch, "review")
    costs = CostReader(runtime.home).read(datetime.now(UTC).date().isoformat()).of_run(run)
    outcomes = [_outcome(queue, costs, run, name, state.nodes[name]) for name in names[:NODES] if name in state.nodes]
    return Decision(outcomes, max(0, len(names) - NODES), costs.usd, sum(each.files or 0 for each in outcomes),
                    sum(each.added for each in outcomes), sum(each.removed for each in outcomes))


def _outcome(queue: MergeQueue, costs: RunCosts, run: str, name: str, node: NodeState) -> Outcome:
    entries = queue.state.entries_of(run, name)
    files, added, removed = None, 0, 0
    word = shown(node.status, node.landing)
    if entries:
        word = entries[-1].landing
        with suppress(GarrisonError):
            change = change_of_entry(queue.git, entries[-1])
            found = changed_files(queue.git, change.base, change.head)
            files, (added, removed) = len(found), totals(found)
    spent = costs.nodes.get(name)
    return Outcome(name, word, node.attempt, spell_hidden(node.reason[:REASON_CHARACTERS]), files, added, removed,
                   spent.usd if spent is not None else None)
