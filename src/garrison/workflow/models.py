"""Workflow data: steps, state, result. Pure.

Field names are the seed's. Arguments and results of steps are JSON data, so that they can be stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from garrison.spelling import correction
from garrison.values import fields_of
from garrison.workflow.errors import Place, WorkflowValidationError


class StepStatus(Enum):
    """Status of a step."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass
class WorkflowStep:
    """One tool call. `timeout` in seconds; `retry_count` retries after a transient failure.

    A `critical` step that fails stops the workflow. The failure of any other step is recorded, and steps that refer to
    its result are skipped.
    """

    name: str
    tool: str
    arguments: dict[str, Any] = field(default_factory=dict)
    critical: bool = True
    timeout: float = 60.0
    retry_count: int = 0
    depends_on: list[str] = field(default_factory=list)
    description: str | None = None


@dataclass
class Workflow:
    """Steps and their dependencies; independent steps run at the same time."""

    name: str
    description: str = ""
    steps: list[WorkflowStep] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, Any] = field(default_factory=dict)
    """Values of `${inputs.NAME}`."""

    @classmethod
    def from_data(cls, data: object) -> Workflow:
        """Return the workflow of a mapping of its fields; WorkflowValidationError names the invalid field."""
        body = check_fields(data, "the workflow", _WORKFLOW, ("name", "steps"))
        steps = [WorkflowStep(**check_fields(step, f"step {number}", _STEP, ("name", "tool"), ("steps", number - 1)))
                 for number, step in enumerate(body.pop("steps"), 1)]
        return cls(**body, steps=steps)


_WORKFLOW: Mapping[str, type[object]] = {
    "name": str, "description": str, "steps": list, "metadata": dict, "inputs": dict}
_STEP: Mapping[str, type[object]] = {
    "name": str, "tool": str, "arguments": dict, "critical": bool, "timeout": float, "retry_count": int,
    "depends_on": list, "description": str}


def check_types(workflow: object) -> None:
    """Raise WorkflowValidationError, naming the field, if a workflow made in Python has values of the wrong type."""
    if not isinstance(workflow, Workflow):
        raise WorkflowValidationError(f"a workflow must be a Workflow, not {type(workflow).__name__}")
    check_fields(fields_of(workflow), "the workflow", _WORKFLOW, tuple(_WORKFLOW))
    for number, step in enumerate(workflow.steps, 1):
        if not isinstance(step, WorkflowStep):
            raise WorkflowValidationError(f"step {number} must be a WorkflowStep, not {type(step).__name__}")
        check_fields(fields_of(step), f"step {number}", _STEP, tuple(key for key in _STEP if key != "description"))


TYPE_NAMES: dict[type, str] = {str: "a text", bool: "true or false", int: "a whole number", float: "a number",
                               list: "a list", dict: "a mapping"}
"""Names of types in messages."""


def check_fields(data: object, what: str, kinds: Mapping[str, type[object] | tuple[type[object], ...]],
                 needed: tuple[str, ...], place: Place = ()) -> dict[str, Any]:
    """Return the fields of a mapping without empty ones and those that start with `x_`; `place` leads to it."""
    if not isinstance(data, dict):
        raise WorkflowValidationError(f"{what} must be a mapping of fields, not {type(data).__name__}")
    what = f"step {data['name']!r}" if what.startswith("step") and isinstance(data.get("name"), str) else what
    for key, value in data.items():
        if str(key).startswith("x_"):
            continue
        if key not in kinds:
            fix = correction(str(key), kinds, f"known fields: {', '.join(kinds)}")
            raise WorkflowValidationError(f"{what} has the unknown field {key!s:.60}; {fix}", (*place, key))
        fits = isinstance(value, (int, float) if kinds[key] is float else kinds[key])
        if value is not None and (not fits or (isinstance(value, bool) and kinds[key] is not bool)):
            kind = kinds[key]
            name = " or ".join(TYPE_NAMES[one] for one in (kind if isinstance(kind, tuple) else (kind,)))
            raise WorkflowValidationError(f"{what}: {key} must be {name}, not {value!r:.60}", (*place, key))
        if key == "depends_on" and value is not None and not all(isinstance(name, str) for name in value):
            raise WorkflowValidationError(f"{what}: depends_on must be a list of step names, not {value!r:.60}",
                                          (*place, key))
    for key in needed:
        if data.get(key) is None:
            raise WorkflowValidationError(f"{what} has no {key}", place)
    return {key: value for key, value in data.items() if value is not None and key in kinds}


@dataclass
class WorkflowState:
    """Progress of a session. `current_step` is the index of the first unfinished step."""

    session_id: str
    workflow: Workflow | None = None
    status: str = "pending"
    current_step: int = 0
    completed_steps: list[str] = field(default_factory=list)
    step_results: dict[str, Any] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    step_status: dict[str, StepStatus] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    suggestions: list[str] = field(default_factory=list)
    failed_steps: list[str] = field(default_factory=list)
    """Step of each of the errors, and of the suggestions."""


@dataclass
class WorkflowResult:
    """Result of a workflow: `results` has the result of every step that returned one, even if the workflow failed."""

    success: bool
    results: dict[str, Any]
    errors: list[str]
    message: str
    session_id: str = ""
    step_status: dict[str, StepStatus] = field(default_factory=dict)
    suggestions: list[str] = field(default_factory=list)
