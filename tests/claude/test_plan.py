"""`garrison workflow plan` with the real CLI: an unsound plan is sent back with the reason, a sound one runs."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from claude_scripts import environment
from garrison.testing.model_server import ModelServer
from garrison.testing.request import Request
from garrison.testing.turn import say
from support import DEADLINE, PROGRAM, Place


def plan(**arguments: Any) -> str:
    return json.dumps({"name": "count", "steps": [
        {"name": "files", "tool": "files.list", "arguments": arguments},
        {"name": "say", "tool": "text.join", "arguments": {"parts": ["${files.count}", "files"], "separator": " "}}]})


def test_ac_001_a_command_becomes_a_workflow_that_runs(place: Place) -> None:
    folder = place.root / "tree"
    folder.mkdir()
    (folder / "a.txt").write_text("a")

    def script(asked: Request) -> Any:
        if "<command>\ncount the files\n</command>" in asked.prompt:
            assert "- files.list(pattern: 'str' = '**/*')" in asked.prompt
            return say(plan(patern="*.txt"))
        assert "has no parameter patern; did you mean pattern?" in asked.prompt
        return say("Here it is:\n" + plan(pattern="*.txt"))

    with ModelServer(script) as server:
        variables = environment(place, server)

        def garrison(*words: str) -> subprocess.CompletedProcess[str]:
            done = subprocess.run([*PROGRAM, "workflow", *words],
                                  env=variables, cwd=folder, capture_output=True, text=True, timeout=DEADLINE,
                                  check=False)
            assert done.returncode == 0, done.stderr
            return done

        assert "2 steps; to run it: garrison workflow run plan.yaml" in garrison(
            "plan", "count the files", "-o", "plan.yaml").stderr
        assert len(server.messages) == 2
        assert garrison("run", "plan.yaml").stdout == "1 files\n"
