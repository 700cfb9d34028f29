"""Session attempt: the program that runs an attempt's agent as a garrison session, whose turns are a graph.

`python -P -m garrison.node.session_attempt PROMPT_FILE`, started by the orchestrator in the node's
worktree. The session is saved alongside the prompt in the attempt's folder (`session/`), so that a successor finishes
the current turn: completed nodes of its graph are not repeated. The orchestrator has its own heartbeat; the
session has heartbeats only if the node gave it an initiative.

    no turn yet                       send the task
    a turn without a report           request one, once
    a report, or a second turn        write the result file and exit
    a question, a limit reached,      write an ending and exit in the middle of the turn; the successor resumes at the
    an API that refuses               current node

The session's tools are a subset of the workflow tools, restricted to one directory. Their names are those of the trust
tiers (`session/trust.toml`); a tool that a session's tier does not allow does not exist for its model.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from garrison.agents import scripted
from garrison.agents.base import Function
from garrison.agents.claude import cli_process
from garrison.agents.conversation import messages, policy, prompts, questions, tools
from garrison.agents.conversation.files import AttemptFiles
from garrison.agents.conversation.recorder import AttemptRecorder, show
from garrison.agents.graph.model import AgentFailure
from garrison.agents.graph.session_manager import describe
from garrison.agents.result import LANDING
from garrison.agents.scripted import STEPS, fill
from garrison.agents.session_agent import SessionOrder
from garrison.agents.session_options import ORDER
from garrison.agents.trouble import kind_of_shortfall
from garrison.errors import GarrisonError
from garrison.records import atomic
from garrison.records.budget import Account, Meter
from garrison.records.json_io import read_json, write_json
from garrison.records.life_lock import LifeLock
from garrison.records.record import from_data
from garrison.session import Adapters, Initiative, Session, SessionState
from garrison.session.adapters import Memory, ModelResponse, ToolDispatcher, plain_adapters
from garrison.session.claude import claude_adapters, prompt_of
from garrison.session.state import Message, Tier, ToolCall, read_tiers, require_working_tier
from garrison.session.store import read_state
from garrison.system import processes
from garrison.values import replace
from garrison.workflow.tools import Toolbox

if TYPE_CHECKING:
    from garrison.sandbox.checkout import CheckoutCommands

MAX_STEPS = 3_000
"""Visits of nodes in one turn: a task may need some hundred tool calls, each of three visits."""
_SILENT = policy.ConnectionEnd(policy.SILENT, 0.0)
_ASK = "ask_guardian"
_TEXT: Mapping[str, object] = {"type": "string"}
_TOOLBOX: Mapping[str, tuple[Callable[..., object], Mapping[str, object], tuple[str, ...]]] = {
    "read": (Toolbox.read, {"path": _TEXT}, ("path",)),
    "list": (Toolbox.list_files, {"pattern": _TEXT}, ()),
    "search": (Toolbox.search, {"expression": _TEXT, "pattern": _TEXT}, ("expression",)),
    "log": (Toolbox.git_log, {"limit": {"type": "integer"}, "revisions": _TEXT}, ()),
    "write": (Toolbox.write, {"path": _TEXT, "text": _TEXT}, ("path", "text")),
    "edit": (Toolbox.edit, {"path": _TEXT, "old": _TEXT, "new": _TEXT}, ("path", "old", "new")),
    "run": (Toolbox.run, {"command": _TEXT, "check": {"type": "boolean"}}, ("command",)),
}
"""Tool → its method, the schema of each argument, the required ones."""


def tools_of(root: Path, tier: Tier, commands: CheckoutCommands | None = None) -> dict[str, Function]:
    """Return the tools that a tier allows, working in `root`; `commands` confines what they run.

    An attempt's session needs no `commands`: its whole program runs in the node's sandbox.
    """
    box = Toolbox(root, commands)
    return {name: Function(name, (method.__doc__ or "").strip(),
                           {"type": "object", "properties": dict(properties), "required": list(required)},
                           method.__get__(box))
            for name, (method, properties, required) in _TOOLBOX.items() if tier.allows(name)}


def next_message(turns: int, report: Mapping[str, object] | None, prompt: str, said: str = "") -> str | None:
    """Return the next message to the session, by the number of turns without a report; None when it
    has ended.

    Args:
        said: message of the user to the session, for which it gets a separate turn.
    """
    if report is not None:
        return None
    if turns == 0:
        return f"{prompt}\n\n{said}" if said else prompt
    if said:
        return f"{said}\n\nDo what it asks, then call `report_result`."
    follows = policy.decide([_SILENT] * turns)
    return None if follows.step is policy.NextStepKind.FINISH else prompts.report_request()


def result_of(report: Mapping[str, object] | None) -> dict[str, object]:
    """Return the content of the result file."""
    if report is None:
        return {"status": "fail", "failure_reason": policy.UNREPORTED}
    result: dict[str, object] = {**tools.to_agent_report(report)}
    if result["status"] not in LANDING:
        result["failure_reason"] = result.pop("notes")
    return result


class SessionProgram:
    """One run of the session of one attempt."""

    def __init__(self, prompt: Path, exit_now: Callable[[], None] = lambda: None) -> None:
        """Read the job; `exit_now` may end the process at once when the session must wait."""
        self.prompt, self._exit_now = prompt, exit_now
        self.order = from_data(SessionOrder, read_json(prompt.parent / ORDER))
        self.files = AttemptFiles(prompt.parent)
        self.files.make()
        self._recorder = AttemptRecorder(self.files, self.order.incarnation)
        tier = require_working_tier(self.order.tier, read_tiers())
        self.tier: Tier = replace(tier, tools=(*tier.tools, *self._own_tools()))
        self.settings = self.order.settings
        self._suspended: asyncio.Future[policy.ConnectionEnd]
        self._answered = False
        self._lock: LifeLock | None = None
        """Locked while the program lives: its reservation counts."""

    async def run(self) -> dict[str, object] | None:
        """Return the content of the result file; None if the session waits, for the reason of its last ending."""
        self._suspended = asyncio.get_running_loop().create_future()
        turns = asyncio.create_task(self._turns())
        either: set[asyncio.Task[dict[str, object]] | asyncio.Future[policy.ConnectionEnd]] = {turns, self._suspended}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not self._suspended.done():
            return turns.result()
        # The ending before the exit: a program that exits without one has ended its attempt.
        self.files.add_ending(self._suspended.result())
        self._exit_now()
        turns.cancel()
        await asyncio.wait({turns})
        return None

    async def _turns(self) -> dict[str, object]:
        """Run turns until there is a report or none can be expected; return the content of the result file."""
        async with AsyncExitStack() as stack:
            session = await stack.enter_async_context(self._session(await self._adapters(stack)))
            while True:
                report = read_json(self.files.report)
                said = messages.take(self.files) if report is None else ""
                message = next_message(session.state.turn_count, report, self.prompt.read_text(errors="replace"), said)
                if message is None:
                    return result_of(report)
                await session.send(message)

    def _session(self, adapters: Adapters) -> Session:
        folder, order = self.files.garrison_session, self.order
        state = read_state(folder) if (folder / "session.json").exists() else SessionState(
            f"{order.node}-{order.attempt}", f"orchestrator-{order.node}@{order.run}", self.tier.name,
            goals=[{"id": order.node, "description": order.goal}])
        return Session(state, adapters, folder=folder, turn_graph=order.turn_graph,
                       heartbeat_graph=order.heartbeat_graph, tiers={self.tier.name: self.tier}, max_steps=MAX_STEPS,
                       initiative=Initiative(budget=order.initiative) if order.initiative else None)

    async def _adapters(self, stack: AsyncExitStack) -> dict[str, Callable[..., Any]]:
        if self.settings is None:
            steps = scripted.script_for(self.order.node, dict(os.environ))
            script = SessionScript(self.order.node, steps, self.order.incarnation)
            dispatch = ToolDispatcher({**script.tools(), **self._own_tools()}, fatal=True, on_call=_show_call)
            return {**plain_adapters(), "llm_call": script.llm_call, "tool_dispatch": self._with_questions(dispatch)}
        functions = {**tools_of(Path(self.order.tree), self.tier), **self._own_tools()}
        metadata = cli_process.graph_metadata(self.settings, Path(self.order.home), self.order.tree,
                                              self.order.config)
        adapters = await stack.enter_async_context(claude_adapters(
            self.settings.model, metadata, functions, system=self.order.system, on_event=self._record,
            memory=Memory(self.files.garrison_session / "memory.jsonl")))
        dispatch = ToolDispatcher(functions, on_call=_show_call, on_result=_show_result)
        return {**adapters, "llm_call": self._within_limits(adapters["llm_call"]),
                "tool_dispatch": self._with_questions(dispatch)}

    # ---- tools and questions

    def _own_tools(self) -> dict[str, Function]:
        functions = (tools.report_result(self.files), tools.save_notes(Path(self.order.notes)),
                     tools.ask_guardian(None))
        return {function.name: function for function in functions}

    def _with_questions(self, dispatch: ToolDispatcher) -> Callable[..., object]:
        """Wrap the dispatch: questions of a batch come first, so that a suspended batch has made no other calls."""
        async def dispatch_batch(calls: list[ToolCall], agent: str) -> list[str]:
            answers = {number: await self._ask(call) for number, call in enumerate(calls) if call.get("name") == _ASK}
            others = iter(await dispatch([call for call in calls if call.get("name") != _ASK], agent))
            results = [answers[number] if number in answers else next(others) for number in range(len(calls))]
            # After a report the session has no use for it, and `garrison tell` refuses it from then on.
            said = messages.take(self.files) if results and not self.files.report.exists() else ""
            return [*results[:-1], f"{results[-1]}\n\n{said}"] if said else results
        return dispatch_batch

    async def _ask(self, call: ToolCall) -> str:
        """Return the answer to a call of `ask_guardian`; a repeated call keeps its answer."""
        arguments = call.get("arguments") or {}
        question = str(arguments.get("question") or arguments.get("value") or "").strip()
        if not question:
            return "error: there is no question"
        call_id = str(call.get("id") or question)
        answers = read_json(self.files.answers) or {}
        answer = answers.get(call_id) or questions.answer_to_call(self.files, call_id)
        if answer is None:
            questions.ask(self.files, question, call_id)
            await self._suspend(policy.QUESTION, question)
        # Stored by the call's id: the next question replaces this one's files, and the turn may be repeated from here.
        write_json(self.files.answers, {**answers, call_id: answer})
        return f"The answer: {answer}"

    async def _suspend(self, kind: str, reason: str, wait: float = 0.0) -> NoReturn:
        """End the program here: the current node has no outcome, so the successor repeats it, in `wait` seconds."""
        if not self._suspended.done():
            self._suspended.set_result(self._recorder.ending(
                kind, reason, resets_at=time.time() + wait if wait else None, answered=self._answered))
        await asyncio.Event().wait()
        raise AssertionError("nothing sets that event")

    # ---- the model

    @cached_property
    def _account(self) -> Account:
        """Return the account of the session; only a model with settings costs money."""
        assert self.settings is not None
        meter = Meter(Path(self.order.home), self.order.run, self.order.node, self.settings.limits)
        return Account(meter, self.files.folder, uuid.uuid4().hex, reserves=bool(self.order.config))

    def _within_limits(self, ask: Callable[..., Awaitable[ModelResponse]]) -> Callable[..., object]:
        """Wrap the model: suspend at a limit on costs, and at an error that is transient or that the user can
        resolve."""
        if self.order.config:
            # Others count the session's reservation only while this lock is held (`records.budget`).
            self._lock = LifeLock.try_acquire(self.files.lock)
        endings = self.files.read_endings()
        after_person: list[Message] = [{"role": "user", "content": prompts.after_person()}] \
            if endings and endings[-1].kind == policy.PERSON else []

        async def ask_within_limits(messages: list[Message], mode: str, options: Mapping[str, object]) -> ModelResponse:
            # Checked before each call: without a sandbox there is no proxy in between that would refuse it.
            if (shortfall := self._account.enter()) is not None:
                await self._suspend(kind_of_shortfall(shortfall), shortfall.reason)
            atomic.write(self.files.conversation, prompt_of(messages, mode, {}).encode(errors="replace"), durable=False)
            try:
                answer = await ask([*messages, *after_person], mode, options)
            except AgentFailure as error:
                if not policy.is_waited_for(error.kind):
                    raise
                await self._suspend(error.kind, describe(error), error.wait)
            finally:
                self._account.release()
            self._answered = True
            return answer
        return ask_within_limits

    def _record(self, event: Mapping[str, object]) -> None:
        """Record the model's usage, and show its text."""
        self._account.record(event)
        if event["kind"] in ("text", "thinking"):
            show(event)


