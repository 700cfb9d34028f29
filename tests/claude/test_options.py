"""Options of Claude sessions with the real CLI: tools by pattern, servers, subagents, skills, hooks, permissions,
messages of the user, structured reports."""

from __future__ import annotations

import json

import pytest

from claude_scripts import TOOL, report, work
from garrison.testing.request import Request
from garrison.testing.turn import Turn, say, use
from support import PYTHON, git, wait_for

SERVER = """import sys
from mcp.server.mcpserver import MCPServer
server = MCPServer("notes")
@server.tool()
def recall(topic: str) -> str:
    return f"{topic} is teal"
server.run()
"""


def test_extensions_reach_the_session(scene, place):
    """A server's tool is called, a skill, a subagent and another directory are offered, a hook refuses, a pattern
    allows one command and refuses another, commits are not signed, and the report has the required output."""
    (place.root / "server.py").write_text(SERVER)
    skill, other = place.root / "polish", place.root / "other"
    skill.mkdir()
    other.mkdir()
    (skill / "SKILL.md").write_text("---\nname: polish\ndescription: Polish the words.\n---\nPolish them twice.\n")
    scene.configure(f"""
tools = ["Bash", "Read"]
allowed_tools = ["Read", "Bash(git status:*)", "Bash(echo:*)", "Bash(git add:*)", "Bash(git commit:*)", "mcp__notes"]
disallowed_tools = ["Bash(git push:*)"]
skills = ["{skill}"]
add_dirs = ["{other}"]
thinking = "disabled"
attribution = false
output_schema = '{{"type": "object", "required": ["colour"], "properties": {{"colour": {{"type": "string"}}}}}}'
[agents.claude.mcp_servers.notes]
command = "{PYTHON}"
args = ["{place.root / 'server.py'}"]
[agents.claude.mcp_servers.broken]
command = "{PYTHON}"
args = ["-c", "raise SystemExit(3)"]
[agents.claude.subagents.critic]
description = "Finds faults."
prompt = "You find faults."
tools = ["Read"]
[agents.claude.hooks]
PreToolUse = [{{matcher = "Read", command = "echo 'no reading' >&2; exit 2"}}]
""")
    given: list[str] = []

    def play(asked: Request) -> Turn | str:
        given.append(asked.result)
        result = {"status": "success", "summary": "done"}
        turns = (say(use("mcp__notes__recall", topic="it")), say(use("Read", file_path=str(place.root / "server.py"))),
                 say(use("Bash", command="rm -rf calc.py")), say(use("Bash", command="git push origin")),
                 say(use("Bash", command="git status --short")),
                 say(use("Bash", command="echo a > a-r1.txt && git add -A && git commit -qm a")),
                 say(use(f"{TOOL}report_result", **result)),
                 say(use(f"{TOOL}report_result", **result, output={"colour": "teal"})), "Done.")
        return turns[min(asked.step, len(turns) - 1)]

    scene.players["a"] = play
    assert place.finish(scene.launch(scene.graph(a=""))) == 0, place.logs()
    first = scene.calls("a")[0]
    body = json.dumps(first.body)
    assert {"Agent", "Bash", "Read", "Skill", "mcp__notes__recall"} <= set(first.asked.tools)
    assert not {"Write", "Edit"} & set(first.asked.tools)
    assert all(words in body for words in ("critic", "Polish the words.", str(other)))
    assert "Co-Authored-By" not in body
    assert "it is teal" in given[1]
    assert "no reading" in given[2]
    assert all("permission" in said.lower() or "denied" in said.lower() for said in (given[3], given[4])), given[3:5]
    assert "permission" not in given[5].lower()
    assert "output: None is not of type 'object'" in given[7]
    assert "MCP server broken" in place.command("logs", "a").stdout
    kept = json.loads((scene.folder("a") / "report.json").read_text())
    assert kept["context_updates"] == {"output": {"colour": "teal"}}


@pytest.mark.parametrize("takes", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_repository_s_own_settings_apply_if_the_profile_takes_them(scene, place, takes):
    """Servers, hooks, permissions, skills and subagents, as they were where the branch started; no variables."""
    place.commit("Tell agents what they have", {
        ".claude/skills/polish/SKILL.md": "---\nname: polish\ndescription: Polish the words.\n---\nTwice.\n",
        ".claude/agents/critic.md": "---\nname: critic\ndescription: Finds faults.\n---\nYou find faults.\n",
        ".claude/settings.json": json.dumps({
            "env": {"ANTHROPIC_BASE_URL": "http://127.0.0.1:9"}, "permissions": {"deny": ["Bash(git push:*)"]},
            "hooks": {"PreToolUse": [{"matcher": "Read", "hooks": [
                {"type": "command", "command": "echo 'no reading' >&2; exit 2"}]}]}}),
        "server.py": SERVER,
        ".mcp.json": json.dumps({"mcpServers": {"notes": {"command": PYTHON, "args": ["server.py"]}}})})
    scene.configure(f"repository = {json.dumps(takes)}")
    given: list[str] = []

    def play(asked: Request) -> Turn | str:
        given.append(asked.result)
        turns = (say(use("Read", file_path="calc.py")), say(use("Bash", command="git push origin")), work("a"),
                 *([say(use("mcp__notes__recall", topic="it"))] if takes else []), report(), "Done.")
        return turns[min(asked.step, len(turns) - 1)]

    scene.players["a"] = play
    assert place.finish(scene.launch(scene.graph(a=""))) == 0, place.logs()
    first = scene.calls("a")[0]
    told = json.dumps(first.body)
    assert [word in told for word in ("mcp__notes__recall", "Polish the words.", "Finds faults.")] == [takes] * 3
    assert ("no reading" in given[1]) == takes and ("denied" in given[2].lower()) == takes, given
    assert not takes or "it is teal" in given[4]


def test_the_user_permits_a_call_and_messages_reach_the_session(scene, place):
    """With permission_mode=ask a call becomes a question: yes permits it, another answer goes to the session. What
    `tell` sends arrives with its next tool result, or with the message after a wait."""
    scene.configure('permission_mode = "ask"\nallowed_tools = ["Bash(echo:*)"]')
    heard: list[str] = []

    def play(asked: Request) -> Turn | str:
        whole = str(asked.messages)
        if "The answer: yes" in asked.prompt:
            return (work("a"), report(), "Done.")[min(asked.step, 2)]
        if "The answer: not that one" in asked.prompt:
            heard.append(asked.prompt)
            return work("a")
        if "Be quick." not in whole:
            return say(use("Bash", command="echo waiting; sleep 1"))
        return say(use("Bash", command="rm -f calc.py.orig; git init other"))

    scene.players["a"] = play
    child = scene.launch(scene.graph(a=""))
    wait_for("it is at work", lambda: scene.calls("a"))
    told = place.command("tell", "a", "Be quick.")
    assert told.returncode == 0, told.stderr
    wait_for("the first call is asked", lambda: "a asks: May it use Bash rm -f calc.py.orig; git init other?" in
             place.logs())
    assert place.command("tell", "a", "And be careful.").returncode == 0
    assert place.command("answer", "a", "not that one").returncode == 0
    wait_for("the second call is asked", lambda: place.logs().count("a asks: May it use") == 2)
    assert place.command("answer", "a", "yes").returncode == 0
    assert place.finish(child) == 0, place.logs()
    assert git(place.repo, "show", "main:a-r1.txt") == "a"
    assert "And be careful." in heard[0]
    assert place.command("tell", "a", "Too late.").returncode == 1
    shown = place.command("prompt", "a").stdout
    assert shown.count("from the user (`garrison tell`)") == 2 and "Be quick." in shown
