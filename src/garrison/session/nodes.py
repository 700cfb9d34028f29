"""Node types `session.*` as handlers of the engine.

A node reads the context, calls at most one adapter and returns the changes; it keeps no state. A missing adapter means
SKIPPED. An adapter that raises fails its node; `on_error=continue` lets the graph continue (the failure is an event
either way).
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from garrison.pipeline.outcome import FAIL, SKIPPED, SUCCESS, Outcome
from garrison.records.json_io import extract_object
from garrison.session.adapters import DATA_ADAPTERS, NAMES, OPTIONAL, Adapters, call_adapter
from garrison.session.state import Tier, add_notes

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
    **{f"session.{name}": SIDE_EFFECTING for name in DATA_ADAPTERS},
}
"""Node type → whether repeating it can do harm."""
_LISTS = ("actions", "goal_updates", "new_goals", "memory_notes", "decompositions", "proposal_decisions", "concerns",
          "curiosity", "identity_insights")
MAX_NOTES = 100
PASSED_ON = ("goals", "working_memory", "background_check_results", "turn_count", "is_heartbeat")
"""Session keys in the option `context` of `llm_call`."""


def ok(**updates: Any) -> Outcome:
    """Return a success with context updates; `session_x` becomes `session.x`."""
    return Outcome(SUCCESS, context_updates={key.replace("_", ".", 1): value for key, value in updates.items()})


Handler: TypeAlias = "Callable[[Call], Awaitable[Outcome]]"


class SessionNodes:
    """Handlers of one session."""

    def __init__(self, adapters: Adapters, tier: Tier, on_event: Callable[[str, dict[str, object]], None],
                 budget: Callable[[], bool] = lambda: True) -> None:
        self.adapters, self.tier, self._on_event, self._budget = adapters, tier, on_event, budget

    def handlers(self) -> dict[str, Handler]:
        """Return node type → handler."""
        methods: dict[str, Handler] = {
            "classify": self.classify, "authorize": self.authorize, "mode_select": self.mode_select,
            "format": self.format, "process_results": self.process_results, "transform": self.transform,
            "build_prompt": self.build_prompt, "memory_recall": self.memory_recall, "llm_call": self.llm_call,
            "tool_dispatch": self.tool_dispatch, "memory_update": self.memory_update, "checkpoint": self.checkpoint,
            "background_checks": self.background_checks, "route_actions": self.route_actions,
            "update_goals": self.update_goals, "emit_signal": self.emit_signal,
            **{name: partial(self.call_data_adapter, name) for name in DATA_ADAPTERS}}
        return {f"session.{name}": self._guard(name, method) for name, method in methods.items()}

    def _guard(self, name: str, method: Handler) -> Handler:
        """Skip a node without its adapter, and turn an exception of it into a failed outcome and an event."""
        needs_adapter = name in (*NAMES, *DATA_ADAPTERS) and name not in OPTIONAL

        async def handler(call: Call) -> Outcome:
            if needs_adapter and self.adapters.get(name) is None:
                return Outcome(SKIPPED, notes=f"the session has no adapter {name}")
            try:
                return await method(call)
            except Exception as error:  # an adapter is the user's code
                reason = f"{name}: {type(error).__name__}: {error}"
                self._on_event("adapter_failed", {"node": call.node.id, "reason": reason})
                # an earlier response must not be taken for this call's
                reset = {"llm.response_type": ""} if name == "llm_call" else {}
                return Outcome(FAIL, failure_reason=reason, failure_class="error", context_updates=reset)
        return handler

    async def _call(self, name: str, *arguments: object) -> Any:
        return await call_adapter(self.adapters[name], *arguments)

    # ---- pure nodes

    async def classify(self, call: Call) -> Outcome:
        """Set `session.input_type` to command, tool_result, blocked or query. Blocked input is answered
        here, for a graph that leads it straight to its end.
        """
        text = call.context.get("session.input", "")
        if isinstance(text, Mapping) and "tool_result" in text:
            kind = "tool_result"
        elif call.context.get("session.blocked") or not str(text).strip():
            kind = "blocked"
        elif isinstance(text, str) and text.startswith("/"):
            kind = "command" if self.tier.commands else "blocked"
        else:
            kind = "query"
        refused = {"session_refusal": self._refusal(), "session_response": f"I cannot do this: {self._refusal()}."}
        return ok(session_input_type=kind, **(refused if kind == "blocked" else {"session_refusal": ""}))

    def _refusal(self) -> str:
        return f"it is blocked at trust tier {self.tier.name}"

    async def authorize(self, call: Call) -> Outcome:
        """Set `session.authorized` from the tier and the input type; `session.refusal` gives the reason."""
        blocked = call.context.get("session.input_type") == "blocked"
        return ok(session_authorized=not blocked, session_refusal=self._refusal() if blocked else "")

    async def mode_select(self, call: Call) -> Outcome:
        """Set `session.cognitive_mode`: a due plan, goals, consolidation every fifth turn, else reflection."""
        turn = int(call.context.get("session.turn_count") or 0)
        if call.context.get("session.plan_due"):
            mode = "plan_execution"
        elif call.context.get("session.goals"):
            mode = "goal_pursuit"
        else:
            mode = "consolidation" if turn > 0 and turn % 5 == 0 else "reflection"
        return ok(session_cognitive_mode=mode)

    async def format(self, call: Call) -> Outcome:
        """Set `session.response` to the model's answer, or to the refusal of blocked input."""
        if call.context.get("session.input_type") == "blocked":
            return ok(session_response=f"I cannot do this: {call.context.get('session.refusal')}.")
        return ok(session_response=str(call.context.get("llm.content") or ""))

    async def process_results(self, call: Call) -> Outcome:
        """Set actions, goal updates, new goals and memory notes from the JSON object in the model's answer, if there
        is one.
        """
        answer = extract_object(str(call.context.get("llm.content") or "")) or {}
        updates: dict[str, Any] = {f"session.{name}": answer[name] if isinstance(answer.get(name), list) else []
                                   for name in _LISTS}
        notes = updates["session.memory_notes"]
        if notes:
            memory = call.context.get("session.working_memory") or {}
            updates["session.working_memory"] = add_notes(memory, notes, MAX_NOTES)
        return Outcome(SUCCESS, context_updates=updates)

    async def transform(self, call: Call) -> Outcome:
        """Set `output_key` from `source_key`: unchanged, or inserted into `expression` in place of {value}."""
        value = call.context.get(str(call.attrs.get("source_key") or "llm.content"), "")
        expression = call.attrs.get("expression")
        result = str(expression).replace("{value}", str(value)) if expression else value
        return Outcome(SUCCESS, context_updates={str(call.attrs.get("output_key") or "session.response"): result})

    # ---- nodes with an adapter

    async def call_data_adapter(self, name: str, call: Call) -> Outcome:
        """Run a node of `adapters.DATA_ADAPTERS`: pass its keys to the adapter, and set the returned keys."""
        data = {key: call.context.get(f"session.{key}") for key in DATA_ADAPTERS[name]}
        changed = await self._call(name, data, call.context.get("session.agent_id"))
        return Outcome(SUCCESS, context_updates={f"session.{key}": value for key, value in (changed or {}).items()})

    async def build_prompt(self, call: Call) -> Outcome:
        """Set `session.prompt` to the messages for the model: the adapter's, else the session's own."""
        build = self.adapters.get("build_prompt") or build_messages
        return ok(session_prompt=await call_adapter(build, dict(call.context)))

    async def memory_recall(self, call: Call) -> Outcome:
        """Set `session.recalled_memories`."""
        memories = await self._call("memory_recall", call.context.get("session.agent_id"), recall_query(call.context))
        return ok(session_recalled_memories=list(memories or []))

    async def llm_call(self, call: Call) -> Outcome:
        """Set `llm.response_type` to text with `llm.content`, or to tool_call with `llm.tool_calls`; `llm.thinking`
        either way.
        """
        if call.context.get("session.is_heartbeat") and not (call.context.get("session.initiative")
                                                             and self._budget()):
            return Outcome(SKIPPED, notes="no initiative, or its budget is used up: no model is called",
                           context_updates={"llm.response_type": "text", "llm.content": ""})
        context = call.context
        mode = str(call.attrs.get("mode") or context.get("session.cognitive_mode") or "reflection")
        options = {"mode": mode, "agent_id": context.get("session.agent_id"), "attrs": dict(call.attrs),
                   "prompt": call.prompt if call.attrs.get("prompt") else "",
                   "tools": list(self.tier.tools) if self.tier.tool_dispatch else [],
                   "memories": context.get("session.recalled_memories") or [],
                   "context": {key: context.get(f"session.{key}") for key in PASSED_ON}}
        messages = list(context.get("session.prompt") or build_messages(context))
        if context.get("session.is_heartbeat"):
            messages.append(heartbeat_task(mode))
        response = await self._call("llm_call", messages, mode, options)
        if not isinstance(response, Mapping) or not (response.get("tool_calls")
                                                     or isinstance(response.get("content"), str)):
            raise TypeError(f"llm_call returned {response!r:.80}; it must return content or tool_calls")
        updates = {"llm.thinking": list(response.get("thinking") or []),
                   "llm.calls": int(context.get("llm.calls") or 0) + 1}
        if response.get("tool_calls"):
            return Outcome(SUCCESS, context_updates={**updates, "llm.response_type": "tool_call",
                                                     "llm.tool_calls": list(response["tool_calls"]), "llm.content": ""})
        return Outcome(SUCCESS, context_updates={**updates, "llm.response_type": "text", "llm.tool_calls": [],
                                                 "llm.content": response["content"]})

    async def tool_dispatch(self, call: Call) -> Outcome:
        """Call the tools that the model requested, if the tier allows them; their results become messages."""
        calls = list(call.context.get("llm.tool_calls") or [])
        allowed = [requested for requested in calls if self.tier.allows(str(requested.get("name", "")))]
        agent = call.context.get("session.agent_id")
        results = list(await self._call("tool_dispatch", allowed, agent)) if allowed else []
        # The adapter is the user's code; if a result is missing, the later ones would answer the wrong calls.
        if len(results) != len(allowed):
            raise ValueError(f"tool_dispatch returned {len(results)} results for {len(allowed)} calls")
        for requested in calls:
            self._on_event("tool_dispatched", {"node": call.node.id, "tool": str(requested.get("name", "")),
                                               "allowed": requested in allowed})
        # By identity: the ids of calls are the model's, which may omit or repeat them.
        by_call = {id(requested): result for requested, result in zip(allowed, results, strict=True)}
        refused = f"is not allowed at trust tier {self.tier.name}"
        texts = [by_call.get(id(requested), f"refused: {requested.get('name')} {refused}") for requested in calls]
        question = {"role": "assistant", "content": "", "tool_calls": calls}
        answers = [{"role": "tool", "content": result if isinstance(result, str) else json.dumps(result),
                    **({"tool_call_id": requested["id"]} if requested.get("id") else {}),
                    "name": str(requested.get("name", ""))}
                   for requested, result in zip(calls, texts, strict=True)]
        total = int(call.context.get("session.tool_calls_made") or 0) + len(allowed)
        messages = [*(call.context.get("session.messages") or []), question, *answers]
        built = call.context.get("session.prompt")
        return ok(session_tool_results=texts, session_messages=messages, session_tool_calls_made=total,
                  **({"session_prompt": [*built, question, *answers]} if built else {}))

    async def memory_update(self, call: Call) -> Outcome:
        """Pass the turn to memory; a returned mapping becomes the working memory."""
        context = call.context
        turn = {"input": context.get("session.input"), "response": context.get("session.response", ""),
                "kind": str(call.attrs.get("kind") or "turn"), "notes": context.get("session.memory_notes") or [],
                "working_memory": context.get("session.working_memory") or {},
                "thinking": context.get("llm.thinking") or []}
        changed = await self._call("memory_update", context.get("session.agent_id"), turn)
        return ok(session_working_memory=dict(changed)) if isinstance(changed, Mapping) else ok()

    async def checkpoint(self, call: Call) -> Outcome:
        """Set `session.last_checkpoint`."""
        turn = call.context.get("session.turn_count", 0)
        await self._call("checkpoint", call.context.get("session.id"), turn, dict(call.context))
        return ok(session_last_checkpoint=turn)

    async def background_checks(self, call: Call) -> Outcome:
        """Set `session.background_check_results`."""
        results = await self._call("background_checks", call.context.get("session.agent_id"))
        return ok(session_background_check_results=dict(results or {}))

    async def route_actions(self, call: Call) -> Outcome:
        """Pass on the actions that the model requested."""
        actions = list(call.context.get("session.actions") or [])
        await self._call("route_actions", actions, call.context.get("session.agent_id"))
        return ok(session_actions_routed=True)

    async def update_goals(self, call: Call) -> Outcome:
        """Pass on goal changes; the session's own goals change when the heartbeat ends."""
        await self._call("update_goals", list(call.context.get("session.goal_updates") or []),
                         list(call.context.get("session.new_goals") or []), call.context.get("session.agent_id"))
        return ok(session_goals_updated=True)

    async def emit_signal(self, call: Call) -> Outcome:
        """Emit an event: `signal` is its name, `data_key` the context key sent with it."""
        name = str(call.attrs.get("signal") or call.node.id)
        data = call.context.get(str(call.attrs.get("data_key") or "session.response"))
        self._on_event(name, {"agent_id": call.context.get("session.agent_id"), "data": data})
        emit = self.adapters.get("emit_signal")
        if emit is not None:
            await call_adapter(emit, name, data, call.context.get("session.agent_id"))
        return ok()



