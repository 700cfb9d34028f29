"""`WorkflowExecutor`: compile a workflow to a pipeline graph and run its steps; results are journaled first.

The graph has `flow=dag` and one `tool` node per step. Nodes are called s1, s2, … in the workflow's order, since a step
may have any name; the label is the step's name. How a step ends:

    result                        kept in the run's context; the steps that wait for it start
    failure, attempts left        the engine retries with backoff
    failure, not critical         recorded as an error; steps that refer to it are skipped, the others continue
    failure, critical             the step stays in flight and the run is suspended: running steps end, no other starts,
                                  and a resume continues at this step
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from garrison.errors import GarrisonError
from garrison.pipeline.graph import Edge, Graph, Node
from garrison.pipeline.outcome import DETERMINISTIC, FAIL, SKIPPED, SUCCESS, Outcome
from garrison.workflow import validation
from garrison.workflow.errors import (
    ANEW,
    LostReference,
    MissingReference,
    ToolNotFoundError,
    WorkflowExecutionError,
    suggestion,
)
from garrison.workflow.models import StepStatus, Workflow, WorkflowResult, WorkflowState, WorkflowStep
from garrison.workflow.references import ENVIRONMENT, INPUTS, resolve
from garrison.workflow.state_manager import StateManager
from garrison.workflow.tool_call import Caller, plain

Tool = Callable[..., Any]
_HOPELESS = (TypeError, AttributeError, NameError, LookupError, ValueError, MissingReference, ToolNotFoundError)
"""Failures that another try would meet again."""
SPARED, CHEAP = 10, 0.002
"""A snapshot that takes longer than so many seconds is written only when ten times as long has passed: it is for people
and programs that look, the journal is the truth, and a workflow of a thousand steps must not spend its time on it."""
_OVER = frozenset({StepStatus.COMPLETED, StepStatus.FAILED, StepStatus.SKIPPED})


@dataclass(frozen=True)
class Progress:
    """A step began or ended: `done` of `total` steps are over."""

    step: str
    status: StepStatus
    elapsed: float
    """Seconds; 0 when it begins."""
    done: int
    total: int
    error: str = ""

    def to_data(self) -> dict[str, Any]:
        """As JSON's shapes."""
        return {**dataclasses.asdict(self), "status": self.status.value, "elapsed": round(self.elapsed, 3)}


class WorkflowExecutor:
    """Executes workflows with the given tools; `on_progress` is told of each step."""

    def __init__(self, tools: Mapping[str, Tool], state_manager: StateManager | None = None,
                 logger: logging.Logger | None = None, *, max_retries: int | None = None,
                 on_progress: Callable[[Progress], None] | None = None) -> None:
        self.tools, self.state_manager = tools, state_manager
        self.logger = logger or logging.getLogger(__name__)
        self._max_retries, self._on_progress = max_retries, on_progress

    async def execute(self, workflow: Workflow, state: WorkflowState, *, resume: bool = False) -> WorkflowResult:
        """Run a session from its beginning, or go on with what its run has not done; never raises for a step's failure.

        WorkflowValidationError or ToolNotFoundError before anything ran.
        """
        waits = validation.validate(workflow, self.tools, os.environ)
        session = _Session(self, workflow, state, waits)
        return await session.run(resume=resume)


