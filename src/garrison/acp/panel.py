"""One open session of an editor's panel: its messages start and follow runs and answer their questions.

A message is a slash command, the confirmation of a proposal, the answer to a question, or else a message to
the butler; without a butler it is a task, which starts a run. Its turn ends once the run has started. A follower polls
the session's runs all the time: it shows changes, and asks the user open questions. An editor may
grant permissions by itself, so approvals, and answers that cannot be undone, also need the user's word `yes`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Protocol

from acp.helpers import (
    start_tool_call,
    text_block,
    tool_content,
    update_agent_message_text,
    update_tool_call,
    update_user_message_text,
)
from acp.schema import ToolCallStart

from garrison.acp import commands, rail
from garrison.delegation import confirmations
from garrison.delegation.confirmations import Confirmations
from garrison.delegation.conversation import HeldButler
from garrison.delegation.models import BUTLER, ChatEntry, Proposal
from garrison.ends import WaitKind
from garrison.errors import GarrisonError, NotFound, Refused
from garrison.mcp.crew import SeenRun
from garrison.run.status import Status

if TYPE_CHECKING:
    from garrison.acp.commands import TypedCommand
    from garrison.acp.sessions import PanelSession, PanelSessions
    from garrison.delegation.butler import AgentOrchestrator
    from garrison.delegation.conversation import Conversation
    from garrison.mcp.crew import ClientRuns, SeenWait

POLL, LONGEST_POLL = 1.0, 5.0
"""Seconds between two polls of a run, and of one in which nothing happens."""
LATER, RUN_IT, LEAVE_IT = "Later", "Run it", "Leave it"
_STARTING = ("starting", Status.NEW)
Act = Callable[[], Awaitable[object]]


class Screen(Protocol):
    """The editor's panel; its methods raise ConnectionError once it is gone."""

    async def show(self, update: object) -> None:
        """Show an update of the session."""
        ...

    async def ask(self, call: ToolCallStart, choices: Mapping[str, bool]) -> str | None:
        """Ask for permission; return the chosen label, None for none.

        Args:
            choices: label → whether it grants permission.
        """
        ...


