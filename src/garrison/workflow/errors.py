"""What a workflow refuses or fails with; each says in its one line what would help."""

from __future__ import annotations

from garrison.errors import GarrisonError


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


SUGGESTIONS: dict[str, str] = {
    "TimeoutError": "raise the step's timeout, or give it less to do",
    "ConnectionError": "see whether the service is up and reachable, then resume",
    "FileNotFoundError": "see whether the file is where the arguments say, then resume",
    "PermissionError": "give this user access, then resume",
    "TypeError": "compare the step's arguments with what the tool takes (`garrison workflow tools`)",
    "KeyError": "compare the step's arguments with what the tool takes (`garrison workflow tools`)",
    "ValueError": "correct the step's arguments in the workflow and run it anew",
    "ToolNotFoundError": "name a tool that is there (`garrison workflow tools`)",
    "MissingReference": "correct the reference in the workflow and run it anew",
    "McpError": "look at the server's own log, then resume",
    "OSError": "see whether disk and network are as they should be, then resume",
}
"""Name of an error (or of one it is derived from) → what to do about it."""


def suggestion(error: BaseException) -> str:
    """What to do about an error."""
    for kind in type(error).__mro__:
        if kind.__name__ in SUGGESTIONS:
            return SUGGESTIONS[kind.__name__]
    return "look at the log, mend the cause, then resume"
