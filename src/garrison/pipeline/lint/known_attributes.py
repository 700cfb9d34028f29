"""Attributes that garrison reads: a table for graphs, for nodes and for edges; and lint rules on all others. Pure.

Each table maps an attribute to the reader of its value, which raises TypeConflict for an invalid one; `text` accepts
any. To add one, add it to its table: the lint rules on types and on unknown attributes follow, and a test compares the
tables with the code that reads attributes.

A misspelt attribute is silently without effect: with `acceptanc=` the work is not tested. So a name similar to a
known one, or known elsewhere in the graph, is an error; any other unknown name is a warning, once per graph. Free are
`x_…`, the namespaces that the graph declares, attributes for drawings, attributes that a prompt or condition of the
graph uses (`$node.KEY`, `graph.KEY`), and all attributes of nodes whose handler is not part of the dialect.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from functools import cache

from garrison.pipeline.best_of import PERSON, count_of
from garrison.pipeline.flow.program import ERROR_POLICIES, JOIN_POLICIES, PRESETS
from garrison.pipeline.graph import (
    Edge,
    Node,
    TypeConflict,
    flag,
    is_known_handler,
    number,
    position,
    seconds,
    subfolder,
    text,
)
from garrison.pipeline.lint.findings import Problem, View
from garrison.pipeline.transforms import PROPERTIES
from garrison.spelling import nearest
from garrison.values import Value

Reader = Callable[[Mapping[str, str], str], object]

FLOWS = ("dag", "walk")
LANDS = ("node", "run", "none", "pr")
"""Values of `land`."""


class Level(StrEnum):
    """Part of a graph to which an attribute belongs."""

    GRAPH = "graph"
    NODE = "node"
    EDGE = "edge"


def _word(*words: str) -> Reader:
    def read(attrs: Mapping[str, str], key: str) -> object:
        value = text(attrs, key)
        if value is not None and value.strip().lower() not in words:
            near = nearest(value.strip(), words)
            raise TypeConflict(key, attrs[key], " or ".join(words) + (f" (did you mean {near}?)" if near else ""))
        return value
    return read


def count(attrs: Mapping[str, str], key: str) -> int | None:
    """Return an attribute as a whole number from 0; raise TypeConflict for anything else."""
    value = number(attrs, key)
    if value is None or (value >= 0 and value == int(value)):
        return None if value is None else int(value)
    raise TypeConflict(key, attrs[key], "a whole number from 0")


def _fraction(attrs: Mapping[str, str], key: str) -> float | None:
    value = number(attrs, key)
    if value is not None and not 0 < value <= 1:
        raise TypeConflict(key, attrs[key], "a fraction of the branches; write 0.5 or 1")
    return value


def _texts(*keys: str) -> dict[str, Reader]:
    return dict.fromkeys(keys, text)


# ---- the tables ------------------------------------------------------------------------------------------------------

GRAPH_TYPES: Mapping[str, Reader] = {
    "flow": _word(*FLOWS), "max_steps": count, "max_node_visits": count, "max_same_failures": count,
    "default_max_retries": count, "default_max_retry": count, "max_pipeline_duration": seconds,
    "retry_policy": _word(*PRESETS), "retry_jitter": flag, "allow_empty": flag, "land": _word(*LANDS),
    "gate_path": subfolder,
    **_texts("goal", "label", "gate", "node_gate", "setup", "setup_key", "base", "prd_ref", "retry_target",
             "failover", "escalate", "fallback_retry_target", "default_fidelity", "default_thread", "thread_id",
             "model_stylesheet",
             *PROPERTIES, "inputs", "vars", "namespaces", "stack.child_dotfile", "stack.child_workflow",
             "stack.child_workdir", "stack.child_run_dir"),
}
NODE_TYPES: Mapping[str, Reader] = {
    "timeout": seconds, "silence": seconds, "human.timeout": seconds, "human.timeout_seconds": seconds,
    "human_timeout_seconds": seconds, "manager.poll_interval": seconds, "manager.steer_cooldown": seconds,
    "max_retries": count, "max_node_visits": count, "max_visits": count, "max_same_failures": count,
    "manager.max_cycles": count, "best_of": count_of, "ties": _word(PERSON),
    "approve": flag, "goal_gate": flag, "auto_status": flag, "allow_partial": flag, "side_effecting": flag,
    "allow_empty": flag, "instructions": flag, "retry_jitter": flag, "irreversible": flag,
    "stack.child_autostart": flag, "retry_policy": _word(*PRESETS), "path": subfolder,
    # kind of node, and its task
    **_texts("label", "shape", "type", "handler", "class", "status", "prompt", "agent", "worker_type", "command",
             "tool_command", "script", "acceptance", "validator", "setup", "rework", "signal", "bead_id", "prd_ref",
             "failover", "escalate", "files", "hosts", "host", "agents", "judge", "judge_command"),
    # its successors in a run
    **_texts("retry_target", "fallback_retry_target", "on_error", "on_resume", "fidelity", "thread_id"),
    # questions to the user, and nested pipelines
    **_texts("human.prompt", "human.type", "question_type", "human.default_choice", "human_default_choice", "graph_ref",
             "subgraph", "dotfile", "stack.child_dotfile", "stack.child_workflow", "stack.child_workdir",
             "stack.child_run_dir",
             "manager.actions", "manager.stop_condition"),
    # models, Claude agents and sessions
    **_texts(*PROPERTIES, "model", "fallback_model", "effort", "tools", "permission_mode", "max_turns", "budget",
             "max_repeats", "max_idle", "allowed_tools", "disallowed_tools", "skills", "plugins", "add_dirs", "betas",
             "thinking", "output_schema", "attribution",
             "system_prompt", "session", "tier", "turn_graph", "heartbeat_graph", "initiative"),
    # steps of a session's graph
    **_texts("action", "use_tools", "param.mode", "mode", "kind", "source_key", "output_key", "data_key", "expression"),
}
BRANCH_TYPES: Mapping[str, Reader] = {
    "max_parallel": count, "join_policy": _word(*JOIN_POLICIES), "error_policy": _word(*ERROR_POLICIES),
    "join_k": count, "k": count, "min_success": count, "join_quorum": _fraction, "quorum": _fraction,
}
"""Attributes that only a parallel reads."""
EDGE_TYPES: Mapping[str, Reader] = {
    "weight": number, "loop_restart": flag, "irreversible": flag,
    **_texts("label", "condition", "fidelity", "thread_id"),
}
KNOWN: Mapping[Level, frozenset[str]] = {
    Level.GRAPH: frozenset(GRAPH_TYPES), Level.NODE: frozenset({*NODE_TYPES, *BRANCH_TYPES}),
    Level.EDGE: frozenset(EDGE_TYPES),
}
"""Attributes with an effect on a run, by the part of the graph to which they belong."""

AT_LEAST_ONE = ("max_parallel", "join_k", "k", "min_success", "manager.max_cycles", "max_steps")
"""Whole numbers that may not be 0."""
DURATIONS = ("timeout", "silence", "human.timeout", "manager.poll_interval", "manager.steer_cooldown",
             "max_pipeline_duration")
"""Durations whose names contain no unit."""

# ---- attributes of others --------------------------------------------------------------------------------------------

OTHER_ENGINES: Mapping[Level, Mapping[str, str]] = {
    Level.GRAPH: {
        "model": "llm_model", "provider": "llm_provider", "context_fidelity_default": "default_fidelity",
        "context_thread_default": "default_thread", "outputs": "", "tool_hooks.pre": "", "tool_hooks.post": "",
    },
    Level.NODE: {
        "node_type": "type", "agent_tool": "agent", "provider": "llm_provider",
        "graph_file": "graph_ref", "question": "human.prompt", "llm_prompt": "prompt", "max_agent_turns": "max_turns",
        "loop_max": "max_visits", "agent_mode": "", "collect_browser_artifacts": "", "context_keys": "",
        "data_class": "", "fan_out": "", "is_codergen": "", "loop_id": "", "loop_until_file_contains": "",
        "max_tokens": "", "outputs": "", "pass_context": "", "require_status": "", "sandbox": "", "simulate": "",
        "target": "", "temperature": "", "transform": "", "tool_hooks.pre": "", "tool_hooks.post": "",
    },
    Level.EDGE: {},
}
"""Attributes of other engines of this dialect that have no effect here → the attribute to write instead, if there is
one."""

NAMESPACES = frozenset({"x", "var", "param"})
"""Prefixes (`x_owner`, `var.ticket`) under which every name is allowed: notes, values for nested pipelines and
for tools of other engines. A graph declares more of them in `namespaces`."""

ORDINARY_WORDS = frozenset({
    "args", "case", "code", "cost", "data", "date", "desc", "description", "done", "file", "hint", "lane", "lang",
    "level", "line", "link", "log", "module", "name", "note", "notes", "output", "owner", "page", "parent", "path",
    "phase", "priority", "rate", "report", "role", "rule", "scope", "sprint", "stage", "state", "step", "tags",
    "task", "team", "text", "time", "title", "total", "url", "user", "version"})
"""Words that describe nodes, and are not misspellings of a known attribute, however similar they are."""

DRAWING = frozenset("""
    _background area arrowhead arrowsize arrowtail bb beautify bgcolor center charset class cluster clusterrank color
    colorscheme comment compound concentrate constraint Damping decorate defaultdist dim dimen dir diredgeconstraints
    distortion dpi edgehref edgetarget edgetooltip edgeURL epsilon esep fillcolor fixedsize fontcolor fontname fontnames
    fontpath fontsize forcelabels gradientangle group head_lp headclip headhref headlabel headport headtarget
    headtooltip headURL height href id image imagepath imagepos imagescale inputscale K label label_scheme labelangle
    labeldistance labelfloat labelfontcolor labelfontname labelfontsize labelhref labeljust labelloc labeltarget
    labeltooltip labelURL landscape layer layerlistsep layers layerselect layersep layout len levels levelsgap lhead
    lheight linelength lp ltail lwidth margin maxiter mclimit mindist minlen newrank nodesep nojustify normalize
    notranslate nslimit nslimit1 oneblock ordering orientation outputorder overlap overlap_scaling overlap_shrink pack
    packmode pad page pagedir pencolor penwidth peripheries pin pos quadtree quantum radius rank rankdir ranksep ratio
    rects regular remincross repulsiveforce resolution root rotate rotation samehead sametail samplepoints scale
    searchsize sep shapefile showboxes sides size skew smoothing sortv splines start style stylesheet tail_lp tailclip
    tailhref taillabel tailport tailtarget tailtooltip tailURL TBbalance tooltip truecolor URL vertices viewport
    voro_margin width xdotversion xlabel xlp z""".split())  # noqa: SIM905
"""Attributes of Graphviz, which only drawings use."""


# ---- rules on attributes without an effect ---------------------------------------------------------------------------


DESCRIPTIONS = frozenset({"goal", "inputs", "vars", "namespaces"})
"""Attributes of a graph that merely describe a node."""

_USED = re.compile(r"\b(graph|node)\.([A-Za-z_][\w.-]*)", re.ASCII)


class _Unknown(Value):
    """An attribute without an effect, at its first place."""

    level: Level
    key: str
    owner: Node | Edge | None
    line: int
    column: int
    is_custom: bool
    """Set if a handler outside the dialect may read it."""

    @property
    def place(self) -> str:
        return f"{self.owner.id if isinstance(self.owner, Node) else self.owner}: " if self.owner else ""

    def problem(self, message: str, fix: str) -> Problem:
        return Problem(f"{self.place}{message}", fix, self.owner, self.line, self.column)


def attribute_misspelt(view: View) -> Iterator[Problem]:
    """Forbid names similar to a known attribute's."""
    for unknown in _unknown(view):
        if not unknown.is_custom and (meant := _meant(unknown.level, unknown.key)):
            level, key = meant
            where = "" if level is unknown.level else f", an attribute of {_plural(level)}"
            yield unknown.problem(f"{_shown(unknown.key)} is not an attribute of {_plural(unknown.level)}",
                                  f"did you mean {key}{where}? (custom names start with x_)")


