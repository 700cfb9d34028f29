"""Scripted model of a session: each step of the script is a tool call, its end a report. For tests.

The position follows from the conversation alone (the ids of the calls that have a result), so a restarted session
continues with the first step without one. A step with `life: N` runs in incarnation N only, even if its call was in
flight. `- ask_guardian: text` asks the person in charge.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from garrison.agents.base import Function
from garrison.agents.scripted import STEPS, fill

REPORT = "report_result"
_VALUE: Mapping[str, Any] = {"type": "object", "required": ["value"], "properties": {"value": {}}}


class Script:
    """Steps of one node, as a model that requests one call after the other."""

    def __init__(self, node: str, steps: list[dict[str, Any]], incarnation: int) -> None:
        self._node = node
        self._incarnation = incarnation
        self._calls = [(f"{number}:{name}", name, {"value": fill(value, node), **_only(step)})
                       for number, step in enumerate(steps, 1) if step.get("life", incarnation) == incarnation
                       for name, value in step.items() if name != "life"]

    def llm_call(self, messages: list[dict[str, Any]], _mode: str, _options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the first call without a result, then a report, then text (the adapter `llm_call`)."""
        done = {message.get("tool_call_id") for message in messages if message.get("role") == "tool"}
        for call, name, arguments in self._calls:
            if call not in done:
                return {"tool_calls": [{"id": call, "name": name, "arguments": arguments}]}
        if REPORT not in done:
            report = {"status": "success", "summary": f"the script of {self._node} has ended"}
            return {"tool_calls": [{"id": REPORT, "name": REPORT, "arguments": report}]}
        return {"content": f"The script of {self._node} has ended."}

    def tools(self) -> dict[str, Function]:
        return {name: Function(name, f"the script's step {name}", _VALUE, self._player(play))
                for name, play in STEPS.items()}

    def _player(self, play: Callable[[Any], Any]) -> Callable[..., str]:
        def call(value: Any, life: int | None = None) -> str:
            if life not in (None, self._incarnation):
                return f"skipped: meant for incarnation {life}"
            try:
                play(value)
            except SystemExit as error:
                if error.code:
                    raise RuntimeError(f"the script ended with exit code {error.code}") from error
            return "done"
        return call


def _only(step: Mapping[str, Any]) -> dict[str, Any]:
    return {"life": step["life"]} if "life" in step else {}
