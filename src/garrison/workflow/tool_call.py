"""Call a tool: enforce its timeout, contain its failures, convert its result to JSON data, advise on its errors.

A call ends when its step's timeout expires. A blocking function runs in its own daemon thread (`in_thread`), so
one that never returns delays neither other calls nor the end of the program. A tool that ends itself
(`sys.exit`, its own cancellation) fails its step and nothing else.

The class of an error alone is ambiguous: a TypeError of the call means wrong arguments, one from within the tool is a
bug of the tool, and a missing file may be a program that is not installed. So the advice also depends
on where the error was raised, and on its attributes.
"""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from garrison.errors import GarrisonError
from garrison.pipeline.handlers.call import in_thread, is_async
from garrison.pipeline.outcome import check_json
from garrison.values import fields_of
from garrison.workflow.errors import AgentError, UnserializableResult

MAX_THREADS = 64
"""Concurrent threads of a session; a step that waits for a thread does not use up its timeout."""


class ToolEnded(AgentError):
    """A tool ended itself instead of returning or raising an error."""


class ToolCaller:
    """Call the tools of one session; blocking ones use at most so many `threads` at once."""

    def __init__(self, threads: int = MAX_THREADS) -> None:
        self._threads = asyncio.Semaphore(threads)

    async def call(self, tool: Callable[..., Any], arguments: Mapping[str, object], timeout: float) -> object:
        """Return the tool's result; TimeoutError after `timeout` seconds, or the tool's own exception."""
        if is_async(tool):
            return await _with_timeout(_contain_cancellation(tool(**arguments)), timeout)

        def work() -> object:
            with _exit_contained():
                return tool(**arguments)

        async with self._threads:
            return await _with_timeout(_contain_cancellation(_await_result(in_thread(work))), timeout)


def to_json(result: object, tool: str) -> object:
    """Return a tool's result as JSON data; UnserializableResult names supported types."""
    try:
        return check_json({"result": _to_plain(result)}, "result")["result"]
    except (TypeError, ValueError, RecursionError, GarrisonError) as error:
        raise UnserializableResult(f"the tool {tool} returned a value of type {type(result).__name__}, which cannot be "
                                   "stored; return text, numbers, lists and mappings") from error


