"""Prompt for a plan, and validation of the answer."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from garrison.errors import GarrisonError
from garrison.workflow.agent import ResearchAgent, parse_plan, plan_prompt
from garrison.workflow.tools import Toolbox
from garrison.workflow.validation import argument_error


def body(**step: Any) -> str:
    return "Here:\n" + json.dumps({"name": "w", "steps": [{"name": "a", **step}]})


def served(about: str, schema: dict[str, Any]) -> Any:
    """Return a tool like that of a server."""
    return SimpleNamespace(__doc__=about, listed=SimpleNamespace(input_schema=schema))


def test_the_prompt_has_every_tool_with_its_arguments(tmp_path: Path) -> None:
    tools = {**Toolbox(tmp_path).tools(), "notes.add": served("Keep  a note.", {"properties": {"text": {}}})}
    asked = plan_prompt("count the files", tools)
    assert "<command>\ncount the files\n</command>" in asked
    assert "- notes.add(text): Keep a note." in asked
    assert all(f"- {name}(" in asked for name in tools)


@pytest.mark.parametrize(("said", "why"), [
    ("no", "no JSON object"), ("{x}", "not valid JSON"), (body(tool="fly"), "does not exist"),
    (body(tool="files.read", arguments={}), "needs path"),
    (body(tool="files.read", arguments={"path": "a", "mode": "r"}), "has no parameter mode; it takes path")])
def test_an_invalid_plan_is_refused_with_a_reason(tmp_path: Path, said: str, why: str) -> None:
    with pytest.raises(GarrisonError, match=why):
        parse_plan(said, Toolbox(tmp_path).tools())


def test_an_invalid_plan_is_requested_again_with_the_reason(tmp_path: Path) -> None:
    answers, asked = ["no plan", body(tool="files.list", arguments={"pattern": "*"})], []

    async def ask(prompt: str) -> str:
        asked.append(prompt)
        return answers[len(asked) - 1]

    agent = ResearchAgent(Toolbox(tmp_path).tools())
    assert asyncio.run(agent.plan("list the files", ask)).steps[0].tool == "files.list"
    assert "list the files" in asked[0] and "no JSON object" in asked[1]
    answers[:], asked[:] = ["no"] * 3, []
    with pytest.raises(GarrisonError, match="no valid workflow in 3 attempts"):
        asyncio.run(agent.plan("list the files", ask))


def test_arguments_must_fit_the_schema_of_a_server() -> None:
    tool = served("", {"properties": {"text": {}, "count": {"type": "integer"}}, "required": ["text"]})
    assert argument_error({"text": "x", "count": 1}, tool) == ""
    assert argument_error({}, tool) == "needs text"
    assert argument_error({"text": "x", "y": 1}, tool) == "has no parameter y; it takes count, text"
    assert argument_error({"txt": "x"}, tool) == "has no parameter txt; did you mean text?"
    assert argument_error({"text": "x", "count": "two"}, tool) == "takes a whole number as count, not 'two'"
    assert argument_error({"text": "x", "count": "${a.count}"}, tool) == ""
    assert argument_error({"y": 1}, served("", {})) == ""


def test_arguments_must_fit_the_signature_of_a_function() -> None:
    def tool(path: str, limit: int | None = None, share: float = 0.5, words: list[str] | str = "") -> None: ...

    assert argument_error({"path": "x", "limit": None, "share": 1, "words": ["a"]}, tool) == ""
    assert argument_error({"path": 3}, tool) == "takes a text as path, not 3"
    assert argument_error({"path": "x", "limit": True}, tool) == "takes a whole number as limit, not True"
    assert argument_error({"path": "x", "words": {}}, tool) == "takes a list or a text as words, not {}"
    assert argument_error({"y": 1}, lambda **_: None) == ""
    assert argument_error({"y": 1}, max) == ""
