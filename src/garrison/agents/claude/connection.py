"""Connection to Claude: a process that runs one CLI for one prompt of a session and records what happens.

`python -P -m garrison.agents.claude.connection ORDER_FILE`. `conversation.connection` describes a connection; this
module adds what is specific to Claude: transcripts, log-in, the cost of each response, and failures of the CLI.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from garrison.agents.base import NOTES, WORKER
from garrison.agents.claude import cli_process, log_in, transcripts
from garrison.agents.claude.client import (
    ClaudeClient,
    ClaudeSDKError,
    ClaudeSilence,
    Interrupted,
    NoResult,
    ProcessError,
    build_options,
    to_hooks,
    to_permission,
)
from garrison.agents.claude.extensions import EVENTS, cli_settings, tool_of
from garrison.agents.claude.settings import ASK, ConnectionJob
from garrison.agents.conversation import holder, messages, policy, questions, tools
from garrison.agents.conversation.connection import SessionConnection, run_connection
from garrison.agents.conversation.files import AttemptFiles
from garrison.agents.conversation.loop_detector import LoopDetector
from garrison.agents.conversation.messages import FolderInstructions
from garrison.agents.conversation.policy import ConnectionEnd
from garrison.agents.conversation.questions import Permissions
from garrison.agents.conversation.start_watch import StartWatch
from garrison.agents.conversation.stream import Begin, Event, RateLimit, Retry, TokenUsage, TurnSummary, cut
from garrison.agents.conversation.tools import SERVER, SessionReports
from garrison.agents.trouble import OUTAGES, TroubleKind, classify, kind_of_shortfall
from garrison.ends import End
from garrison.records import atomic, costs
from garrison.records.budget import Account, Meter, Shortfall, remaining_turns
from garrison.sandbox.place import EXCHANGE
from garrison.system.stamps import ContentWatch
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from claude_agent_sdk import ClaudeAgentOptions

    from garrison.agents.claude.settings import ClaudeSettings

_SERVER_FAILURES = frozenset(("failed", "needs-auth"))
"""Statuses of an MCP server whose tools are not available."""
_STREAMED = ("kind", "subtype", "error", "said", "usd", "turns", "status", "terminal_reason")
"""Keys of a result in `stream.jsonl`."""


class ClaudeConnection(SessionConnection[ConnectionJob]):
    """One connection to Claude."""

    program = "the CLI"
    failures = (ClaudeSDKError, ClaudeSilence)

    def __init__(self, job: ConnectionJob) -> None:
        settings = job.settings
        super().__init__(job, settings.starts, LoopDetector(
            settings.max_repeats, settings.max_idle if job.role == WORKER else None,
            ContentWatch(Path(job.worktree)).state), cli_process.find_cli(settings))
        self._make_client(settings.max_turns)
        self._account = Account(Meter(Path(job.home), job.run, job.node, settings.limits), self.files.folder,
                                job.session)
        self._turn_end = SessionReports(self.files)
        self._resets_at: float | None = None
        self._config = Path(job.config) if job.config else cli_process.config_folder(Path(job.home))

    @property
    def _answered(self) -> bool:
        return self._client.answered

    @property
    def _is_in_call(self) -> bool:
        return self._client.tool_running

    # ---- start

    def _prepare(self) -> ConnectionEnd | None:
        if ending := self._enter_limits():
            return ending
        if self._prepare_transcript():
            return None
        return self._ending(TroubleKind.UNKNOWN_SESSION, f"there is no transcript of session "
                            f"{self.job.parent_session}, which this one should continue")

    def _enter_limits(self) -> ConnectionEnd | None:
        """Reserve the first call, and limit the client to the turns that the attempt has left; return the ending if a
        limit is reached."""
        most = self.job.settings.max_turns
        turns = remaining_turns(most, self._account.records())
        if turns == 0:
            return self._ending(TroubleKind.MAX_TURNS, f"after {most} turns")
        if turns != most:
            # The limit is an option of the CLI's start; the client created in `__init__` has not started one yet.
            self._make_client(turns)
        return self._short_of(self._account.enter())

    def _make_client(self, turns: int | None) -> None:
        settings = self.job.settings
        self._client = ClaudeClient(options_of(self.job, self.files, turns), stale=settings.stale,
                                    max_response=settings.max_response)

    def _short_of(self, shortfall: Shortfall | None) -> ConnectionEnd | None:
        """Return the ending if the next call may not start."""
        return self._ending(kind_of_shortfall(shortfall), shortfall.reason) if shortfall is not None else None

    def _prepare_transcript(self) -> bool:
        """Restore or fork the transcript that the CLI resumes; False if the parent session has none."""
        job, config = self.job, self._config
        if not job.has_transcript:
            return True
        project = transcripts.project_of(Path(job.start_inside))
        state = transcripts.prepare(config, self.files.transcripts, job.session, project)
        if state != "unknown" or not job.parent_session:
            return True
        forked = transcripts.fork(config, Path(job.attempts), job.parent_session, job.session, project)
        if forked:
            self._note(f"continues session {job.parent_session}")
        return forked

    async def _open(self) -> ConnectionEnd | None:
        settings = self.job.settings
        starts_others = settings.mcp_servers or settings.hooks or settings.plugins or self.job.repository
        await self._client.connect(StartWatch(self._show_trouble, waits_for_helpers=bool(starts_others)))
        pid = await self._client.pid()
        if pid is not None:
            holder.record_process(self.files, cli_process.find_outer_pid(pid), self.job.incarnation)
        return None

    async def _close(self) -> None:
        await self._client.close()
        self._account.release()
        if self.job.config:
            # Once the CLI has ended: it may renew its tokens at any request, including the last.
            why = log_in.take_back(self._config, cli_process.config_folder(Path(self.job.home)))
            if why:
                self._note(f"the log-in that it left is not copied back: {why}")

    # ---- a turn

    async def _turn(self, prompt: str) -> ConnectionEnd:
        """Record the turn's events until its result, or an event that ends it."""
        try:
            async with aclosing(self._client.turn(prompt, self._stop)) as events:
                async for event in events:
                    self._started.set()
                    self._confirm()
                    if ending := self.record(event):
                        return ending
        except Interrupted:
            return self._ending(policy.STOPPED)
        except NoResult as error:
            return self._ending(TroubleKind.CRASH, str(error))
        raise AssertionError("a turn ends with its result")

    def record(self, event: Event) -> ConnectionEnd | None:
        """Record an event in the stream or the usage file; return the ending if it is one."""
        handler = _HANDLERS.get(event["kind"])
        if handler is None:
            self._write(event)
        elif ending := handler(self, event):
            return ending
        reason = self._observe(event)
        return self._goes_round(reason) if reason else None

    def _begin(self, event: Begin) -> None:
        self._write({**event, "session": event["session"] or self.job.session, "resumed": self.job.has_transcript})
        for name, status in event["servers"].items():
            if status in _SERVER_FAILURES:
                self._note(f"the MCP server {name} cannot be used: {status}")

    def _usage(self, event: TokenUsage) -> ConnectionEnd | None:
        """Bill a response when it starts, and again when its tokens are known, before its tools run."""
        shortfall = self._account.pay(event)
        if not event["final"] and self._turn_end.reached:  # the CLI made a request although its turn was ended
            question = questions.unanswered(self.files)
            return self._ending(policy.QUESTION if question else policy.REPORTED, question)
        if event["is_full"] and not self._turn_end.reached:
            return self._ending(TroubleKind.CONTEXT, "the last response has filled its context")
        if event["final"] and not self._shows_repeats:  # the API has answered
            self._show_trouble("")
        return self._short_of(shortfall)

    def _retry(self, event: Retry) -> ConnectionEnd | None:
        """End the turn if waiting is pointless: the user must act, the wait is long, or the outage is known.

        Then a trial is a single call, and agents that had already started wait for it.
        """
        self._write(event)
        self._show_trouble(f"the API answered {event['status'] or event['error'] or 'nothing'}; it tries again "
                           f"(attempt {event['attempt']})")
        told = policy.failure_in(event, self._client.last_error)
        assert told is not None
        ending = self._ending(told.kind, told.reason, resets_at=time.time() + told.wait)
        wait = (ending.resets_at or 0.0) - time.time()
        is_known = ending.kind in OUTAGES and any(Path(name).exists() for name in self.job.outages)
        # The CLI's report and the API's own answer, if the proxy has seen one, may differ: either may require the user.
        return ending if policy.ends_turn(told.kind) or policy.ends_turn(ending.kind, wait) or is_known else None

    def _rate_limit(self, event: RateLimit) -> None:
        self._write(event)
        costs.note_window(self.files.folder, event["type"] or "", event["used"], event["resets_at"], event["status"])
        if event["status"] == "rejected":
            self._resets_at = float(event["resets_at"]) if event["resets_at"] else None

    def _result(self, event: TurnSummary) -> ConnectionEnd:
        self._write({key: event[key] for key in _STREAMED} | {"said": cut(event["said"])})  # type: ignore[literal-required]
        self._account.record(event)
        return self._turn_ended(event["said"], self._failure(event))

    def _failure(self, event: TurnSummary) -> ConnectionEnd | None:
        """Return the ending of a turn that has failed."""
        if (told := policy.failure_in(event, self._client.last_error)) is None:
            return None
        return self._ending(told.kind, told.reason,
                            resets_at=self._resets_at if told.kind == TroubleKind.RATE_LIMIT else None)

    # ---- failures

    async def _failed(self, error: Exception) -> ConnectionEnd:
        said = self._client.stderr
        if isinstance(error, ClaudeSilence):
            return self._ending(TroubleKind.HANG, f"{error} {said}".strip())
        kind = classify(None, f"{error} {said}")
        kind = kind if kind != TroubleKind.SERVER else TroubleKind.CRASH  # without a known cause it counts as a crash
        if isinstance(error, ProcessError):
            return await self._program_ended(End(error.exit_code or 0), said or str(error), kind)
        return self._ending(kind, f"{error} {said}")


