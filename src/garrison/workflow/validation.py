"""Workflow validation before a run: dependencies, references, tools and their arguments. Pure.

A tool's parameters come from the signature of a Python function or from the schema of an MCP server. Types are
compared only where both sides are plain: a value with a reference may become anything.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Mapping
from graphlib import CycleError, TopologicalSorter
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from garrison.pipeline.outcome import check_json
from garrison.spelling import correction
from garrison.workflow.errors import ToolNotFoundError, WorkflowValidationError
from garrison.workflow.models import TYPE_NAMES, Workflow, WorkflowState, WorkflowStep, check_types
from garrison.workflow.references import ENVIRONMENT, INPUTS, find_unclosed, references, split

MAX_STEPS = 5_000


def dependencies(workflow: Workflow) -> dict[str, list[str]]:
    """Return step → the steps it depends on: named ones and those its arguments refer to, in the workflow's order."""
    names = {step.name: place for place, step in enumerate(workflow.steps)}
    result = {}
    for step in workflow.steps:
        needed = {*step.depends_on, *referenced_steps(step, names)}
        unknown = sorted(name for name in needed if name not in names)  # a view of keys would be walked for each step
        if unknown:
            raise WorkflowValidationError(f"step {step.name!r} depends on {unknown[0]!r:.60}, which is not a step")
        result[step.name] = sorted(needed, key=names.__getitem__)
    return result


def referenced_steps(step: WorkflowStep, names: Container[str]) -> list[str]:
    """Return the steps that a step's arguments refer to."""
    try:
        roots = [split(reference, names)[0] for reference in references(step.arguments)]
    except WorkflowValidationError as error:
        raise WorkflowValidationError(f"step {step.name!r}: {error}") from error
    return [name for name in dict.fromkeys(roots) if name in names]


