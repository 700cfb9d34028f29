"""Lint rule on context keys: a condition must use a key that some node writes.

`WRITTEN` lists each key once, with the handler that writes it. A key ending in `.` covers all keys with that prefix.
Codergen nodes, subgraphs and registered handlers may write any other key.

A key is known when a handler of this graph writes it. It may be known when the graph or a node declares it (`inputs`,
`vars`, `output_key`, ...), when a text of the graph mentions it (an agent has read it), when a prompt is in another
file (`@FILE`), or when a handler is not built in. In those cases the rule reports only a probable mistake: a key that
exists under a prefix, under another engine's name for it, or with a similar spelling.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import lru_cache

from garrison.pipeline.condition import ALIASES, ConditionSyntax, keys_of
from garrison.pipeline.graph import is_known_handler, position
from garrison.pipeline.lint.findings import Problem, View, condition_of
from garrison.pipeline.outcome import ENGINE_KEYS

ENGINE = "the engine"

WRITTEN: Mapping[str, tuple[str, ...]] = {
    ENGINE: (*ENGINE_KEYS, "graph.", "internal.restart_count", "internal.retry_count.", "internal.session."),
    "codergen": ("last_response",),
    "tool": ("tool.output", "tool.exit_code", "tool.last_line", *ALIASES),
    "wait.human": ("human.gate.selected", "human.gate.label", "human.gate.text", "human.gate.node"),
    "wait.signal": ("signal.",),
    "parallel": ("parallel.results", "parallel.success_count", "parallel.failure_count"),
    "parallel.fan_in": ("parallel.fan_in.best_id", "parallel.fan_in.best_outcome"),
    "stack.manager_loop": ("stack.child.",),
    "session.classify": ("session.input_type", "session.refusal", "session.response"),
    "session.authorize": ("session.authorized", "session.refusal", "session.trust_tier"),
    "session.mode_select": ("session.cognitive_mode",),
    "session.memory_recall": ("session.recalled_memories",),
    "session.build_prompt": ("session.prompt", "session.system_prompt"),
    "session.llm_call": ("llm.response_type", "llm.content", "llm.tool_calls", "llm.thinking"),
    "session.tool_dispatch": ("session.messages", "session.tool_results", "session.tool_calls_made",
                              "llm.tool_results"),
    "session.format": ("session.response",),
    "session.process_results": ("session.actions", "session.goal_updates", "session.new_goals", "session.memory_notes",
                                "session.working_memory", "session.decompositions", "session.proposal_decisions",
                                "session.concerns", "session.curiosity", "session.identity_insights"),
    "session.execute_actions": ("session.has_action_results", "session.tool_turn"),
    "session.memory_update": ("session.working_memory", "session.messages"),
    "session.update_goals": ("session.goals",),
    "session.background_checks": ("session.background_checks", "session.background_check_results"),
}
"""Handler → the keys that it writes. `ENGINE` writes its keys in every run."""

SESSION_STATE = ("session.id", "session.session_id", "session.agent_id", "session.trust_tier", "session.turn_count",
                 "session.messages", "session.working_memory", "session.goals", "session.cognitive_mode",
                 "session.input", "session.response", "session.is_heartbeat", "session.initiative",
                 "session.heartbeat_count", "session.consolidation_due", "session.reflection_due", "session.plan_due")
"""Keys that a session adds to the context of its graphs."""

ANY_KEY_HANDLERS = frozenset({"codergen", "subgraph", "stack.manager_loop"})
"""Handlers that may write any key."""

VALUES: Mapping[str, tuple[str, ...]] = {
    "session.cognitive_mode": ("reflection", "goal_pursuit", "plan_execution", "consolidation"),
    "llm.response_type": ("text", "tool_call"),
}
"""Keys with a fixed set of values."""

OTHER_ENGINES: Mapping[str, str] = {
    "tool_output": "tool.output", "tool.stdout": "tool.output",
    "exit_code": "tool.exit_code", "tool_exit_code": "tool.exit_code",
    "human_choice": "human.gate.selected", "human_answer": "human.gate.selected", "status": "outcome",
}
"""Key in other engines → the key here."""


_WORD = re.compile(r"[A-Za-z_][\w-]*(?:\.[\w-]+)*", re.ASCII)
_NO_TEXTS = frozenset({"label", "shape", "style", "class", "color", "fillcolor", "condition"})


def context_key_unknown(view: View) -> Iterator[Problem]:
    """Report keys of conditions that no node writes."""
    edges = [edge for edge in view.graph.edges if condition_of(edge)]
    if not edges:
        return
    known = _known_keys(view)
    mentioned = mentioned_words(view)
    has_agents = not ANY_KEY_HANDLERS.isdisjoint(view.handler.values())
    has_hidden_texts = _has_hidden_texts(view)
    for edge in edges:
        condition = view.conditions[condition_of(edge)]
        if isinstance(condition, ConditionSyntax):
            continue
        for key in keys_of(condition):
            bare = key.removeprefix("context.")
            if key in ("outcome", "preferred_label") or _is_known(bare, known):
                continue
            correction = _correction(bare, known)
            may_be_written = has_hidden_texts or bare in mentioned or (
                has_agents and bare.rpartition(".")[2] in mentioned)
            # An agent may write any key: a finding only if nothing tells it to, or if a known key is probably meant.
            if correction is None and may_be_written:
                continue
            yield Problem(f"{edge}: nothing in this graph writes {key}" + (" or mentions it" if has_agents else ""),
                          _fix(view, key, correction, has_agents), edge, *position(edge.attrs["condition"]))


def _fix(view: View, key: str, correction: str | None, has_agents: bool) -> str:
    if correction is not None:
        return f"write context.{correction}"
    writer = next((handler for handler, keys in WRITTEN.items() if _is_known(key.removeprefix("context."), keys)), None)
    if writer is not None and writer not in view.handler.values():
        return f"a {writer} node would write it; add one, or use another key"
    agent = "tell the agent of an earlier node to set it, " if has_agents else ""
    return f"{agent}name it in inputs= if the run starts with it, or correct the key"


def _has_hidden_texts(view: View) -> bool:
    return any(not is_known_handler(handler) for handler in set(view.handler.values())) or any(
        node.attrs.get("prompt", "").startswith("@") for node in view.graph.nodes.values())


def _known_keys(view: View) -> frozenset[str]:
    """Return the keys and prefixes of keys that are written in a run of this graph."""
    handlers = set(view.handler.values())
    known = {key for writer in (ENGINE, *handlers) for key in WRITTEN.get(writer, ())}
    if any(handler.startswith("session.") for handler in handlers):
        known.update(SESSION_STATE)
    return frozenset(known)


def _is_known(key: str, known: Iterable[str]) -> bool:
    return any(key == entry or (entry.endswith(".") and key.startswith(entry)) or key.startswith(f"{entry}.")
               for entry in known)


def mentioned_words(view: View) -> frozenset[str]:
    """Return every word and dotted key in the texts of the graph, except conditions and drawing attributes."""
    words: set[str] = set()
    for attrs in (view.graph.attrs, *(node.attrs for node in view.graph.nodes.values())):
        for key, value in attrs.items():
            if key not in _NO_TEXTS:
                words.update(_WORD.findall(value))
    words.update(word.removeprefix("context.") for word in list(words))
    words.update(part for word in list(words) for part in word.split("."))
    return frozenset(words)


@lru_cache(maxsize=256)
def _correction(key: str, known: frozenset[str]) -> str | None:
    """Return the known key that was probably intended: under a prefix, another engine's, or spelled similarly."""
    if (own := OTHER_ENGINES.get(key)) in known or own == "outcome":
        return own
    with_prefix = sorted(entry for entry in known if entry.endswith(f".{key}"))
    if with_prefix:
        return with_prefix[0]
    similar = get_close_matches(key, [entry for entry in known if not entry.endswith(".")], 1, 0.85)
    return similar[0] if similar else None
