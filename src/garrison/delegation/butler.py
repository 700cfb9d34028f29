"""`AgentOrchestrator`: a person's message in, events out, in the order that `events` holds it to.

Thin: what to ask and what the answers mean is `classify`, what a specialist gets is `context`. The crew is an agent
graph in which the butler directs everybody, so each specialist's prompt says who directs it; a session is begun when
its agent is first needed. Messages of one conversation are handled one after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any

from garrison.agents.graph import AgentGraph, Connect
from garrison.agents.graph.graph import claude
from garrison.delegation import context, models, prompts, time_phrases
from garrison.delegation.conversation import Conversation
from garrison.delegation.events import Event
from garrison.delegation.events import Sequence as Numbers
from garrison.delegation.models import (
    BUTLER,
    AgentResult,
    AgentState,
    Classification,
    Delegated,
    DelegationContext,
    Order,
    Preference,
    Said,
)
from garrison.delegation.specialists import Crew, Specialist
from garrison.errors import NotFound, UsageError

if TYPE_CHECKING:
    from typing import Self

S = AgentState
CANCELLED = "This was cancelled."
"""What the butler says to a message that is given up."""
Listener = Callable[[Event], None]
Tools = Callable[[Specialist], Sequence[Any]]
"""Which functions a specialist may call (`agents.graph.session.Function`)."""


class AgentOrchestrator:
    """The desk of one conversation; an async context manager that ends every session it began.

    `model` is for those whose table names none, `metadata` for every session; `tools` gives a specialist its functions,
    `preferences` what the person likes, `known` the names (runs, nodes) that count as entities when a message names
    them.
    """

    def __init__(self, crew: Crew, conversation: Conversation | None = None, *, connect: Connect = claude,
                 tools: Tools = lambda _: (), preferences: Callable[[], Sequence[Preference]] = tuple,
                 known: Callable[[], Iterable[str]] = tuple, metadata: dict[str, Any] | None = None,
                 model: str | None = None,
                 clock: Callable[[], datetime] = time_phrases.local_now,
                 sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self.crew = crew
        self.conversation = conversation if conversation is not None else Conversation()
        self.states: dict[str, AgentState] = dict.fromkeys(crew.names, S.IDLE)
        self.graph = AgentGraph("crew", connect=connect, sleep=sleep)
        self._tools, self._preferences, self._known = tools, preferences, known
        self._metadata, self._model, self._clock = metadata or {}, model, clock
        self._numbers = Numbers()
        self._listeners: list[Listener] = []
        self._turn = asyncio.Lock()
        self._made = False
        self._work_now: asyncio.Task[None] | None = None
        self._given_up = False

    async def __aenter__(self) -> Self:
        await self.graph.__aenter__()
        await self._make()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        await self.graph.__aexit__(kind, error, trace)

    async def _make(self) -> None:
        if self._made:
            return
        self._made = True
        for one in (self.crew.butler, *self.crew.specialists.values()):
            metadata = {**self._metadata, "functions": list(self._tools(one))}
            await self.graph.add_node(one.name, one.prompt, one.model or self._model, **metadata)
        for name in self.crew.specialists:
            await self.graph.add_edge(BUTLER, name, control_type="delegates to you")

    # ---- for whoever asks

    def on_event(self, listener: Listener) -> None:
        """Call `listener` with every event from now on."""
        self._listeners.append(listener)

    def get_conversation_history(self) -> list[Said]:
        """Every entry, oldest first."""
        return list(self.conversation.entries)

    async def handle_user_message(self, message: str) -> str:
        """Handle a message; the butler's whole answer."""
        said = [event.content or "" async for event in self.stream(message)
                if event.type == "text" and event.agent == BUTLER]
        return "".join(said)

    async def stream(self, message: str) -> AsyncIterator[Event]:
        """Handle a message; its events as they come, `done` last. A message is finished even if nobody listens on."""
        if not message.strip():
            raise UsageError("there is nothing to answer: the message is empty")
        queue: asyncio.Queue[Event | None] = asyncio.Queue()
        work = asyncio.create_task(self._handled(message, queue.put_nowait))
        work.add_done_callback(lambda _: queue.put_nowait(None))
        while (event := await queue.get()) is not None:
            yield event
        await work

    async def spawn_sub_agent(self, agent_type: str, given: DelegationContext) -> AgentResult:
        """Let one specialist work; a failure is a result with `success=False`. NotFound for nobody of the crew."""
        if agent_type not in self.crew.specialists:
            raise NotFound(f"no specialist {agent_type!r:.60}; there are {', '.join(self.crew.specialists)}")
        await self._make()
        return await self._work(self.crew.specialists[agent_type], given, lambda _: None)

    async def cancel(self) -> bool:
        """Give up the message under way, if there is one: its events end in order, and the conversation says so."""
        if self._work_now is None:
            return False
        self._given_up = True
        self._work_now.cancel()
        return True

    # ---- one message

    async def _handled(self, message: str, put: Callable[[Event], None]) -> None:
        """Handle a message, or give it up where that is asked for."""
        def tell(kind: str, **fields: Any) -> None:
            event = self._numbers.event(kind, self._clock(), **fields)
            for listener in (*self._listeners, put):
                listener(event)

        async with self._turn:
            await self._make()
            self._given_up, self._work_now = False, asyncio.current_task()
            try:
                await self._handle(message, tell)
            except asyncio.CancelledError:
                if not self._given_up:
                    raise
                self._work_now = None  # once is enough
                await self._give_up(tell)
            finally:
                self._work_now = None

    async def _give_up(self, tell: Callable[..., None]) -> None:
        """End a message that was begun: its sessions, its states, its events, its place in the conversation."""
        await self.graph.stop_all()
        for name, state in self.states.items():
            if state is not S.IDLE:
                self._move(name, S.ERROR)
                self._move(name, S.IDLE)
        for name in self._numbers.at_work:
            tell("agent_complete", agent=name, success=False)
        self.conversation.add(Said(role="assistant", content=CANCELLED, at=self._clock(), note="cancelled"))
        tell("text", agent=BUTLER, content=CANCELLED)
        tell("agent_complete", agent=BUTLER, success=False)
        tell("done")

    async def _handle(self, message: str, tell: Callable[..., None]) -> None:
        tell("agent_start", agent=BUTLER)
        turns = self.conversation.turns()
        self.conversation.add(Said(role="user", content=message, at=self._clock(), agent="user"))
        self._begin(BUTLER)
        decision, note = await self._classify(message, turns)
        delegations = await self._delegate(decision, message, turns, tell) if decision.delegations else ()
        answer, trouble = await self._answer(message, [one.result for one in delegations], tell)
        self.conversation.add(Said(role="assistant", content=answer, at=self._clock(), delegations=delegations,
                                   note="; ".join(part for part in (note, trouble) if part)))
        tell("agent_complete", agent=BUTLER, success=not trouble)
        tell("done")

    async def _classify(self, message: str, turns: Sequence[Any]) -> tuple[Classification, str]:
        """What the butler wants delegated, and what went wrong with asking it."""
        prompt = prompts.question(self.crew, message, turns)
        for _ in range(2):
            try:
                said = await self._ask(BUTLER, prompt)
                return prompts.read(said, self.crew), ""
            except prompts.Unreadable as error:
                prompt, why = prompts.again(str(error)), f"the classification could not be read: {error}"
            except Exception as error:
                return Classification(), f"the classification failed: {error}"
        return Classification(), why

    async def _delegate(self, decision: Classification, message: str, turns: Sequence[Any],
                        tell: Callable[..., None]) -> tuple[Delegated, ...]:
        self._move(BUTLER, S.DELEGATING)
        work = [asyncio.create_task(self._delegated(order, message, turns, tell)) for order in decision.delegations]
        done = await asyncio.gather(*work)
        tell("agent_resume", agent=BUTLER)
        self._move(BUTLER, S.PROCESSING)
        return tuple(done)

    async def _delegated(self, order: Order, message: str, turns: Sequence[Any],
                         tell: Callable[..., None]) -> Delegated:
        one = self.crew.of_intent(order.intent)
        assert one is not None, "classify.read let an unknown intent pass"
        began = self._clock()
        given = context.build(one.name, order, message, turns, began, preferences=self._preferences(),
                              known=self._known())
        tell("agent_delegate", from_=BUTLER, to=one.name)
        result = await self._work(one, given, lambda text: tell("text", agent=one.name, content=text))
        tell("agent_complete", agent=one.name, success=result.success)
        return Delegated(context=given, result=result, started_at=began, ended_at=self._clock())

    async def _work(self, one: Specialist, given: DelegationContext, say: Callable[[str], None]) -> AgentResult:
        """One specialist at work; whatever goes wrong is its result."""
        tools: list[str] = []
        spent: list[int] = []

        def hear(event: Any) -> None:
            if event["kind"] == "text":
                say(str(event["text"]))
            elif event["kind"] == "tool":
                tools.append(str(event["name"]).rpartition("__")[2])
                self._move(one.name, S.WAITING_FOR_TOOL)
            elif event["kind"] == "tool_result":
                self._move(one.name, S.PROCESSING)
            elif event["kind"] == "result":
                spent.append(_tokens(event.get("usage") or {}))

        self._begin(one.name)
        try:
            async with asyncio.timeout(one.timeout):
                said = await self._ask(one.name, prompts.handed_over(given), hear)
        except TimeoutError:
            await self.graph.stop_agent(one.name)
            return self._failed(one, f"{one.name} had no answer within {one.timeout:.0f} s")
        except Exception as error:
            return self._failed(one, f"{one.name} failed: {error}")
        self._move(one.name, S.COMPLETING)
        self._move(one.name, S.IDLE)
        return prompts.result_of(one.name, said, tools, sum(spent) or None)

    def _failed(self, one: Specialist, why: str) -> AgentResult:
        self._move(one.name, S.ERROR)
        self._move(one.name, S.IDLE)
        return AgentResult(agent_type=one.name, success=False, summary=" ".join(why.split())[:500])

    async def _answer(self, message: str, results: Sequence[AgentResult],
                      tell: Callable[..., None]) -> tuple[str, str]:
        """The butler's answer, and what went wrong with it; without a butler, what the specialists said themselves."""
        told: list[str] = []

        def hear(event: Any) -> None:
            if event["kind"] == "text":
                told.append(str(event["text"]))
                tell("text", agent=BUTLER, content=event["text"])

        try:
            said = await self._ask(BUTLER, prompts.to_answer(message, results), hear)
        except Exception as error:
            found = "\n".join(f"{one.agent_type}: {one.summary}" for one in results)
            rest = f"I could not finish my answer: {error}" + (f"\nWhat was found:\n{found}" if found else "")
            tell("text", agent=BUTLER, content=rest)
            self._move(BUTLER, S.ERROR)
            self._move(BUTLER, S.IDLE)
            return "".join([*told, rest]), f"the answer failed: {error}"
        self._move(BUTLER, S.COMPLETING)
        self._move(BUTLER, S.IDLE)
        return said, ""

    # ---- small things

    async def _ask(self, name: str, prompt: str, hear: Callable[[Any], None] | None = None) -> str:
        return await self.graph.sessions.ask(self.graph.get_node(name), prompt, hear)

    def _begin(self, name: str) -> None:
        for state in (S.INITIALIZING, S.LOADING_CONTEXT, S.PROCESSING):
            self._move(name, state)

    def _move(self, name: str, new: AgentState) -> None:
        if self.states[name] is not new:
            self.states[name] = models.step(name, self.states[name], new)


def _tokens(usage: dict[str, Any]) -> int:
    return sum(int(usage.get(key) or 0) for key in
               ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"))
