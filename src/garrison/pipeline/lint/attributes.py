"""Lint rules on the values of attributes: types, words, units, status, models, fidelity.

The attribute determines its type. `known_attributes` lists the attributes that garrison reads, and how.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from garrison.pipeline import node_status
from garrison.pipeline.best_of import COMMAND, MAX_CANDIDATES, OF_CANDIDATES, agents_of, count_of, judge_of
from garrison.pipeline.fidelity import MODES
from garrison.pipeline.graph import (
    HANDLERS,
    MAX_SECONDS,
    SHAPES,
    Edge,
    Node,
    TypeConflict,
    flag,
    is_too_long,
    position,
    read_or,
    seconds,
    text,
)
from garrison.pipeline.lint.findings import Problem, View, command_of
from garrison.pipeline.lint.known_attributes import (
    AT_LEAST_ONE,
    BRANCH_TYPES,
    DURATIONS,
    EDGE_TYPES,
    GRAPH_TYPES,
    NODE_TYPES,
    Reader,
    count,
)
from garrison.pipeline.subpipelines import MANAGER, SUBGRAPH, file_attribute, find_pipeline_file
from garrison.pipeline.transforms import EXPANDED, StylesheetSyntax, parse_stylesheet, variables
from garrison.spelling import is_slip, nearest

SESSION_TYPES = (
    "classify", "authorize", "mode_select", "format", "process_results", "memory_recall", "memory_update", "llm_call",
    "tool_dispatch", "checkpoint", "background_checks", "route_actions", "update_goals", "emit_signal", "build_prompt",
    "transform", "consolidate", "update_working_memory", "store_decompositions", "process_proposal_decisions",
    "store_identity", "execute_actions")
"""NAMEs of the types `session.NAME` in graphs of sessions; an installation may have others."""

DRAWN_SHAPES = frozenset((
    "polygon", "ellipse", "oval", "point", "egg", "triangle", "plaintext", "plain", "trapezium", "pentagon", "septagon",
    "octagon", "doubleoctagon", "invtriangle", "invtrapezium", "invhouse", "Mcircle", "rect", "rectangle", "square",
    "star", "none", "underline", "cylinder", "note", "tab", "folder", "box3d", "record", "Mrecord"))
"""Other shapes that Graphviz draws."""

OTHER_ENGINES: Mapping[str, str] = {
    "exec": "tool", "shell": "tool", "bash": "tool", "command": "tool", "script": "tool", "compute": "codergen",
    "llm": "codergen", "agent": "codergen", "prompt": "codergen", "fan_in": "parallel.fan_in", "join":
    "parallel.fan_in", "fan_out": "parallel", "human": "wait.human", "human_gate": "wait.human", "wait": "wait.signal",
    "gate": "conditional", "branch": "conditional", "router": "conditional", "graph.invoke": "subgraph",
    "pipeline": "subgraph", "begin": "start", "end": "exit", "done": "exit",
}
"""Type in other engines → the handler here."""


def _owners(view: View) -> Iterator[tuple[Node | Edge | None, Mapping[str, str], Mapping[str, Reader]]]:
    for owner, attrs in view.owners:
        types = GRAPH_TYPES if owner is None else NODE_TYPES if isinstance(owner, Node) else EDGE_TYPES
        is_parallel = isinstance(owner, Node) and view.handler[owner.id] == "parallel"
        yield owner, attrs, {**types, **BRANCH_TYPES} if is_parallel else types


def type_conflict(view: View) -> Iterator[Problem]:
    """Require each value to have its attribute's type."""
    for owner, attrs, types in _owners(view):
        for key in attrs:
            if key not in types:
                continue
            try:
                types[key](attrs, key)
            except TypeConflict as error:
                yield Problem(_prefix(owner) + error.message, "", owner, error.line, error.column)
        if isinstance(owner, Node):
            type_, alias = text(attrs, "type"), text(attrs, "handler")
            if type_ and alias and type_ != alias:
                yield Problem(f"{owner.id} has type={type_} and handler={alias}", "keep one of them", owner)


def timeout_unit(view: View) -> Iterator[Problem]:
    """Report a duration without a unit: it is read as seconds, which may not be intended."""
    for owner, attrs, types in _owners(view):
        for key in DURATIONS:
            bare = attrs.get(key, "").strip()
            if key in types and bare.isascii() and bare.isdigit() and 0 < float(bare) <= MAX_SECONDS:
                yield Problem(f"{_prefix(owner)}{key}={bare} has no unit and means {_in_seconds(int(bare))}",
                              _unit_fix(key, int(bare)), owner, *position(attrs[key]))


