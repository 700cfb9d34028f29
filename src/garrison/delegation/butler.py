"""`AgentOrchestrator`: handle the user's messages and emit events in the order enforced by `models.EventSequence`.

Thin: `prompts` builds the questions, parses the answers and builds the context of a specialist. The crew is an agent
graph directed by the butler, so each specialist's prompt names its supervisor; a session starts when its agent is
first needed. The butler classifies in a separate session, whose answers must follow a schema. Messages of one
conversation are handled one at a time.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any

from garrison.agents.graph import AgentFailure, AgentGraph, Connect
from garrison.agents.graph.graph import claude
from garrison.delegation import confirmations, models, prompts, time_phrases
from garrison.delegation.confirmations import Confirmations
from garrison.delegation.conversation import Conversation, with_place
from garrison.delegation.models import (
    BUTLER,
    AgentResult,
    AgentState,
    ChatEntry,
    ChatEvent,
    Classification,
    Delegation,
    DelegationContext,
    DelegationRequest,
    EventSequence,
    Preference,
    Proposal,
)
from garrison.delegation.specialists import Crew, Specialist
from garrison.errors import NotFound, UsageError

if TYPE_CHECKING:
    from typing import Self

S = AgentState
IDLE_SECONDS = 300.0
"""Time after an answer for which the sessions of a conversation wait for the next message, which restarts them."""
CANCELLED = "This was cancelled."
"""The butler's answer to a cancelled message."""
Listener = Callable[[ChatEvent], None]
Tools = Callable[[Specialist], Sequence[Any]]
"""Returns the functions that a specialist may call (`agents.base.Function`)."""


