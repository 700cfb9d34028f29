"""From a command in words to a workflow: what an agent is asked, and what is made of its answer. Pure."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from typing import Any

from garrison.agents.json_io import extract_object
from garrison.errors import GarrisonError
from garrison.workflow.errors import WorkflowValidationError
from garrison.workflow.models import Workflow
from garrison.workflow.validation import validate

_OBJECT = re.compile(r"\{.*\}", re.DOTALL)
_FORM = """{"name": "short-name", "description": "...", "inputs": {}, "steps": [{"name": "...", "tool": "...",
"arguments": {}, "critical": true, "timeout": 60, "retry_count": 0, "depends_on": [], "description": "why"}]}"""


def described(name: str, tool: Any) -> str:
    """A tool as a line for the agent: its name, its arguments, what it does."""
    schema = getattr(getattr(tool, "listed", None), "input_schema", None)
    takes = inspect.signature(tool) if schema is None else f"({', '.join(schema.get('properties', {}))})"
    return f"- {name}{takes}: {' '.join((tool.__doc__ or '').split())}"


def question(command: str, tools: Mapping[str, Any]) -> str:
    """What the agent is asked."""
    known = "\n".join(described(name, tools[name]) for name in tools)
    return ("Break this command into a workflow of tool calls:\n\n"
            f"<command>\n{command}\n</command>\n\nTools:\n{known}\n\n"
            "A step may refer to an earlier step's result anywhere in its arguments: ${STEP.KEY}, ${STEP.LIST[0].KEY}; "
            "alone it keeps its type. Steps that do not depend on one another run at the same time. Use only these "
            f"tools, as few steps as do it. Answer with one JSON object and nothing else:\n{_FORM}")


def again(error: str) -> str:
    """What the agent is told when its answer is no sound workflow."""
    return f"That is no sound workflow: {error}\nAnswer once more, with the whole JSON object alone."


def read(said: str, tools: Mapping[str, Any]) -> Workflow:
    """The workflow in the agent's words; GarrisonError that says what is wrong with it."""
    found = _OBJECT.search(said)
    if found is None:
        raise WorkflowValidationError("there is no JSON object in it")
    try:
        workflow = Workflow.from_data(extract_object(said, "steps") or json.loads(found.group(0)))
    except ValueError as error:
        raise WorkflowValidationError(f"it is no JSON: {error}") from error
    validate(workflow, tools)
    return workflow


def refused(error: Exception) -> str:
    """An error as the line for the agent."""
    return " ".join(str(error).split()) if isinstance(error, GarrisonError) else f"{type(error).__name__}: {error}"
