"""`garrison ask` with the real CLI: the butler lets triage look at a real home with garrison's own commands."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from acp_panel import begin_session, editor
from claude_scripts import environment
from garrison.testing.model_server import ModelServer
from garrison.testing.request import Request
from garrison.testing.turn import Turn, say, use
from support import Place
from web_support import site


def scripted(seen: list[str]) -> Callable[[Request], Any]:
    """Return a model that lets triage look once and answers that all is quiet."""
    def script(asked: Request) -> Any:
        if "You find out what needs" in asked.system:
            seen.append(asked.system)
            if asked.step == 0:
                return say("I look.", use("mcp__desk__runs"))
            return say('Nothing runs.\n```json\n{"summary": "nothing runs", "data": {"runs": 0}}\n```')
        if asked.prompt.startswith("CLASSIFY"):
            return delegate("triage", timeConstraints="today")
        assert "nothing runs" in asked.prompt
        return say(ANSWER)
    return script


ANSWER = "All is quiet.\n" * 9


def delegate(name: str, **more: str) -> Turn:
    """The butler's classification, as the schema requires it."""
    return say(use("StructuredOutput", delegations=[{"intent": f"delegate_{name}", "reasoning": "look", **more}]))


@contextmanager
def serving(place: Place, model: Callable[[Request], Any]) -> Iterator[ModelServer]:
    """Let the place's garrison use this model."""
    with ModelServer(model) as server:
        place.env = environment(place, server)
        yield server


ORDER = ["agent_start", "agent_delegate", "agent_start", "agent_complete", "agent_resume", "agent_complete", "done"]


def test_one_delegation_with_a_real_tool(place: Place) -> None:
    """Four calls: one classification whose form the schema holds, two of triage, one answer; `cost` counts them."""
    seen: list[str] = []
    with serving(place, scripted(seen)) as server:
        done = place.command("ask", "--json", "What needs me today?")
        assert done.returncode == 0, done.stderr
        assert len(server.messages) == 4
        assert "StructuredOutput" in server.messages[0].asked.tools
        rows = json.loads(place.command("cost", "--json").stdout)
    assert [(row["of"], row["calls"]) for row in rows] == [("@chat/default", 4)]
    assert rows[0]["usd"] > 0
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["type"] for one in events if one["type"] != "text"] == ORDER
    said = [one["content"] for one in events if one["type"] == "text" and one["agent"] == "butler"]
    assert "".join(said) == ANSWER
    assert len(said) > 1, "it is streamed"
    assert "Agent 'butler' (delegates to you)" in seen[0]
    [_, entry] = [json.loads(line) for line in
                  (Path(place.home) / "conversations/default.jsonl").read_text().splitlines()]
    assert entry["delegations"][0]["result"] == {
        "agentType": "triage", "success": True, "summary": "nothing runs", "data": {"runs": 0},
        "toolsUsed": ["runs"], "tokensUsed": entry["delegations"][0]["result"]["tokensUsed"]}


def proposing(tool: str, **arguments: str) -> Callable[[Request], Any]:
    """Return a model that lets the scheduler propose a command with one of its tools."""
    def script(asked: Request) -> Any:
        if "You control when work happens" in asked.system:
            if asked.step == 0:
                return say(use(f"mcp__desk__{tool}", **arguments))
            assert "NOT DONE YET" in asked.result
            return say("I propose it.")
        return delegate("schedule") if asked.prompt.startswith("CLASSIFY") else say("It waits for your word.")
    return script


def test_a_run_is_stopped_only_after_the_user_has_agreed(place: Place) -> None:
    """The scheduler's tool changes nothing; `garrison ask yes` runs the command that was shown, without a model."""
    with serving(place, proposing("stop_run", run="r1")) as server:
        asked = place.command("ask", "Stop r1")
        assert asked.returncode == 0, asked.stderr
        assert "Answer `yes`; any other answer drops it.\n    garrison stop r1" in asked.stdout
        calls = len(server.messages)
        agreed = place.command("ask", "yes")
        assert len(server.messages) == calls
    assert "`garrison stop r1` failed: " in agreed.stdout and "no run r1" in agreed.stdout
    assert agreed.returncode == 1


def test_in_an_editors_panel_the_butler_starts_a_run_that_the_user_allows(place: Place) -> None:
    """Its specialist is a tool call, its proposal a permission request; the conversation survives a restart."""
    place.use_agent("echo it > made.txt", gate="true")
    with serving(place, proposing("start_run", task="make it")) as server:
        with editor(place) as found:
            session = begin_session(found, place.repo)
            found.grants = {"garrison run --detach 'make it'": "Run it"}
            assert "It waits for your word." in found.prompt(session, "Please make it")
            assert found.calls()[f"{session}/0/scheduler"] == "completed"
            assert "is over: done; 1 of 1 landed" in found.until("is over")
            assert "done" in found.prompt(session, "/status")
        calls = len(server.messages)
        with editor(place) as found:
            found.call("session/load", sessionId=session, cwd=str(place.repo), mcpServers=[])
            assert [update["content"]["text"] for update in found.updates if update["sessionUpdate"] ==
                    "user_message_chunk"] == ["Please make it", "yes", "/status"]
            assert "is starting" in found.said() and "completed" in found.calls().values()
        assert len(server.messages) == calls, "no model is asked for what is kept"


def test_a_message_stops_at_its_budget_and_its_answer_is_the_reason(place: Place) -> None:
    """The first response already costs more than the message may: there is no second call."""
    place.configure("[chat]\nbudget = 0.001\n")
    with serving(place, lambda _: delegate("triage")) as server:
        done = place.command("ask", "What needs me?")
        assert len(server.messages) == 1
        rows = json.loads(place.command("cost", "--by", "run", "--json").stdout)
    assert done.returncode == 1
    assert done.stdout.startswith("I could not choose a specialist, so I answer alone: ")
    assert "of the $0.00 for one message are spent" in done.stdout
    assert [(row["of"], row["calls"]) for row in rows] == [("@chat", 1)]


@pytest.mark.slow
def test_the_page_delegates_likewise_and_a_cancelled_answer_leaves_no_session(
        place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        async with site(Path(place.home)) as here:
            stream = await here.stream("/api/chat", method="POST", body={"message": "What needs me today?"})
            told = [one.data for one in await stream.rest()]
            assert [one["type"] for one in told if one["type"] != "text"] == ORDER, told
            said = [one["content"] for one in told if one["type"] == "text" and one["agent"] == "butler"]
            assert "".join(said) == ANSWER
            second = await here.stream("/api/chat", method="POST", body={"message": "And now?"})
            await second.next()
            assert (await here.post("/api/chat/default/cancel", {})).json["ok"]
            assert [one.data["type"] for one in await second.rest()][-3:] == ["text", "agent_complete", "done"]

    with ModelServer(scripted([])) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        asyncio.run(scene())