_HANDLERS: Mapping[str, Callable[[ClaudeConnection, Any], ConnectionEnd | None]] = {
    "begin": ClaudeConnection._begin, "usage": ClaudeConnection._usage, "retry": ClaudeConnection._retry,
    "limit": ClaudeConnection._rate_limit, "result": ClaudeConnection._result}
"""Event → its handler; other events are only recorded."""


def options_of(job: ConnectionJob, files: AttemptFiles, turns: int | None) -> ClaudeAgentOptions:
    """Return the SDK's options for a job; `turns` limits the connection's."""
    settings, turn_end = job.settings, SessionReports(files)
    folders = FolderInstructions(job.inside or job.worktree, job.folders)
    config = {"CLAUDE_CONFIG_DIR": job.config} if job.config else {}
    asks = settings.permission_mode == ASK
    return build_options(
        cwd=job.start, environment={**cli_process.cli_environment(settings, Path(job.home)), **config},
        functions=tools.tools_of(job.role, files, job.attempt_folder / EXCHANGE / NOTES, settings.output_schema),
        server=tools.SERVER,
        system_prompt={"type": "preset", "preset": "claude_code", "append": job.system_prompt}, model=settings.model,
        fallback_model=settings.fallback_model, max_turns=turns, effort=settings.effort,
        permission_mode="default" if asks else settings.permission_mode,
        can_use_tool=to_permission(Permissions(files).refuse) if asks else None,
        hooks=to_hooks(turn_end.refuse, turn_end.end_after, lambda arguments: "\n\n".join(
            filter(None, (messages.take(files), folders.enter(arguments))))),
        **extension_options(settings, job.config, job.repository),
        session_id=None if job.has_transcript else job.session,
        resume=job.session if job.has_transcript else None,
        # After each entry, not at the end of the turn: a kill in mid-turn must not lose the whole turn.
        session_store=transcripts.Mirror(files.transcripts), session_store_flush="eager",
        # Reports the tokens of a response when it starts, and all before its tools run: a kill loses at most one.
        include_partial_messages=True)


