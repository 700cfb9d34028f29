"""A workflow as data: steps, state, result. Pure.

Field names are the seed's. A step's result and its arguments are JSON's shapes, so that they can be kept.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from garrison.workflow.errors import WorkflowValidationError


class StepStatus(Enum):
    """Where a step is."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass
class WorkflowStep:
    """One call of a tool. `timeout` in seconds; `retry_count` further tries after a failure that may pass.

    A `critical` step that fails stops the workflow; another one's failure is kept, and what refers to it is skipped.
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
    """Steps that depend on one another; those that do not, run at the same time."""

    name: str
    description: str = ""
    steps: list[WorkflowStep] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, Any] = field(default_factory=dict)
    """What `${inputs.NAME}` means."""

    def to_data(self) -> dict[str, Any]:
        """As JSON's shapes."""
        return asdict(self)

    @classmethod
    def from_data(cls, data: Any) -> Workflow:
        """The inverse of `to_data`; WorkflowValidationError that names the field for anything else."""
        body = _fields(data, "the workflow", _WORKFLOW, ("name", "steps"))
        steps = [WorkflowStep(**_fields(one, f"step {number}", _STEP, ("name", "tool")))
                 for number, one in enumerate(body.pop("steps"), 1)]
        return cls(**body, steps=steps)


_WORKFLOW: dict[str, Any] = {"name": str, "description": str, "steps": list, "metadata": dict, "inputs": dict}
_STEP: dict[str, Any] = {"name": str, "tool": str, "arguments": dict, "critical": bool, "timeout": (int, float),
                         "retry_count": int, "depends_on": list, "description": str}


def check_types(workflow: Any) -> None:
    """WorkflowValidationError, naming the field, for a workflow that was made in Python of the wrong types."""
    if not isinstance(workflow, Workflow):
        raise WorkflowValidationError(f"a workflow is a Workflow, not {type(workflow).__name__}")
    _fields({key: getattr(workflow, key) for key in _WORKFLOW}, "the workflow", _WORKFLOW, tuple(_WORKFLOW))
    for number, step in enumerate(workflow.steps, 1):
        if not isinstance(step, WorkflowStep):
            raise WorkflowValidationError(f"step {number} should be a WorkflowStep, not {type(step).__name__}")
        _fields({key: getattr(step, key) for key in _STEP}, f"step {number}", _STEP,
                tuple(key for key in _STEP if key != "description"))


WORDS: dict[type, str] = {str: "a text", bool: "true or false", int: "a whole number", float: "a number",
                          list: "a list", dict: "a table"}
"""Types in a person's words."""


def _word(kind: Any) -> str:
    return WORDS[float if isinstance(kind, tuple) else kind]


def _fields(data: Any, what: str, kinds: dict[str, Any], needed: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise WorkflowValidationError(f"{what} should be a table of fields, not {type(data).__name__}")
    what = f"step {data['name']!r}" if what.startswith("step") and isinstance(data.get("name"), str) else what
    for key in needed:
        if data.get(key) is None:
            raise WorkflowValidationError(f"{what} has no {key}")
    for key, value in data.items():
        if key not in kinds:
            raise WorkflowValidationError(f"{what} has the unknown field {key!s:.60}; there are {', '.join(kinds)}")
        wrong = not isinstance(value, kinds[key]) or (isinstance(value, bool) and kinds[key] is not bool)
        if wrong and value is not None:
            raise WorkflowValidationError(f"{what}: {key} should be {_word(kinds[key])}, not {value!r:.60}")
        if key == "depends_on" and value is not None and not all(isinstance(one, str) for one in value):
            raise WorkflowValidationError(f"{what}: depends_on should be a list of steps' names, not {value!r:.60}")
    return {key: value for key, value in data.items() if value is not None}


@dataclass
class WorkflowState:
    """Where a session is. `current_step` is the index of the first step that is not over."""

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


@dataclass
class WorkflowResult:
    """How a workflow ended: `results` of every step that has one, also when it failed."""

    success: bool
    results: dict[str, Any]
    errors: list[str]
    message: str
    session_id: str = ""
    step_status: dict[str, StepStatus] = field(default_factory=dict)
    suggestions: list[str] = field(default_factory=list)
