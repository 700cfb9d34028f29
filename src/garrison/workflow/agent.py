"""`WorkflowAgent`, which the seed calls `ResearchAgent`: sessions that are begun, kept, resumed and cleaned up."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from garrison.errors import AlreadyAlive, GarrisonError
from garrison.records import atomic, log_retention
from garrison.workflow.errors import StateLoadError, WorkflowExecutionError, WorkflowValidationError
from garrison.workflow.executor import Progress, Tool, WorkflowExecutor
from garrison.workflow.models import Workflow, WorkflowResult, WorkflowState, check_types
from garrison.workflow.state_manager import StateManager
from garrison.workflow.validation import check_same


@dataclass
class AgentConfig:
    """How an agent works. `max_retries` is the most that any step may retry, `timeout_seconds` what a whole session may
    take; `state_dir` defaults to `workflows` of the garrison's home."""

    max_retries: int = 3
    timeout_seconds: float = 300.0
    enable_checkpoints: bool = True
    log_level: str = "INFO"
    state_dir: str | None = None


class WorkflowAgent:
    """Executes workflows with `tools` (name → callable, async or not)."""

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
        """Run a workflow; with the id of a session that is there, go on with that one.

        A critical failure is a result with `success=False`. WorkflowValidationError and ToolNotFoundError come before
        anything ran, WorkflowExecutionError if it could not be run at all. A session that ended well is cleaned up.
        """
        check_types(workflow)
        session_id = session_id or self._generate_session_id()
        state = await self.state_manager.load_state(session_id)
        resume = state is not None
        if state is not None:
            check_same(workflow, state)
        else:
            state = WorkflowState(session_id, workflow)
        with self._held(session_id), self._logger(session_id) as logger:
            return await self._executed(workflow, state, logger, resume=resume)

    async def resume_workflow(self, session_id: str) -> WorkflowResult:
        """Go on with an interrupted or failed session; StateLoadError if there is none."""
        state = await self.state_manager.load_state(session_id)
        if state is None or state.workflow is None:
            raise StateLoadError(f"no session {session_id}; `garrison workflow list` shows those that can be resumed")
        return await self.execute_workflow(state.workflow, session_id)

    async def list_sessions(self) -> list[dict[str, Any]]:
        """The sessions that can be resumed, the latest first."""
        return await self.state_manager.list_sessions()

    async def _executed(self, workflow: Workflow, state: WorkflowState, logger: logging.Logger, *,
                        resume: bool) -> WorkflowResult:
        logger.info("%s workflow %s (session %s)", "resuming" if resume else "starting", workflow.name,
                    state.session_id)
        if not resume:  # what a cleaning-up that was killed left of an earlier session of this id
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
                                  f"go on with `garrison workflow resume {state.session_id}`", state.session_id,
                                  dict(state.step_status), ["raise timeout_seconds, or split the workflow"])
        except GarrisonError as error:
            logger.warning("%s", error)
            raise
        logger.info("%s", result.message)
        if result.success and not self.keep:
            await self.state_manager.cleanup_state(state.session_id)
        return result

    @property
    def executor(self) -> WorkflowExecutor:
        """What executes this agent's workflows, for whoever has a state of their own."""
        return self._executor(self.logger)

    def _executor(self, logger: logging.Logger | None) -> WorkflowExecutor:
        kept = self.state_manager if self.config.enable_checkpoints else None
        return WorkflowExecutor(self.tools, kept, logger, max_retries=max(0, self.config.max_retries),
                                on_progress=self._on_progress)

    def _generate_session_id(self) -> str:
        return f"{datetime.now(UTC):%Y%m%d_%H%M%S}_{secrets.token_hex(4)}"

    @contextmanager
    def _held(self, session_id: str) -> Iterator[None]:
        """One process a session: AlreadyAlive if another has it."""
        path = self.state_manager.path(session_id).with_suffix(".lock")
        atomic.make_directory(path.parent)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise AlreadyAlive(f"session {session_id} is at work in another process; wait for it") from error
            try:
                yield
            finally:
                if not self.state_manager.path(session_id).exists():
                    path.unlink(missing_ok=True)
        finally:
            os.close(descriptor)

    @contextmanager
    def _logger(self, session_id: str) -> Iterator[logging.Logger]:
        """The caller's logger, and the session's file with every call."""
        logger = logging.getLogger(f"garrison.workflow.{session_id}")
        level = self.config.log_level
        try:
            logger.setLevel(level.upper() if isinstance(level, str) else level)
        except (ValueError, TypeError) as error:
            raise WorkflowValidationError(f"log_level={level!r:.40} is none; use DEBUG, INFO, WARNING or "
                                          "ERROR") from error
        handler = _Lines(self.state_manager.log(session_id), self.logger)
        logger.addHandler(handler)
        logger.propagate = False
        try:
            yield logger
        finally:
            logger.removeHandler(handler)
            handler.close()


class _Lines(logging.Handler):
    """Appends lines to the session's log, and hands each on to the caller's logger."""

    def __init__(self, path: Path, further: logging.Logger | None) -> None:
        super().__init__()
        atomic.make_directory(path.parent)
        log_retention.remove_old_logs(path.parent, [path])
        self._path = path
        self._file = path.open("a", encoding="utf-8", errors="backslashreplace")
        self._further = further

    def emit(self, record: logging.LogRecord) -> None:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = " ".join(record.getMessage().splitlines())
        self._file.write(f"{at} {record.levelname} {line}\n")
        self._file.flush()
        if self._further is not None:
            self._further.handle(record)

    def close(self) -> None:
        self._file.close()
        log_retention.shorten_log(self._path)
        super().close()


ResearchAgent = WorkflowAgent
"""The seed's name."""
