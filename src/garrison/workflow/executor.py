"""`WorkflowExecutor`: compile a workflow to a pipeline graph and run its steps; results are journaled first.

The graph has `flow=dag` and one `tool` node per step. Nodes are named s1, s2, … in the workflow's order, since a step
may have any name; the label is the step's name. How a step ends:

    result                        kept in the run's context; the steps that wait for it start
    failure, attempts left        the engine retries with backoff
    failure, not critical         recorded as an error; steps that refer to it are skipped, the others continue
    failure, critical             the step stays in flight and the run is suspended: running steps end, no other starts,
                                  and a resume continues at this step
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from garrison.errors import GarrisonError
from garrison.pipeline.graph import Edge, Graph, Node
from garrison.pipeline.handlers.call import Call, Waiting
from garrison.pipeline.outcome import DETERMINISTIC, FAIL, SKIPPED, SUCCESS, Outcome, RunResult
from garrison.values import Value, asdict, replace
from garrison.workflow import validation
from garrison.workflow.errors import (
    NOT_RESUMABLE,
    MissingReference,
    ToolNotFoundError,
    UnavailableResult,
    WorkflowExecutionError,
)
from garrison.workflow.models import StepStatus, Workflow, WorkflowResult, WorkflowState, WorkflowStep
from garrison.workflow.references import ENVIRONMENT, INPUTS, resolve
from garrison.workflow.state_manager import StateManager
from garrison.workflow.tool_call import ToolCaller, advice, to_json

Tool = Callable[..., object]
_DETERMINISTIC = (TypeError, AttributeError, NameError, LookupError, ValueError, MissingReference,
                  ToolNotFoundError)
"""Failures that a retry would repeat."""
SNAPSHOT_INTERVAL_S, SNAPSHOT_PAUSE = 0.5, 20
"""Minimum pause between two snapshots of a running session, in seconds, and as a multiple of the last one's duration:
the journal is authoritative, and a workflow of a thousand steps must not spend its time on snapshots."""
MAX_LOGGED_CALL, MAX_LOGGED_RESULT = 500, 2_000
"""Characters of a call's arguments and of a result in the log."""
MIN_SECRET = 4
"""Characters from which a variable's value is replaced in the log."""
_FINISHED = frozenset({StepStatus.COMPLETED, StepStatus.FAILED, StepStatus.SKIPPED})


class Progress(Value):
    """A step started or ended: `done` of `total` steps have finished."""

    step: str
    status: StepStatus
    elapsed: float
    """Seconds; 0 when the step starts."""
    done: int
    total: int
    error: str = ""

    def to_data(self) -> dict[str, object]:
        return {**asdict(self), "status": self.status.value, "elapsed": round(self.elapsed, 3)}


class WorkflowExecutor:
    """Execute workflows with the given tools; `on_progress` is called for each step."""

    def __init__(self, tools: Mapping[str, Tool], state_manager: StateManager | None = None,
                 logger: logging.Logger | None = None, *, max_retries: int | None = None,
                 on_progress: Callable[[Progress], None] | None = None,
                 resume_call: Callable[[str], str] = "garrison resume {}".format) -> None:
        self.tools, self.state_manager, self.resume_call = tools, state_manager, resume_call
        self.logger = logger or logging.getLogger(__name__)
        self._max_retries, self._on_progress = max_retries, on_progress

    async def execute(self, workflow: Workflow, state: WorkflowState, *, resume: bool = False) -> WorkflowResult:
        """Run a session from the start, or with `resume` the rest of its run; never raises for a step's failure.

        WorkflowValidationError or ToolNotFoundError is raised before anything runs.
        """
        dependencies = validation.validate(workflow, self.tools, os.environ)
        session = _Execution(self, workflow, state, dependencies)
        return await session.run(resume=resume)


