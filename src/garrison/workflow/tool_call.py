"""Call a tool: enforce its timeout, contain its failures, convert its result to JSON data.

A call ends when its step's timeout expires. A blocking function runs in a daemon thread of its own that is never
joined, so one that never returns delays neither other calls nor the end of the program. A tool that ends itself
(`sys.exit`, a cancellation of its own) fails its step and nothing else.
"""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from garrison.errors import GarrisonError
from garrison.pipeline.outcome import check_json
from garrison.values import fields_of
from garrison.workflow.errors import AgentError, UnserializableResult

MAX_THREADS = 64
"""Concurrent threads of a session; a step that waits for a thread does not use up its timeout."""


class ToolEnded(AgentError):
    """A tool ended itself instead of returning or raising an error."""


class Caller:
    """Call the tools of one session."""

    def __init__(self) -> None:
        self._threads = asyncio.Semaphore(MAX_THREADS)

    async def call(self, tool: Callable[..., Any], arguments: Mapping[str, Any], timeout: float) -> Any:
        """Return the tool's result; TimeoutError after `timeout` seconds, or the tool's own exception."""
        if _is_async(tool):
            return await _with_timeout(_contain_exit(tool(**arguments)), timeout)
        async with self._threads:
            return await _with_timeout(_contain_exit(_await_result(_in_thread(lambda: tool(**arguments)))), timeout)


def to_json(result: Any, tool: str) -> Any:
    """Return a tool's result as JSON data; UnserializableResult says what to return instead."""
    try:
        return check_json({"result": _to_plain(result)}, "result")["result"]
    except (TypeError, ValueError, RecursionError, GarrisonError) as error:
        raise UnserializableResult(f"the tool {tool} returned a value of type {type(result).__name__}, which cannot be "
                                   "stored; return text, numbers, lists and mappings") from error


def _to_plain(value: Any) -> Any:
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


def _is_async(tool: Any) -> bool:
    return inspect.iscoroutinefunction(tool) or inspect.iscoroutinefunction(getattr(tool, "__call__", None))  # noqa: B004


async def _with_timeout(call: Awaitable[Any], timeout: float) -> Any:
    try:
        async with asyncio.timeout(timeout):
            return await call
    except TimeoutError as error:
        raise TimeoutError(str(error) or f"no answer within {timeout:g} s") from error


async def _await_result(call: Awaitable[Any]) -> Any:
    """Await the result of a plain function that returned an awaitable."""
    result = await call
    return await result if isinstance(result, Awaitable) else result


async def _contain_exit(call: Awaitable[Any]) -> Any:
    """Turn an exit of the whole program, or an unrequested cancellation, into ToolEnded."""
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
    """Run `function` like `asyncio.to_thread`, in a daemon thread that is never joined."""
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
            return  # the event loop is closed: the program has ended

    threading.Thread(target=work, name="workflow tool", daemon=True).start()
    result, error = await future
    if error is not None:
        raise error
    return result
