"""What a workflow refuses or fails with; each says in its one line what would help."""

from __future__ import annotations

from garrison.errors import GarrisonError, UsageError


class AgentError(GarrisonError):
    """Base of all of them."""


class WorkflowExecutionError(AgentError):
    """A workflow could not be executed."""


class WorkflowValidationError(AgentError):
    """A workflow cannot be meant as it is written."""


class StateLoadError(AgentError):
    """A session's state is not there or cannot be read."""


class ToolNotFoundError(AgentError):
    """A step wants a tool that nobody has."""


class MissingReference(AgentError):
    """A reference names what a step's result does not have."""


class LostReference(AgentError):
    """A reference names the result of a step that failed or was skipped."""


class UnkeptResult(AgentError, TypeError):
    """A tool returned what cannot be kept."""


ANEW = (MissingReference, ToolNotFoundError, UnkeptResult, UsageError)
"""Failures that are in the workflow or its tools as they are written: a resume would meet them again."""
SUGGESTIONS: dict[str, str] = {
    "TimeoutError": "raise the step's timeout, or give it less to do",
    "ConnectionError": "see whether the service is up and reachable",
    "FileNotFoundError": "see whether the file is where the arguments say",
    "PermissionError": "give this user access",
    "TypeError": "compare the step's arguments with what the tool takes (`garrison workflow tools`)",
    "KeyError": "compare the step's arguments with what the tool takes (`garrison workflow tools`)",
    "ValueError": "correct the step's arguments in the workflow",
    "ToolNotFoundError": "name a tool that is there (`garrison workflow tools`)",
    "MissingReference": "correct the reference in the workflow",
    "UnkeptResult": "let the tool return text, numbers, lists and tables",
    "UsageError": "correct the step's arguments in the workflow",
    "CommandFailed": "run the command by hand to see why it fails",
    "ToolEnded": "let the tool return or raise an error instead of ending the program",
    "McpError": "look at the server's own log",
    "OSError": "see whether disk and network are as they should be",
}
"""Name of an error (or of one it is derived from) → what to do about it; how to go on then is told with the result."""


def suggestion(error: BaseException) -> str:
    """What to do about an error."""
    for kind in type(error).__mro__:
        if kind.__name__ in SUGGESTIONS:
            return SUGGESTIONS[kind.__name__]
    return "look at the log and mend the cause"