# ---- prompt ----------------------------------------------------------------------------------------------------------

# Messages for a session's model: the conversation, and what the session knows besides it. Pure.
#
# The knowledge (goals, working memory with its notes, results of background checks) is one message of the role `system`
# before the conversation. Only the latest messages of earlier turns are sent; older ones return as memories that fit
# the subject. The current turn is sent whole, since the results of its tools are nowhere else.


KEPT_MESSAGES = 40
"""Messages of earlier turns that are sent."""
MAX_SECTION = 8_000
"""Characters of one part of the knowledge; the start of a longer one is left out."""
_TASKS: Mapping[str, str] = {
    "goal_pursuit": "Choose the goal that matters most now, and take the next step towards it.",
    "plan_execution": "Carry out the step of a goal's plan that is due, and mark it as done.",
    "reflection": "Think about what has happened and what follows from it; note what is worth remembering.",
    "consolidation": "Organize what you know; note what is worth keeping.",
}
"""Mode of a heartbeat → its task."""
_ANSWER = ('{"actions": [], "goal_updates": [{"id": "…", "progress": 0.5}], '
           '"new_goals": [{"id": "…", "description": "…"}], "memory_notes": ["…"]}')


def build_messages(context: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the messages of a run, from its context."""
    messages = list(context.get("session.messages") or [])
    now = _current_turn(messages, is_heartbeat=bool(context.get("session.is_heartbeat")))
    earlier = messages[max(0, now - KEPT_MESSAGES):now]
    left_out = now - len(earlier)
    told = describe(context)
    if left_out:
        told = f"{told}\n\n{left_out} earlier messages of the conversation are left out.".strip()
    return [*([{"role": "system", "content": told}] if told else []), *earlier, *messages[now:]]


def _current_turn(messages: Sequence[Mapping[str, object]], *, is_heartbeat: bool) -> int:
    if is_heartbeat:
        return len(messages)
    return max((index for index, message in enumerate(messages) if message.get("role") == "user"), default=0)


def describe(context: Mapping[str, Any]) -> str:
    """Return goals, working memory and results of background checks as text; '' if there are none."""
    memory = dict(context.get("session.working_memory") or {})
    notes = memory.pop("notes", None) or []
    parts = (("Your goals", [_describe_goal(goal) for goal in context.get("session.goals") or []]),
             ("Your notes", [_line(note) for note in (notes if isinstance(notes, list) else [notes])]),
             ("Your working memory", [f"{key}: {_line(value)}" for key, value in memory.items()]),
             ("Results of background checks", [f"{key}: {_line(value)}" for key, value in (
                 context.get("session.background_check_results") or {}).items()]))
    return "\n\n".join(_section(title, lines) for title, lines in parts if lines)


def _section(title: str, lines: Sequence[str]) -> str:
    body = "\n".join(f"- {line}" for line in lines)
    return f"{title}:\n{body if len(body) <= MAX_SECTION else '… ' + body[-MAX_SECTION:]}"


def _describe_goal(goal: Any) -> str:
    if not isinstance(goal, Mapping):
        return _line(goal)
    rest = {key: value for key, value in goal.items() if key not in ("id", "description")}
    words = [str(goal.get("id", "")), str(goal.get("description", ""))]
    text = ": ".join(word for word in words if word)
    return f"{text} {_line(rest)}" if rest else text


def _line(value: Any) -> str:
    return " ".join(value.split()) if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def heartbeat_task(mode: str) -> dict[str, object]:
    """Return the message that ends the prompt of a heartbeat, which has no user message."""
    return {"role": "system", "content": (
        f"This is a heartbeat: there is no message for you. {_TASKS.get(mode, '')} Answer with one JSON object, with "
        f"empty lists for what you leave out: {_ANSWER}")}


def recall_query(context: Mapping[str, Any]) -> str:
    """Return the query for memories: the user's message, in a heartbeat the goals."""
    text = context.get("session.input", "")
    if text:
        return text if isinstance(text, str) else _line(text)
    return "\n".join(_describe_goal(goal) for goal in context.get("session.goals") or [])
