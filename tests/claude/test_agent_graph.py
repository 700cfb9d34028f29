"""An agent graph with the real SDK and CLI: its edges reach the model, failures are retried, every CLI ends."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from claude_scripts import past_of
from garrison.agents import AgentGraph
from garrison.agents.graph import AgentFailure
from garrison.records.budget import Allowance, Purse
from garrison.testing.model_server import ModelServer
from garrison.testing.request import Request
from garrison.testing.turn import ALWAYS, Fault, say, use
from garrison.views.usage import cost_rows
from support import processes, wait_for


def children() -> list[Any]:
    return [one for one in processes() if one.ppid == os.getpid()]


async def play(tmp_path: Path, server: ModelServer) -> dict[str, Any]:
    env = {"ANTHROPIC_BASE_URL": server.url, "CLAUDE_CONFIG_DIR": str(tmp_path / "claude"),
           "CLAUDE_CODE_MAX_RETRIES": "0"}
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    purse = Purse(tmp_path / "home", "graph", "desk", Allowance(day=1))
    async with AgentGraph("desk", sleep=sleep, purse=purse) as graph:
        for name in ("lead", "analyst"):
            await graph.add_node(name, f"You are {name}.", "claude-sonnet-4-5", cwd=tmp_path, env=env)
        await graph.add_node("clerk", "You are clerk.", cwd=tmp_path, env={**env, "CLAUDE_CODE_MAX_RETRIES": "9"})
        await graph.add_node("busy", "You are busy.", cwd=tmp_path, env=env, tools=["Bash"], max_turns=1)
        await graph.add_node("mute", "You are mute.", cwd=tmp_path, env=env, stale=4)
        await graph.add_edge("lead", "analyst", control_type="reviewer")
        pieces: list[str] = []
        first = await graph.send_message("lead", "analyst", "Count to two.", on_event=lambda event: pieces.append(
            str(event["text"])) if event["kind"] == "partial" else None)
        second = await graph.send_message("lead", "analyst", "limited")
        [cli] = children()
        os.kill(cli.pid, signal.SIGKILL)
        wait_for("the death is seen", lambda: graph.get_agent_status("analyst")["status"] == "error")
        dead = graph.get_agent_status("analyst")
        third = await graph.send_message("lead", "analyst", "Go on.")
        waited = list(slept)
        await graph.send_message("lead", "mute", "Be silent.")
        with pytest.raises(AgentFailure, match="maximum number of turns"):
            await graph.send_message("lead", "busy", "Look around.")
        found = {"busy": graph.get_agent_status("busy"), "analyst": graph.get_agent_status("analyst"), "dead": dead}
        with pytest.raises(AgentFailure, match="garrison login"):
            await graph.send_message("lead", "clerk", "refused")
        return {**found, "said": [str(first), str(second), str(third)], "slept": waited, "pieces": pieces,
                "clerk": graph.get_agent_status("clerk"), "clerk's": graph.get_node("clerk").metadata["last_error"],
                "lead": graph.get_agent_status("lead")}


def test_an_agent_keeps_its_history_and_a_true_status_over_failures_and_deaths(tmp_path: Path) -> None:
    limited, silent = [], []

    def script(asked: Request) -> Any:
        if "limited" in asked.prompt:
            limited.append(asked.number)
            return say("now", faults=(Fault("status", 429),) if len(limited) == 1 else ())
        if "Be silent." in asked.prompt:
            silent.append(asked.number)
            return say("yes", faults=(Fault("hang", "stream", seconds=60),) if len(silent) == 1 else ())
        if "Look around." in asked.prompt:
            return say(use("Bash", command="true"))
        if "refused" in asked.prompt:
            return say("never", faults=(Fault("status", 401, times=ALWAYS),))
        return say("one, ", "two") if "Count" in asked.prompt else "three"

    with ModelServer(script) as server:
        told = asyncio.run(play(tmp_path, server))
        first, *_, refused = server.messages
        [third] = [one for one in server.messages if one.asked.prompt.endswith("Go on.")]
        silence = [one for one in server.messages if "Be silent." in one.asked.prompt]
        second = [one for one in server.messages if "limited" in one.asked.prompt][-1]
    assert told["said"] == ["one, two", "now", "three"]
    assert "".join(told["pieces"]) == "one, two"
    assert "Message from agent 'lead':" in first.asked.prompt
    assert "You are analyst." in first.asked.system
    assert "Agent 'lead' (reviewer)" in first.asked.system
    assert told["slept"] == [1.0]
    assert "nothing was received for 4 s" in silence[-1].asked.prompt
    assert "Count to two." in past_of(second)
    assert "interrupted by a failure" in second.asked.prompt
    assert (told["dead"]["status"], told["dead"]["is_running"]) == ("error", False)
    assert "has died" in told["dead"]["last_error"]
    assert "Count to two." in past_of(third)
    assert third.asked.prompt.endswith("Go on.")
    assert (told["analyst"]["status"], told["analyst"]["is_running"], told["analyst"]["last_error"]) == (
        "active", True, None)
    assert told["busy"]["attempts"] == 1, "a limit is not retried"
    assert (told["clerk"]["status"], told["clerk"]["attempts"]) == ("error", 1)
    assert "refused" in refused.asked.prompt, "one call with a refused key, and no other"
    assert "garrison login" in told["clerk's"]
    assert not told["lead"]["is_running"]
    [cost] = cost_rows(tmp_path / "home", None, "node")
    assert (cost.of, cost.calls >= 5, cost.usd > 0.01) == ("@graph/desk", True, True), cost
    assert children() == [], "no CLI is left"