class AgentOrchestrator:
    """Handle the messages of one conversation; an async context manager that ends every session it started.

    `model` applies to agents whose table names none, `metadata` to every session. `tools` returns a specialist's
    functions, `preferences` the user's preferences, `known` the names (runs, nodes) that count as entities in a
    message. `confirm` keeps the proposals of the tools; `on_message` is called when a message starts. After `idle`
    seconds without a message, all sessions end; the next message restarts them with the conversation.
    """

    def __init__(self, crew: Crew, conversation: Conversation | None = None, *, connect: Connect = claude,
                 tools: Tools = lambda _: (), preferences: Callable[[], Sequence[Preference]] = tuple,
                 known: Callable[[], Iterable[str]] = tuple, metadata: dict[str, object] | None = None,
                 model: str | None = None, confirm: Confirmations | None = None,
                 on_message: Callable[[], None] = lambda: None,
                 clock: Callable[[], datetime] = time_phrases.local_now,
                 sleep: Callable[[float], Awaitable[None]] = asyncio.sleep, idle: float = IDLE_SECONDS) -> None:
        self.crew = crew
        self.conversation = conversation if conversation is not None else Conversation()
        self.states: dict[str, AgentState] = dict.fromkeys(crew.names, S.IDLE)
        self.graph = AgentGraph("crew", connect=connect, sleep=sleep)
        self._classification = AgentGraph("classification", connect=connect, sleep=sleep)
        """The butler's session whose answers must follow a schema."""
        self._tools, self._preferences, self._known = tools, preferences, known
        self._metadata, self._model, self._clock = metadata or {}, model, clock
        self._confirm, self._on_message = confirm, on_message
        self._numbers = EventSequence()
        self._listeners: list[Listener] = []
        self._turn = asyncio.Lock()
        self._is_built = False
        self._current: asyncio.Task[None] | None = None
        self._is_cancelled = False
        self._idle = idle
        self._resting: asyncio.Task[None] | None = None
        """Ends the sessions after a while."""
        self._is_ending = False

    async def __aenter__(self) -> Self:
        await self.graph.__aenter__()
        await self._classification.__aenter__()
        await self._build_graph()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        await self._rouse()
        await asyncio.gather(self.graph.__aexit__(kind, error, trace),
                             self._classification.__aexit__(kind, error, trace))

    async def _build_graph(self) -> None:
        if self._is_built:
            return
        self._is_built = True
        for agent in (self.crew.butler, *self.crew.specialists.values()):
            metadata = {**self._metadata, "functions": list(self._tools(agent))}
            await self.graph.add_node(agent.name, agent.prompt, agent.model or self._model, **metadata)
        butler = self.crew.butler
        await self._classification.add_node(BUTLER, butler.prompt, butler.model or self._model, **self._metadata,
                                            output_schema=prompts.classification_schema(self.crew))
        for name in self.crew.specialists:
            await self.graph.add_edge(BUTLER, name, control_type="delegates to you")

    # ---- public API

    def on_event(self, listener: Listener) -> None:
        """Call `listener` with every event from now on."""
        self._listeners.append(listener)

    @property
    def proposals(self) -> tuple[Proposal, ...]:
        return self.conversation.entries[-1].proposals if self.conversation.entries else ()

    def get_conversation_history(self) -> list[ChatEntry]:
        """Return every entry, oldest first."""
        return list(self.conversation.entries)

    async def handle_user_message(self, message: str) -> str:
        """Handle a message and return the butler's complete answer."""
        texts = [event.content or "" async for event in self.stream(message)
                 if event.type == "text" and event.agent == BUTLER]
        return "".join(texts)

    async def stream(self, message: str, place: str = "") -> AsyncIterator[ChatEvent]:
        """Handle a message; yield its events as they occur, `done` last. The message is finished even if the
        consumer stops.

        Args:
            place: the run, or run and node, of the page where it was sent.
        """
        if not message.strip():
            raise UsageError("the message is empty")
        queue: asyncio.Queue[ChatEvent | None] = asyncio.Queue()
        # in its own task: a browser that closes its stream must not leave half a turn in the conversation
        work = asyncio.create_task(self._process(message, place, queue.put_nowait))
        work.add_done_callback(lambda _: queue.put_nowait(None))
        while (event := await queue.get()) is not None:
            yield event
        await work

    async def spawn_sub_agent(self, agent_type: str, given: DelegationContext) -> AgentResult:
        """Run one specialist; a failure is a result with `success=False`. NotFound if the crew has no such
        specialist.
        """
        if agent_type not in self.crew.specialists:
            raise NotFound(f"no specialist {agent_type!r:.60}; available: {', '.join(self.crew.specialists)}")
        await self._build_graph()
        return await self._run_specialist(self.crew.specialists[agent_type], given, lambda _: None)

    async def cancel(self) -> bool:
        """Cancel the message in progress, if any: its events end in order, and the conversation records it."""
        if self._current is None:
            return False
        self._is_cancelled = True
        self._current.cancel()
        return True

    # ---- one message

    async def _process(self, message: str, place: str, put: Callable[[ChatEvent], None]) -> None:
        """Handle a message; end it gracefully if it is cancelled."""
        def emit(kind: str, **fields: object) -> None:
            event = self._numbers.event(kind, self._clock(), **fields)
            for listener in (*self._listeners, put):
                listener(event)

        async with self._turn:
            await self._rouse()
            await self._build_graph()
            self._is_cancelled, self._current = False, asyncio.current_task()
            try:
                await self._handle(message, place, emit)
            except asyncio.CancelledError:
                if not self._is_cancelled:
                    raise
                self._current = None  # a second cancel() must not interrupt the clean-up
                await self._end_cancelled(emit)
            finally:
                self._current = None
                self._resting = asyncio.create_task(self._rest())

    async def _rest(self) -> None:
        """End all sessions after a while without a message."""
        await asyncio.sleep(self._idle)
        self._is_ending = True
        try:
            await asyncio.gather(self.graph.stop_all(), self._classification.stop_all())
        finally:
            self._is_ending = False

    async def _rouse(self) -> None:
        """Cancel ending the sessions, or wait until they have ended."""
        resting, self._resting = self._resting, None
        if resting is not None:
            # wait for sessions that are ending: cancelled half-way, some would leave processes behind
            if not self._is_ending:
                resting.cancel()
            await asyncio.gather(resting, return_exceptions=True)

    async def _end_cancelled(self, emit: Callable[..., None]) -> None:
        """End a cancelled message: its sessions, states and events, and its entry in the conversation."""
        await asyncio.gather(self.graph.stop_all(), self._classification.stop_all())
        for name, state in self.states.items():
            if state is not S.IDLE:
                self._move(name, S.ERROR)
                self._move(name, S.IDLE)
        for name in self._numbers.at_work:
            emit("agent_complete", agent=name, success=False)
        self.conversation.add(ChatEntry(role="assistant", content=CANCELLED, at=self._clock(), note="cancelled"))
        if self._confirm is not None:
            self._confirm.take()
        emit("text", agent=BUTLER, content=CANCELLED)
        emit("agent_complete", agent=BUTLER, success=False)
        emit("done")

    async def _handle(self, message: str, place: str, emit: Callable[..., None]) -> None:
        self._on_message()
        emit("agent_start", agent=BUTLER)
        # before adding the message: agreement refers to the proposals of the previous entry
        turns, proposals = self.conversation.turns(), self.proposals
        self.conversation.add(ChatEntry(role="user", content=message, at=self._clock(), agent="user",
                                        about=place or None))
        if proposals and self._confirm is not None and confirmations.agrees(message):
            success = await self._carry_out(proposals, self._confirm, emit)
        elif proposals and confirmations.declines(message):
            success = self._drop(emit)
        else:
            success = await self._respond(with_place(message, place), turns, emit)
        emit("agent_complete", agent=BUTLER, success=success)
        emit("done")

    async def _carry_out(self, proposals: Sequence[Proposal], confirm: Confirmations,
                         emit: Callable[..., None]) -> bool:
        """Run the commands that the user agreed to, without a model; return whether all succeeded."""
        text, success = await confirm.carry_out(proposals)
        emit("text", agent=BUTLER, content=text)
        self.conversation.add(ChatEntry(role="assistant", content=text, at=self._clock(),
                                        note="" if success else "a command failed"))
        return success

    def _drop(self, emit: Callable[..., None]) -> bool:
        """Report that the proposals were dropped, without a model."""
        emit("text", agent=BUTLER, content=confirmations.DROPPED)
        self.conversation.add(ChatEntry(role="assistant", content=confirmations.DROPPED, at=self._clock()))
        return True

    async def _respond(self, message: str, turns: Sequence[object], emit: Callable[..., None]) -> bool:
        """Answer a message with the help of specialists; return whether the butler answered."""
        self._start(BUTLER)
        try:
            decision, note = await self._classify(message, turns)
        except AgentFailure as error:
            return self._give_up(error, emit)
        if note:
            emit("text", agent=BUTLER, content=f"I could not choose a specialist, so I answer alone: {note}.\n\n")
        delegations = await self._delegate(decision, message, turns, emit) if decision.delegations else ()
        answer, problem = await self._answer(message, turns, [delegation.result for delegation in delegations], emit)
        proposals = self._confirm.take() if self._confirm is not None else ()
        if proposals:
            answer += confirmations.request(proposals)
            emit("text", agent=BUTLER, content=confirmations.request(proposals), proposals=tuple(map(str, proposals)))
        self.conversation.add(ChatEntry(role="assistant", content=answer, at=self._clock(), delegations=delegations,
                                        note="; ".join(part for part in (note, problem) if part), proposals=proposals))
        return not problem

    def _give_up(self, error: AgentFailure, emit: Callable[..., None]) -> bool:
        """Report why no answer is possible until the user acts; return False."""
        text = f"no answer: {error}"
        emit("text", agent=BUTLER, content=text)
        self.conversation.add(ChatEntry(role="assistant", content=text, at=self._clock(), note=text))
        self._move(BUTLER, S.ERROR)
        self._move(BUTLER, S.IDLE)
        return False

    async def _classify(self, message: str, turns: Sequence[Any]) -> tuple[Classification, str]:
        """Return the butler's delegations, and a note on problems; AgentFailure if the user must act before any model
        answers."""
        prompt = prompts.classification_prompt(self.crew, message, turns)
        for _ in range(2):
            try:
                answer = await self._classification.sessions.ask(self._classification.get_node(BUTLER), prompt)
                return prompts.parse_classification(answer, self.crew), ""
            except prompts.Unreadable as error:
                prompt, problem = prompts.retry_prompt(str(error)), f"the classification could not be read: {error}"
            except Exception as error:  # the message is answered without delegation
                if isinstance(error, AgentFailure) and error.needs_person:
                    raise
                return Classification(), f"the classification failed: {error}"
        return Classification(), problem

    async def _delegate(self, decision: Classification, message: str, turns: Sequence[object],
                        emit: Callable[..., None]) -> tuple[Delegation, ...]:
        self._move(BUTLER, S.DELEGATING)
        tasks = [asyncio.create_task(self._run_delegation(request, message, turns, emit))
                 for request in decision.delegations]
        delegations = await asyncio.gather(*tasks)
        emit("agent_resume", agent=BUTLER)
        self._move(BUTLER, S.PROCESSING)
        return tuple(delegations)

    async def _run_delegation(self, request: DelegationRequest, message: str, turns: Sequence[Any],
                              emit: Callable[..., None]) -> Delegation:
        specialist = self.crew.of_intent(request.intent)
        assert specialist is not None, "parse_classification refuses unknown intents"
        started = self._clock()
        given = prompts.build_context(specialist.name, request, message, turns, started,
                                      preferences=self._preferences(), known=self._known())
        emit("agent_delegate", from_=BUTLER, to=specialist.name)
        emit("agent_start", agent=specialist.name)
        result = await self._run_specialist(specialist, given,
                                            lambda text: emit("text", agent=specialist.name, content=text))
        emit("agent_complete", agent=specialist.name, success=result.success)
        return Delegation(context=given, result=result, started_at=started, ended_at=self._clock())

    async def _run_specialist(self, specialist: Specialist, given: DelegationContext,
                              on_text: Callable[[str], None]) -> AgentResult:
        """Run one specialist; a failure is also a result."""
        tools: list[str] = []
        spent: list[int] = []
        stream = TextStream(on_text)

        def receive(event: Any) -> None:
            stream.receive(event)
            if event["kind"] == "tool":
                tools.append(str(event["name"]).rpartition("__")[2])
                self._move(specialist.name, S.WAITING_FOR_TOOL)
            elif event["kind"] == "tool_result":
                self._move(specialist.name, S.PROCESSING)
            elif event["kind"] == "result":
                spent.append(_tokens(event.get("usage") or {}))

        self._start(specialist.name)
        try:
            async with asyncio.timeout(specialist.timeout):
                answer = await self._ask(specialist.name, prompts.delegation_prompt(given), receive)
            stream.finish()
        except TimeoutError:
            # the session would still answer the old question, and block the next one
            await self.graph.stop_agent(specialist.name)
            return self._failed(specialist, f"{specialist.name} had no answer within {specialist.timeout:.0f} s")
        except Exception as error:  # the others continue
            return self._failed(specialist, f"{specialist.name} failed: {error}")
        self._move(specialist.name, S.COMPLETING)
        self._move(specialist.name, S.IDLE)
        return prompts.parse_result(specialist.name, answer, tools, sum(spent) or None)

    def _failed(self, specialist: Specialist, reason: str) -> AgentResult:
        self._move(specialist.name, S.ERROR)
        self._move(specialist.name, S.IDLE)
        return AgentResult(agent_type=specialist.name, success=False, summary=" ".join(reason.split())[:500])

    async def _answer(self, message: str, turns: Sequence[Any], results: Sequence[AgentResult],
                      emit: Callable[..., None]) -> tuple[str, str]:
        """Return the butler's answer, and a note on problems; if the butler fails, the specialists' summaries."""
        texts: list[str] = []

        def put(text: str) -> None:
            texts.append(text)
            emit("text", agent=BUTLER, content=text)

        known = () if self.graph.sessions.is_running(BUTLER) else turns
        try:
            stream = TextStream(put)
            answer = await self._ask(BUTLER, prompts.answer_prompt(message, results, known), stream.receive)
            stream.finish()
        except Exception as error:  # the results are shown without the butler
            summaries = "\n".join(f"{result.agent_type}: {result.summary}" for result in results)
            rest = f"I could not finish my answer: {error}" + (f"\nResults:\n{summaries}" if summaries else "")
            emit("text", agent=BUTLER, content=rest)
            self._move(BUTLER, S.ERROR)
            self._move(BUTLER, S.IDLE)
            return "".join([*texts, rest]), f"the answer failed: {error}"
        self._move(BUTLER, S.COMPLETING)
        self._move(BUTLER, S.IDLE)
        return prompts.readable(answer), ""

    # ---- helpers

    async def _ask(self, name: str, prompt: str, on_event: Callable[[Any], None] | None = None) -> str:
        return await self.graph.sessions.ask(self.graph.get_node(name), prompt, on_event)

    def _start(self, name: str) -> None:
        for state in (S.INITIALIZING, S.LOADING_CONTEXT, S.PROCESSING):
            self._move(name, state)

    def _move(self, name: str, new: AgentState) -> None:
        if self.states[name] is not new:
            self.states[name] = models.check_transition(name, self.states[name], new)


