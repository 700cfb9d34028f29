"""An orchestrator's agent as a garrison session: the task is its first message, and its turns are a graph.

`python -P -m garrison.processes.orchestrator.session_attempt PROMPT_FILE`, started by the orchestrator in the node's
worktree. The session is kept beside the prompt in the attempt's folder (`session/`), so that a successor finishes the
turn that was under way: nodes of its graph that are done are not done again. The orchestrator's beat stays its own; the
session has heartbeats only where the node gave it an initiative.

    no turn yet                       the task is said
    a turn without a report           it is asked for one, once
    a report, or a second turn        the result file is written, and the program ends
    a question, a limit reached,      an ending is written, and the program ends in the middle of the turn, which its
    an API that refuses               successor takes up at the node that was under way

The session's tools are the workflow tools that fit, restricted to one directory. Their names are those of the trust
tiers (`session/trust.toml`); a tool that a session's tier does not allow does not exist for its model.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from garrison.agents import scripted
from garrison.agents.claude import budget, cli_process, policy, prompts, settings
from garrison.agents.claude import failures as why
from garrison.agents.claude import questions as asked
from garrison.agents.claude.attempt_files import ClaudeFiles, append_line, read_json, write_json
from garrison.agents.claude.stream import shown
from garrison.agents.claude.tools_words import ASK_GUARDIAN, REPORT_RESULT, SAVE_NOTES, report_of, told_of
from garrison.agents.graph import retry
from garrison.agents.graph.model import AgentFailure
from garrison.agents.graph.session import Function
from garrison.agents.result import LANDS
from garrison.agents.session_agent import ORDER
from garrison.errors import GarrisonError, UsageError
from garrison.records import atomic
from garrison.session import Initiative, Session, SessionState
from garrison.session.adapters import remembering
from garrison.session.claude import claude_adapters, prompt_of
from garrison.session.scripted import Script
from garrison.session.tools import Dispatch
from garrison.session.trust import Tier, read_tiers, working_tier
from garrison.system.children import die_with_parent
from garrison.system.terminal_text import clean_lines
from garrison.workflow.tools import Toolbox

MAX_STEPS = 3_000
"""Visits of nodes in one turn: a task may need some hundred calls of tools, each of three visits."""
TURNS = 2
"""Turns a task may take: the task itself, and being asked for the report."""
_ASK_TOOL = 1
ASK = "You ended your turn without a report. Call `report_result` now: with what you did and what proves it, or with " \
      "status `failure` and the reason."


_ASK = "ask_guardian"


def next_words(turns: int, report: Mapping[str, Any] | None, prompt: str) -> str | None:
    """What is said next; None when the session is at its end. Pure."""
    if report is not None or turns >= TURNS:
        return None
    return prompt if turns == 0 else ASK


def claim_of(report: Mapping[str, Any] | None) -> dict[str, Any]:
    """What the result file says. Pure."""
    if report is None:
        return {"status": "fail", "failure_reason": "it was asked for report_result and ended again without it"}
    told = told_of(report)
    if told["status"] not in LANDS:
        told["failure_reason"] = told.pop("notes")
    return told


class Work:
    """One life of the session of one attempt."""

    def __init__(self, prompt: Path, leave: Callable[[], None] = lambda: None) -> None:
        """`leave` may end the program at once when the session is to wait."""
        self.prompt, self.folder, self._leave = prompt, prompt.parent, leave
        self.order: dict[str, Any] = read_json(self.folder / ORDER)
        self.files = ClaudeFiles(self.folder)
        self.files.make()
        found = working_tier(self.order["tier"], read_tiers())
        self.tier: Tier = replace(found, tools=(*found.tools, *self._own()))
        self.settings = settings.from_json(self.order["settings"]) if self.order["settings"] else None
        self._began = _now()
        self._model_session = uuid.uuid4().hex
        self._suspended: asyncio.Future[policy.Ending]
        self._spoke = False

    def _own(self) -> dict[str, Function]:
        """The tools that every session of a task has, whatever its tier."""
        def report_result(**given: Any) -> str:
            report = report_of(given)
            if isinstance(report, str):
                raise UsageError(report)
            write_json(self.files.report, report)
            return "Noted. End your turn now."

        def save_notes(text: str) -> str:
            atomic.write(Path(self.order["notes"]), (text.strip() + "\n").encode(errors="replace"))
            return "Kept."

        return {"report_result": Function("report_result", *REPORT_RESULT, report_result),
                "save_notes": Function("save_notes", *SAVE_NOTES, save_notes),
                _ASK: Function(_ASK, *ASK_GUARDIAN, str)}

    def _asking(self, dispatch: Dispatch) -> Callable[..., Any]:
        """The dispatch, with the questions of a batch before its other calls: those are then done once."""
        async def dispatched(calls: list[dict[str, Any]], agent: str) -> list[str]:
            said = {number: await self._asked(one) for number, one in enumerate(calls) if one.get("name") == _ASK}
            others = iter(await dispatch([one for one in calls if one.get("name") != _ASK], agent))
            return [said[number] if number in said else next(others) for number in range(len(calls))]
        return dispatched

    async def _asked(self, wanted: Mapping[str, Any]) -> str:
        """The answer to a call of `ask_guardian`: a call that has one has it for good, however often it is done."""
        given = wanted.get("arguments") or {}
        question = str(given.get("question") or given.get("value") or "").strip()
        if not question:
            return "error: there is no question"
        call = str(wanted.get("id") or question)
        told = read_json(self._answers) or {}
        answer = told.get(call) or asked.answer_of(self.files, call)
        if answer is None:
            asked.ask(self.files, question, call)
            await self._suspend(policy.QUESTION, question)
        write_json(self._answers, {**told, call: answer})
        return f"The answer: {answer}"

    @property
    def _answers(self) -> Path:
        return self.files.folder / "answers.json"

    async def _suspend(self, kind: str, reason: str) -> NoReturn:
        """End the program here: the node under way has no outcome, and is done again by the successor."""
        if not self._suspended.done():
            self._suspended.set_result(policy.Ending(kind, time.time(), reason, progress=self._spoke))
        await asyncio.Event().wait()
        raise AssertionError("nothing sets that")

    async def run(self) -> dict[str, Any] | None:
        """What the result file says; None if the session waits for what its last ending says."""
        self._suspended = asyncio.get_running_loop().create_future()
        work = asyncio.create_task(self.done())
        either: set[asyncio.Future[Any]] = {work, self._suspended}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not self._suspended.done():
            return work.result()
        append_line(self.files.endings, vars(self._suspended.result()))
        self._leave()
        work.cancel()
        await asyncio.wait({work})
        return None

    async def done(self) -> dict[str, Any]:
        """Go on until there is a report, or none to be had; what the result file says."""
        async with AsyncExitStack() as stack:
            session = await stack.enter_async_context(self._session(await self._adapters(stack)))
            while True:
                report = read_json(self.files.report)
                words = next_words(session.state.turn_count, report, self.prompt.read_text())
                if words is None:
                    return claim_of(report)
                await session.send(words)

    def _session(self, adapters: Mapping[str, Callable[..., Any]]) -> Session:
        folder = self.files.kept_session
        order = self.order
        initiative = Initiative(budget=order["initiative"]) if order["initiative"] else None
        options: dict[str, Any] = {
            "turn_graph": order["turn_graph"], "heartbeat_graph": order["heartbeat_graph"], "initiative": initiative,
            "tiers": {self.tier.name: self.tier}, "max_steps": MAX_STEPS}
        if (folder / "session.json").exists():
            return Session.restore(folder, adapters, **options)
        state = SessionState(f"{order['node']}-{order['attempt']}", f"orchestrator-{order['node']}@{order['run']}",
                             self.tier.name, goals=[{"id": order["node"], "description": order["goal"]}])
        return Session(state, adapters, folder=folder, **options)

    async def _adapters(self, stack: AsyncExitStack) -> dict[str, Callable[..., Any]]:
        if self.settings is None:
            steps = scripted.script_for(self.order["node"], dict(os.environ))
            played = Script(self.order["node"], steps, self.order["life"])
            dispatch = self._asking(Dispatch({**played.tools(), **self._own()}, fatal=True, on_call=_told_call))
            return {**remembering(), "llm_call": played.llm_call, "tool_dispatch": dispatch}
        tools = {**tools_of(Path(self.order["tree"]), self.tier), **self._own()}
        home = Path(self.order["home"])
        metadata: dict[str, Any] = {"env": cli_process.cli_environment(home, self.settings), "cwd": self.order["tree"]}
        if self.settings.cli:
            metadata["cli"] = self.settings.cli
        adapters = await stack.enter_async_context(claude_adapters(
            self.settings.model, metadata, tools, system=self.order["system"], hear=self._heard))
        return {**adapters, "llm_call": self._within_limits(adapters["llm_call"]),
                "tool_dispatch": self._asking(Dispatch(tools, on_call=_told_call, on_result=_told_result))}

    def _within_limits(self, ask: Callable[..., Any]) -> Callable[..., Any]:
        """The model, asked while no limit on what it may cost is reached and nothing refuses it that may be mended."""
        assert self.settings is not None
        limits = budget.Limits(self.settings.budget, self.settings.budget_run, self.settings.budget_day)
        meter = budget.Meter(Path(self.order["home"]), self.order["run"], self.order["node"], limits)

        endings = self.files.read_endings()
        after = [{"role": "user", "content": prompts.person_was_there()}] \
            if endings and endings[-1].kind == policy.PERSON else []

        async def asked(messages: list[dict[str, Any]], mode: str, options: Mapping[str, Any]) -> Any:
            over = meter.over(_now()[:10])
            if over:
                await self._suspend(why.BUDGET, over)
            atomic.write(self.files.conversation, prompt_of(messages, mode, {}).encode(errors="replace"), durable=False)
            try:
                answer = await ask([*messages, *after], mode, options)
            except AgentFailure as error:
                kind = why.classify(error.status, str(error), error.error)
                hopeless = error.__cause__ is not None and not retry.is_transient(error.__cause__)
                if hopeless or (kind not in policy.FOR_A_PERSON and kind not in policy.TROUBLES):
                    raise
                await self._suspend(kind, retry.words(error))
            self._spoke = True
            return answer
        return asked

    def _heard(self, event: Mapping[str, Any]) -> None:
        """Show what the model says, and put what it costs on the bill."""
        if event["kind"] == "usage":
            budget.append(self.files.usage, budget.call(self._model_session, _now(), event["message"], event["model"],
                                                        event["usage"], self._began))
        elif event["kind"] == "result" and event.get("usd"):
            budget.append(self.files.usage, budget.Call("result", self._model_session, _now(), event["usd"],
                                                        stretch=self._began))
        elif event["kind"] in ("text", "thinking"):
            _show(event)


def _told_call(name: str, arguments: Mapping[str, Any]) -> None:
    _show({"kind": "tool", "name": name, "input": dict(arguments)})


def _told_result(_name: str, text: str) -> None:
    _show({"kind": "tool_result", "text": text, "error": text.startswith("error: ")})


def _show(event: Mapping[str, Any]) -> None:
    text = shown(dict(event))
    if text:
        print("\n".join(clean_lines(text)), flush=True)


def _gone() -> None:
    """End at once, as by a kill. A client that is closed in order would first tell the model that its call failed, and
    the model's next answer would be paid for and heard by nobody; so it dies with us."""
    sys.stdout.flush()
    os._exit(0)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def main(argv: list[str] | None = None) -> int:
    """Do the work, and write the result file."""
    die_with_parent()
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
    try:
        claim = asyncio.run(Work(Path((sys.argv[1:] if argv is None else argv)[0]), _gone).run())
    except GarrisonError as error:
        claim = {"status": "fail", "failure_reason": " ".join(str(error).split())}
    if claim is not None:
        atomic.write(Path(os.environ["GARRISON_RESULT_FILE"]), json.dumps(claim).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())


