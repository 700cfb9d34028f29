"""One stretch of a session: a process that connects the SDK to one CLI, says one prompt and keeps what happens.

`python -P -m garrison.agents.claude.connection ORDER`. It decides nothing about the attempt: it writes how it ended
(`endings.jsonl`) and goes, and the orchestrator decides what follows. It dies with its orchestrator, the CLI with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from claude_agent_sdk import (
    AssistantMessage,
    ClaudeAgentOptions,
    ClaudeSDKClient,
    ClaudeSDKError,
    ProcessError,
    RateLimitEvent,
    ResultMessage,
    StreamEvent,
    SystemMessage,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UserMessage,
    project_key_for_directory,
)

from garrison.agents.claude import budget, cli_process, policy, tools, transcripts
from garrison.agents.claude import failures as why
from garrison.agents.claude.attempt_files import ClaudeFiles, append_line, read_json
from garrison.agents.claude.job import Order, from_json
from garrison.agents.claude.policy import Ending
from garrison.agents.claude.start_limiter import start_slot
from garrison.agents.claude.stream import Event, cut, shown
from garrison.agents.claude.transcripts import Mirror
from garrison.agents.result import LANDS
from garrison.records import atomic
from garrison.records.life_lock import LifeLock
from garrison.system.children import die_with_parent
from garrison.system.terminal_text import clean_lines

_LONG_WAIT = 15.0
"""Seconds of the API's own retry delay beyond which the session is put down instead of kept waiting."""
_TOOL_LIMIT = 660.0
"""Seconds a tool under way may be silent: the CLI's own limit for a command is 600."""
_LOCK_LIMIT = 30.0
"""Seconds to wait for an earlier life's stretch to let go of the session."""


