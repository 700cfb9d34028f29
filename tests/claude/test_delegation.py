"""`garrison ask` with the real CLI: the butler lets triage look at a real home with garrison's own commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from garrison.testing.asked import Asked
from garrison.testing.model_server import ModelServer
from garrison.testing.turn import say, use
from support import Place


def test_one_delegation_with_a_real_tool(place: Place) -> None:
    seen: list[str] = []

    def script(asked: Asked) -> Any:
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

    with ModelServer(script) as server:
        environment = {**os.environ, "GARRISON_HOME": str(place.home), "ANTHROPIC_BASE_URL": server.url}
        words = [sys.executable, "-P", "-m", "garrison.cli.main", "ask", "--json", "What needs me today?"]
        done = subprocess.run(words, env=environment, cwd=place.root, capture_output=True, text=True, timeout=100,
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