class _Execution:
    """Execution of a session in this process."""

    def __init__(self, executor: WorkflowExecutor, workflow: Workflow, state: WorkflowState,
                 dependencies: dict[str, list[str]]) -> None:
        self.executor, self.workflow, self.state, self.dependencies = executor, workflow, state, dependencies
        self.steps = {node_id(index): step for index, step in enumerate(workflow.steps)}
        self.caller = ToolCaller()
        self.halted, self.not_resumable = "", False
        self.failed: dict[str, str] = {}
        self._first = 0
        """Index of the first unfinished step."""
        self._finished = 0
        """Number of finished steps, counted as they end: a workflow of a thousand steps reads it a thousand times."""
        self._next_save, self._restored = 0.0, False
        self._variables = _EnvironmentNames()

    async def run(self, *, resume: bool) -> WorkflowResult:
        from garrison.pipeline.engine import run_async

        manager = self.executor.state_manager
        folder = manager.run_dir(self.state.session_id) if manager is not None else None
        resume = resume and folder is not None and (folder / "journal.jsonl").exists()
        self.state.status = "running"
        self.state.workflow = self.workflow
        self._save()
        graph = compile_workflow(self._cap_retries(), self.dependencies)
        try:
            result = await run_async(graph, handlers={"tool": self.step}, run_dir=folder, resume=resume,
                                     seed=self.state.session_id)
        except asyncio.CancelledError:
            self.state.status = "interrupted"
            self._save()
            raise
        except GarrisonError as error:
            raise WorkflowExecutionError(f"workflow {self.workflow.name!r} could not be run: {error}") from error
        return self._result(result)

    def _retries(self, step: WorkflowStep) -> int:
        limit = self.executor._max_retries
        return step.retry_count if limit is None else min(step.retry_count, limit)

    def _cap_retries(self) -> Workflow:
        return replace(self.workflow, steps=[
            replace(step, retry_count=self._retries(step)) for step in self.workflow.steps])

    def _result(self, result: RunResult) -> WorkflowResult:
        self._restore(result.context, result.node_outcomes)
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
            message = f"{what}; " + ("correct the workflow, then run it again" if self.not_resumable else
                                     f"continue with `{self.executor.resume_call(self.state.session_id)}`")
        known = self.state.step_status
        statuses = {step.name: known[step.name] for step in self.workflow.steps if step.name in known}
        return WorkflowResult(success, dict(self.state.step_results), list(self.state.errors), message,
                              self.state.session_id, statuses, list(self.state.suggestions))

    # ---- one step

    async def step(self, call: Call) -> Outcome | Waiting:
        """Call the step's tool (the engine's handler)."""
        step = self.steps[call.node.id]
        if self.halted:
            return Waiting(f"{step.name} was not started: {self.halted} failed")
        if not self._restored:
            self._restore(call.context, {})
        self.state.attempts[step.name] = max(self.state.attempts.get(step.name, 0) + 1, call.place.attempt)
        self._report(step, StepStatus.RUNNING, 0.0)
        started = time.monotonic()
        try:
            result = await self._call_tool(step, call.context)
        except UnavailableResult as error:
            self._report(step, StepStatus.SKIPPED, 0.0, str(error))
            return Outcome(SKIPPED, notes=str(error), context_updates={f"lost.{step.name}": "was skipped"})
        except Exception as error:  # a tool is the user's code
            return self._fail(step, call.place.attempt, error, time.monotonic() - started)
        self._complete(step, result, time.monotonic() - started)
        return Outcome(SUCCESS, context_updates={f"step.{step.name}": result})

    async def _call_tool(self, step: WorkflowStep, context: Mapping[str, object]) -> object:
        needed = self.dependencies[step.name]
        results = {name: context[f"step.{name}"] for name in needed if f"step.{name}" in context}
        unavailable = {name: str(context[f"lost.{name}"]) for name in needed if f"lost.{name}" in context}
        values = {ENVIRONMENT: os.environ, INPUTS: self.workflow.inputs, **results}
        arguments: Any = resolve(step.arguments, values, unavailable)
        tool = self.executor.tools[step.tool]
        shown = resolve(step.arguments, {**values, ENVIRONMENT: self._variables}, unavailable)
        self.executor.logger.info("call %s: %s(%s)", step.name, step.tool, self._shown(shown, MAX_LOGGED_CALL))
        return to_json(await self.caller.call(tool, arguments, step.timeout), step.tool)

    def _fail(self, step: WorkflowStep, attempt: int, error: Exception, elapsed: float) -> Outcome | Waiting:
        message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        # A failing service answers with a page instead of JSON, and with JSON again when it has recovered.
        deterministic = isinstance(error, _DETERMINISTIC) and not isinstance(error, json.JSONDecodeError)
        if attempt <= self._retries(step) and not deterministic:
            self.executor.logger.warning("step %s, attempt %d: %s", step.name, attempt, message)
            self._report(step, StepStatus.RUNNING, elapsed, message)
            return Outcome(FAIL, failure_reason=message, failure_class="error")
        self._forget_errors(step)
        self.state.errors.append(f"Step '{step.name}' failed: {message}")
        self.state.suggestions.append(f"{step.name}: {advice(error, step.tool, step.timeout)}")
        self.state.failed_steps.append(step.name)
        self.failed[step.name] = message
        # Waiting, not failed: a failure would be an outcome in the journal, and a resume would not call the tool again.
        if step.critical:
            self.halted = self.halted or step.name
            self.not_resumable = self.not_resumable or isinstance(error, NOT_RESUMABLE)
            self._report(step, StepStatus.FAILED, elapsed, message)
            return Waiting(f"critical step {step.name} failed: {message}", "fix the cause, then resume")
        self.state.step_results[step.name] = {"error": message}
        self._report(step, StepStatus.FAILED, elapsed, message)
        return Outcome(FAIL, failure_reason=message, failure_class=DETERMINISTIC,
                       context_updates={f"lost.{step.name}": f"failed: {message}"})

    def _shown(self, value: object, limit: int) -> str:
        """Return a value for the log: shortened, with names instead of the variables' values in it."""
        text = json.dumps(value, ensure_ascii=False, default=str)
        for name in self._variables.used:
            secret = os.environ.get(name, "")
            if len(secret) >= MIN_SECRET:
                text = text.replace(json.dumps(secret, ensure_ascii=False)[1:-1], f"${{{ENVIRONMENT}.{name}}}")
        return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"

    def _complete(self, step: WorkflowStep, result: object, elapsed: float) -> None:
        self.state.step_results[step.name] = result
        self._forget_errors(step)
        if step.name not in self.state.completed_steps:
            self.state.completed_steps.append(step.name)
        self._report(step, StepStatus.COMPLETED, elapsed, shown=self._shown(result, MAX_LOGGED_RESULT))

    def _forget_errors(self, step: WorkflowStep) -> None:
        """Remove the errors that an earlier execution of the session recorded for the step."""
        state = self.state
        state.failed_steps += [""] * (len(state.errors) - len(state.failed_steps))
        kept = [at for at, name in enumerate(state.failed_steps) if name != step.name]
        for lines in (state.errors, state.suggestions, state.failed_steps):
            lines[:] = [lines[at] for at in kept if at < len(lines)]

    # ---- progress and snapshots

    def _restore(self, context: Mapping[str, object], outcomes: Mapping[str, Outcome]) -> None:
        """Apply results recorded by another process, so that the snapshot is complete."""
        self._restored = True
        for node, step in self.steps.items():
            if f"step.{step.name}" in context:
                self.state.step_results[step.name] = context[f"step.{step.name}"]
                self.state.step_status[step.name] = StepStatus.COMPLETED
                if step.name not in self.state.completed_steps:
                    self.state.completed_steps.append(step.name)
            elif node in outcomes and f"lost.{step.name}" in context:
                skipped = outcomes[node].status == SKIPPED
                self.state.step_status[step.name] = StepStatus.SKIPPED if skipped else StepStatus.FAILED
        self._finished = sum(status in _FINISHED for status in self.state.step_status.values())

    def _report(self, step: WorkflowStep, status: StepStatus, elapsed: float, error: str = "",
                shown: str = "") -> None:
        self._finished += (status in _FINISHED) - (self.state.step_status.get(step.name) in _FINISHED)
        self.state.step_status[step.name] = status
        done = self._finished
        steps, index = self.workflow.steps, self._first
        while index < len(steps) and not self._is_unfinished(steps[index]):
            index += 1
        self._first = self.state.current_step = index
        if status is not StepStatus.RUNNING:  # the log has its call
            level = logging.ERROR if status is StepStatus.FAILED else logging.INFO
            self.executor.logger.log(level, "step %s %s after %.2f s (%d of %d)%s", step.name, status.value, elapsed,
                                     done, len(self.workflow.steps), f": {error or shown}" if error or shown else "")
            self._save(if_due=status is not StepStatus.FAILED)
        if self.executor._on_progress is not None:
            self.executor._on_progress(Progress(step.name, status, elapsed, done, len(self.workflow.steps), error))

    def _is_unfinished(self, step: WorkflowStep) -> bool:
        status = self.state.step_status.get(step.name)
        return status not in _FINISHED or (status is StepStatus.FAILED and step.critical)

    def _save(self, *, if_due: bool = False) -> None:
        """Write the snapshot; with `if_due` only if the last one was long enough ago."""
        started = time.monotonic()
        if self.executor.state_manager is None or (if_due and started < self._next_save):
            return
        # A snapshot between two steps may be lost in a power cut: the journal, which is synced, has the result.
        self.executor.state_manager.write(self.state, named=not if_due)
        self._next_save = time.monotonic() + max(SNAPSHOT_INTERVAL_S, SNAPSHOT_PAUSE * (time.monotonic() - started))


