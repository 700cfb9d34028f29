"""Plan a workflow from a command in words: the agent's prompt, and the parsing of its answer."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from garrison.errors import GarrisonError, Refused
from garrison.records.json_io import extract_object
from garrison.workflow.errors import WorkflowValidationError
from garrison.workflow.models import Workflow
from garrison.workflow.validation import validate

Ask: TypeAlias = Callable[[str], Awaitable[str]]
"""Prompt → the model's answer; its session remembers the prompts before."""
ATTEMPTS = 3
_OBJECT = re.compile(r"\{.*\}", re.DOTALL)
_FORM = """{"name": "short-name", "description": "...", "inputs": {}, "steps": [{"name": "...", "tool": "...",
"arguments": {}, "critical": true, "timeout": 60, "retry_count": 0, "depends_on": [], "description": "why"}]}"""


def describe_tool(name: str, tool: Any) -> str:
    """Return a tool as one line for the agent: name, parameters, description."""
    schema = getattr(getattr(tool, "listed", None), "input_schema", None)
    takes = inspect.signature(tool) if schema is None else f"({', '.join(schema.get('properties', {}))})"
    return f"- {name}{takes}: {' '.join((tool.__doc__ or '').split())}"


def plan_prompt(command: str, tools: Mapping[str, Any]) -> str:
    """Return the prompt that asks for a plan."""
    tool_list = "\n".join(describe_tool(name, tools[name]) for name in tools)
    return ("Break this command into a workflow of tool calls:\n\n"
            f"<command>\n{command}\n</command>\n\nTools:\n{tool_list}\n\n"
            "A step may refer to an earlier step's result anywhere in its arguments: ${STEP.KEY}, ${STEP.LIST[0].KEY}; "
            "alone it keeps its type. Steps that do not depend on one another run at the same time. Use only these "
            f"tools, as few steps as do it. Answer with one JSON object and nothing else:\n{_FORM}")


def retry_prompt(error: str) -> str:
    return f"That is not a valid workflow: {error}\nAnswer again, with the complete JSON object alone."


def parse_plan(answer: str, tools: Mapping[str, Any]) -> Workflow:
    """Return the workflow in the agent's answer; GarrisonError says what is wrong with it."""
    match = _OBJECT.search(answer)
    if match is None:
        raise WorkflowValidationError("it contains no JSON object")
    try:
        workflow = Workflow.from_data(extract_object(answer, "steps") or json.loads(match.group(0)))
    except ValueError as error:
        raise WorkflowValidationError(f"it is not valid JSON: {error}") from error
    validate(workflow, tools)
    return workflow


def describe_error(error: Exception) -> str:
    return " ".join(str(error).split()) if isinstance(error, GarrisonError) else f"{type(error).__name__}: {error}"


async def make_plan(command: str, tools: Mapping[str, Any], ask: Ask) -> Workflow:
    """Return the workflow into which a model breaks a command; Refused if no answer is a valid one."""
    prompt, problem = plan_prompt(command, tools), ""
    for _ in range(ATTEMPTS):
        answer = await ask(prompt)
        try:
            return parse_plan(answer, tools)
        except GarrisonError as error:
            problem = describe_error(error)
            prompt = retry_prompt(problem)
    raise Refused(f"no valid workflow in {ATTEMPTS} attempts (the last: {problem}); describe the command more "
                  "precisely")