def _tokens(usage: dict[str, Any]) -> int:
    return sum(int(usage.get(key) or 0) for key in
               ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"))


# ---- text stream -----------------------------------------------------------------------------------------------------

# Stream an agent's text in pieces while it is being written. Pure except for the callback.


PIECE = 40
"""Size of a piece in characters; pieces may be shorter at the end of a line or of the text."""


class TextStream:
    """Passes on `partial` events in larger pieces, and only the missing rest of the following `text`.

    Possible JSON for the butler is kept until the end, and passed on in readable form.
    """

    def __init__(self, put: Callable[[str], None]) -> None:
        self._put = put
        self._written = self._held = self._data = ""
        self._is_begun = False

    def receive(self, event: Mapping[str, Any]) -> None:
        """Receive an event of a session; events other than texts are ignored."""
        if event["kind"] == "partial":
            self._written += str(event["text"])
            self._held += str(event["text"])
            if len(self._held) >= PIECE or self._held.endswith("\n"):
                self._flush()
        elif event["kind"] == "text":
            text = str(event["text"])
            # after a broken stream the response is requested again and may differ
            self._held += text[len(self._written):] if text.startswith(self._written) else f"\n{text}"
            self._written = ""
            self._flush()

    def finish(self) -> None:
        """Pass on the rest."""
        self._flush(is_last=True)
        data, self._data = self._data, ""
        before = "…\n" if self._is_begun else ""  # already sent: the object at the end is left out below it
        if rest := prompts.readable(before + data).removeprefix(before.rstrip()).lstrip("\n") if data else "":
            self._put(rest)

    def _flush(self, *, is_last: bool = False) -> None:
        held, self._held = self._held, ""
        line = held[held.rfind("\n") + 1:]
        if line and not is_last and _FENCE.startswith(line):  # it may become JSON
            held, self._held = held[:-len(line)], line
        if self._data:
            self._data += held
            return
        found = _DATA.search(held) if self._is_begun else _DATA_FIRST.search(held)
        text, self._data = (held[:found.start()], held[found.start():]) if found is not None else (held, "")
        self._is_begun |= bool(text.strip())
        if text:
            self._put(text)


_FENCE = "```json"
_DATA = re.compile(r"```json\b")
_DATA_FIRST = re.compile(r"```json\b|\A\s*\{")
"""Start of a possible object for the butler; a text that starts with a brace may be only that."""
