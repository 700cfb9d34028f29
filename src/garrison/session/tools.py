"""Tools of a session: functions by name, called for the model; what one says, or why it could not, becomes text."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

from garrison.agents.base import Function

LONG = 20_000
"""Characters of a result that the conversation keeps."""


class Dispatch:
    """The adapter `tool_dispatch` over some tools. A tool that fails is told to the model, unless it is `fatal`."""

    def __init__(self, tools: Mapping[str, Function], *, fatal: bool = False,
                 on_call: Callable[[str, Mapping[str, Any]], None] | None = None,
                 on_result: Callable[[str, str], None] | None = None) -> None:
        self.tools, self._fatal, self._on_call, self._on_result = tools, fatal, on_call, on_result

    async def __call__(self, calls: list[dict[str, Any]], _agent: str) -> list[str]:
        """The text of each result, in the order of the calls."""
        return [await self._one(str(one.get("name", "")), one.get("arguments") or {}) for one in calls]

    async def _one(self, name: str, arguments: Mapping[str, Any]) -> str:
        if self._on_call is not None:
            self._on_call(name, arguments)
        said = await self._said(name, arguments)
        if self._on_result is not None:
            self._on_result(name, said)
        return said

    async def _said(self, name: str, arguments: Mapping[str, Any]) -> str:
        tool = self.tools.get(name)
        if tool is None:
            return f"error: there is no tool {name!r:.60}; there are {', '.join(self.tools) or 'none'}"
        try:
            return shortened(await _called(tool.call, arguments))
        except Exception as error:
            if self._fatal:
                raise
            return f"error: {type(error).__name__}: {' '.join(str(error).split())[:1000]}"


async def _called(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Call a tool; one that blocks runs in a thread."""
    if inspect.iscoroutinefunction(function):
        return await function(**arguments)
    found = await asyncio.to_thread(function, **arguments)
    return await found if inspect.isawaitable(found) else found


def shortened(value: Any) -> str:
    """A result as text; the middle of a long one is left out."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if len(text) <= LONG:
        return text
    return f"{text[:LONG // 2]}\n… {len(text) - LONG} characters are left out …\n{text[-LONG // 2:]}"
