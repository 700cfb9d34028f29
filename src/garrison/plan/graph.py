"""Graph of a plan: write a proposal as DOT, and read the tasks from it. Pure.

A plan is stored only as this text. Attributes for the run are those of any graph (`files`, `agent`, `budget`,
`acceptance`); names of attributes for users only start with `x_`. `read_plan(parse(to_dot(to_graph(...))))` gives the
same tasks (tests/unit/test_plan.py).
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from garrison.pipeline.graph import Edge, Graph, Node, number, text
from garrison.pipeline.lint import errors, lint
from garrison.plan.proposal import CHECK, Need, Past, ProposedPlan, ProposedTask
from garrison.records.names import to_name
from garrison.values import replace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

START, EXIT = "start", "exit"
_NAME_WORDS = 5
_DONE, _EXPECTED = "\n\nIt is done when: ", "\n\nFiles that this is expected to change: "
_CHECK_PROMPT = """\
Check whether this goal is reached in the current repository:

{goal}

{how}Change nothing. Read what was done, run the existing tests, and judge by what you see. If the goal is reached,
report success with the evidence. Otherwise report failure, and name everything that is missing or wrong."""
_HOW = "How to check it: {check}\n\n"


def plan_name(goal: str) -> str:
    """Return the name of a plan's graph, from the first words of its goal."""
    words = re.findall(r"[a-z0-9]+", goal.lower())[:_NAME_WORDS]
    return to_name("_".join(words))[:32].rstrip("_") or "plan"


def to_graph(proposal: ProposedPlan, goal: str, command: str = "") -> Graph:
    """Return the graph of a valid proposal, ending with a check of the goal.

    Args:
        command: the user's command that checks the goal; '': an agent does it.
    """
    nodes = {START: Node(START, {"shape": "Mdiamond"}), **{task.name: _node(task) for task in proposal.tasks},
             CHECK: Node(CHECK, _check(goal, proposal.check, command)), EXIT: Node(EXIT, {"shape": "Msquare"})}
    return Graph(plan_name(goal), {"goal": goal, "flow": "dag"}, nodes, tuple(_edges(proposal)))


def _edges(proposal: ProposedPlan) -> Iterator[Edge]:
    needed = {need.task for task in proposal.tasks for need in task.needs}
    for task in proposal.tasks:
        if not task.needs:
            yield Edge(START, task.name)
        for need in task.needs:
            yield Edge(need.task, task.name, {"x_needs": need.what})
    for task in proposal.tasks:
        if task.name not in needed:
            yield Edge(task.name, CHECK)
    yield Edge(CHECK, EXIT)


def _node(task: ProposedTask) -> Node:
    return Node(task.name, {key: value for key, value in {
        "shape": "box", "label": task.title, "prompt": task.prompt + _told(task), "files": " ".join(task.files),
        "acceptance": task.command, "agent": task.agent, "budget": "" if task.budget is None else amount(task.budget),
        "x_done_when": task.acceptance, "x_reason": task.reason, "x_replaces": task.replaces}.items() if value})


def amount(usd: float) -> str:
    """Format an amount of money for an attribute: never with an exponent."""
    return f"{usd:.4f}".rstrip("0").rstrip(".")


def _told(task: ProposedTask) -> str:
    """Return the parts of a node's prompt other than the task."""
    return (f"{_DONE}{task.acceptance}" if task.acceptance else "") + (
        f"{_EXPECTED}{' '.join(task.files)}" if task.files else "")


def _check(goal: str, check: str, command: str) -> dict[str, str]:
    done = {"command": command} if command else {
        "prompt": _CHECK_PROMPT.format(goal=goal, how=_HOW.format(check=check) if check else "")}
    return {"shape": "box", "label": "Check the goal", **done, "allow_empty": "true",
            **({"x_check": check} if check else {})}


# ---- reading ---------------------------------------------------------------------------------------------------------


def read_plan(graph: Graph) -> ProposedPlan:
    """Return the tasks of a plan's graph, which the user may have edited."""
    needs = {name: tuple(Need(edge.source, edge.attrs.get("x_needs", "")) for edge in graph.edges
                         if edge.target == name and graph.nodes[edge.source].handler != "start")
             for name in graph.nodes}
    tasks = tuple(_task(node, needs[node.id]) for node in graph.nodes.values()
                  if node.handler == "codergen" and node.id != CHECK)
    check = graph.nodes.get(CHECK)
    return ProposedPlan(tasks, (), text(check.attrs, "x_check", "") if check else "")