class _Session:
    """One execution of a session in this process."""

    def __init__(self, executor: WorkflowExecutor, workflow: Workflow, state: WorkflowState,
                 waits: dict[str, list[str]]) -> None:
        self.executor, self.workflow, self.state, self.waits = executor, workflow, state, waits
        self.steps = {node_id(index): step for index, step in enumerate(workflow.steps)}
        self.caller = Caller()
        self.halted, self.anew = "", False
        self.failed: dict[str, str] = {}
        self._first = 0
        """Index of the first step that is not over."""
        self._over = 0
        """How many are, counted as they end: a workflow of a thousand steps asks a thousand times."""
        self._next_save, self._taken = 0.0, False

    async def run(self, *, resume: bool) -> WorkflowResult:
        from garrison.pipeline.engine import run_async

        kept = self.executor.state_manager
        folder = kept.run_dir(self.state.session_id) if kept is not None else None
        going_on = resume and folder is not None and (folder / "journal.jsonl").exists()
        self.state.status = "running"
        self.state.workflow = self.workflow
        self._save()
        graph = compile_workflow(self._capped(), self.waits)
        try:
            result = await run_async(graph, handlers={"tool": self.step}, run_dir=folder, resume=going_on,
                                     seed=self.state.session_id)
        except asyncio.CancelledError:
            self.state.status = "interrupted"
            self._save()
            raise
        except GarrisonError as error:
            raise WorkflowExecutionError(f"workflow {self.workflow.name!r} could not be run: {error}") from error
        return self._ended(result)

    def _retries(self, step: WorkflowStep) -> int:
        """How often a step is tried again, within the agent's own limit."""
        limit = self.executor._max_retries
        return step.retry_count if limit is None else min(step.retry_count, limit)

    def _capped(self) -> Workflow:
        return dataclasses.replace(self.workflow, steps=[
            dataclasses.replace(step, retry_count=self._retries(step)) for step in self.workflow.steps])

    def _ended(self, result: Any) -> WorkflowResult:
        self._take(result.context, result.node_outcomes)
        success = result.status == "success"
        self.state.status = "completed" if success else "failed"
        self._save()
        if success:
            count = len(self.state.errors)
            message = f"Workflow '{self.workflow.name}' completed successfully" + (
                f", with {count} step{'s' if count > 1 else ''} that failed" if count else "")
        else:
            step = self.halted or next(iter(self.failed), "")
            what = f"Critical step failed: {step}" if step else \
                f"Workflow '{self.workflow.name}' failed: {result.reason or result.detail}"
            message = f"{what}; " + ("correct the workflow, then run it anew" if self.anew else
                                     f"go on with `garrison workflow resume {self.state.session_id}`")
        return WorkflowResult(success, dict(self.state.step_results), list(self.state.errors), message,
                              self.state.session_id, self._statuses(), list(self.state.suggestions))

    def _statuses(self) -> dict[str, StepStatus]:
        """In the workflow's order."""
        known = self.state.step_status
        return {step.name: known[step.name] for step in self.workflow.steps if step.name in known}

    # ---- one step

    async def step(self, call: Any) -> Any:
        """The engine's handler: call the step's tool."""
        from garrison.pipeline.handlers.call import Waiting

        step = self.steps[call.node.id]
        if self.halted:
            return Waiting(f"{step.name} was not begun: {self.halted} failed")
        if not self._taken:
            self._take(call.context, {})
        self.state.attempts[step.name] = max(self.state.attempts.get(step.name, 0) + 1, call.place.attempt)
        self._tell(step, StepStatus.RUNNING, 0.0)
        began = time.monotonic()
        try:
            result = await self._called(step, call.context)
        except LostReference as error:
            self._tell(step, StepStatus.SKIPPED, 0.0, str(error))
            return Outcome(SKIPPED, notes=str(error), context_updates={f"lost.{step.name}": "was skipped"})
        except Exception as error:
            return self._failed(step, call.place.attempt, error, time.monotonic() - began)
        self._done(step, result, time.monotonic() - began)
        return Outcome(SUCCESS, context_updates={f"step.{step.name}": result})

    async def _called(self, step: WorkflowStep, context: Mapping[str, Any]) -> Any:
        before = self.waits[step.name]
        results = {name: context[f"step.{name}"] for name in before if f"step.{name}" in context}
        lost = {name: context[f"lost.{name}"] for name in before if f"lost.{name}" in context}
        known = {ENVIRONMENT: os.environ, INPUTS: self.workflow.inputs, **results}
        arguments = resolve(step.arguments, known, lost)
        tool = self.executor.tools[step.tool]
        shown = resolve(step.arguments, {**known, ENVIRONMENT: _Unsaid()}, lost)
        self.executor.logger.info("call %s: %s(%s)", step.name, step.tool, _short(shown))
        return plain(await self.caller.call(tool, arguments, step.timeout), step.tool)

    def _failed(self, step: WorkflowStep, attempt: int, error: Exception, elapsed: float) -> Any:
        from garrison.pipeline.handlers.call import Waiting

        said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        hopeless = isinstance(error, _HOPELESS) and not isinstance(error, json.JSONDecodeError)
        if attempt <= self._retries(step) and not hopeless:
            self.executor.logger.warning("step %s, try %d: %s", step.name, attempt, said)
            self._tell(step, StepStatus.RUNNING, elapsed, said)
            return Outcome(FAIL, failure_reason=said, failure_class="error")
        self._forget_errors(step)
        self.state.errors.append(f"Step '{step.name}' failed: {said}")
        self.state.suggestions.append(f"{step.name}: {suggestion(error)}")
        self.failed[step.name] = said
        if step.critical:
            self.halted = self.halted or step.name
            self.anew = self.anew or isinstance(error, ANEW)
            self._tell(step, StepStatus.FAILED, elapsed, said)
            return Waiting(f"critical step {step.name} failed: {said}", "mend the cause, then resume")
        self.state.step_results[step.name] = {"error": said}
        self._tell(step, StepStatus.FAILED, elapsed, said)
        return Outcome(FAIL, failure_reason=said, failure_class=DETERMINISTIC,
                       context_updates={f"lost.{step.name}": f"failed: {said}"})

    def _done(self, step: WorkflowStep, result: Any, elapsed: float) -> None:
        self.state.step_results[step.name] = result
        self._forget_errors(step)
        if step.name not in self.state.completed_steps:
            self.state.completed_steps.append(step.name)
        self._tell(step, StepStatus.COMPLETED, elapsed)

    def _forget_errors(self, step: WorkflowStep) -> None:
        """What an earlier execution of the session said of the step."""
        self.state.errors = [one for one in self.state.errors if not one.startswith(f"Step '{step.name}' failed: ")]
        self.state.suggestions = [one for one in self.state.suggestions if not one.startswith(f"{step.name}: ")]

    # ---- what is told

    def _take(self, context: Mapping[str, Any], outcomes: Mapping[str, Any]) -> None:
        """Take results in that another process had, so that the snapshot is whole."""
        self._taken = True
        self._take_in(context, outcomes)
        self._over = sum(one in _OVER for one in self.state.step_status.values())

    def _take_in(self, context: Mapping[str, Any], outcomes: Mapping[str, Any]) -> None:
        for node, step in self.steps.items():
            if f"step.{step.name}" in context:
                self.state.step_results[step.name] = context[f"step.{step.name}"]
                self.state.step_status[step.name] = StepStatus.COMPLETED
                if step.name not in self.state.completed_steps:
                    self.state.completed_steps.append(step.name)
            elif node in outcomes and f"lost.{step.name}" in context:
                skipped = context[f"lost.{step.name}"] == "was skipped"
                self.state.step_status[step.name] = StepStatus.SKIPPED if skipped else StepStatus.FAILED

    def _tell(self, step: WorkflowStep, status: StepStatus, elapsed: float, error: str = "") -> None:
        self._over += (status in _OVER) - (self.state.step_status.get(step.name) in _OVER)
        self.state.step_status[step.name] = status
        done = self._over
        steps, at = self.workflow.steps, self._first
        while at < len(steps) and not self._is_next(steps[at]):
            at += 1
        self._first = self.state.current_step = at
        level = logging.ERROR if status is StepStatus.FAILED else logging.INFO
        self.executor.logger.log(level, "step %s %s after %.2f s (%d of %d)%s", step.name, status.value, elapsed, done,
                                 len(self.workflow.steps), f": {error}" if error else "")
        if status is not StepStatus.RUNNING:
            self._save(soon=status is not StepStatus.FAILED)
        if self.executor._on_progress is not None:
            self.executor._on_progress(Progress(step.name, status, elapsed, done, len(self.workflow.steps), error))

    def _is_next(self, step: WorkflowStep) -> bool:
        status = self.state.step_status.get(step.name)
        return status not in _OVER or (status is StepStatus.FAILED and step.critical)

    def _save(self, *, soon: bool = False) -> None:
        """Write the snapshot; with `soon` only where that is cheap: what it cost last is spared SPARED times over."""
        began = time.monotonic()
        if self.executor.state_manager is None or (soon and began < self._next_save):
            return
        self.executor.state_manager.write(self.state, named=not soon)
        self._next_save = time.monotonic() + SPARED * (time.monotonic() - began - CHEAP)