def _to_plain(value: object) -> object:
    """Convert models, dataclasses and tuples to mappings and lists, at any depth."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, msgspec.Struct) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        return {name: _to_plain(item) for name, item in fields_of(value).items()}
    if isinstance(value, Mapping):
        return {key: _to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_plain(item) for item in value]
    return value


async def _with_timeout(call: Awaitable[object], timeout: float) -> object:
    try:
        async with asyncio.timeout(timeout):
            return await call
    except TimeoutError as error:
        raise TimeoutError(str(error) or f"no answer within {timeout:g} s") from error


async def _await_result(call: Awaitable[object]) -> object:
    """Await the result of a plain function that returned an awaitable."""
    result = await call
    return await result if isinstance(result, Awaitable) else result


async def _contain_cancellation(call: Awaitable[object]) -> object:
    """Turn an exit of the whole program, or an unrequested cancellation, into ToolEnded."""
    try:
        with _exit_contained():
            return await call
    except asyncio.CancelledError:
        task = asyncio.current_task()
        # Only a cancellation from outside is counted there, not a CancelledError that the tool raises itself.
        if task is not None and task.cancelling():
            raise
        raise ToolEnded("the tool cancelled itself") from None


@contextmanager
def _exit_contained() -> Iterator[None]:
    """Turn an exit of the whole program into ToolEnded."""
    try:
        yield
    # asyncio raises these two through the event loop, past all handlers of the other steps.
    except (SystemExit, KeyboardInterrupt) as error:
        raise ToolEnded(f"the tool ended itself ({type(error).__name__}{f': {error}' if str(error) else ''})") from None


# ---- advice ----------------------------------------------------------------------------------------------------------


PARAMETERS = "compare the step's arguments with the tool's parameters (`garrison workflow tools`)"
BY_CLASS: Mapping[str, str] = {
    "ConnectionError": "check that the service is up and reachable",
    "ToolNotFoundError": "use an existing tool (`garrison workflow tools`)",
    "MissingReference": "correct the reference in the workflow",
    "UnserializableResult": "let the tool return text, numbers, lists and mappings",
    "UsageError": "correct the step's arguments in the workflow",
    "CommandFailed": "run the command by hand to see why it fails",
    "CalledProcessError": "run the command by hand to see why it fails",
    "ToolEnded": "let the tool return or raise an error instead of ending the program",
    "McpError": "read the server's log",
    "JSONDecodeError": "check what the tool has read: it is not JSON",
    "UnicodeDecodeError": "check what the tool has read: it is not text in the expected encoding",
    "MemoryError": "give the step less to do at once",
}
"""Name of an error class or base class → advice, if there is no better one."""
_BY_NUMBER: Mapping[int, str] = {
    errno.ENOSPC: "free space on the disk", errno.EDQUOT: "free space: the quota of the disk is reached",
    errno.EROFS: "choose a place that can be written: this one is read-only",
    errno.EMFILE: "raise the limit of open files (`ulimit -n`), or let the workflow do less at once"}
_BY_STATUS: Mapping[int, str] = {
    400: "correct the request in the step's arguments", 401: "check the key or log-in that the tool uses",
    403: "check what the key or log-in may do", 404: "correct the address in the step's arguments",
    429: "wait for the service's limit, then resume; `retry_count` lets the step wait by itself"}
_ARGUMENTS = (TypeError, LookupError, AttributeError)
"""Errors that may come from a wrong argument or from a bug in a tool."""


def advice(error: BaseException, tool: str, timeout: float) -> str:
    """Return the advice on the error of a step.

    Args:
        timeout: the step's, in seconds.
    """
    for choose in (_on_status, _on_timeout, _on_import, _on_file):
        if found := choose(error, timeout):
            return found
    for kind in type(error).__mro__:
        if kind.__name__ in BY_CLASS:
            return BY_CLASS[kind.__name__]
    place = _place_in_tool(error)
    if isinstance(error, _ARGUMENTS) and not place:
        return PARAMETERS
    if isinstance(error, ValueError):
        where = f" ({place})" if place else ""
        return f"correct the step's arguments in the workflow: {tool} does not accept them{where}"
    if isinstance(error, OSError):
        return "check disk and network"
    if place:
        return f"correct the step's arguments, or the tool: {tool} failed at {place}"
    return "read the log and fix the cause"


def _on_status(error: BaseException, _timeout: float) -> str:
    """Advise on the HTTP status in an error of an HTTP client."""
    status: object = getattr(getattr(error, "response", None), "status_code", None)
    if status is None and type(error).__name__ == "HTTPError":
        status = getattr(error, "code", None)
    if not isinstance(status, int):
        return ""
    if status >= 500:
        return "try again later: the service itself fails; `retry_count` makes the step retry by itself"
    return _BY_STATUS.get(status, "read the service's answer, and correct the step's arguments")


def _on_timeout(error: BaseException, timeout: float) -> str:
    if not isinstance(error, TimeoutError):
        return ""
    if "no answer within" in str(error):
        return f"raise the step's timeout ({timeout:g} s), or give it less to do"
    return "check that the service is up and reachable: it did not answer the tool in time"


def _on_import(error: BaseException, _timeout: float) -> str:
    if not isinstance(error, ImportError):
        return ""
    return f"install the Python module {error.name or 'that is missing'} where garrison runs"


def _on_file(error: BaseException, _timeout: float) -> str:
    if not isinstance(error, OSError):
        return ""
    if error.errno is not None and error.errno in _BY_NUMBER:
        return _BY_NUMBER[error.errno]
    name = str(error.filename) if error.filename else "the file"
    if isinstance(error, FileNotFoundError):
        if "/" not in name and _began_program(error):
            return f"install the program {name}, or correct its name in the step's arguments"
        return f"check the path in the step's arguments: {name} does not exist"
    if isinstance(error, PermissionError):
        return f"give this user access to {name}"
    if isinstance(error, IsADirectoryError | NotADirectoryError):
        return f"correct the path in the step's arguments: {name} is {'' if error.errno == errno.EISDIR else 'not '}" \
               "a folder"
    return ""


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    return list(traceback.extract_tb(error.__traceback__))


def _began_program(error: BaseException) -> bool:
    return any(Path(frame.filename).name == "subprocess.py" for frame in _frames(error))


def _place_in_tool(error: BaseException) -> str:
    """Return file and line at which the tool itself failed; '' if it was never entered."""
    frames = _frames(error)
    if not frames or frames[-1].filename == __file__:
        return ""
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"
