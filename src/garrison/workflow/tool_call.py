"""One call of a tool: where it runs, how it may end, and its result in shapes that can be kept.

The rules of this room: a call is over when its step's timeout says so. A function that blocks has a thread of its own,
which nobody waits for at the end: neither does one that never returns hold up the others' turn or the program's end.
Whatever a tool does to end itself (`sys.exit`, a cancellation of its own) is a failure of its step and of nothing else.
"""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import inspect
import json
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from garrison.errors import GarrisonError
from garrison.pipeline.outcome import check_json
from garrison.workflow.errors import AgentError, UnkeptResult

AT_ONCE = 64
"""Threads that a session has at once; the clock of a step that waits for one has not begun."""


class ToolEnded(AgentError):
    """A tool ended itself instead of returning or raising an error."""


class Caller:
    """Calls the tools of one session."""

    def __init__(self) -> None:
        self._threads = asyncio.Semaphore(AT_ONCE)

    async def call(self, tool: Callable[..., Any], arguments: Mapping[str, Any], timeout: float) -> Any:
        """What the tool gives within `timeout` seconds; TimeoutError, or what the tool raises, as an Exception."""
        if _is_async(tool):
            return await _timed(_guarded(tool(**arguments)), timeout)
        async with self._threads:
            return await _timed(_guarded(_settled(_in_thread(lambda: tool(**arguments)))), timeout)


def plain(result: Any, tool: str) -> Any:
    """A tool's result as JSON's shapes; UnkeptResult that says what to return if it cannot be kept."""
    try:
        found = _shapes(result)
        check_json({"result": found}, "result")
        return json.loads(json.dumps(found))
    except (TypeError, ValueError, RecursionError, GarrisonError) as error:
        raise UnkeptResult(f"the tool {tool} returned something of type {type(result).__name__}, which cannot be "
                           "kept; return text, numbers, lists and tables") from error


def _shapes(value: Any) -> Any:
    """Models, dataclasses and tuples as tables and lists, however deep."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: _shapes(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: _shapes(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_shapes(one) for one in value]
    return value


def _is_async(tool: Any) -> bool:
    return inspect.iscoroutinefunction(tool) or inspect.iscoroutinefunction(getattr(tool, "__call__", None))  # noqa: B004


async def _timed(call: Awaitable[Any], timeout: float) -> Any:
    try:
        async with asyncio.timeout(timeout):
            return await call
    except TimeoutError as error:
        raise TimeoutError(str(error) or f"no answer within {timeout:g} s") from error


async def _settled(call: Awaitable[Any]) -> Any:
    """A plain function may give something to wait for."""
    result = await call
    return await result if isinstance(result, Awaitable) else result


async def _guarded(call: Awaitable[Any]) -> Any:
    """ToolEnded for an end that would be the whole program's, unless somebody else asked for it."""
    try:
        return await call
    except (SystemExit, KeyboardInterrupt) as error:
        raise ToolEnded(f"the tool ended itself ({type(error).__name__}{f': {error}' if str(error) else ''})") from None
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise ToolEnded("the tool cancelled itself") from None


async def _in_thread(function: Callable[[], Any]) -> Any:
    """The same as `asyncio.to_thread`, in a thread that is nobody's to wait for."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: Any, error: BaseException | None) -> None:
        if not future.done():
            future.set_result((result, error))

    def work() -> None:
        result, failure = None, None
        try:
            result = context.run(function)
        except BaseException as error:
            failure = error
        try:
            loop.call_soon_threadsafe(settle, result, failure)
        except RuntimeError:
            return  # the program ended meanwhile

    threading.Thread(target=work, name="workflow tool", daemon=True).start()
    result, error = await future
    if error is not None:
        raise error
    return result
