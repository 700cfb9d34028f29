"""Workflow validation before a run: dependencies, references, tools and their arguments. Pure.

A tool's parameters come from the signature of a Python function or from the schema of an MCP server. Types are
compared only where both sides are plain: a value with a reference in it may become anything.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Mapping
from difflib import get_close_matches
from graphlib import CycleError, TopologicalSorter
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from garrison.pipeline.outcome import check_json
from garrison.workflow.errors import ToolNotFoundError, WorkflowValidationError
from garrison.workflow.models import WORDS, Workflow, WorkflowState, WorkflowStep, check_types
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


_JSON: Mapping[str, type] = {"string": str, "boolean": bool, "integer": int, "number": float, "array": list,
                             "object": dict}
Kinds = tuple[type, ...]
"""The types that an argument may have; none: whatever."""


def misfit(arguments: Mapping[str, Any], tool: Any) -> str:
    """Why the arguments do not fit the tool; '' if they do, as far as can be seen before it runs."""
    known, needed, open_ = _listed(tool.listed) if hasattr(tool, "listed") else _signed(tool)
    unknown = [] if open_ else [name for name in arguments if name not in known]
    if unknown:
        near = get_close_matches(unknown[0], known.keys() - arguments.keys(), 1, 0.6)
        meant = f"did you mean {near[0]}?" if near else f"it takes {', '.join(sorted(known)) or 'nothing'}"
        return f"takes no {unknown[0]}; {meant}"
    if missing := sorted(needed - set(arguments)):
        return f"needs {missing[0]}"
    wrong = next((name for name, value in arguments.items() if not _may_be(value, known.get(name, ()))), None)
    return f"takes {words(known[wrong])} as {wrong}, not {arguments[wrong]!r:.60}" if wrong is not None else ""


def words(kinds: Kinds) -> str:
    """Types in a person's words."""
    return " or ".join(WORDS[kind] for kind in kinds)


def _listed(tool: Any) -> tuple[dict[str, Kinds], set[str], bool]:
    """Of a server's tool: its arguments with their types, those it needs, whether it takes others."""
    schema = getattr(tool, "input_schema", None) or {}
    properties = schema.get("properties", {})
    known = {name: _of_schema(one) for name, one in properties.items()}
    return known, set(schema.get("required", ())), schema.get("additionalProperties", True) is not False and not known


def _of_schema(one: Any) -> Kinds:
    kind = _JSON.get(str(one.get("type"))) if isinstance(one, Mapping) else None
    return (kind,) if kind else ()


def _signed(tool: Callable[..., Any]) -> tuple[dict[str, Kinds], set[str], bool]:
    """Of a function, the same."""
    try:
        parameters = list(_signature(tool).parameters.values())
    except (TypeError, ValueError):  # written in C, and says nothing of itself
        return {}, set(), True
    named = [one for one in parameters if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
    return ({one.name: _of_annotation(one.annotation) for one in named},
            {one.name for one in named if one.default is one.empty},
            any(one.kind is one.VAR_KEYWORD for one in parameters))


def _signature(tool: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(tool, eval_str=True)
    except (NameError, SyntaxError, AttributeError):  # an annotation that names what only a type checker loads
        return inspect.signature(tool)


def _of_annotation(annotation: Any) -> Kinds:
    parts = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    kinds = [get_origin(part) or part for part in parts if part is not NoneType]
    return tuple(kinds) if all(kind in WORDS for kind in kinds) else ()


def _may_be(value: Any, kinds: Kinds) -> bool:
    if not kinds or value is None or (isinstance(value, str) and any(references(value))):
        return True
    if isinstance(value, bool):
        return bool in kinds
    return isinstance(value, (*kinds, int) if float in kinds else kinds)