_TEXT: Mapping[str, Any] = {"type": "string"}
_METHODS: Mapping[str, tuple[Callable[..., Any], Mapping[str, Any], tuple[str, ...]]] = {
    "read": (Toolbox.read, {"path": _TEXT}, ("path",)),
    "list": (Toolbox.list_files, {"pattern": _TEXT}, ()),
    "search": (Toolbox.search, {"expression": _TEXT, "pattern": _TEXT}, ("expression",)),
    "log": (Toolbox.git_log, {"limit": {"type": "integer"}, "revisions": _TEXT}, ()),
    "write": (Toolbox.write, {"path": _TEXT, "text": _TEXT}, ("path", "text")),
    "edit": (Toolbox.edit, {"path": _TEXT, "old": _TEXT, "new": _TEXT}, ("path", "old", "new")),
    "run": (Toolbox.run, {"command": _TEXT, "check": {"type": "boolean"}}, ("command",)),
}
"""Tool → what does it, the schema of each argument, those that are needed."""


def tools_of(root: Path, tier: Tier) -> dict[str, Function]:
    """The tools that exist at a tier, working in `root`."""
    box = Toolbox(root)
    return {name: Function(name, (method.__doc__ or "").strip(),
                           {"type": "object", "properties": dict(properties), "required": list(needed)},
                           method.__get__(box))
            for name, (method, properties, needed) in _METHODS.items() if tier.allows(name)}
