"""`garrison ask` with the real CLI: the butler lets triage look at a real home with garrison's own commands."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from garrison.testing.model_server import ModelServer
from garrison.testing.request import Request
from garrison.testing.turn import say, use
from support import DEADLINE, Place
from web_support import site


def scripted(seen: list[str]) -> Callable[[Request], Any]:
    """A model that lets triage look once and says that all is quiet."""
    def script(asked: Request) -> Any:
        if "You find out what needs" in asked.system:
            seen.append(asked.system)
            if asked.step == 0:
                return say("I look.", use("mcp__desk__runs"))
            return say('Nothing runs.\n```json\n{"summary": "nothing runs", "data": {"runs": 0}}\n```')
        if asked.prompt.startswith("CLASSIFY"):
            order = {"intent": "delegate_triage", "reasoning": "look", "timeConstraints": "today"}
            return say(json.dumps({"delegations": [order], "confidence": 1}))
        assert "nothing runs" in asked.prompt
        return say("All is quiet.")
    return script


def test_one_delegation_with_a_real_tool(place: Place) -> None:
    seen: list[str] = []
    with ModelServer(scripted(seen)) as server:
        environment = {**os.environ, "GARRISON_HOME": str(place.home), "ANTHROPIC_BASE_URL": server.url}
        words = [sys.executable, "-P", "-m", "garrison.cli.main", "ask", "--json", "What needs me today?"]
        done = subprocess.run(words, env=environment, cwd=place.root, capture_output=True, text=True, timeout=DEADLINE,
                              check=False)
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["type"] for one in events if one["type"] != "text"] == [
        "agent_start", "agent_delegate", "agent_complete", "agent_resume", "agent_complete", "done"]
    assert "".join(one["content"] for one in events if one["type"] == "text" and one["agent"] == "butler") == \
        "All is quiet."
    assert "Agent 'butler' (delegates to you)" in seen[0]
    [_, entry] = [json.loads(line) for line in
                  (Path(place.home) / "conversations/default.jsonl").read_text().splitlines()]
    assert entry["delegations"][0]["result"] == {
        "agentType": "triage", "success": True, "summary": "nothing runs", "data": {"runs": 0},
        "toolsUsed": ["runs"], "tokensUsed": entry["delegations"][0]["result"]["tokensUsed"]}


@pytest.mark.slow
def test_the_same_over_the_page(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """`POST /api/chat` sits at the same desk, and an answer that is given up leaves no session behind."""
    async def scene() -> None:
        async with site(Path(place.home)) as here:
            stream = await here.stream("/api/chat", method="POST", body={"message": "What needs me today?"})
            told = [one.data for one in await stream.rest()]
            assert [one["type"] for one in told if one["type"] != "text"] == [
                "agent_start", "agent_delegate", "agent_complete", "agent_resume", "agent_complete", "done"], told
            said = [one["content"] for one in told if one["type"] == "text" and one["agent"] == "butler"]
            assert "".join(said) == "All is quiet."
            second = await here.stream("/api/chat", method="POST", body={"message": "And now?"})
            await second.next()
            assert (await here.post("/api/chat/default/cancel", {})).json["ok"]
            assert [one.data["type"] for one in await second.rest()][-3:] == ["text", "agent_complete", "done"]

    Path(place.home).mkdir(exist_ok=True, mode=0o700)
    with ModelServer(scripted([])) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        asyncio.run(scene())
