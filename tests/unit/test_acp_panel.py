"""What is typed in an editor's panel, and how it shows a run: pure."""

from __future__ import annotations

import pytest
from acp.helpers import embedded_text_resource, resource_block, resource_link_block, text_block

from garrison.acp import commands, rail
from garrison.acp.server import text_of
from garrison.errors import UsageError
from garrison.mcp.crew import SeenNode, SeenRun


@pytest.mark.parametrize(("text", "given"), [
    ("/run fix it", {"task": "fix it"}), ("/run\nfix it\n\nall of it", {"task": "fix it\n\nall of it"}),
    ("/run --agent codex --budget=2 fix it", {"task": "fix it", "agent": "codex", "budget": "2"}),
    ('/run --gate "make test" fix --it', {"task": "fix --it", "gate": "make test"})])
def test_a_run_has_options_before_its_task(text: str, given: dict[str, str]) -> None:
    typed = commands.read(text)
    assert typed is not None and commands.read_run(typed.rest) == given


def test_what_is_no_command_is_a_message_and_what_is_mistyped_says_how() -> None:
    assert [commands.read(text) for text in ("fix /run", "/etc/hosts is wrong", "/x.py fails", "")] == [None] * 4
    for text, told in (("/stpo", "did you mean /stop"), ("/", "there is no command /;"), ("/frobnicate", "are /run")):
        with pytest.raises(UsageError, match=told):
            commands.read(text)
    for text in ("/tell", "/tell node", "/diff", "/diff a b"):
        typed = commands.read(text)
        assert typed is not None
        with pytest.raises(UsageError, match=f"type /{typed.name} NODE"):
            typed.two() if typed.name == "tell" else typed.one()
    with pytest.raises(UsageError, match="has no --colour"):
        commands.read_run("--colour red fix it")


def test_a_node_gets_a_call_once_it_works_and_each_change_updates_it() -> None:
    def seen(first: str, second: str) -> SeenRun:
        nodes = [SeenNode("a", first, first), SeenNode("b", second, "for a")]
        return SeenRun("r1", "running", "", "", is_over=False, nodes=nodes)

    old, new = seen("working", "waiting"), seen("landed", "working")
    [call] = rail.to_calls(None, old, set())
    assert (call.session_update, call.tool_call_id, call.status) == ("tool_call", "r1/a", "in_progress")
    assert rail.to_calls(old, old, {"r1/a"}) == []
    assert [(call.session_update, call.tool_call_id, call.status) for call in rail.to_calls(old, new, {"r1/a"})] == [
        ("tool_call_update", "r1/a", "completed"), ("tool_call", "r1/b", "in_progress")]
    assert [call.status for call in rail.to_calls(new, seen("failed", "working"), {"r1/a", "r1/b"})] == ["failed"]
    assert [(entry.content, entry.status) for entry in rail.to_plan([old]).entries] == [
        ("a: working", "in_progress"), ("b: waiting, for a", "pending")]
    assert rail.to_plan([old, new]).entries[0].content == "r1: a: working"


def test_files_of_a_prompt_are_quoted_or_named() -> None:
    quoted = resource_block(embedded_text_resource("file:///p/a.md", "a ``` in it"))
    assert text_of([text_block("mend"), quoted, resource_link_block("b", "file:///p/b.py")]) == (
        "mend\n\n/p/a.md:\n````\na ``` in it\n````\n /p/b.py")