def _task(node: Node, needs: tuple[Need, ...]) -> ProposedTask:
    attrs: Mapping[str, str] = node.attrs
    amount = number(attrs, "budget") if attrs.get("budget") not in (None, "none") else None
    made = ProposedTask(
        node.id, node.label, "", needs, tuple(text(attrs, "files", "").replace(",", " ").split()),
        text(attrs, "x_done_when", ""), text(attrs, "acceptance", ""), text(attrs, "agent", ""),
        None if amount is None else float(amount), text(attrs, "x_reason", ""), text(attrs, "x_replaces", ""))
    # remove what `_node` appended, or every repair would append it again
    return replace(made, prompt=text(attrs, "prompt", "").removesuffix(_told(made)))


def list_open(graph: Graph) -> list[Node]:
    """Return the nodes that an agent still has to do."""
    return [node for node in graph.nodes.values() if node.handler == "codergen" and not node.attrs.get("command")
            and not node.attrs.get("status")]


def share_budget(graph: Graph, usd: float) -> Graph:
    """Return a graph whose open nodes share these US dollars equally."""
    nodes = list_open(graph)
    # rounded down: the sum must not exceed the approved budget
    share = amount(math.floor(usd / max(len(nodes), 1) * 10_000) / 10_000)
    return replace(graph, nodes={**graph.nodes, **{
        node.id: replace(node, attrs={**node.attrs, "budget": share}) for node in nodes}})


def find_errors(graph: Graph) -> list[str]:
    """Return the reasons for which a launch would refuse a graph, one per line."""
    return [str(finding) for finding in errors(lint(graph))]


# ---- mending ---------------------------------------------------------------------------------------------------------


def mend(graph: Graph, proposal: ProposedPlan, past: Past) -> Graph:
    """Return the graph of a plan with its failed tasks replaced by successors.

    Landed tasks stay and are not repeated. Tasks that waited for a failed task wait for its last successors. The goal
    is checked again at the end, unless the user has removed that node.
    """
    start, exit_ = (next(node for node in graph.nodes.values() if node.handler == handler)
                    for handler in ("start", "exit"))
    last_ones = {name: graph.nodes[name] for name in (CHECK, exit_.id) if name in graph.nodes}
    end = next(iter(last_ones))
    old = {name: node for name, node in graph.nodes.items() if name in past.landed | past.open and name != CHECK}
    kept = {name: replace(node, attrs={**node.attrs, "status": "validated"}) if name in past.landed else node
            for name, node in old.items()}
    needed = {need.task for task in proposal.tasks for need in task.needs}
    last: dict[str, list[str]] = {}
    for task in proposal.tasks:
        if task.name not in needed:
            last.setdefault(task.replaces, []).append(task.name)
    # edges of failed tasks are dropped here; the loops below connect them to the successors
    edges = [edge for edge in graph.edges if edge.source in {start.id, *old} and edge.target in old]
    edges += [replace(edge, source=name) for edge in graph.edges
              if edge.target in old and edge.source in past.failed for name in last.get(edge.source, ())]
    for task in proposal.tasks:
        edges += [Edge(need.task, task.name, {"x_needs": need.what}) for need in task.needs] or [
            Edge(edge.source, task.name, edge.attrs) for edge in graph.edges
            if edge.target == task.replaces and edge.source in {start.id, *past.landed}] or [Edge(start.id, task.name)]
    nodes = {start.id: start, **kept, **{task.name: _node(task) for task in proposal.tasks}, **last_ones}
    sources = {edge.source for edge in edges}
    edges += [Edge(name, end) for name in nodes if name not in sources | {start.id, *last_ones}]
    return replace(graph, nodes=nodes, edges=(*edges, *([Edge(CHECK, exit_.id)] if end == CHECK else [])))


def leave_out_check(graph: Graph) -> Graph:
    """Return the graph of a plan without its check of the goal."""
    edges = [edge if edge.target != CHECK else replace(edge, target=EXIT) for edge in graph.edges
             if edge.source != CHECK]
    return replace(graph, nodes={name: node for name, node in graph.nodes.items() if name != CHECK},
                   edges=tuple(edges))
