"""`WorkflowAgent` (the seed's `ResearchAgent`): plan, start, resume and clean up workflow sessions."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from garrison.directories import find_home
from garrison.errors import AlreadyAlive, GarrisonError, Refused
from garrison.records import atomic, log_retention
from garrison.records.json_io import extract_object
from garrison.records.life_lock import hold
from garrison.workflow.errors import UnknownSession, WorkflowExecutionError, WorkflowValidationError
from garrison.workflow.executor import Progress, Tool, WorkflowExecutor
from garrison.workflow.models import Workflow, WorkflowResult, WorkflowState, check_types
from garrison.workflow.state_manager import StateManager
from garrison.workflow.validation import check_same, validate

Ask: TypeAlias = Callable[[str], Awaitable[str]]
"""Prompt → the model's answer; its session remembers earlier prompts."""
ATTEMPTS = 3
_OBJECT = re.compile(r"\{.*\}", re.DOTALL)
_FORM = """{"name": "short-name", "description": "...", "inputs": {}, "steps": [{"name": "...", "tool": "...",
"arguments": {}, "critical": true, "timeout": 60, "retry_count": 0, "depends_on": [], "description": "why"}]}"""


def describe_tool(name: str, tool: Any) -> str:
    """Return a tool as one line for the agent: name, parameters, description."""
    schema = getattr(getattr(tool, "listed", None), "input_schema", None)
    takes = inspect.signature(tool) if schema is None else f"({', '.join(schema.get('properties', {}))})"
    return f"- {name}{takes}: {' '.join((tool.__doc__ or '').split())}"


def plan_prompt(command: str, tools: Mapping[str, object]) -> str:
    """Return the prompt that asks for a plan."""
    tool_list = "\n".join(describe_tool(name, tools[name]) for name in tools)
    return ("Break this command into a workflow of tool calls:\n\n"
            f"<command>\n{command}\n</command>\n\nTools:\n{tool_list}\n\n"
            "A step may refer to an earlier step's result anywhere in its arguments: ${STEP.KEY}, ${STEP.LIST[0].KEY}; "
            "a reference alone keeps its type. Independent steps run at the same time. Use only these "
            f"tools, in as few steps as possible. Answer with one JSON object and nothing else:\n{_FORM}")


def retry_prompt(error: str) -> str:
    return f"That is not a valid workflow: {error}\nAnswer again, with only the complete JSON object."


def parse_plan(answer: str, tools: Mapping[str, object]) -> Workflow:
    """Return the workflow in the agent's answer; GarrisonError if it is invalid."""
    match = _OBJECT.search(answer)
    if match is None:
        raise WorkflowValidationError("it contains no JSON object")
    try:
        workflow = Workflow.from_data(extract_object(answer, "steps") or json.loads(match.group(0)))
    except ValueError as error:
        raise WorkflowValidationError(f"it is not valid JSON: {error}") from error
    validate(workflow, tools)
    return workflow


async def make_plan(command: str, tools: Mapping[str, object], ask: Ask) -> Workflow:
    """Return a model's workflow for a command; Refused if no answer is valid."""
    prompt, problem = plan_prompt(command, tools), ""
    for _ in range(ATTEMPTS):
        answer = await ask(prompt)
        try:
            return parse_plan(answer, tools)
        except GarrisonError as error:
            problem = " ".join(str(error).split())
            prompt = retry_prompt(problem)
    raise Refused(f"no valid workflow in {ATTEMPTS} attempts (the last: {problem}); describe the command more "
                  "precisely")


@asynccontextmanager
async def claude_planner(home: Path) -> AsyncIterator[Ask]:
    """Yield a Claude session that plans, with the settings and budgets of a home's config.toml."""
    from garrison.agents.graph import AgentGraph
    from garrison.agents.graph.graph import graph_settings
    from garrison.records.budget import Allowance, Purse

    settings, metadata = graph_settings(home)
    purse = Purse(home, "plan", "workflow", Allowance(task=settings.budget, home_day=settings.budget_day))
    async with AgentGraph("planner", purse=purse) as graph:
        purse.begin()
        node = await graph.add_node("planner", "You turn commands into workflows of tool calls.", settings.model,
                                    **metadata)
        yield partial(graph.sessions.ask, node)


@dataclass
class AgentConfig:
    """Settings of an agent. `max_retries` caps the retries of every step, `timeout_seconds` the time of a whole
    session; `state_dir` defaults to `workflows` in garrison's home.
    """

    max_retries: int = 3
    timeout_seconds: float = 300.0
    enable_checkpoints: bool = True
    log_level: str = "INFO"
    state_dir: str | None = None


