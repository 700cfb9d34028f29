"""Errors of workflows; each message says what to do in one line."""

from __future__ import annotations

from garrison.errors import GarrisonError, UsageError

Place = tuple[str | int, ...]
"""Keys and indices that lead from a workflow's file to a field."""


class AgentError(GarrisonError):
    """Base class of the errors of workflows."""


class WorkflowExecutionError(AgentError):
    """A workflow could not be executed."""


class WorkflowValidationError(AgentError):
    """A workflow is invalid as written; `place` leads to the invalid field (`steps`, 2, `tool`)."""

    def __init__(self, message: str, place: Place = ()) -> None:
        super().__init__(message)
        self.place = place


class StateLoadError(AgentError):
    """A session's state is missing or cannot be read."""


class UnknownSession(StateLoadError, ValueError):
    """There is no session with that id."""


class ToolNotFoundError(AgentError):
    """A step uses a tool that does not exist."""


class MissingReference(AgentError):
    """A reference names a key that a step's result does not have."""


class UnavailableResult(AgentError):
    """A reference names the result of a step that failed or was skipped."""


class UnserializableResult(AgentError, TypeError):
    """A tool returned a value that cannot be stored as JSON."""


NOT_RESUMABLE = (MissingReference, ToolNotFoundError, UnserializableResult, UsageError)
"""Failures caused by the workflow or its tools as written: a resume would fail the same way."""