def _show_call(name: str, arguments: Mapping[str, object]) -> None:
    show({"kind": "tool", "name": name, "input": dict(arguments)})


def _show_result(_name: str, text: str, failed: bool) -> None:
    show({"kind": "tool_result", "text": text, "error": failed})


def _exit_at_once() -> None:
    """Exit as if killed.

    A client that is closed gracefully would report its call to the model as failed, and the model's next response would
    be paid for and lost. So the CLI is killed first: it has no tools, and the session keeps the conversation.
    """
    sys.stdout.flush()
    for child in map(processes.probe, processes.child_pids(os.getpid())):
        if child is not None:
            processes.send(child.pid, child.ticks, signal.SIGKILL)
    os._exit(0)


def main(argv: list[str] | None = None) -> int:
    """Run the session, and write the result file unless it waits."""
    processes.die_with_parent()
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
    try:
        result = asyncio.run(SessionProgram(Path((sys.argv[1:] if argv is None else argv)[0]), _exit_at_once).run())
    except GarrisonError as error:
        result = {"status": "fail", "failure_reason": " ".join(str(error).split())}
    if result is not None:
        atomic.write(Path(os.environ["GARRISON_RESULT_FILE"]), json.dumps(result).encode())
    return 0


# ---- scripted --------------------------------------------------------------------------------------------------------

