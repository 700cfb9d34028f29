"""What an agent is asked for a plan, and that only a sound one is taken."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from garrison.errors import GarrisonError
from garrison.workflow.plan import misfit, question, read
from garrison.workflow.tools import Toolbox


def body(**step: Any) -> str:
    return "Here:\n" + json.dumps({"name": "w", "steps": [{"name": "a", **step}]})


def test_the_agent_sees_every_tool_with_its_arguments(tmp_path: Path) -> None:
    listed = {"notes.add": SimpleNamespace(description="Keep  a note.", input_schema={"properties": {"text": {}}})}
    tools = {**Toolbox(tmp_path).tools(), "notes.add": None}
    asked = question("count the files", tools, listed)
    assert "<command>\ncount the files\n</command>" in asked
    assert "- notes.add(text): Keep a note." in asked
    assert all(f"- {name}(" in asked for name in tools)


def test_a_sound_plan_is_a_workflow(tmp_path: Path) -> None:
    tools = Toolbox(tmp_path).tools()
    assert read(body(tool="files.list", arguments={"pattern": "*"}), tools, {}).steps[0].tool == "files.list"


@pytest.mark.parametrize(("said", "why"), [
    ("no", "no JSON object"), ("{x}", "no JSON"), (body(tool="fly"), "not there"),
    (body(tool="files.read", arguments={}), "needs path"),
    (body(tool="files.read", arguments={"path": "a", "mode": "r"}), "takes no mode; it takes path")])
def test_an_unsound_plan_says_why(tmp_path: Path, said: str, why: str) -> None:
    with pytest.raises(GarrisonError, match=why):
        read(said, Toolbox(tmp_path).tools(), {})


def test_arguments_are_held_to_a_servers_schema() -> None:
    listed = SimpleNamespace(input_schema={"properties": {"text": {}}, "required": ["text"]})
    assert misfit({"text": "x"}, None, listed) == ""
    assert misfit({}, None, listed) == "needs text"
    assert misfit({"text": "x", "y": 1}, None, listed) == "takes no y; it takes text"
    assert misfit({"y": 1}, None, SimpleNamespace(input_schema={})) == ""
    assert misfit({"y": 1}, lambda **_: None, None) == ""
