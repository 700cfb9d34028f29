"""Permissions that the person gives: with `permission_mode = "ask"`, a call that is not allowed becomes a question.

The turn ends, as after any question, and no process waits. After the answer the agent repeats the call. `yes` allows
that call, `always` every call of its tool in the attempt; any other answer refuses it and is told to the agent.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from garrison.agents.claude import questions
from garrison.agents.claude.stream import describe_call
from garrison.records.json_io import read_json, write_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from garrison.agents.claude.attempt_files import AttemptFiles

YES, ALWAYS = frozenset(("yes", "y", "allow", "ok")), frozenset(("always",))
_ASKED = "The person in charge is asked whether you may. End your turn now; the answer will be your next message."


class Permissions:
    """Permissions of one attempt."""

    def __init__(self, files: AttemptFiles) -> None:
        self._files = files

    def refuse(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """Return why a call may not be made, '' if it may; a call that was never decided becomes a question."""
        given = self._given()
        call = _digest(tool, arguments)
        if given["calls"].get(call) == "" or tool in given["tools"]:
            return ""
        if call in given["calls"]:
            return f"the person in charge has refused it: {given['calls'][call]}"
        if not questions.unanswered(self._files):
            text = f"May it use {describe_call({'name': tool, 'input': arguments})}? (yes, always, or why not)"
            questions.ask(self._files, text, permission=[tool, call])
        return _ASKED

    def _given(self) -> dict[str, Any]:
        """Return the tools that are always allowed, and per call '' or the refusal; take the last answer in."""
        given: dict[str, Any] = read_json(self._files.permissions) or {"tools": [], "calls": {}}
        asked, answered = read_json(self._files.question) or {}, questions.last_answer(self._files)
        if answered is not None and (permission := asked.get("permission")):
            tool, call = permission
            word = answered[1].strip().lower().rstrip(".!")
            if word in ALWAYS and tool not in given["tools"]:
                given["tools"].append(tool)
            given["calls"][call] = "" if word in YES | ALWAYS else answered[1].strip() or "no"
            write_json(self._files.permissions, given)
        return given


def _digest(tool: str, arguments: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps([tool, arguments], sort_keys=True, default=str).encode()).hexdigest()
