"""Attributes that garrison reads: one table for graphs, one for nodes, one for edges. Pure.

Each table maps an attribute to the reader of its value, which raises TypeConflict for an invalid one; `text` accepts
any. An attribute that is in no table here has no effect on a run. To add one, add it to its table: the lint rules on
types and on unknown attributes follow, and a test compares the tables with the code that reads attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum

from garrison.pipeline.flow.program import ERROR_POLICIES, JOIN_POLICIES
from garrison.pipeline.flow.retry import PRESETS
from garrison.pipeline.graph import TypeConflict, flag, number, seconds, text
from garrison.pipeline.stylesheet import PROPERTIES
from garrison.spelling import nearest

Reader = Callable[[Mapping[str, str], str], object]

FLOWS = ("dag", "walk")
LANDS = ("node", "run", "none", "pr")
"""Words for `land`."""


class Level(StrEnum):
    """Part of a graph that an attribute belongs to."""

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
    "manager.max_cycles": count,
    "approve": flag, "goal_gate": flag, "auto_status": flag, "allow_partial": flag, "side_effecting": flag,
    "allow_empty": flag, "instructions": flag, "retry_jitter": flag,
    "stack.child_autostart": flag, "retry_policy": _word(*PRESETS),
    # what a node is, and its task
    **_texts("label", "shape", "type", "handler", "class", "status", "prompt", "agent", "worker_type", "command",
             "tool_command", "script", "acceptance", "validator", "setup", "rework", "signal", "bead_id", "prd_ref",
             "failover", "escalate", "files", "hosts", "host"),
    # where a run goes from it
    **_texts("retry_target", "fallback_retry_target", "on_error", "on_resume", "fidelity", "thread_id"),
    # people and inner pipelines
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
    "weight": number, "loop_restart": flag, **_texts("label", "condition", "fidelity", "thread_id"),
}
KNOWN: Mapping[Level, frozenset[str]] = {
    Level.GRAPH: frozenset(GRAPH_TYPES), Level.NODE: frozenset({*NODE_TYPES, *BRANCH_TYPES}),
    Level.EDGE: frozenset(EDGE_TYPES),
}
"""Attributes that have an effect on a run, by what they belong to."""

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
"""Prefixes (`x_owner`, `var.ticket`) under which every name is free: notes of people, values for inner pipelines and
for tools of other engines. A graph declares more of them in `namespaces`."""

ORDINARY_WORDS = frozenset({
    "args", "case", "code", "cost", "data", "date", "desc", "description", "done", "file", "hint", "lane", "lang",
    "level", "line", "link", "log", "module", "name", "note", "notes", "output", "owner", "page", "parent", "path",
    "phase", "priority", "rate", "report", "role", "rule", "scope", "sprint", "stage", "state", "step", "tags",
    "task", "team", "text", "time", "title", "total", "url", "user", "version"})
"""Words with which people describe nodes, and which are no misspellings of a known attribute however near they are."""

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