class WorkflowAgent:
    """Execute workflows with `tools` (name → callable, async or not)."""

    def __init__(self, tools: Mapping[str, Tool], config: AgentConfig | None = None,
                 state_manager: StateManager | None = None, logger: logging.Logger | None = None, *,
                 on_progress: Callable[[Progress], None] | None = None, keep: bool = False) -> None:
        self.tools = tools
        self.config = config or AgentConfig()
        self.state_manager = state_manager or StateManager(self.config.state_dir)
        self.logger = logger
        self.keep = keep
        self._on_progress = on_progress

    async def execute_workflow(self, workflow: Workflow, session_id: str | None = None) -> WorkflowResult:
        """Run a workflow; with the id of an existing session, continue that session.

        A critical failure is a result with `success=False`. WorkflowValidationError and ToolNotFoundError are raised
        before anything ran, WorkflowExecutionError if the workflow could not be run at all. A successful session is
        cleaned up.
        """
        check_types(workflow)
        session_id = session_id or f"{datetime.now(UTC):%Y%m%d_%H%M%S}_{secrets.token_hex(4)}"
        state = await self.state_manager.load_state(session_id)
        resume = state is not None
        if state is not None:
            check_same(workflow, state)
        else:
            state = WorkflowState(session_id, workflow)
        with self._lock(session_id), self._logger(session_id) as logger:
            return await self._execute(workflow, state, logger, resume=resume)

    async def resume_workflow(self, session_id: str) -> WorkflowResult:
        """Continue an interrupted or failed session; UnknownSession (a ValueError) if there is none."""
        state = await self.state_manager.load_state(session_id)
        if state is None or state.workflow is None:
            shown = "`garrison workflow list` shows" if self._is_in_home else "`list_sessions()` returns"
            raise UnknownSession(f"no session {session_id}; {shown} those that can be resumed")
        return await self.execute_workflow(state.workflow, session_id)

    async def list_sessions(self) -> list[dict[str, Any]]:
        return await self.state_manager.list_sessions()

    async def _execute(self, workflow: Workflow, state: WorkflowState, logger: logging.Logger, *,
                       resume: bool) -> WorkflowResult:
        logger.info("%s workflow %s (session %s)", "resuming" if resume else "starting", workflow.name,
                    state.session_id)
        if not resume:  # a killed clean-up may have left files of an earlier session with this id
            await self.state_manager.cleanup_state(state.session_id)
        executor = self._executor(logger)
        try:
            async with asyncio.timeout(self.config.timeout_seconds) as limit:
                result = await executor.execute(workflow, state, resume=resume)
        except TimeoutError as error:
            if not limit.expired():
                raise WorkflowExecutionError(f"workflow {workflow.name!r} failed: {error}") from error
            return WorkflowResult(False, dict(state.step_results), [*state.errors, "the session took longer than "
                                  f"{self.config.timeout_seconds:g} s"], f"Workflow '{workflow.name}' took too long; "
                                  f"continue with `{self._resume_call(state.session_id)}`", state.session_id,
                                  dict(state.step_status), ["raise timeout_seconds, or split the workflow"])
        except GarrisonError as error:
            logger.warning("%s", error)
            raise
        logger.info("%s", result.message)
        if result.success and not self.keep:
            await self.state_manager.cleanup_state(state.session_id)
        return result

    @property
    def _is_in_home(self) -> bool:
        return self.state_manager.state_dir == StateManager().state_dir

    def _resume_call(self, session_id: str) -> str:
        return f"garrison resume {session_id}" if self._is_in_home else f"resume_workflow('{session_id}')"

    async def plan(self, goal: str, ask: Ask | None = None) -> Workflow:
        """Return a workflow of this agent's tools that reaches the goal; checked, not run.

        Args:
            ask: gets a prompt and returns the model's answer (default: Claude, configured by the home's config.toml).

        Raises:
            Refused: no answer was a valid workflow.
        """
        if ask is not None:
            return await make_plan(goal, self.tools, ask)
        async with claude_planner(find_home(None)) as claude:
            return await make_plan(goal, self.tools, claude)

    @property
    def executor(self) -> WorkflowExecutor:
        return self._executor(self.logger)

    def _executor(self, logger: logging.Logger | None) -> WorkflowExecutor:
        kept = self.state_manager if self.config.enable_checkpoints else None
        return WorkflowExecutor(self.tools, kept, logger, max_retries=max(0, self.config.max_retries),
                                on_progress=self._on_progress, resume_call=self._resume_call)

    @contextmanager
    def _lock(self, session_id: str) -> Iterator[None]:
        """Lock the session for this process; AlreadyAlive if another process has it."""
        path = self.state_manager.path(session_id).with_suffix(".lock")
        atomic.make_directory(path.parent)
        with hold(path) as lock:
            if lock is None:
                raise AlreadyAlive(f"session {session_id} is running in another process; wait for it")
            try:
                yield
            finally:
                # While it is locked: a process that has opened the file finds that its name is gone, and retries.
                if not self.state_manager.path(session_id).exists():
                    path.unlink(missing_ok=True)

    @contextmanager
    def _logger(self, session_id: str) -> Iterator[logging.Logger]:
        """Yield a logger that writes to the session's file and to the caller's logger."""
        logger = logging.getLogger(f"garrison.workflow.{session_id}")
        level = self.config.log_level
        try:
            logger.setLevel(level.upper() if isinstance(level, str) else level)
        except (ValueError, TypeError) as error:
            raise WorkflowValidationError(f"log_level={level!r:.40} is not a log level; use DEBUG, INFO, "
                                          "WARNING or ERROR") from error
        handler = _SessionLog(self.state_manager.log(session_id), self.logger)
        logger.addHandler(handler)
        logger.propagate = False
        try:
            yield logger
        finally:
            logger.removeHandler(handler)
            handler.close()


class _SessionLog(logging.Handler):
    """Append lines to the session's log and pass each on to the caller's logger."""

    def __init__(self, path: Path, forward: logging.Logger | None) -> None:
        super().__init__()
        atomic.make_directory(path.parent)
        log_retention.remove_old_logs(path.parent, [path])
        self._path = path
        self._file = path.open("a", encoding="utf-8", errors="backslashreplace")
        self._forward = forward

    def emit(self, record: logging.LogRecord) -> None:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = " ".join(record.getMessage().splitlines())
        self._file.write(f"{at} {record.levelname} {line}\n")
        self._file.flush()
        if self._forward is not None:
            self._forward.handle(record)

    def close(self) -> None:
        self._file.close()
        log_retention.shorten_log(self._path)
        super().close()


ResearchAgent = WorkflowAgent
"""Name used by the seed."""
