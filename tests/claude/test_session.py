"""`garrison session send` with the real CLI as the session's model: two turns, the second knows the first."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from garrison.testing.asked import Asked
from garrison.testing.model_server import ModelServer
from garrison.testing.turn import say
from support import Place


def test_two_turns_of_a_session(place: Place) -> None:
    def script(asked: Asked) -> Any:
        return say("I am well." if "assistant: I am well." not in asked.prompt else "As I said.")

    with ModelServer(script) as server:
        environment = {**os.environ, "GARRISON_HOME": str(place.home), "ANTHROPIC_BASE_URL": server.url}

        def garrison(*words: str) -> str:
            done = subprocess.run([sys.executable, "-P", "-m", "garrison.cli.main", "session", *words], env=environment,
                                  cwd=place.root, capture_output=True, text=True, timeout=100, check=False)
            assert done.returncode == 0, done.stderr
            return done.stdout

        garrison("start", "s1")
        assert garrison("send", "s1", "How are you?") == "I am well.\n"
        assert json.loads(garrison("send", "s1", "Really?", "--json"))["response"] == "As I said."
        assert "user: How are you?\nassistant: I am well.\nuser: Really?" in server.messages[-1].asked.prompt
        assert json.loads(garrison("show", "s1", "--json"))["turn_count"] == 2
