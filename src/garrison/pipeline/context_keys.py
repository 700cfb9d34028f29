"""Which context keys exist: who writes each, and, where it can only be a few, which values it may have. Pure data.

The rule of this room: a key is written here once, with the handler that writes it. A key that ends in `.` stands for
all keys that begin so. `ENGINE` writes its keys in every run; a codergen node, a subgraph and a handler that somebody
registered may write any key besides these.
"""

from __future__ import annotations

from collections.abc import Mapping

ENGINE = "the engine"

WRITTEN: Mapping[str, tuple[str, ...]] = {
    ENGINE: ("outcome", "preferred_label", "failure_reason", "failure_class", "last_stage", "last_failure",
             "last_failed_node", "current_node", "graph.", "internal."),
    "codergen": ("last_response",),
    "tool": ("tool.output", "tool.exit_code"),
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
"""Handler → the keys it writes."""

RESPONSE = 200
"""Characters of an agent's response that stand in `last_response`."""

SESSION_STATE = ("session.id", "session.session_id", "session.agent_id", "session.trust_tier", "session.turn_count",
                 "session.messages", "session.working_memory", "session.goals", "session.cognitive_mode",
                 "session.input", "session.response", "session.is_heartbeat", "session.initiative",
                 "session.heartbeat_count", "session.consolidation_due", "session.reflection_due", "session.plan_due")
"""What a session brings along into each of its graphs."""

ANYTHING = frozenset({"codergen", "subgraph", "stack.manager_loop"})
"""Handlers whose work may set any key."""

VALUES: Mapping[str, tuple[str, ...]] = {
    "session.cognitive_mode": ("reflection", "goal_pursuit", "plan_execution", "consolidation"),
    "llm.response_type": ("text", "tool_call"),
}
"""Keys that have one of a few values."""

KNOWN_AS: Mapping[str, str] = {
    "tool_stdout": "tool.output", "tool_output": "tool.output", "tool.stdout": "tool.output",
    "exit_code": "tool.exit_code", "tool_exit_code": "tool.exit_code",
    "human_choice": "human.gate.selected", "human_answer": "human.gate.selected", "status": "outcome",
}
"""What other engines call a key of ours."""