def validate(workflow: Workflow, tools: Mapping[str, object] | None = None,
             environment: Container[str] | None = None) -> dict[str, list[str]]:
    """Return the dependencies of a valid workflow; WorkflowValidationError or ToolNotFoundError names the step if not.

    With `tools` each step's tool must exist and accept its arguments; with `environment` the variables must be set.
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
        _check_step(step, seen)
        if tools is not None:
            _check_tool(step, tools)
    result = dependencies(workflow)
    _check_inputs(workflow, environment)
    try:
        TopologicalSorter(result).prepare()
    except CycleError as error:
        raise WorkflowValidationError("these steps depend on each other: " + " -> ".join(error.args[1][:8])) from error
    if tools is not None:
        for step in workflow.steps:
            if problem := argument_error(step.arguments, tools[step.tool]):
                raise WorkflowValidationError(f"step {step.name!r}: {step.tool} {problem}")
    return result


def check_same(workflow: Workflow, state: WorkflowState) -> None:
    """Raise WorkflowValidationError unless a session can continue with `workflow`: tools, arguments and timeouts of
    unfinished steps may change; finished steps and dependencies may not.
    """
    previous = state.workflow
    if previous is None or previous == workflow:
        return
    changed = [new.name for new, old in zip(workflow.steps, previous.steps, strict=False)
               if new != old and (new.name in state.completed_steps or _shape(new) != _shape(old))]
    same_graph = len(workflow.steps) == len(previous.steps) and dependencies(workflow) == dependencies(previous)
    what = ("its steps" if not same_graph
            else f"step {changed[0]!r:.60}" if changed
            else "its inputs" if workflow.inputs != previous.inputs and state.completed_steps else "")
    if what:
        raise WorkflowValidationError(f"session {state.session_id} started with another workflow ({what} changed); use "
                                      "another session id, or continue it with resume")


def _shape(step: WorkflowStep) -> tuple[object, ...]:
    return step.name, step.critical, step.retry_count


def _check_tool(step: WorkflowStep, tools: Mapping[str, object]) -> None:
    if step.tool not in tools:
        raise ToolNotFoundError(f"step {step.name!r} uses the tool {step.tool!r:.80}, which does not exist; "
                                + correction(step.tool, tools, "`garrison workflow tools` lists them"))
    if not callable(tools[step.tool]):
        raise ToolNotFoundError(f"step {step.name!r}: the tool {step.tool!r:.80} is {type(tools[step.tool]).__name__}, "
                                "which cannot be called")


def _check_step(step: WorkflowStep, seen: set[str]) -> None:
    if not step.name.strip() or not step.name.isprintable() or step.name == INPUTS:
        raise WorkflowValidationError(f"{step.name!r:.60} cannot name a step; use one line of printable characters")
    if step.name in seen:
        raise WorkflowValidationError(f"two steps are named {step.name!r:.60}; step names must be unique")
    seen.add(step.name)
    if not 0 < step.timeout < 1e7:
        raise WorkflowValidationError(f"step {step.name!r}: timeout must be above 0 seconds")
    if not 0 <= step.retry_count <= 100:
        raise WorkflowValidationError(f"step {step.name!r}: retry_count must be from 0 to 100")
    check_json(step.arguments, f"the arguments of step {step.name!r}")
    if open_ := find_unclosed(step.arguments):
        raise WorkflowValidationError(f"step {step.name!r}: {open_!r} is an unclosed reference; close it, or write "
                                      "$${ for a literal ${")


def _check_inputs(workflow: Workflow, environment: Container[str] | None) -> None:
    """Check that referenced inputs are given and variables are set."""
    names = {step.name for step in workflow.steps}
    for step in workflow.steps:
        for reference in references(step.arguments):
            root, path = split(reference, names)
            if root == ENVIRONMENT and root not in names and environment is not None and (
                    len(path) != 1 or str(path[0]) not in environment):
                raise WorkflowValidationError(f"step {step.name!r} uses ${{{reference}}}, which is not set; export it, "
                                              "then run again")
            if root == INPUTS and (not path or str(path[0]) not in workflow.inputs):
                existing = ", ".join(workflow.inputs) or "none"
                raise WorkflowValidationError(f"step {step.name!r} uses ${{{reference}}}; give it with --set "
                                              f"{path[0] if path else 'NAME'}=VALUE (inputs: {existing})")


_JSON: Mapping[str, type] = {"string": str, "boolean": bool, "integer": int, "number": float, "array": list,
                             "object": dict}
Types = tuple[type, ...]
"""Types that an argument may have; empty: any."""


def argument_error(arguments: Mapping[str, object], tool: Any) -> str:
    """Return why the arguments do not fit the tool; '' if they do, as far as can be checked before it runs."""
    parameters, required, accepts_any = (
        _schema_parameters(tool.listed) if hasattr(tool, "listed") else _signature_parameters(tool))
    unknown = [] if accepts_any else [name for name in arguments if name not in parameters]
    if unknown:
        return f"has no parameter {unknown[0]}; " + correction(
            unknown[0], parameters.keys() - arguments.keys(), f"it takes {', '.join(sorted(parameters)) or 'nothing'}")
    if missing := sorted(required - set(arguments)):
        return f"needs {missing[0]}"
    wrong = next((name for name, value in arguments.items() if not _is_compatible(value, parameters.get(name, ()))),
                 None)
    if wrong is None:
        return ""
    kinds = " or ".join(TYPE_NAMES[kind] for kind in parameters[wrong])
    return f"takes {kinds} as {wrong}, not {arguments[wrong]!r:.60}"


def _schema_parameters(tool: object) -> tuple[dict[str, Types], set[str], bool]:
    """Return the parameters of a server's tool with their types, the required ones, and whether it accepts others."""
    schema = getattr(tool, "input_schema", None) or {}
    properties = schema.get("properties", {})
    types = {name: _schema_types(schema) for name, schema in properties.items()}
    return types, set(schema.get("required", ())), schema.get("additionalProperties", True) is not False and not types


def _schema_types(schema: object) -> Types:
    kind = _JSON.get(str(schema.get("type"))) if isinstance(schema, Mapping) else None
    return (kind,) if kind else ()


def _signature_parameters(tool: Callable[..., object]) -> tuple[dict[str, Types], set[str], bool]:
    """Return the same for a function."""
    try:
        parameters = list(_signature(tool).parameters.values())
    except (TypeError, ValueError):  # written in C, without a signature
        return {}, set(), True
    named = [item for item in parameters if item.kind not in (item.VAR_KEYWORD, item.VAR_POSITIONAL)]
    return ({item.name: _annotation_types(item.annotation) for item in named},
            {item.name for item in named if item.default is item.empty},
            any(item.kind is item.VAR_KEYWORD for item in parameters))


def _signature(tool: Callable[..., object]) -> inspect.Signature:
    try:
        return inspect.signature(tool, eval_str=True)
    except (NameError, SyntaxError, AttributeError):  # an annotation names something imported only for type checkers
        return inspect.signature(tool)


def _annotation_types(annotation: object) -> Types:
    parts = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    kinds = [get_origin(part) or part for part in parts if part is not NoneType]
    return tuple(kinds) if all(kind in TYPE_NAMES for kind in kinds) else ()


def _is_compatible(value: object, kinds: Types) -> bool:
    if not kinds or value is None or (isinstance(value, str) and any(references(value))):
        return True
    # In Python a bool is also an int; no tool that takes a number means `true`.
    if isinstance(value, bool):
        return bool in kinds
    return isinstance(value, (*kinds, int) if float in kinds else kinds)
