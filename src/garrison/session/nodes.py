"""The node types `session.*` as handlers of the engine.

The rule of this room: a node reads the context, asks at most one adapter, and says what changes; it keeps nothing. A
missing adapter is SKIPPED; one that raises fails its node, which a graph may let pass with `on_error=continue` (the
failure is an event all the same).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from garrison.agents.json_io import extract_object
from garrison.pipeline.outcome import FAIL, SKIPPED, SUCCESS, Outcome
from garrison.session.adapters import FURTHER, Adapters, called
from garrison.session.trust import Tier

if TYPE_CHECKING:
    from garrison.pipeline.handlers.call import Call

READ_ONLY, SIDE_EFFECTING = "read_only", "side_effecting"
IDEMPOTENCY: Mapping[str, str] = {
    "session.classify": READ_ONLY, "session.authorize": READ_ONLY, "session.mode_select": READ_ONLY,
    "session.format": READ_ONLY, "session.process_results": READ_ONLY, "session.memory_recall": READ_ONLY,
    "session.background_checks": READ_ONLY, "session.build_prompt": READ_ONLY,
    "session.memory_update": SIDE_EFFECTING, "session.llm_call": SIDE_EFFECTING,
    "session.tool_dispatch": SIDE_EFFECTING, "session.checkpoint": SIDE_EFFECTING,
    "session.route_actions": SIDE_EFFECTING, "session.update_goals": SIDE_EFFECTING,
    "session.emit_signal": SIDE_EFFECTING, "session.transform": READ_ONLY,
    **{f"session.{name}": SIDE_EFFECTING for name in FURTHER},
}
"""Every node type, and whether running it twice can do harm."""
_LISTS = ("actions", "goal_updates", "new_goals", "memory_notes", "decompositions", "proposal_decisions", "concerns",
          "curiosity", "identity_insights")
MAX_NOTES = 100


def ok(**updates: Any) -> Outcome:
    """A success with context updates; `session_x` becomes `session.x`."""
    return Outcome(SUCCESS, context_updates={key.replace("_", ".", 1): value for key, value in updates.items()})


class SessionNodes:
    """The handlers of one session."""

    def __init__(self, adapters: Adapters, tier: Tier, on_event: Callable[[str, dict[str, Any]], None],
                 budget: Callable[[], bool] = lambda: True) -> None:
        self.adapters, self.tier, self._on_event, self._budget = adapters, tier, on_event, budget

    def handlers(self) -> dict[str, Any]:
        """Node type → handler."""
        return {kind: self._guarded(kind) for kind in IDEMPOTENCY}

    def _guarded(self, kind: str) -> Any:
        name = kind.partition(".")[2]
        method = partial(self.hand_over, name) if name in FURTHER else getattr(self, name)

        async def handler(call: Call) -> Outcome:
            try:
                outcome: Outcome = await method(call)
            except Exception as error:
                why = f"{name}: {type(error).__name__}: {error}"
                self._on_event("adapter_failed", {"node": call.node.id, "reason": why})
                unsaid = {"llm.response_type": ""} if name == "llm_call" else {}  # what was said before is no answer
                return Outcome(FAIL, failure_reason=why, failure_class="error", context_updates=unsaid)
            return outcome
        return handler

    def _adapter(self, name: str) -> Callable[..., Any] | None:
        return self.adapters.get(name)

    # ---- pure nodes

    async def classify(self, call: Call) -> Outcome:
        """`session.input_type`: command, tool_result, blocked or query. What is blocked has its answer from here on,
        for a graph that leads it to its end."""
        said = call.context.get("session.input", "")
        if isinstance(said, Mapping) and "tool_result" in said:
            kind = "tool_result"
        elif call.context.get("session.blocked") or not str(said).strip():
            kind = "blocked"
        elif isinstance(said, str) and said.startswith("/"):
            kind = "command" if self.tier.commands else "blocked"
        else:
            kind = "query"
        refused = {"session_refusal": self._refusal(), "session_response": f"I cannot take this up: {self._refusal()}."}
        return ok(session_input_type=kind, **(refused if kind == "blocked" else {"session_refusal": ""}))

    def _refusal(self) -> str:
        return f"it is blocked at trust tier {self.tier.name}"

    async def authorize(self, call: Call) -> Outcome:
        """`session.authorized`, from the tier and what the input is; `session.refusal` says why not."""
        blocked = call.context.get("session.input_type") == "blocked"
        return ok(session_authorized=not blocked, session_refusal=self._refusal() if blocked else "")

    async def mode_select(self, call: Call) -> Outcome:
        """`session.cognitive_mode`: a due plan, goals, every fifth turn consolidation, else reflection."""
        turn = int(call.context.get("session.turn_count") or 0)
        if call.context.get("session.plan_due"):
            mode = "plan_execution"
        elif call.context.get("session.goals"):
            mode = "goal_pursuit"
        else:
            mode = "consolidation" if turn > 0 and turn % 5 == 0 else "reflection"
        return ok(session_cognitive_mode=mode)

    async def format(self, call: Call) -> Outcome:
        """`session.response`: what the model said, or the refusal of what is blocked."""
        if call.context.get("session.input_type") == "blocked":
            return ok(session_response=f"I cannot take this up: {call.context.get('session.refusal')}.")
        return ok(session_response=str(call.context.get("llm.content") or ""))

    async def process_results(self, call: Call) -> Outcome:
        """Actions, goal updates, new goals and memory notes of the model's JSON, also within other words; none of what
        is no JSON."""
        given = extract_object(str(call.context.get("llm.content") or "")) or {}
        found: dict[str, Any] = {f"session.{name}": given[name] if isinstance(given.get(name), list) else []
                                 for name in _LISTS}
        notes = found["session.memory_notes"]
        if notes:
            memory = dict(call.context.get("session.working_memory") or {})
            memory["notes"] = [*memory.get("notes", []), *notes][-MAX_NOTES:]
            found["session.working_memory"] = memory
        return Outcome(SUCCESS, context_updates=found)

    async def transform(self, call: Call) -> Outcome:
        """`output_key` from `source_key`: as it is, or put into `expression` where that says {value}."""
        value = call.context.get(str(call.attrs.get("source_key") or "llm.content"), "")
        expression = call.attrs.get("expression")
        given = str(expression).replace("{value}", str(value)) if expression else value
        return Outcome(SUCCESS, context_updates={str(call.attrs.get("output_key") or "session.response"): given})

    # ---- nodes with an adapter

    async def hand_over(self, name: str, call: Call) -> Outcome:
        """A node of `adapters.FURTHER`: its keys go to its adapter; the keys that it gives change."""
        adapter = self._adapter(name)
        if adapter is None:
            return _skipped(name)
        data = {key: call.context.get(f"session.{key}") for key in FURTHER[name]}
        changed = await called(adapter, data, call.context.get("session.agent_id"))
        return Outcome(SUCCESS, context_updates={f"session.{key}": value for key, value in (changed or {}).items()})

    async def build_prompt(self, call: Call) -> Outcome:
        """`session.prompt`: the messages for the model; without an adapter those of the session as they are."""
        build = self._adapter("build_prompt")
        if build is None:
            return ok(session_prompt=None)
        return ok(session_prompt=await called(build, dict(call.context)))

    async def memory_recall(self, call: Call) -> Outcome:
        """`session.recalled_memories`."""
        recall = self._adapter("memory_recall")
        if recall is None:
            return _skipped("memory_recall")
        found = await called(recall, call.context.get("session.agent_id"), call.context.get("session.input", ""))
        return ok(session_recalled_memories=list(found or []))

    async def llm_call(self, call: Call) -> Outcome:
        """`llm.response_type` text with `llm.content`, or tool_call with `llm.tool_calls`; `llm.thinking` with both."""
        if call.context.get("session.is_heartbeat") and not (call.context.get("session.initiative")
                                                             and self._budget()):
            return Outcome(SKIPPED, notes="no initiative, or its budget is used up: no model is asked",
                           context_updates={"llm.response_type": "text", "llm.content": ""})
        context = call.context
        mode = str(call.attrs.get("mode") or context.get("session.cognitive_mode") or "reflection")
        options = {"mode": mode, "agent_id": context.get("session.agent_id"), "attrs": dict(call.attrs),
                   "prompt": call.prompt if call.attrs.get("prompt") else "",
                   "tools": list(self.tier.tools) if self.tier.tool_dispatch else [],
                   "memories": context.get("session.recalled_memories") or []}
        messages = context.get("session.prompt") or context.get("session.messages") or []
        said = await called(self.adapters["llm_call"], list(messages), mode, options)
        if not isinstance(said, Mapping) or not (said.get("tool_calls") or isinstance(said.get("content"), str)):
            raise TypeError(f"llm_call gave {said!r:.80}; it should give content or tool_calls")
        updates = {"llm.thinking": list(said.get("thinking") or []),
                   "llm.calls": int(context.get("llm.calls") or 0) + 1}
        if said.get("tool_calls"):
            return Outcome(SUCCESS, context_updates={**updates, "llm.response_type": "tool_call",
                                                     "llm.tool_calls": list(said["tool_calls"]), "llm.content": ""})
        return Outcome(SUCCESS, context_updates={**updates, "llm.response_type": "text", "llm.tool_calls": [],
                                                 "llm.content": said["content"]})

    async def tool_dispatch(self, call: Call) -> Outcome:
        """Calls the tools that the model asked for, as far as the tier allows; their results become messages."""
        dispatch = self._adapter("tool_dispatch")
        calls = list(call.context.get("llm.tool_calls") or [])
        if dispatch is None:
            return _skipped("tool_dispatch")
        allowed = [one for one in calls if self.tier.allows(str(one.get("name", "")))]
        given = list(await called(dispatch, allowed, call.context.get("session.agent_id"))) if allowed else []
        if len(given) != len(allowed):
            raise ValueError(f"tool_dispatch gave {len(given)} results for {len(allowed)} calls")
        for one in calls:
            self._on_event("tool_dispatched", {"node": call.node.id, "tool": str(one.get("name", "")),
                                               "allowed": one in allowed})
        by_call = {id(one): result for one, result in zip(allowed, given, strict=True)}
        results = [by_call.get(id(one), f"refused: {one.get('name')} is not allowed at trust tier {self.tier.name}")
                   for one in calls]
        asked = {"role": "assistant", "content": "", "tool_calls": calls}
        answers = [{"role": "tool", "content": result if isinstance(result, str) else json.dumps(result),
                    **({"tool_call_id": one["id"]} if one.get("id") else {}), "name": str(one.get("name", ""))}
                   for one, result in zip(calls, results, strict=True)]
        made = int(call.context.get("session.tool_calls_made") or 0) + len(allowed)
        messages = [*(call.context.get("session.messages") or []), asked, *answers]
        return ok(session_tool_results=results, session_messages=messages, session_tool_calls_made=made)

    async def memory_update(self, call: Call) -> Outcome:
        """Hands the turn over to memory; a mapping that comes back becomes the working memory."""
        update = self._adapter("memory_update")
        if update is None:
            return _skipped("memory_update")
        context = call.context
        turn = {"input": context.get("session.input"), "response": context.get("session.response", ""),
                "kind": str(call.attrs.get("kind") or "turn"), "notes": context.get("session.memory_notes") or [],
                "working_memory": context.get("session.working_memory") or {},
                "thinking": context.get("llm.thinking") or []}
        changed = await called(update, context.get("session.agent_id"), turn)
        return ok(session_working_memory=dict(changed)) if isinstance(changed, Mapping) else ok()

    async def checkpoint(self, call: Call) -> Outcome:
        """`session.last_checkpoint`."""
        keep = self._adapter("checkpoint")
        if keep is None:
            return _skipped("checkpoint")
        turn = call.context.get("session.turn_count", 0)
        await called(keep, call.context.get("session.id"), turn, dict(call.context))
        return ok(session_last_checkpoint=turn)

    async def background_checks(self, call: Call) -> Outcome:
        """`session.background_check_results`."""
        look = self._adapter("background_checks")
        if look is None:
            return _skipped("background_checks")
        found = await called(look, call.context.get("session.agent_id"))
        return ok(session_background_check_results=dict(found or {}))

    async def route_actions(self, call: Call) -> Outcome:
        """Hands the actions over that the model wants done."""
        route = self._adapter("route_actions")
        if route is None:
            return _skipped("route_actions")
        await called(route, list(call.context.get("session.actions") or []), call.context.get("session.agent_id"))
        return ok(session_actions_routed=True)

    async def update_goals(self, call: Call) -> Outcome:
        """Hands goal changes over; the session's own goals change when the heartbeat ends."""
        update = self._adapter("update_goals")
        if update is None:
            return _skipped("update_goals")
        await called(update, list(call.context.get("session.goal_updates") or []),
                     list(call.context.get("session.new_goals") or []), call.context.get("session.agent_id"))
        return ok(session_goals_updated=True)

    async def emit_signal(self, call: Call) -> Outcome:
        """Tells whoever listens: `signal` names it, `data_key` the context key that goes along."""
        name = str(call.attrs.get("signal") or call.node.id)
        data = call.context.get(str(call.attrs.get("data_key") or "session.response"))
        self._on_event(name, {"agent_id": call.context.get("session.agent_id"), "data": data})
        emit = self._adapter("emit_signal")
        if emit is not None:
            await called(emit, name, data, call.context.get("session.agent_id"))
        return ok()


def _skipped(name: str) -> Outcome:
    return Outcome(SKIPPED, notes=f"the session has no adapter {name}")