def _unit_fix(key: str, bare: int) -> str:
    if bare >= 10_000:
        return f"write {key}={bare}ms for milliseconds, or {key}={bare}s"
    return f"write {key}={bare}s"


def _in_seconds(count_: int) -> str:
    hours = f" ({count_ / 3600:.1f} hours)" if count_ >= 10_000 else ""
    return f"{count_} second{'s' if count_ != 1 else ''}{hours}"


def status_known(view: View) -> Iterator[Problem]:
    """Require known words in `status`."""
    for node in view.graph.nodes.values():
        word = text(node.attrs, "status")
        if word is not None and node_status.normalize(word) is None:
            yield Problem(f"{node.id} has the unknown status {word!r:.40}",
                          "use " + ", ".join(node_status.STATUS_WORDS), node, *position(node.attrs["status"]))


def type_known(view: View) -> Iterator[Problem]:
    """Report types without a handler; a run of such a graph is refused."""
    handlers = tuple(sorted(HANDLERS | view.registered))
    for node in view.graph.nodes.values():
        handler = view.handler[node.id]
        if not view.has_handler(handler):
            near = nearest_type(handler, handlers)
            yield Problem(f"{node.id} has the unknown type {handler!r:.40}, so a run would be refused",
                          f"did you mean {near}?" if near else "`garrison pipeline handlers` lists the types", node)
        elif handler.startswith("session.") and handler[8:] not in SESSION_TYPES and handler not in handlers:
            near = _closest(handler[8:], SESSION_TYPES, 0.75)
            if near:
                yield Problem(f"{node.id} has the type {handler!r:.40}, which is not a type of sessions",
                              f"did you mean session.{near}?", node)


@lru_cache(maxsize=256)
def nearest_type(handler: str, handlers: tuple[str, ...]) -> str | None:
    """Return the type that was probably intended by an unknown one."""
    return OTHER_ENGINES.get(handler) or _closest(handler, handlers, 0.6)


def _closest(word: str, known: Iterable[str], likeness: float) -> str | None:
    from difflib import get_close_matches  # late: few graphs have a misspelt type

    return next(iter(get_close_matches(word, list(known), 1, likeness)), None)


def shape_misspelt(view: View) -> Iterator[Problem]:
    """Forbid a shape similar to one with a meaning; every other shape is a node for an agent."""
    for node in view.graph.nodes.values():
        shape = node.attrs.get("shape", "")
        if text(node.attrs, "type") or text(node.attrs, "handler") or shape in SHAPES or shape in DRAWN_SHAPES:
            continue
        if near := nearest(shape, [*SHAPES, *DRAWN_SHAPES]):
            yield Problem(f"{node.id} has the unknown shape {shape:.40}, which would make it a node for an agent",
                          f"did you mean {near}?", node, *position(shape))


def variable_misspelt(view: View) -> Iterator[Problem]:
    """Forbid a variable, in a text for an agent or the user, that is similar to one that is replaced there."""
    for node in view.graph.nodes.values():
        for key in EXPANDED:
            for name in variables(node.attrs.get(key, "")):
                if meant := _meant_variable(name, view.graph.attrs, node.attrs):
                    yield Problem(f"{node.id}: its {key} has ${name:.40}, which is not a variable",
                                  f"did you mean ${meant}? (\\${name:.40} is the text itself)", node,
                                  *position(node.attrs[key]))


def _meant_variable(name: str, graph: Mapping[str, str], node: Mapping[str, str]) -> str | None:
    root, _, key = name.partition(".")
    if not key:
        return "goal" if len(root) <= len("goal") and is_slip(root, "goal") else None
    if root in ("graph", "node"):
        known = (*graph, *GRAPH_TYPES) if root == "graph" else ("id", *node, *NODE_TYPES)
        near = None if any(key.startswith(one) for one in known) else nearest(key, known)
        return near and f"{root}.{near}"
    return next((f"{right}.{key}" for right in ("graph", "node", "context") if is_slip(root, right)), None)


def tool_command_required(view: View) -> Iterator[Problem]:
    """Require a command of each tool."""
    for node in view.graph.nodes.values():
        if view.handler[node.id] == "tool" and not command_of(node):
            fix = 'write tool_command="..."' if not text(node.attrs, "prompt") else \
                "write tool_command instead of prompt, or shape=box if it is for an agent"
            yield Problem(f"{node.id} is a tool without a command", fix, node)