class Stretch:
    """One connection."""

    def __init__(self, order: Order) -> None:
        self.order, self.settings = order, order.settings
        self.files = ClaudeFiles(order.attempt_folder)
        self.meter = budget.Meter(Path(order.home), order.run, order.node, budget.Limits(
            self.settings.budget, self.settings.budget_run, self.settings.budget_day))
        self.ending: Ending | None = None
        self.progress = False
        self.stderr: list[str] = []
        self._began = _now()
        self._error = ""
        """What the last message said of its failure: the API's word."""
        self._tools: set[str] = set()
        self._answers: dict[str | None, tuple[str, str, dict[str, Any]]] = {}
        """Whose answer is under way (None: the session's own, else a subagent's): message id, model, usage so far."""
        self._resets_at: float | None = None
        self._stop = asyncio.Event()
        self.lock: LifeLock | None = None
        """Held until this process ends: nobody else may run the CLI on the session."""

    # what happens

    def tell(self, event: Event) -> None:
        """Keep an event, and show it."""
        append_line(self.files.stream, {"at": _now(), "life": self.order.life, **event})
        text = shown(event)
        if text:
            print(_clean(text), flush=True)

    def note(self, text: str) -> None:
        """Something that garrison did."""
        self.tell({"kind": "note", "text": text})

    async def run(self) -> Ending:
        """The whole stretch."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stop.set)
        over = self.meter.over(_now()[:10])
        if over:
            return self._end(why.BUDGET, over)
        if not await self._hold():
            return self._end(policy.STOPPED) if self._stop.is_set() else self._end(
                why.CRASH, "another process still runs the session")
        if not self._prepare():
            return self._end(why.UNKNOWN_SESSION, f"nobody has the transcript of the session {self.order.past}, from "
                             "which it was to go on")
        try:
            return await self._connected()
        except ProcessError as error:
            return await self._end_of_process(error)
        except ClaudeSDKError as error:
            return self._end(*_start_failure(f"{error} {self._said()}"))

    async def _hold(self) -> bool:
        """Wait until nobody else runs the session; False if that takes too long, or we are to stop."""
        until = time.monotonic() + _LOCK_LIMIT
        while not self._stop.is_set() and time.monotonic() < until:
            self.lock = LifeLock.try_acquire(self.files.lock)
            if self.lock is not None:
                return True
            await asyncio.sleep(0.05)
        return False

    def _prepare(self) -> bool:
        """Put the transcript back where the CLI's own is gone, and make that of a session which goes on from another;
        False if there is none to go on from."""
        order, config = self.order, cli_process.config_folder(Path(self.order.home))
        if not order.goes_on:
            return True
        found = transcripts.prepare(config, self.files.transcripts, order.session)
        if found == "restored":
            self.note("the CLI's transcript was gone; it is restored from the attempt's folder")
        if found != "unknown" or not order.past:
            return True
        made = transcripts.fork(config, Path(order.attempts), order.past, order.session,
                                project_key_for_directory(order.tree))
        if made:
            self.note(f"goes on from session {order.past}")
        return made

    def _queue(self, what: str) -> None:
        """Say that other sessions are starting before this one, to whoever watches and to `status`."""
        self.note(f"waits {what}")
        atomic.write(self.files.waiting, what.encode(), durable=False)

    async def _connected(self) -> Ending:
        async with start_slot(Path(self.order.home), self.settings.starts, self._queue, self._stop) as started:
            self.files.waiting.unlink(missing_ok=True)
            if self._stop.is_set():
                return self._end(policy.STOPPED)
            client = ClaudeSDKClient(options_of(self.order, self.files, self.stderr.append))
            try:
                await client.connect()
                await self._remember_process(client)
                await client.query(self.order.prompt)
                return await self._listen(client, started)
            finally:
                await _quietly(client.disconnect())

    async def _remember_process(self, client: ClaudeSDKClient) -> None:
        pid = (await client.get_server_info() or {}).get("pid")
        if isinstance(pid, int):
            cli_process.record_process(self.files, pid, self.order.life)

    async def _listen(self, client: ClaudeSDKClient, started: Any) -> Ending:
        """Take messages until the turn's result, a decision to stop, or silence."""
        messages = client.receive_response()
        stopped = asyncio.ensure_future(self._stop.wait())
        try:
            while True:
                coming = asyncio.ensure_future(anext(messages, None))
                done, _ = await asyncio.wait({coming, stopped}, timeout=self._patience(),
                                             return_when=asyncio.FIRST_COMPLETED)
                if coming not in done:
                    coming.cancel()
                    await _quietly(asyncio.wait_for(client.interrupt(), 2))
                    return self._end(policy.STOPPED) if done else self._end(
                        why.HANG, f"nothing was heard for {self._patience():.0f} s")
                message = coming.result()
                started.set()
                ending = self._end(why.CRASH, "the CLI ended without a result") if message is None \
                    else self._take(message)
                if ending is not None:
                    if not isinstance(message, ResultMessage):
                        await _quietly(asyncio.wait_for(client.interrupt(), 2))
                    return ending
        finally:
            stopped.cancel()

    def _patience(self) -> float:
        return self.settings.stale + (_TOOL_LIMIT if self._tools else 0.0)

    # one message

    def _take(self, message: Any) -> Ending | None:
        """Keep a message; the ending if it is one."""
        if isinstance(message, StreamEvent):
            return self._partial(message)
        if isinstance(message, AssistantMessage):
            self._assistant(message)
        elif isinstance(message, UserMessage):
            self._user(message)
        elif isinstance(message, RateLimitEvent):
            return self._rate_limit(message)
        elif isinstance(message, ResultMessage):
            return self._result(message)
        elif isinstance(message, SystemMessage):
            return self._system(message)
        return None

    def _assistant(self, message: AssistantMessage) -> None:
        for block in message.content:
            if isinstance(block, TextBlock) and not message.error:
                self.tell({"kind": "text", "text": block.text})
            elif isinstance(block, ThinkingBlock):
                self.tell({"kind": "thinking", "text": block.thinking})
            elif isinstance(block, ToolUseBlock):
                self._tools.add(block.id)
                self.tell({"kind": "tool", "id": block.id, "name": block.name, "input": block.input})
        self._error = message.error or ""
        if message.error or message.model == "<synthetic>":
            return
        self.progress = True
        if message.stop_reason and all(message.message_id != name for name, _, _ in self._answers.values()):
            # Asked again without streaming, after a stream that broke: no event tells the tokens of such an answer.
            self._bill(message.message_id or "", message.model, message.usage or {})

    def _partial(self, message: StreamEvent) -> Ending | None:
        """Put an answer on the bill when it begins, and again when its tokens are known, before its tools run; the
        ending if a limit is reached."""
        event, whose = message.event, message.parent_tool_use_id
        if event.get("type") == "message_start":
            body = event.get("message") or {}
            self._answers[whose] = (str(body.get("id", "")), str(body.get("model", "")), dict(body.get("usage") or {}))
        elif event.get("type") != "message_delta" or whose not in self._answers:
            return None
        name, model, usage = self._answers[whose]
        usage.update({key: value for key, value in (event.get("usage") or {}).items() if value is not None})
        self._bill(name, model, usage)
        over = self.meter.over(_now()[:10]) if event["type"] == "message_delta" else ""
        return self._end(why.BUDGET, over) if over else None

    def _bill(self, name: str, model: str, usage: dict[str, Any]) -> None:
        budget.append(self.files.usage, budget.call(self.order.session, _now(), name, model, usage, self._began))

    def _user(self, message: UserMessage) -> None:
        for block in message.content if isinstance(message.content, list) else []:
            if isinstance(block, ToolResultBlock):
                self._tools.discard(block.tool_use_id)
                self.tell({"kind": "tool_result", "id": block.tool_use_id, "text": cut(_text_of(block.content)),
                           "error": bool(block.is_error)})

    def _system(self, message: SystemMessage) -> Ending | None:
        data = message.data
        if message.subtype == "init":
            self.tell({"kind": "begin", "session": data.get("session_id", self.order.session),
                       "model": data.get("model", ""), "resumed": self.order.goes_on,
                       "version": data.get("claude_code_version", "")})
        elif message.subtype == "api_retry":
            return self._retry(data)
        return None

    def _retry(self, data: dict[str, Any]) -> Ending | None:
        """The API refused a call and the CLI would try again: some refusals are not waited for."""
        status, delay = data.get("error_status"), float(data.get("retry_delay_ms") or 0) / 1000
        said = str(data.get("error") or "")
        self.tell({"kind": "retry", "status": status, "error": said, "delay": delay, "attempt": data.get("attempt")})
        kind = why.classify(status, said)
        if kind in policy.FOR_A_PERSON:
            return self._end(kind, f"{status or ''} {said}".strip())
        if delay > _LONG_WAIT:
            return self._end(kind, f"{status or ''} {said}".strip(), resets_at=time.time() + delay)
        return None

    def _rate_limit(self, message: RateLimitEvent) -> Ending | None:
        info = message.rate_limit_info
        self.tell({"kind": "limit", "status": info.status, "resets_at": info.resets_at, "type": info.rate_limit_type})
        if info.status == "rejected":
            self._resets_at = float(info.resets_at) if info.resets_at else None
        return None

    def _result(self, message: ResultMessage) -> Ending:
        said = message.result or "; ".join(message.errors or []) or ""
        self.tell({"kind": "result", "subtype": message.subtype, "error": message.is_error, "said": cut(said),
                   "usd": message.total_cost_usd, "turns": message.num_turns, "status": message.api_error_status,
                   "terminal_reason": message.terminal_reason})
        if message.total_cost_usd:
            budget.append(self.files.usage, budget.Call("result", self.order.session, _now(), message.total_cost_usd,
                                                        stretch=self._began))
        if report := read_json(self.files.report):
            return self._reported(report)
        if message.subtype == "error_max_turns":
            return self._end(why.MAX_TURNS, f"after {message.num_turns} turns")
        if message.is_error:
            kind = why.REFUSED if message.stop_reason == "refusal" else why.classify(
                message.api_error_status, said, self._error)
            return self._end(kind, said, resets_at=self._resets_at if kind == why.RATE_LIMIT else None)
        asked, answer = read_json(self.files.question), read_json(self.files.answer)
        if asked and (not answer or answer["id"] != asked["id"]):
            return self._end(policy.QUESTION, asked["text"])
        return self._end(policy.SILENT, "it ended its turn without report_result")

    # endings

    def _reported(self, report: dict[str, Any]) -> Ending:
        return Ending(policy.REPORTED, time.time(), _clean(report["summary"]).strip()[:2000],
                      report["status"] in LANDS, None, self.progress)

    def _end(self, kind: str, reason: str = "", *, success: bool = False, resets_at: float | None = None) -> Ending:
        report = read_json(self.files.report)
        if report and not self._tools and kind not in (policy.STOPPED, why.CRASH):
            return self._reported(report)  # what went wrong after the work was done is no reason to do more of it
        return Ending(kind, time.time(), _clean(reason).strip()[:2000], success, resets_at, self.progress)

    async def _end_of_process(self, error: ProcessError) -> Ending:
        code = error.exit_code or 0
        if code in (-signal.SIGTERM, 128 + signal.SIGTERM):  # whoever stops us sends it to both: ours may come later
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), 0.5)
            if self._stop.is_set():
                return self._end(policy.STOPPED)
        if code in (126, 127):
            return self._end(why.INVALID, f"the CLI cannot be started: {self._said()}")
        if code < 0 or code in (137, 143):
            return self._end(why.CRASH, f"the CLI was killed (exit code {code})")
        return self._end(*_start_failure(f"exit code {code}: {self._said() or error}"))

    def _said(self) -> str:
        return " ".join("".join(self.stderr).split())[-600:]