def attribute_misplaced(view: View) -> Iterator[Problem]:
    """Forbid known attributes where they have no effect."""
    for unknown in _unknown(view):
        level = _home_level(unknown.level, unknown.key)
        if level is not None and not unknown.is_custom:
            yield unknown.problem(f"{unknown.key} is an attribute of {_plural(level)} and has no effect on "
                                  f"{_plural(unknown.level)}", _MOVE[level].format(key=unknown.key))


def attribute_unknown(view: View) -> Iterator[Problem]:
    """Report every other attribute without an effect, once per graph."""
    seen: Counter[tuple[Level, str]] = Counter()
    first: dict[tuple[Level, str], _Unknown] = {}
    for unknown in _unknown(view, each=True):
        if (unknown.is_custom and _meant(unknown.level, unknown.key) is None) or (not unknown.is_custom and (
                _home_level(unknown.level, unknown.key) or _meant(unknown.level, unknown.key))):
            continue
        seen[unknown.level, unknown.key] += 1
        first.setdefault((unknown.level, unknown.key), unknown)
    for (level, key), unknown in first.items():
        others = seen[level, key] - 1
        more = f" (and {others} more {_plural(level) if others > 1 else level})" if others else ""
        yield unknown.problem(f"garrison does not read {_shown(key)}{more}", _fix(level, key))