def main(argv: list[str] | None = None) -> int:
    """Run the connection of a job; exit 0 once its ending is on disk."""
    return run_connection(ClaudeConnection, ConnectionJob, argv)


# ---- extension options -----------------------------------------------------------------------------------------------

# Extensions of a session as options of the SDK: tools, servers, subagents, skills, plugins, hooks, thinking.


SKILLS = "garrison"
"""Name of the plugin that contains the skills of the settings."""


def extension_options(settings: ClaudeSettings, config: str, repository: Mapping[str, str]) -> dict[str, Any]:
    """Return the options; the skills become a plugin in the CLI's configuration folder `config`.

    Args:
        repository: the repository's own settings, if the profile uses them; the profile's take precedence.
    """
    shared = repository_options(repository, config)
    more = [*(["Agent"] if settings.subagents or shared.plugins else []),
            *(["Skill"] if settings.skills or shared.plugins else [])]
    names = list(dict.fromkeys(tool_of(pattern) for pattern in (*settings.tools, *more)))
    servers = {**shared.servers, **{name: dict(server) for name, server in settings.mcp_servers.items()}}
    may = settings.allowed_tools or (*settings.tools, *(f"mcp__{name}" for name in servers))
    own = cli_settings(settings.hooks, attribution=settings.attribution, more=shared.hooks)
    skills = [link_skills(Path(config), settings.skills)] if settings.skills else []
    plugins = [*shared.plugins, *settings.plugins, *skills]
    return {
        "tools": [name for name in names if not name.startswith("mcp__")], "allowed": [*may, *more, *shared.allowed],
        "disallowed_tools": [*settings.disallowed_tools, *shared.denied], "servers": servers,
        "agents": settings.subagents,
        "plugins": [{"type": "local", "path": path} for path in plugins], "add_dirs": list(settings.add_dirs),
        "betas": list(settings.betas), "thinking": _thinking(settings.thinking),
        "settings": json.dumps(own) if own else None}


