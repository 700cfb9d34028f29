"""An agent graph with the real SDK and CLI: who directs whom reaches the model, a failure is tried again, all end."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from garrison.agents.graph import AgentFailure, AgentGraph
from garrison.testing.model_server import ModelServer
from garrison.testing.request import Request
from garrison.testing.turn import Fault, say
from support import processes


async def told_of(tmp_path: Path, server: ModelServer) -> dict[str, Any]:
    env = {"ANTHROPIC_BASE_URL": server.url, "CLAUDE_CONFIG_DIR": str(tmp_path / "claude"),
           "CLAUDE_CODE_MAX_RETRIES": "0"}
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async with AgentGraph("desk", sleep=sleep) as graph:
        for name in ("lead", "analyst", "clerk"):
            await graph.add_node(name, f"You are {name}.", "claude-sonnet-4-5", cwd=tmp_path, env=env)
        await graph.add_edge("lead", "analyst", control_type="reviewer")
        first = await graph.send_message("lead", "analyst", "Count to two.")
        second = await graph.send_message("lead", "analyst", "limited")
        with pytest.raises(AgentFailure):
            await graph.send_message("lead", "clerk", "refused")
        return {"first": str(first), "second": str(second), "slept": slept,
                "analyst": graph.get_agent_status("analyst"), "clerk": graph.get_agent_status("clerk"),
                "lead": graph.get_agent_status("lead")}


@pytest.mark.slow
def test_a_graph_of_real_sessions(tmp_path: Path) -> None:
    limited = []

    def script(asked: Request) -> Any:
        if "limited" in asked.prompt:
            limited.append(asked.number)
            return say("now", faults=(Fault("status", 429),) if len(limited) == 1 else ())
        if "refused" in asked.prompt:
            return say("never", faults=(Fault("status", 401, times=9),))
        return say("one, ", "two")

    with ModelServer(script) as server:
        told = asyncio.run(told_of(tmp_path, server))
        asked = server.messages[0].asked
    assert told["first"] == "one, two"
    assert "Message from agent 'lead':" in asked.prompt
    assert "You are analyst." in asked.system
    assert "Agent 'lead' (reviewer)" in asked.system
    assert (told["second"], told["slept"]) == ("now", [1.0])
    assert told["analyst"]["status"] == "active"
    assert (told["clerk"]["status"], told["clerk"]["attempts"]) == ("error", 1)
    assert not told["lead"]["is_running"]
    assert [one for one in processes() if one.ppid == os.getpid()] == [], "no CLI is left"