# Scripted model of a session: each step of the script is a tool call, its end a report. For tests.
#
# The position follows from the conversation alone (the ids of the calls that have a result), so a restarted session
# continues with the first step without one. A step with `life: N` runs in incarnation N only, even if its call was in
# flight. `- ask_guardian: text` asks the person in charge.


REPORT = "report_result"
_VALUE: Mapping[str, object] = {"type": "object", "required": ["value"], "properties": {"value": {}}}


class SessionScript:
    """Steps of one node, as a model that requests one call after the other."""

    def __init__(self, node: str, steps: list[dict[str, Any]], incarnation: int) -> None:
        self._node = node
        self._incarnation = incarnation
        self._calls = [(f"{number}:{name}", name, {"value": fill(value, node), **_only(step)})
                       for number, step in enumerate(steps, 1) if step.get("life", incarnation) == incarnation
                       for name, value in step.items() if name != "life"]

    def llm_call(self, messages: list[Message], _mode: str, _options: Mapping[str, object]) -> ModelResponse:
        """Return the first call without a result, then a report, then text (the adapter `llm_call`)."""
        done = {message.get("tool_call_id") for message in messages if message.get("role") == "tool"}
        for call, name, arguments in self._calls:
            if call not in done:
                return {"tool_calls": [{"id": call, "name": name, "arguments": arguments}]}
        if REPORT not in done:
            report = {"status": "success", "summary": f"the script of {self._node} has ended"}
            return {"tool_calls": [{"id": REPORT, "name": REPORT, "arguments": report}]}
        return {"content": f"The script of {self._node} has ended."}

    def tools(self) -> dict[str, Function]:
        return {name: Function(name, f"the script's step {name}", _VALUE, self._player(play))
                for name, play in STEPS.items()}

    def _player(self, play: Callable[[Any], Any]) -> Callable[..., str]:
        def call(value: Any, life: int | None = None) -> str:
            if life not in (None, self._incarnation):
                return f"skipped: meant for incarnation {life}"
            try:
                play(value)
            except SystemExit as error:
                if error.code:
                    raise RuntimeError(f"the script ended with exit code {error.code}") from error
            return "done"
        return call


def _only(step: Mapping[str, object]) -> dict[str, object]:
    return {"life": step["life"]} if "life" in step else {}


if __name__ == "__main__":
    sys.exit(main())