class RepositoryOptions(Value):
    """What a repository's own `.claude/` and `.mcp.json` add."""

    servers: Mapping[str, object] = msgspec.field(default_factory=dict)
    hooks: Mapping[str, list[object]] = msgspec.field(default_factory=dict)
    allowed: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()


def repository_options(files: Mapping[str, str], config: str) -> RepositoryOptions:
    """Return what a repository's settings add; unreadable ones add nothing.

    Variables (`env`) are left out: they could make the CLI bypass its proxy. Skills, commands and subagents become a
    plugin in the folder `config`.
    """
    if not files:
        return RepositoryOptions()
    servers, own = (_table(files.get(name, "")) for name in (".mcp.json", ".claude/settings.json"))
    rules, hooks = _dict(own.get("permissions")), _dict(own.get("hooks"))
    parts = {name.removeprefix(".claude/"): text for name, text in files.items() if name.count("/") > 1}
    plugin = _make_plugin(Path(config) / "repository", "repository", "The repository's own")
    for name, text in parts.items():
        atomic.make_directory((plugin / name).parent)
        (plugin / name).write_text(text)
    return RepositoryOptions(
        {name: table for name, table in _dict(servers.get("mcpServers")).items()
         if isinstance(table, dict) and name != SERVER},
        {event: matchers for event, matchers in hooks.items() if event in EVENTS and isinstance(matchers, list)},
        _words(rules.get("allow")), _words(rules.get("deny")), (str(plugin),) if parts else ())


def _table(text: str) -> dict[str, object]:
    try:
        return _dict(json.loads(text))
    except ValueError:
        return {}


def _dict(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _words(value: object) -> tuple[str, ...]:
    return tuple(word for word in value if isinstance(word, str)) if isinstance(value, list) else ()


def link_skills(config: Path, skills: tuple[str, ...]) -> str:
    """Create a plugin from folders with skills; return its folder."""
    plugin = _make_plugin(config / "garrison-skills", SKILLS, "Skills of this agent")
    for skill in map(Path, skills):  # copied: a sandbox does not have the original
        shutil.copytree(skill, plugin / "skills" / skill.name)
    return str(plugin)


def _make_plugin(folder: Path, name: str, description: str) -> Path:
    """Recreate the folder of a plugin, with only its manifest."""
    shutil.rmtree(folder, ignore_errors=True)
    manifest = atomic.make_directory(folder / ".claude-plugin") / "plugin.json"
    manifest.write_text(json.dumps({"name": name, "version": "1.0.0", "description": description}))
    return folder


def _thinking(wanted: str | int | None) -> dict[str, object] | None:
    if wanted is None:
        return None
    return {"type": "enabled", "budget_tokens": wanted} if isinstance(wanted, int) else {"type": wanted}


if __name__ == "__main__":
    sys.exit(main())
