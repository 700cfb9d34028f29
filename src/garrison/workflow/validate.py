"""What a workflow means before it runs: who depends on whom, and what is wrong with it. Pure."""

from __future__ import annotations

from collections.abc import Container, Mapping
from difflib import get_close_matches
from graphlib import CycleError, TopologicalSorter
from typing import Any

from garrison.pipeline.outcome import check_json
from garrison.workflow.errors import ToolNotFoundError, WorkflowValidationError
from garrison.workflow.fitting import misfit
from garrison.workflow.models import Workflow, WorkflowState, WorkflowStep, check_types
from garrison.workflow.references import ENVIRONMENT, INPUTS, references, split, unclosed

MAX_STEPS = 5_000


def dependencies(workflow: Workflow) -> dict[str, list[str]]:
    """Step → the steps it waits for: those it names and those its arguments refer to, in the workflow's order."""
    names = {step.name: place for place, step in enumerate(workflow.steps)}
    found = {}
    for step in workflow.steps:
        wanted = {*step.depends_on, *referred(step, names)}
        unknown = sorted(wanted - names.keys())
        if unknown:
            raise WorkflowValidationError(f"step {step.name!r} depends on {unknown[0]!r:.60}, which is no step")
        found[step.name] = sorted(wanted, key=names.__getitem__)
    return found


def referred(step: WorkflowStep, names: Container[str]) -> list[str]:
    """The steps that a step's arguments refer to."""
    try:
        found = [split(one, names)[0] for one in references(step.arguments)]
    except WorkflowValidationError as error:
        raise WorkflowValidationError(f"step {step.name!r}: {error}") from error
    return [name for name in dict.fromkeys(found) if name in names]


def validate(workflow: Workflow, tools: Mapping[str, Any] | None = None,
             environment: Container[str] | None = None) -> dict[str, list[str]]:
    """The dependencies of a sound workflow; WorkflowValidationError or ToolNotFoundError that names the step if not.

    With `tools` each step's tool is there and takes its arguments; with `environment` the variables are set.
    """
    check_types(workflow)
    if not workflow.name.strip() or not workflow.steps:
        raise WorkflowValidationError("a workflow needs a name and at least one step")
    if len(workflow.steps) > MAX_STEPS:
        raise WorkflowValidationError(f"{len(workflow.steps)} steps are too many; {MAX_STEPS} is the limit")
    check_json(workflow.inputs, "inputs")
    check_json(workflow.metadata, "metadata")
    seen: set[str] = set()
    for step in workflow.steps:
        _step(step, seen)
        if tools is not None:
            _tool(step, tools)
    found = dependencies(workflow)
    _roots(workflow, environment)
    try:
        TopologicalSorter(found).prepare()
    except CycleError as error:
        raise WorkflowValidationError("these steps wait for each other: " + " -> ".join(error.args[1][:8])) from error
    if tools is not None:
        for step in workflow.steps:
            _arguments(step, tools[step.tool])
    return found


def check_same(workflow: Workflow, state: WorkflowState) -> None:
    """WorkflowValidationError unless a session can go on with `workflow`: what is left to do may be corrected, in its
    tools, arguments and timeouts; what is done, and who waits for whom, is as it was."""
    past = state.workflow
    if past is None or past == workflow:
        return
    changed = [new.name for new, old in zip(workflow.steps, past.steps, strict=False)
               if new != old and (new.name in state.completed_steps or _shape(new) != _shape(old))]
    what = ("its steps" if len(workflow.steps) != len(past.steps) or dependencies(workflow) != dependencies(past)
            else f"step {changed[0]!r:.60}" if changed
            else "its inputs" if workflow.inputs != past.inputs and state.completed_steps else "")
    if what:
        raise WorkflowValidationError(f"session {state.session_id} began with another workflow ({what} differed); take "
                                      "another session id, or go on with resume")


def _shape(step: WorkflowStep) -> tuple[object, ...]:
    return step.name, step.critical, step.retry_count


def _tool(step: WorkflowStep, tools: Mapping[str, Any]) -> None:
    if step.tool not in tools:
        near = get_close_matches(step.tool, list(tools), 1, 0.6)
        raise ToolNotFoundError(f"step {step.name!r} wants the tool {step.tool!r:.80}, which is not there; " + (
            f"did you mean {near[0]}?" if near else "`garrison workflow tools` lists them"))
    if not callable(tools[step.tool]):
        raise ToolNotFoundError(f"step {step.name!r}: the tool {step.tool!r:.80} is {type(tools[step.tool]).__name__}, "
                                "which cannot be called")


def _arguments(step: WorkflowStep, tool: Any) -> None:
    wrong = misfit(step.arguments, tool)
    if wrong:
        raise WorkflowValidationError(f"step {step.name!r}: {step.tool} {wrong}")


def _step(step: WorkflowStep, seen: set[str]) -> None:
    if not step.name.strip() or not step.name.isprintable() or step.name == INPUTS:
        raise WorkflowValidationError(f"{step.name!r:.60} cannot name a step; use one line of printable characters")
    if step.name in seen:
        raise WorkflowValidationError(f"two steps are called {step.name!r:.60}; give each its own name")
    seen.add(step.name)
    if not 0 < step.timeout < 1e7:
        raise WorkflowValidationError(f"step {step.name!r}: timeout is in seconds and above 0")
    if not 0 <= step.retry_count <= 100:
        raise WorkflowValidationError(f"step {step.name!r}: retry_count goes from 0 to 100")
    check_json(step.arguments, f"the arguments of step {step.name!r}")
    if open_ := unclosed(step.arguments):
        raise WorkflowValidationError(f"step {step.name!r}: {open_!r} is a reference that is never closed; close it, "
                                      "or write $${ for ${ itself")


def _roots(workflow: Workflow, environment: Container[str] | None) -> None:
    """Inputs that are given, variables that are set."""
    names = {step.name for step in workflow.steps}
    for step in workflow.steps:
        for one in references(step.arguments):
            which, path = split(one, names)
            if which == ENVIRONMENT and which not in names and environment is not None and (
                    len(path) != 1 or str(path[0]) not in environment):
                raise WorkflowValidationError(f"step {step.name!r} wants ${{{one}}}, which is not set here; export it, "
                                              "then run again")
            if which == INPUTS and (not path or str(path[0]) not in workflow.inputs):
                known = ", ".join(workflow.inputs) or "none"
                raise WorkflowValidationError(f"step {step.name!r} wants ${{{one}}}; give it with --set "
                                              f"{path[0] if path else 'NAME'}=VALUE (inputs: {known})")