class Panel:
    """An open session.

    Args:
        crew: the runs of the home, for the session's repository.
        by: the editor's name and version, the channel of answers.
        open_butler: opens the butler of the session; None without one.
    """

    def __init__(self, session: PanelSession, sessions: PanelSessions, screen: Screen, crew: ClientRuns, by: str,
                 open_butler: Callable[[], AgentOrchestrator] | None) -> None:
        self.session, self._sessions, self._screen, self._crew, self._by = session, sessions, screen, crew, by
        self._open_butler = open_butler
        self._held = HeldButler(sessions.conversation_path(session))
        self._confirm = Confirmations(self._carry_out_one)
        self._turn, self._looking = asyncio.Lock(), asyncio.Lock()
        self._work: asyncio.Task[None] | None = None
        self._said: list[str] | None = None
        """Texts of the current turn, for the conversation; None outside of turns."""
        self._begun = 0
        self._runs = list[str]()
        self._seen = dict[str, SeenRun]()
        self._shown = set[str]()
        """Ids of the tool calls shown in the editor."""
        self._plan: object = None
        self._asked = dict[str, asyncio.Task[None] | None]()
        """Open questions by the id of their call; None for one that was asked in words, or has been answered."""
        self._follower: asyncio.Task[None] | None = None

    # ---- open and close

    async def open(self, *, replay: bool = False) -> None:
        """Follow the session's runs from now on; with `replay` show its conversation first."""
        self._runs = await asyncio.to_thread(self._sessions.runs, self.session)
        if replay:
            for entry in self._sessions.conversation(self.session).entries:
                show = update_user_message_text if entry.role == "user" else update_agent_message_text
                await self._screen.show(show(entry.content))
            for run in list(self._runs):
                try:
                    await self._look(run, asks=False)
                except GarrisonError as error:
                    self._runs.remove(run)
                    if not isinstance(error, NotFound):  # else its records were removed since
                        await self._say(str(error))
        self._follower = asyncio.create_task(self._follow())

    async def close(self, linger: float = 0.0) -> None:
        """End the turn and close the panel's resources; runs continue.

        Args:
            linger: seconds for which the turn may still start its run.
        """
        if self._work is not None and linger:
            await asyncio.wait({self._work}, timeout=linger)
        await self.cancel()
        tasks = [task for task in (self._work, self._follower, *self._asked.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._held.close()

    async def cancel(self) -> None:
        """End the turn; a run that it has started continues."""
        if self._work is not None and not await self._held.cancel():
            self._work.cancel()

    # ---- a message

    async def prompt(self, text: str) -> bool:
        """Answer a message; return False if it was cancelled. Refused while another one is answered."""
        if self._work is not None:
            raise Refused("the last message is still being answered; cancel it first")
        self._work = work = asyncio.create_task(self._answer(text))
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            if not work.cancelled():  # the connection has ended, but the message still starts its run
                raise
            return False
        finally:
            if work.done():
                self._work = None
        return True

    async def _answer(self, text: str) -> None:
        async with self._turn:
            self.session = await asyncio.to_thread(self._sessions.entitle, self.session, text)
            try:
                act = await self._choose(text)
                if act is None:
                    await self._ask_butler(text)  # which keeps the message and its answer
                    return
            except GarrisonError as error:
                act = partial(self._say, str(error))
            self._said = []
            self._add(ChatEntry(role="user", content=text, at=datetime.now(UTC), agent="user"))
            try:
                await act()
            except GarrisonError as error:
                await self._say(str(error))
            finally:
                said, self._said = self._said, None
                if said:
                    self._add(ChatEntry(role="assistant", content="\n\n".join(said), at=datetime.now(UTC)))

    async def _choose(self, text: str) -> Act | None:
        """Return the action of a message; None to ask the butler."""
        typed, pending = commands.read(text), self._pending()
        if typed is not None:
            return partial(_HANDLERS[typed.name], self, typed)
        if pending and confirmations.agrees(text):
            return partial(self._carry_out, pending)
        if pending and confirmations.declines(text):
            return partial(self._say, confirmations.DROPPED)
        if (question := await self._question_for(text)) is not None:
            return partial(self._settle, *question, text)
        if self._open_butler is not None:
            return None
        if confirmations.agrees(text) or confirmations.declines(text):
            raise Refused("there is nothing to confirm; `/status` shows what is open")
        return partial(self._begin, {"task": text})

    async def _question_for(self, text: str) -> tuple[str, SeenWait] | None:
        """Return the question that a message answers: the only one in words, if the user confirms that."""
        found = [(run, wait) for run, seen in self._seen.items() for wait in seen.waits if _is_in_words(wait)]
        if len(found) != 1:
            return None
        run, wait = found[0]
        yes, no = f"Answer {wait.node}", "Ask the butler" if self._open_butler is not None else "Start a run"
        call = start_tool_call(f"{self.session.id}/{len(self._shown)}", f"{wait.node} asks: {wait.text}", kind="other",
                               status="pending", content=[tool_content(text_block(text))])
        self._shown.add(call.tool_call_id)
        chosen = await self._screen.ask(call, {yes: True, no: False})
        await self._screen.show(update_tool_call(call.tool_call_id, status="completed"))
        if chosen is None:
            raise Refused(f"nothing was done; `/answer {wait.node} TEXT` answers it")
        return (run, wait) if chosen == yes else None

    def _pending(self) -> tuple[Proposal, ...]:
        entries = self._conversation().entries
        return entries[-1].proposals if entries else ()

    def _conversation(self) -> Conversation:
        if self._held.butler is not None and self._held.knows_all:
            return self._held.butler.conversation
        return self._sessions.conversation(self.session)

    def _add(self, entry: ChatEntry) -> None:
        conversation = self._conversation()
        conversation.add(entry)
        if self._held.butler is not None and conversation is self._held.butler.conversation:
            self._held.note()

    async def _say(self, text: str) -> None:
        """Show a text, and keep it if a message is being answered."""
        await self._screen.show(update_agent_message_text(f"{text}\n\n"))
        if self._said is not None:
            self._said.append(text)

    # ---- runs

    async def _begin(self, given: Mapping[str, str]) -> None:
        """Start a run, and wait until it has started."""
        # A cancelled turn must not lose the id of a run whose command is running: the run would not be followed.
        run = await asyncio.shield(self._begin_run(given))
        await self._say(f"Run `{run}` is starting: its target is tested first.")
        while (seen := await self._look(run)).status in _STARTING and not seen.waits:
            await asyncio.sleep(POLL / 4)
        if not seen.is_over:
            await self._say("It has started, and continues when you close the editor. `/follow` waits for it here, "
                            "`/stop` stops it.")

    async def _begin_run(self, given: Mapping[str, str]) -> str:
        """Start a run and follow it; return its id."""
        if self.session.repo is None:
            raise Refused(f"{self.session.cwd} is not in a git repository; open a folder of one in the editor")
        self._begun += 1
        # `PanelSessions.runs` finds the run by its prefix, even after a crash right after this line.
        request = f"{self.session.prefix}{len(self._conversation().entries)}-{self._begun}"
        run = await asyncio.to_thread(self._crew.start, given, request)
        self._runs.append(run)
        return run

    async def _follow(self) -> None:
        """Show changes in the session's runs, until the editor is gone."""
        pause, before = POLL, dict[str, str]()
        with contextlib.suppress(ConnectionError):
            while True:
                for run in list(self._runs):
                    if run in self._seen and self._seen[run].is_over:
                        continue
                    try:
                        await self._look(run)
                    except GarrisonError as error:
                        self._runs.remove(run)
                        await self._say(f"{run} is no longer followed: {error}")
                now = {run: seen.since for run, seen in self._seen.items()}
                # Each poll reads the run's records: a panel left open overnight must not cost as much as a watched one.
                pause = POLL if now != before or self._work is not None else min(pause * 1.2, LONGEST_POLL)
                before = now
                await asyncio.sleep(pause)

    async def _look(self, run: str, *, asks: bool = True) -> SeenRun:
        """Poll a run: show changes, and ask the user its open questions."""
        # The follower and a command may poll at once: each change would be shown, and asked about, twice.
        async with self._looking:
            new = await asyncio.to_thread(self._crew.look, run)
            old, self._seen[run] = self._seen.get(run), new
            for call in rail.to_calls(old, new, self._shown):
                self._shown.add(call.tool_call_id)
                await self._screen.show(call)
            followed = [seen for seen in self._seen.values() if not seen.is_over] or [new]
            plan = rail.to_plan(followed)
            if plan != self._plan and (plan.entries or self._plan is not None):
                self._plan = plan
                await self._screen.show(plan)
            if asks:
                await self._ask_open(run, new)
                if new.is_over and not (old is not None and old.is_over):
                    await self._say(rail.describe_end(new))
            return new

    # ---- questions

    async def _ask_open(self, run: str, seen: SeenRun) -> None:
        """Ask each open question of a run once; withdraw questions that were settled elsewhere."""
        waits = {f"{run} {wait.key}": wait for wait in seen.waits}
        for call in self._withdraw(run, waits):
            if call in self._shown:
                await self._screen.show(update_tool_call(call, status="completed"))
        for call, wait in waits.items():
            if call in self._asked:
                continue
            self._asked[call] = None
            if wait.kind in (WaitKind.GATE, WaitKind.ASKS) and not _is_in_words(wait):
                self._asked[call] = asyncio.create_task(self._decide(call, run, wait))
            elif _is_in_words(wait):
                await self._say(f"{wait.node} asks: {wait.text} Your next message, or `/answer {wait.node} TEXT`, "
                                "answers it.")
            else:
                await self._say(f"{wait.node or run}: {' '.join(wait.text.split())} ({wait.how})")

    def _withdraw(self, run: str, but: Collection[str] = ()) -> list[str]:
        """Withdraw a run's open questions except some calls; return the withdrawn calls."""
        found = [call for call in self._asked if call.startswith(f"{run} ") and call not in but]
        for call in found:
            if (task := self._asked.pop(call)) is not None:
                task.cancel()
        return found

    async def _decide(self, name: str, run: str, wait: SeenWait) -> None:
        """Ask for a decision in the editor, and record it, or propose it if it needs confirmation."""
        with contextlib.suppress(ConnectionError):
            try:
                shown = rail.fence(await asyncio.to_thread(self._crew.show, run, wait.node, "diff")) \
                    if wait.is_review else wait.text
                call = start_tool_call(name, f"{wait.node}: {wait.text}", kind="other", status="pending",
                                       content=[tool_content(text_block(shown))])
                self._shown.add(name)
                await self._screen.show(call)
                chosen = await self._screen.ask(call, {**dict.fromkeys(wait.options, True), LATER: False})
                self._asked[name] = None  # so that it is not cancelled once it counts
                if chosen not in (None, LATER):
                    await self._take(run, wait, chosen)
            except GarrisonError as error:
                await self._say(str(error))

    async def _take(self, run: str, wait: SeenWait, label: str) -> None:
        """Record an answer; propose one that needs confirmation."""
        if wait.question:
            await self._settle(run, wait, label)
            return
        words = ["review", f"--run={run}", "--approve", f"--attempt={wait.attempt}", f"--reason=through {self._by}",
                 "--", wait.node] if wait.is_review else [
            "answer", f"--run={run}", f"--by={self._by}", "--yes", "--", wait.node, label]
        proposals = (Proposal(words=tuple(words)),)
        text = f"{label} for {wait.node} counts once you confirm it.{confirmations.request(proposals)}"
        # Within a message the turn's lock is held, and asyncio's is not reentrant. The follower takes it: a
        # proposal in the middle of an answer would not be the last entry, to which the user's `yes` applies.
        async with contextlib.nullcontext() if self._said is not None else self._turn:
            await self._screen.show(update_agent_message_text(f"{text}\n\n"))
            self._add(ChatEntry(role="assistant", content=text, at=datetime.now(UTC), proposals=proposals))

    async def _settle(self, run: str, wait: SeenWait, text: str) -> None:
        told = await asyncio.to_thread(self._crew.answer, run, wait.node, text, self._by, wait.question)
        await self._say(f"{wait.node}: {told}")

    async def _carry_out(self, proposals: Sequence[Proposal]) -> None:
        text, _ = await self._confirm.carry_out(proposals)
        await self._say(text)

    async def _carry_out_one(self, words: Sequence[str]) -> str:
        if words[0] == "run":  # started as by `/run`, without waiting for its pre-flight
            return f"run {await asyncio.shield(self._begin_run({'task': words[-1]}))} is starting"
        return await asyncio.to_thread(self._crew.command, words)

    # ---- the butler

    async def _ask_butler(self, text: str) -> None:
        """Have the butler answer a message; ask for permission to run its proposals."""
        assert self._open_butler is not None
        butler = await self._held.open(self._open_butler)
        said, turn = defaultdict[str | None, list[str]](list), f"{self.session.id}/{len(butler.conversation.entries)}"
        async for event in butler.stream(text):
            if event.type == "text" and event.agent == BUTLER:
                await self._screen.show(update_agent_message_text(event.content or ""))
            elif event.type == "text":
                said[event.agent].append(event.content or "")
            elif (call := rail.specialist_call(event, "".join(said[event.agent]), turn)) is not None:
                await self._screen.show(call)
        self._held.note()
        if proposals := butler.proposals:
            call = start_tool_call(f"{turn}/proposals", "; ".join(map(str, proposals)), kind="execute",
                                   status="pending")
            await self._screen.show(call)
            chosen = await self._screen.ask(call, {RUN_IT: True, LEAVE_IT: False})
            if chosen is not None:
                self._said = []
                await (self._carry_out(proposals) if chosen == RUN_IT else self._say(confirmations.DROPPED))
                said_now, self._said = self._said, None
                self._add(ChatEntry(role="user", content="yes" if chosen == RUN_IT else "no", at=datetime.now(UTC),
                                agent="user"))
                self._add(ChatEntry(role="assistant", content="\n\n".join(said_now), at=datetime.now(UTC)))
            await self._screen.show(update_tool_call(call.tool_call_id, status="completed"))

    # ---- slash commands

    async def _run_of(self, node: str) -> str:
        """Return the latest run of the session that has a node, else the latest run of the repository."""
        for run, seen in reversed(self._seen.items()):
            if not node or any(each.node == node for each in seen.nodes):
                return run
        return (await asyncio.to_thread(self._crew.look, "")).run

    async def _chosen(self, typed: TypedCommand) -> str:
        """Return the run that a command names, else the latest; follow it."""
        run = typed.one() if typed.rest else await self._run_of("")
        await asyncio.to_thread(self._crew.look, run)  # NotFound for an unknown one
        if run not in self._runs:
            self._runs.append(run)
        return run

    async def _do_run(self, typed: TypedCommand) -> None:
        await self._begin(commands.read_run(typed.rest))

    async def _do_status(self, typed: TypedCommand) -> None:
        run = await self._chosen(typed)
        await self._say(rail.fence(await asyncio.to_thread(self._crew.command, ["status", run], whole=True)))
        self._withdraw(run)  # so that the poll asks them again
        await self._look(run)

    async def _do_follow(self, typed: TypedCommand) -> None:
        run = await self._chosen(typed)
        while not ((seen := await self._look(run)).waits or seen.is_over):
            await asyncio.sleep(POLL)

    async def _do_why(self, typed: TypedCommand) -> None:
        run = await self._run_of(typed.rest)
        seen = await self._look(run)
        if seen.is_over and not seen.nodes:
            await self._say(rail.describe_end(seen))
            return
        is_node = any(node.node == typed.rest for node in seen.nodes)
        run, node = (run, typed.rest) if is_node or not typed.rest else (typed.one(), "")
        await self._say(rail.fence(await asyncio.to_thread(self._crew.why, run, node)))

    async def _do_diff(self, typed: TypedCommand) -> None:
        node = typed.one()
        await self._say(rail.fence(await asyncio.to_thread(self._crew.show, await self._run_of(node), node, "diff")))

    async def _do_tell(self, typed: TypedCommand) -> None:
        node, text = typed.two()
        await self._say(await asyncio.to_thread(self._crew.tell, await self._run_of(node), node, text))

    async def _do_answer(self, typed: TypedCommand) -> None:
        node, text = typed.two()
        run = await self._run_of(node)
        wait = (await self._look(run, asks=False)).wait_of(node)
        if wait is None or wait.kind not in (WaitKind.GATE, WaitKind.ASKS):
            raise NotFound(f"{node} has no open question")
        await self._take(run, wait, text)

    async def _do_reject(self, typed: TypedCommand) -> None:
        node, reason = typed.two()
        told = await asyncio.to_thread(self._crew.decide, await self._run_of(node), node, "reject",
                                       f"{reason} (through {self._by})", self._by)
        await self._say(told)

    async def _do_retry(self, typed: TypedCommand) -> None:
        node = typed.one()
        await self._control(await self._run_of(node), "retry", node)

    async def _do_stop(self, typed: TypedCommand) -> None:
        await self._control(await self._chosen(typed), "stop")

    async def _do_resume(self, typed: TypedCommand) -> None:
        await self._control(await self._chosen(typed), "resume")

    async def _control(self, run: str, action: str, node: str = "") -> None:
        told = await asyncio.to_thread(self._crew.control, run, action, node)
        if action != "stop":
            self._seen.pop(run, None)  # it is followed again, if it was over
        await self._say(told or f"{action}: {run}")


_HANDLERS: Mapping[str, Callable[[Panel, TypedCommand], Awaitable[None]]] = {
    name: getattr(Panel, f"_do_{name}") for name in commands.COMMANDS}


def _is_in_words(wait: SeenWait) -> bool:
    """Return whether any text answers it."""
    return bool(wait.question) and not wait.options