# ---- unknown attributes ----------------------------------------------------------------------------------------------


def _unknown(view: View, *, each: bool = False) -> Iterator[_Unknown]:
    """Yield the attributes without an effect: each place in the text once, or with `each` each node and edge."""
    free, used = _free_prefixes(view), None
    seen: set[tuple[Level, str, int, int]] = set()
    for owner, attrs in view.owners:
        level = Level.GRAPH if owner is None else Level.NODE if isinstance(owner, Node) else Level.EDGE
        for key, value in attrs.items():
            is_drawing = key in DRAWING and key not in OTHER_ENGINES[level]
            if key in KNOWN[level] or is_drawing or key.startswith(free):
                continue
            line, column = position(value)
            # By the place in the text: `node [timout=5m]` gives its one mistake to every later node.
            if not each and (level, key, line, column) in seen:
                continue
            seen.add((level, key, line, column))
            # Late: it reads every text of the graph, and most graphs have no unknown attribute.
            used = _used(view) if used is None else used
            if key not in used[level]:
                is_custom = isinstance(owner, Node) and not is_known_handler(view.handler[owner.id])
                yield _Unknown(level, key, owner, line, column, is_custom)


def _free_prefixes(view: View) -> tuple[str, ...]:
    declared = re.findall(r"[\w-]+", text(view.graph.attrs, "namespaces", ""))
    return tuple(f"{name}{separator}" for name in (*NAMESPACES, *declared) for separator in "._-")