class _EnvironmentNames(dict[str, str]):
    """Environment for the log: names instead of values, which may be secrets; `used`: the names that were read."""

    def __init__(self) -> None:
        super().__init__()
        self.used: set[str] = set()

    def __contains__(self, name: object) -> bool:
        return True

    def __getitem__(self, name: str) -> str:
        self.used.add(name)
        return f"${{{ENVIRONMENT}.{name}}}"


START, EXIT, COMMAND = "start", "done", "workflow step"


def node_id(index: int) -> str:
    """Return the node of a step by its index, from 0."""
    return f"s{index + 1}"


def compile_workflow(workflow: Workflow, dependencies: Mapping[str, list[str]]) -> Graph:
    """Return the graph of a workflow; `dependencies` as `validation.dependencies` returns it. Retries are the
    engine's; failures of non-critical steps do not stop the run.
    """
    ids = {step.name: node_id(index) for index, step in enumerate(workflow.steps)}
    nodes = {START: Node(START, {"shape": "Mdiamond"}), EXIT: Node(EXIT, {"shape": "Msquare"})}
    edges = []
    for step in workflow.steps:
        attrs = {"shape": "parallelogram", "label": step.name, "tool_command": COMMAND,
                 "max_retries": str(step.retry_count)}
        if not step.critical:
            attrs["on_error"] = "continue"
        nodes[ids[step.name]] = Node(ids[step.name], attrs)
        edges += [Edge(ids[name], ids[step.name]) for name in dependencies[step.name]] or [Edge(START, ids[step.name])]
    sources = {edge.source for edge in edges}
    edges += [Edge(node, EXIT) for node in ids.values() if node not in sources]
    return Graph("workflow", {"flow": "dag", "max_steps": str(10 * len(nodes) + 100)}, nodes, tuple(edges))
