"""What an agent is asked for a plan, and that only a sound one is taken."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from garrison.errors import GarrisonError
from garrison.workflow.builtin_tools import Toolbox
from garrison.workflow.planner import question, read
from garrison.workflow.validation import misfit


def body(**step: Any) -> str:
    return "Here:\n" + json.dumps({"name": "w", "steps": [{"name": "a", **step}]})


def served(about: str, schema: dict[str, Any]) -> Any:
    """A tool as a server's is."""
    return SimpleNamespace(__doc__=about, listed=SimpleNamespace(input_schema=schema))


def test_the_agent_sees_every_tool_with_its_arguments(tmp_path: Path) -> None:
    tools = {**Toolbox(tmp_path).tools(), "notes.add": served("Keep  a note.", {"properties": {"text": {}}})}
    asked = question("count the files", tools)
    assert "<command>\ncount the files\n</command>" in asked
    assert "- notes.add(text): Keep a note." in asked
    assert all(f"- {name}(" in asked for name in tools)


def test_a_sound_plan_is_a_workflow(tmp_path: Path) -> None:
    tools = Toolbox(tmp_path).tools()
    assert read(body(tool="files.list", arguments={"pattern": "*"}), tools).steps[0].tool == "files.list"


@pytest.mark.parametrize(("said", "why"), [
    ("no", "no JSON object"), ("{x}", "no JSON"), (body(tool="fly"), "not there"),
    (body(tool="files.read", arguments={}), "needs path"),
    (body(tool="files.read", arguments={"path": "a", "mode": "r"}), "takes no mode; it takes path")])
def test_an_unsound_plan_says_why(tmp_path: Path, said: str, why: str) -> None:
    with pytest.raises(GarrisonError, match=why):
        read(said, Toolbox(tmp_path).tools())


def test_arguments_are_held_to_a_servers_schema() -> None:
    tool = served("", {"properties": {"text": {}, "count": {"type": "integer"}}, "required": ["text"]})
    assert misfit({"text": "x", "count": 1}, tool) == ""
    assert misfit({}, tool) == "needs text"
    assert misfit({"text": "x", "y": 1}, tool) == "takes no y; it takes count, text"
    assert misfit({"txt": "x"}, tool) == "takes no txt; did you mean text?"
    assert misfit({"text": "x", "count": "two"}, tool) == "takes a whole number as count, not 'two'"
    assert misfit({"text": "x", "count": "${a.count}"}, tool) == ""
    assert misfit({"y": 1}, served("", {})) == ""


def test_arguments_are_held_to_a_functions_signature() -> None:
    def tool(path: str, limit: int | None = None, share: float = 0.5, words: list[str] | str = "") -> None: ...

    assert misfit({"path": "x", "limit": None, "share": 1, "words": ["a"]}, tool) == ""
    assert misfit({"path": 3}, tool) == "takes a text as path, not 3"
    assert misfit({"path": "x", "limit": True}, tool) == "takes a whole number as limit, not True"
    assert misfit({"path": "x", "words": {}}, tool) == "takes a list or a text as words, not {}"
    assert misfit({"y": 1}, lambda **_: None) == ""
    assert misfit({"y": 1}, max) == ""