def candidates(view: View) -> Iterator[Problem]:
    """Require valid settings of each node with candidates."""
    for node in view.graph.nodes.values():
        said, judge = [key for key in OF_CANDIDATES if text(node.attrs, key)], judge_of(node.attrs)
        count, agents = read_or(None, count_of, node.attrs, "best_of"), agents_of(node.attrs)
        most = min(count or MAX_CANDIDATES, MAX_CANDIDATES)
        if not said or (count is None and said[0] == "best_of"):  # `type_conflict` reports that
            continue
        if view.handler[node.id] not in ("codergen", "tool"):
            yield Problem(f"{node.id} is not a task, and only a task has candidates", f"remove {said[0]}", node)
        elif count is None:
            yield Problem(f"{node.id} has {said[0]} and no candidates", "write best_of=2, 3 or 4", node)
        elif len(agents) > most or len(agents) == 1 == count:
            yield Problem(f"{node.id} names {len(agents)} agents for {most} candidates",
                          f"name at most best_of agents, 2 to {MAX_CANDIDATES}", node)
        elif (judge == COMMAND) != bool(text(node.attrs, "judge_command")):
            fix = "write judge_command=\"...\", a command that prints a number" if judge == COMMAND else \
                "write judge=command, or remove judge_command"
            has = "no" if judge == COMMAND else "a"
            yield Problem(f"{node.id} has judge={judge} and {has} judge_command", fix, node)


def child_pipeline_required(view: View) -> Iterator[Problem]:
    """Require a pipeline of each node that runs one."""
    for node in view.graph.nodes_of(SUBGRAPH, MANAGER):
        starts_child = node.handler != MANAGER or read_or(True, flag, node.attrs, "stack.child_autostart")
        if find_pipeline_file(node, view.graph) is None and starts_child:
            meant = ", or did you mean shape=hexagon, where the user decides?" \
                if text(node.attrs, "shape") == "house" and not text(node.attrs, "type") else ""
            yield Problem(f"{node.id} ({node.handler}) names no pipeline; give it {file_attribute(node)}=FILE.dot"
                          f"{meant}", "", node)


def out_of_range(view: View) -> Iterator[Problem]:
    """Require at least 1 for numbers that may not be 0, and at most 300 years for a duration."""
    for owner, attrs, types in _owners(view):
        for key in AT_LEAST_ONE:
            try:
                is_zero = key in types and key in attrs and count(attrs, key) == 0
            except TypeConflict:
                continue
            if is_zero:
                yield Problem(f"{_prefix(owner)}{key}={attrs[key]} is not a whole number from 1",
                              f"write 1 or more, or leave {key} out", owner, *position(attrs[key]))
        for key in (key for key in attrs if types.get(key) is seconds):
            try:
                is_endless = is_too_long(attrs, key)
            except TypeConflict:
                continue
            if is_endless:
                yield Problem(f"{_prefix(owner)}{key}={attrs[key]:.60} is not a duration of at most 300 years",
                              "leave it out for no limit", owner, *position(attrs[key]))


def prompt_on_llm_nodes(view: View) -> Iterator[Problem]:
    """Report nodes for a model without a task."""
    for node in view.graph.nodes.values():
        if view.handler[node.id] != "codergen" or command_of(node) or text(node.attrs, "prompt"):
            continue
        if text(node.attrs, "llm_prompt"):
            yield Problem(f"{node.id} has llm_prompt, which garrison does not read", "write prompt instead", node,
                          *position(node.attrs["llm_prompt"]))
        elif not text(node.attrs, "label") and node.id not in view.missing:
            yield Problem(f"{node.id} has neither a prompt nor a label, so its agent learns only its name",
                          'write prompt="..."', node)


def fidelity_valid(view: View) -> Iterator[Problem]:
    """Report unknown words for the fidelity."""
    for owner, attrs in view.owners:
        key = "fidelity" if owner else "default_fidelity"
        word = text(attrs, key)
        if word is not None and word not in MODES:
            yield Problem(f"{_prefix(owner)}{key}={word:.40} is not a fidelity", "use " + ", ".join(MODES), owner,
                          *position(attrs[key]))


def stylesheet_syntax(view: View) -> Iterator[Problem]:
    """Require a valid model stylesheet."""
    sheet = text(view.graph.attrs, "model_stylesheet")
    if sheet is None:
        return
    try:
        parse_stylesheet(sheet)
    except StylesheetSyntax as error:
        yield Problem(error.message, "", None, *position(view.graph.attrs["model_stylesheet"]))


def _prefix(owner: Node | Edge | None) -> str:
    return f"{owner.id if isinstance(owner, Node) else owner}: " if owner else ""
