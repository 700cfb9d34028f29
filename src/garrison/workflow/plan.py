"""From a command in words to a workflow: what an agent is asked, and what is made of its answer. Pure."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from typing import Any

from garrison.errors import GarrisonError
from garrison.workflow.errors import WorkflowValidationError
from garrison.workflow.models import Workflow
from garrison.workflow.validate import validate

_OBJECT = re.compile(r"\{.*\}", re.DOTALL)
_FORM = """{"name": "short-name", "description": "...", "inputs": {}, "steps": [{"name": "...", "tool": "...",
"arguments": {}, "critical": true, "timeout": 60, "retry_count": 0, "depends_on": [], "description": "why"}]}"""


def described(name: str, tool: Any, listed: Mapping[str, Any]) -> str:
    """A tool as a line for the agent: its name, its arguments, what it does."""
    if name in listed:
        schema = getattr(listed[name], "input_schema", None) or {}
        about = " ".join((listed[name].description or "").split())
        return f"- {name}({', '.join(schema.get('properties', {}))}): {about}"
    return f"- {name}{inspect.signature(tool)}: {' '.join((tool.__doc__ or '').split())}"


def question(command: str, tools: Mapping[str, Any], listed: Mapping[str, Any]) -> str:
    """What the agent is asked."""
    known = "\n".join(described(name, tools[name], listed) for name in tools)
    return ("Break this command into a workflow of tool calls:\n\n"
            f"<command>\n{command}\n</command>\n\nTools:\n{known}\n\n"
            "A step may refer to an earlier step's result anywhere in its arguments: ${STEP.KEY}, ${STEP.LIST[0].KEY}; "
            "alone it keeps its type. Steps that do not depend on one another run at the same time. Use only these "
            f"tools, as few steps as do it. Answer with one JSON object and nothing else:\n{_FORM}")


def again(error: str) -> str:
    """What the agent is told when its answer is no sound workflow."""
    return f"That is no sound workflow: {error}\nAnswer once more, with the whole JSON object alone."


def read(said: str, tools: Mapping[str, Any], listed: Mapping[str, Any]) -> Workflow:
    """The workflow in the agent's words; GarrisonError that says what is wrong with it."""
    found = _OBJECT.search(said)
    if found is None:
        raise WorkflowValidationError("there is no JSON object in it")
    try:
        workflow = Workflow.from_data(json.loads(found.group(0)))
    except ValueError as error:
        raise WorkflowValidationError(f"it is no JSON: {error}") from error
    validate(workflow, tools)
    for step in workflow.steps:
        wrong = misfit(step.arguments, tools[step.tool], listed.get(step.tool))
        if wrong:
            raise WorkflowValidationError(f"step {step.name!r}: {step.tool} {wrong}")
    return workflow


def misfit(arguments: Mapping[str, Any], tool: Any, listed: Any) -> str:
    """Why the arguments do not fit the tool; '' if they do, as far as can be seen before it runs."""
    if listed is not None:
        schema = getattr(listed, "input_schema", None) or {}
        known, needed = set(schema.get("properties", {})), set(schema.get("required", ()))
        open_ = schema.get("additionalProperties", True) is not False and not known
    else:
        parameters = inspect.signature(tool).parameters.values()
        named = [one for one in parameters if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
        known = {one.name for one in named}
        needed = {one.name for one in named if one.default is one.empty}
        open_ = any(one.kind is one.VAR_KEYWORD for one in parameters)
    if missing := sorted(needed - set(arguments)):
        return f"needs {missing[0]}"
    unknown = sorted(set(arguments) - known)
    return "" if open_ or not unknown else f"takes no {unknown[0]}; it takes {', '.join(sorted(known)) or 'nothing'}"


def refused(error: Exception) -> str:
    """An error as the line for the agent."""
    return " ".join(str(error).split()) if isinstance(error, GarrisonError) else f"{type(error).__name__}: {error}"
