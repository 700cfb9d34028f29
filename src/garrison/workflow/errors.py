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
SUGGESTIONS: dict[str, str] = {
    "TimeoutError": "raise the step's timeout, or give it less to do",
    "ConnectionError": "check that the service is up and reachable",
    "FileNotFoundError": "check that the file is where the arguments say",
    "PermissionError": "give this user access",
    "TypeError": "compare the step's arguments with the tool's parameters (`garrison workflow tools`)",
    "KeyError": "compare the step's arguments with the tool's parameters (`garrison workflow tools`)",
    "ValueError": "correct the step's arguments in the workflow",
    "ToolNotFoundError": "use an existing tool (`garrison workflow tools`)",
    "MissingReference": "correct the reference in the workflow",
    "UnserializableResult": "let the tool return text, numbers, lists and mappings",
    "UsageError": "correct the step's arguments in the workflow",
    "CommandFailed": "run the command by hand to see why it fails",
    "ToolEnded": "let the tool return or raise an error instead of ending the program",
    "McpError": "read the server's log",
    "OSError": "check disk and network",
}
"""Name of an error class or base class → what to do about it; the result says how to continue."""


def suggestion(error: BaseException) -> str:
    """Return what to do about an error."""
    for kind in type(error).__mro__:
        if kind.__name__ in SUGGESTIONS:
            return SUGGESTIONS[kind.__name__]
    return "read the log and fix the cause"