def _start_failure(said: str) -> tuple[str, str]:
    """The class of a failure of the CLI itself: what it said may name a cause; else it is the CLI that broke."""
    kind = why.classify(None, said)
    return (kind if kind != why.SERVER else why.CRASH), said


def options_of(order: Order, files: ClaudeFiles, stderr: Any) -> ClaudeAgentOptions:
    """The SDK's options for an order."""
    settings = order.settings
    # Typed as the SDK's own only at run time: the values were checked when the settings were read, the store is tested.
    choices: dict[str, Any] = {"permission_mode": settings.permission_mode, "effort": settings.effort,
                               "session_store": Mirror(files.transcripts)}
    return ClaudeAgentOptions(
        cwd=order.tree, setting_sources=[], strict_mcp_config=True, tools=list(settings.tools),
        allowed_tools=[*settings.tools, *tools.names(order.part)],
        mcp_servers={tools.SERVER: tools.server(order.part, files, order.attempt_folder / "notes.txt")},
        system_prompt={"type": "preset", "preset": "claude_code", "append": order.system},
        model=settings.model, fallback_model=settings.fallback_model, max_turns=settings.max_turns,
        session_id=None if order.goes_on else order.session, resume=order.session if order.goes_on else None,
        cli_path=str(cli_process.WRAPPER), max_buffer_size=32 * 1024 * 1024, include_partial_messages=True,
        stderr=stderr, session_store_flush="eager",
        env=cli_process.cli_environment(Path(order.home), settings), **choices)


def _text_of(content: str | list[dict[str, Any]] | None) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text", f"[{part.get('type')}]")) for part in content)
    return content or ""


def _clean(text: str) -> str:
    """Without escape sequences and control characters: what a model says must not steer the terminal."""
    return "\n".join(clean_lines(text))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


async def _quietly(work: Any) -> None:
    with contextlib.suppress(ClaudeSDKError, TimeoutError, OSError):
        await work


def main(argv: list[str] | None = None) -> int:
    """Do what the order says; exit 0 once the ending is on disk."""
    path = Path((sys.argv[1:] if argv is None else argv)[0])
    die_with_parent()
    order = from_json(read_json(path))
    stretch = Stretch(order)
    ending = asyncio.run(stretch.run())
    append_line(stretch.files.endings, vars(ending))
    return 0


if __name__ == "__main__":
    sys.exit(main())
