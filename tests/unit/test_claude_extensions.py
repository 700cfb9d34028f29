"""Extensions of a Claude session: patterns are one value each, and what cannot be meant is refused in one line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from garrison.agents.claude.extensions import cli_settings, patterns
from garrison.agents.claude.settings import ClaudeSettings, from_profile
from garrison.agents.conversation.files import AttemptFiles
from garrison.agents.conversation.messages import post, take
from garrison.agents.conversation.questions import Permissions, read_json, save_answer
from garrison.agents.conversation.tools import report_result
from garrison.errors import UsageError
from garrison.records.record import from_data
from garrison.tables import Table
from garrison.values import asdict


@pytest.fixture
def files(tmp_path: Path) -> AttemptFiles:
    made = AttemptFiles(tmp_path)
    made.make()
    return made


@pytest.mark.parametrize(("text", "found"), [
    ("Read, Bash(git status:*) Edit", ("Read", "Bash(git status:*)", "Edit")),
    ("Bash(npm run a, b),Read", ("Bash(npm run a, b)", "Read")), ("mcp__notes__recall", ("mcp__notes__recall",))])
def test_a_pattern_with_blanks_is_one_value(text: str, found: tuple[str, ...]) -> None:
    assert patterns(text) == found


@pytest.mark.parametrize(("values", "words"), [
    ({"tools": ["Bahs"]}, "there is no tool Bahs; did you mean Bash?"),
    ({"allowed_tools": "mcp__notes__recall"}, "there is no MCP server notes"),
    ({"disallowed_tools": ["Bash(rm"]}, "tools such as Bash"),
    ({"mcp_servers": {"a": {}}}, "either a command or a url"),
    ({"mcp_servers": {"a": {"comand": "x"}}}, "comand is not a setting; did you mean command?"),
    ({"mcp_servers": {"a": 3}}, "mcp_servers.a should be a table with type, command, "),
    ({"subagents": {"a": {"prompt": "x"}}}, "a description"),
    ({"subagents": {"a": {"promt": "x"}}}, "did you mean prompt"),
    ({"hooks": {"PreTol": []}}, "PreTol is not a setting; there are PreToolUse, PostToolUse, "),
    ({"hooks": {"Stop": [{"run": "x"}]}}, "[agents.x.hooks] Stop=[{'run': 'x'}] should be a list of tables with"),
    ({"skills": ["not/there"]}, "absolute paths that exist"), ({"thinking": "much"}, "a number of tokens"),
    ({"output_schema": "{"}, "a JSON schema"), ({"attribution": "maybe"}, "true or false"),
    ({"hooks": 3}, "agents.x.hooks should be a table with PreToolUse, ")])
def test_invalid_extensions_are_refused_with_their_place(values: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        from_profile(Table("config.toml", values, ("agents", "x")))
    assert re.match(r"config\.toml: (\[agents\.x[].]|agents\.x\.)", str(caught.value))
    assert words in str(caught.value)


def test_extensions_survive_the_job_and_leave_a_validator() -> None:
    server = {"command": "notes"}
    made = from_profile(Table("here", {
        "mcp_servers": {"notes": server}, "allowed_tools": ["Read", "mcp__notes"],
        "hooks": {"Stop": [{"command": "true"}]}, "thinking": 2000}))
    made = made.for_node("n", {"disallowed_tools": "Bash(git push:*)", "attribution": "false"})
    assert from_data(ClaudeSettings, asdict(made)) == made
    assert (made.disallowed_tools, made.attribution) == (("Bash(git push:*)",), False)
    assert made.read_only().mcp_servers == {}
    assert cli_settings(made.hooks, attribution=False)["hooks"] == {
        "Stop": [{"hooks": [{"type": "command", "command": "true"}]}]}
    assert cli_settings(ClaudeSettings().hooks, attribution=True) == {}


@pytest.mark.parametrize(("answer", "first", "second"), [
    ("yes", "", "is asked"), ("Always.", "", ""), ("not in this house", "refused it: not in this house", "is asked")])
def test_permissions_are_asked_for_once(files: AttemptFiles, answer: str, first: str, second: str) -> None:
    permissions = Permissions(files)
    assert "is asked" in permissions.refuse("Bash", {"command": "rm a"})
    asked = read_json(files.question)
    assert asked["text"] == "May it use Bash rm a? (yes, always, or why not)"
    save_answer(files, asked["id"], answer)
    for command, words in (("rm a", first), ("rm b", second)):
        found = Permissions(files).refuse("Bash", {"command": command})
        assert words in found if words else found == ""


def test_messages_are_delivered_once(files: AttemptFiles) -> None:
    assert take(files) == ""
    post(files, "Be quick.", "now")
    post(files, "Be careful.", "now")
    assert take(files).endswith("\n\nBe quick.\n\nBe careful.")
    assert take(files) == ""


def test_a_successful_report_must_have_its_output(files: AttemptFiles) -> None:
    report = report_result(files, {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}})
    with pytest.raises(UsageError, match=r"output.n: 'x' is not of type 'integer'; say it again"):
        report.call(status="success", summary="done", output={"n": "x"})
    report.call(status="success", summary="done", output={"n": 3})
    assert read_json(files.report)["context_updates"] == {"output": {"n": 3}}
