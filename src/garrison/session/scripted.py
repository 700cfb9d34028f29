"""The scripted agent as a session's model: each step of its script is a call of a tool, the end a report. For tests.

Where it is stands in the conversation alone (the ids of the calls that have a result), so a session that died goes on
with the step that has none. A step with `life: N` is played in that life alone, also where its call was under way.
`- ask_guardian: text` asks the person in charge.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from garrison.agents.base import Function
from garrison.agents.scripted import STEPS, fill

REPORT = "report_result"
_VALUE: Mapping[str, Any] = {"type": "object", "required": ["value"], "properties": {"value": {}}}


class Script:
    """The steps of one node, as a model that asks for one call after the other."""

    def __init__(self, node: str, steps: list[dict[str, Any]], life: int) -> None:
        self._node = node
        self._life = life
        self._calls = [(f"{number}:{name}", name, {"value": fill(value, node), **_only(step)})
                       for number, step in enumerate(steps, 1) if step.get("life", life) == life
                       for name, value in step.items() if name != "life"]

    def llm_call(self, messages: list[dict[str, Any]], _mode: str, _options: Mapping[str, Any]) -> dict[str, Any]:
        """The adapter: the first call without a result; a report at the end; then words."""
        done = {one.get("tool_call_id") for one in messages if one.get("role") == "tool"}
        for call, name, arguments in self._calls:
            if call not in done:
                return {"tool_calls": [{"id": call, "name": name, "arguments": arguments}]}
        if REPORT not in done:
            report = {"status": "success", "summary": f"the script of {self._node} is played"}
            return {"tool_calls": [{"id": REPORT, "name": REPORT, "arguments": report}]}
        return {"content": f"The script of {self._node} is played."}


    def tools(self) -> dict[str, Function]:
        """The script's steps as tools."""
        return {name: Function(name, f"the script's step {name}", _VALUE, self._player(play))
                for name, play in STEPS.items()}

    def _player(self, play: Callable[[Any], Any]) -> Callable[..., str]:
        def call(value: Any, life: int | None = None) -> str:
            if life not in (None, self._life):
                return "left to the life it was meant for"
            try:
                play(value)
            except SystemExit as error:
                if error.code:
                    raise RuntimeError(f"the script ended with exit code {error.code}") from error
            return "done"
        return call


def _only(step: Mapping[str, Any]) -> dict[str, Any]:
    return {"life": step["life"]} if "life" in step else {}