class _Unsaid(dict[str, str]):
    """The environment as the log tells it: names, not values, which may be secrets."""

    def __contains__(self, name: object) -> bool:
        return True

    def __getitem__(self, name: str) -> str:
        return f"${{env.{name}}}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 500 else f"{text[:500]}…"


START, EXIT, COMMAND = "start", "done", "workflow step"


def node_id(index: int) -> str:
    """The node of a step by its index, from 0."""
    return f"s{index + 1}"


def compile_workflow(workflow: Workflow, waits: Mapping[str, list[str]]) -> Graph:
    """The graph; `waits` as `validate.dependencies` gives it. Retries are the engine's, failures of non-critical steps
    lead on."""
    ids = {step.name: node_id(index) for index, step in enumerate(workflow.steps)}
    nodes = {START: Node(START, {"shape": "Mdiamond"}), EXIT: Node(EXIT, {"shape": "Msquare"})}
    edges = []
    for step in workflow.steps:
        attrs = {"shape": "parallelogram", "label": step.name, "tool_command": COMMAND,
                 "max_retries": str(step.retry_count)}
        if not step.critical:
            attrs["on_error"] = "continue"
        nodes[ids[step.name]] = Node(ids[step.name], attrs)
        edges += [Edge(ids[one], ids[step.name]) for one in waits[step.name]] or [Edge(START, ids[step.name])]
    leading = {edge.source for edge in edges}
    edges += [Edge(name, EXIT) for name in ids.values() if name not in leading]
    return Graph("workflow", {"flow": "dag", "max_steps": str(10 * len(nodes) + 100)}, nodes, tuple(edges))
