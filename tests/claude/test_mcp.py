"""The real Claude CLI drives runs over MCP, added by the line that `garrison mcp install` prints: in a terminal, where
a run is a task of the client and its question a form, and with `--print`, which has only plain tools."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path

from e2e.test_mcp import GRAPH
from garrison.system.clock import wait_until
from garrison.testing import isolation
from garrison.testing.model_server import ModelServer
from garrison.testing.request import Request
from garrison.testing.turn import Turn, say, use
from installed import PACKAGES
from support import Node, Place, wait_for

CLI = str(PACKAGES / "claude_agent_sdk/_bundled/claude")
TOOL, ALLOWED = "mcp__garrison-crew__", "mcp__garrison-crew TaskStop"


def follow(asked: Request) -> Turn | str:
    """Wait until the run is over."""
    return "It is over." if '"is_over":true' in str(asked.result) else say(use(f"{TOOL}wait"))


class Claude:
    """The CLI with the server, for the user of a place; `model` is what its model answers."""

    def __init__(self, place: Place, model: Callable[[Request], Turn | str]) -> None:
        self.place, self.server = place, ModelServer(model)
        self.env = {**isolation.environment(place.root / "cli", self.server.url), **place.env,
                    "ANTHROPIC_BASE_URL": self.server.url, "TERM": "xterm-256color"}
        self.env["CLAUDE_CONFIG_DIR"] = str(place.root / "cli/claude")
        printed = place.command("mcp", "install", "--client", "claude").stdout
        self.run([CLI, *shlex.split(printed)[1:]])
        self._skip_questions_of_a_first_start()

    def run(self, words: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(words, env=self.env, cwd=self.place.repo, stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=120, check=True)

    def _skip_questions_of_a_first_start(self) -> None:
        path = Path(self.env["CLAUDE_CONFIG_DIR"], ".claude.json")
        settings = json.loads(path.read_text())
        key = isolation.CLI_SETTINGS["ANTHROPIC_API_KEY"][-20:]
        settings |= {"hasCompletedOnboarding": True, "theme": "dark",
                     "customApiKeyResponses": {"approved": [key], "rejected": []}}
        for project in settings["projects"].values():
            project["hasTrustDialogAccepted"] = True
        path.write_text(json.dumps(settings))

    # ---- its terminal

    def tmux(self, *words: str) -> str:
        return subprocess.run(["tmux", "-S", str(self.place.root / "cli/tmux"), *words], env=self.env,
                              capture_output=True, text=True, check=False, timeout=20).stdout

    def start(self, *words: str) -> None:
        self.tmux("new-session", "-d", "-x", "140", "-y", "45", "-c", str(self.place.repo), CLI, *words,
                  "--allowedTools", *ALLOWED.split())
        self.until_shown("for agents")

    def until_shown(self, words: str) -> None:
        try:
            wait_for(f"{words} is on the screen", lambda: words in self.tmux("capture-pane", "-p"), 60)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.tmux('capture-pane', '-p')}") from None

    def type(self, text: str) -> None:
        self.tmux("send-keys", "-l", text)
        self.until_shown(text)
        self.tmux("send-keys", "Enter")

    def press(self, key: str, shown: str) -> None:
        """Press a key until the screen has these words: a form may miss one while it is drawn."""
        def is_shown() -> bool:
            self.tmux("send-keys", key)
            return wait_until(lambda: shown in self.tmux("capture-pane", "-p"), 5)

        wait_for(f"{shown} is on the screen", is_shown, 60)

    def kill(self) -> None:
        pid = int(self.tmux("list-panes", "-F", "#{pane_pid}"))
        os.kill(pid, signal.SIGKILL)
        wait_for("the CLI is gone", lambda: not self.tmux("list-panes"))

    def close(self) -> None:
        self.tmux("kill-server")
        self.server.close()


def test_a_session_in_a_terminal_is_killed_at_a_question_resumed_and_stops_another_run(place: Place) -> None:
    """The run remains a task of the CLI over its death: the resumed one shows the form and the end."""
    tasks: list[str] = []

    def model(asked: Request) -> Turn | str:
        text = str(asked.result)
        if found := re.search(r"server-side task (\S+)\.", text):
            tasks.append(found[1])
        if "stop another" in asked.prompt:
            stopped = re.search(r'task_id "(\w+)"', text)
            return say(use(f"{TOOL}run", request_id="2", graph=GRAPH, gate="true")) if asked.step == 0 else \
                say(use("TaskStop", task_id=stopped[1])) if stopped else "It is stopped."
        if "find the colour" in asked.prompt and asked.step == 0:
            return say(use(f"{TOOL}run", request_id="1", graph=GRAPH, gate="true"))
        return follow(asked) if "find" in asked.prompt else "A title"

    claude, session = Claude(place, model), str(uuid.uuid4())
    try:
        claude.start("--session-id", session)
        claude.type("find the colour")
        claude.until_shown("Which colour?")
        claude.kill()
        claude.start("--resume", session)
        claude.until_shown("not set")
        for key, shown in (("Right", "❯ ◯ Red"), ("Down", "❯ ◯ Blue"), ("Enter", "❯ Accept"), ("Enter", "completed")):
            claude.press(key, shown)
        [task] = tasks
        run = task.removesuffix(".1")
        assert place.status(run) == "done"
        assert "claude-code" in json.dumps(place.journal(run)), "the client that answered"
        claude.type("stop another")
        claude.until_shown("It is stopped.")
        wait_for("it is stopped", lambda: place.status(tasks[-1].removesuffix(".1")) == "stopped", 60)
    finally:
        claude.close()


def test_a_session_that_only_prints_has_plain_tools(place: Place) -> None:
    """It starts a run, follows it until it has landed, and gets each error in a line."""
    told: list[str] = []
    graph = place.graph(Node("made", command="date > made.txt")).read_text()

    def model(asked: Request) -> Turn | str:
        told.append(str(asked.result))
        first = (say(use(f"{TOOL}decide", run="none", node="made", choice="approve")),
                 say(use(f"{TOOL}run", request_id="1", graph=graph, gate="true")))
        return first[asked.step] if asked.step < len(first) else follow(asked)

    claude = Claude(place, model)
    try:
        said = claude.run([CLI, "--print", "make it", "--allowedTools", ALLOWED]).stdout
    finally:
        claude.close()
    assert said == "It is over.\n"
    assert "there is no run none" in told[1]
    assert "starts; follow it with wait" in told[2]
    assert '"status":"done"' in told[-1]