def _used(view: View) -> Mapping[Level, frozenset[str]]:
    """Return the attributes that the texts and conditions of the graph name as `$node.KEY` or `graph.KEY`."""
    used: dict[str, set[str]] = {level: set() for level in Level}
    texts = [*view.graph.attrs.values(), *(edge.attrs.get("condition", "") for edge in view.graph.edges),
             *(value for node in view.graph.nodes.values() for value in node.attrs.values())]
    for value in texts:
        if "graph." in value or "node." in value:
            for level, key in _USED.findall(value):
                parts = key.rstrip(".-").split(".")
                used[level].update(".".join(parts[:length]) for length in range(1, len(parts) + 1))
    return {level: frozenset(used[level]) for level in Level}


@cache
def _meant(level: Level, key: str) -> tuple[Level, str] | None:
    """Return the known attribute that was probably intended: of the same level, else, at one edit, of another."""
    if key in OTHER_ENGINES[level] or key in ORDINARY_WORDS or key in DESCRIPTIONS or _home_level(level, key):
        return None
    if near := nearest(key, KNOWN[level]):
        return level, near
    elsewhere = ((other, nearest(key, KNOWN[other], 1)) for other in Level if other is not level)
    return next(((other, near) for other, near in elsewhere if near), None)


def _home_level(level: Level, key: str) -> Level | None:
    """Return the level at which an attribute is known, None if it is not, or if it may describe anything."""
    if key in DESCRIPTIONS or key in OTHER_ENGINES[level]:
        return None
    return next((other for other in Level if other is not level and key in KNOWN[other]), None)


_MOVE: Mapping[Level, str] = {
    Level.GRAPH: "write {key}=... in the graph itself",
    Level.NODE: "write it on its nodes, or as node [{key}=...] before them",
    Level.EDGE: "write it on its edges",
}


def _fix(level: Level, key: str) -> str:
    if key in OTHER_ENGINES[level]:
        own = OTHER_ENGINES[level][key]
        return f"write {own}" if own else "it is for another engine and has no effect here"
    if (meant := _meant(level, key)) is not None:
        return f"did you mean {meant[1]}?"
    if key not in ORDINARY_WORDS and (near := nearest(key, DRAWING)):
        return f"did you mean {near}?"
    prefix, dot, _ = key.partition(".")
    return f'set namespaces="{prefix}" in the graph if it is for another tool' if dot else (
        f"name it x_{key} if it is your own note, or remove it")


def _plural(level: Level) -> str:
    return "the graph" if level is Level.GRAPH else f"{level}s"


def _shown(key: str) -> str:
    return key if re.fullmatch(r"[\w.-]{1,60}", key) else f"{key!r:.60}"
