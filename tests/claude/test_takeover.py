"""`garrison takeover`: the user continues a session in a terminal, with a CLI that notes how it was called, and with
the real one."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
from pathlib import Path

import pytest

from claude_scripts import again, past_of, report, work
from garrison.testing.turn import say, use
from installed import PACKAGES
from support import DEADLINE, processes, wait_for

REAL = PACKAGES / "claude_agent_sdk/_bundled/claude"
FAKE = """#!/bin/sh
case " $* " in *" --output-format "*) exec {real} "$@";; esac
printf '%s\\n' "$@" > {root}/argv
pwd > {root}/cwd
env > {root}/environment
echo $$ > {root}/pid
until test -e {root}/leave; do sleep 0.05; done
"""


def fake_cli(scene) -> None:
    """Use a CLI that notes how a takeover called it, and waits."""
    fake = scene.place.root / "cli"
    fake.write_text(FAKE.format(real=REAL, root=scene.place.root))
    fake.chmod(0o755)
    scene.configure(f'cli = "{fake}"')


def take_over(place) -> subprocess.Popen[bytes]:
    return place.in_terminal("takeover", "a", GARRISON_LIFE="not mine")


def test_the_agent_continues_after_a_takeover(scene, place):
    """During it nothing else runs, and status shows it; afterwards the agent is informed."""
    fake_cli(scene)
    scene.players["a"] = again(work("a", before="sleep 987;"), after=(work("a"), report(), "Done."))
    child = scene.launch(scene.graph(a=""))
    wait_for("the tool runs", scene.sleepers)
    refused = place.command("takeover", "a")
    assert refused.returncode == 1
    assert "needs a terminal" in refused.stderr
    person = take_over(place)
    wait_for("the CLI runs", (place.root / "pid").exists)
    assert not scene.connections() and not scene.sleepers()
    session = place.hook("orchestrator-a")["claude_session_id"]
    assert (place.root / "argv").read_text().splitlines()[:2] == ["--resume", session]
    tree = place.identity("orchestrator-a")["worktree"]
    assert (place.root / "cwd").read_text().strip() == tree
    environment = dict(line.split("=", 1) for line in (place.root / "environment").read_text().splitlines()
                       if "=" in line)
    assert environment["CLAUDE_CONFIG_DIR"] == str(place.home / "claude")
    assert environment["GARRISON_TREE"] == tree
    assert environment["ANTHROPIC_BASE_URL"] == scene.server.url
    assert "GARRISON_LIFE" not in environment, "a process with an agent's marker ends with the agent"
    wait_for("status shows it", lambda: "while it is taken over" in place.command("status", "r1").stdout)
    assert take_over(place).wait(DEADLINE) == 1, "one takeover at a time"
    place.kill_and_await("orchestrator-a")
    (place.root / "leave").touch()
    assert person.wait(DEADLINE) == 0
    assert place.finish(child) == 0, place.logs()
    resumed = scene.first_call("The user has taken this session over")
    assert "I write a." in past_of(resumed), "it is the same session"
    assert scene.endings("a") == ["stopped", "person", "reported"]
    assert place.command("takeover", "a").returncode == 1
    place.check_nothing_left()


@pytest.mark.slow
def test_a_session_agent_resumes_after_a_takeover(scene, place):
    """The CLI gets the conversation; the interrupted tool is called again, and the model is informed."""
    fake_cli(scene)
    desk = "mcp__desk__"

    def play(asked):
        if "called run(" in asked.prompt:
            return (say(use(f"{desk}report_result", status="success", summary="written")), say("Done."))[asked.step > 0]
        first = say("I write.", use(f"{desk}write", path="a.txt", text="a"))
        return (first, say(use(f"{desk}run", command="echo ran >> $LEDGER; test -e left || sleep 987")))[asked.step > 0]

    scene.players["a"] = play
    child = scene.launch(scene.graph(a="session=true"))
    wait_for("the tool runs", scene.sleepers)
    person = take_over(place)
    wait_for("the CLI runs", (place.root / "pid").exists)
    assert not scene.sleepers()
    said = (place.root / "argv").read_text()
    assert "--resume" not in said
    assert 'called write({"path": "a.txt", "text": "a"})' in said, "the history"
    tree = Path(place.identity("orchestrator-a")["worktree"])
    assert (place.root / "cwd").read_text().strip() == str(tree)
    wait_for("status shows it", lambda: "while it is taken over" in place.command("status", "r1").stdout)
    assert take_over(place).wait(DEADLINE) == 1, "one takeover at a time"
    (tree / "left").touch()
    (place.root / "leave").touch()
    assert person.wait(DEADLINE) == 0
    assert place.finish(child) == 0, place.logs()
    assert "called run(" in scene.first_call("The user has worked in your worktree").asked.prompt
    assert place.ledger.read_text() == "ran\nran\n"
    assert place.identity("orchestrator-a")["incarnation"] == 1
    assert scene.endings("a") == ["person"]
    assert place.command("takeover", "a").returncode == 1
    place.check_nothing_left()


@pytest.mark.slow  # what the interactive CLI draws, and when, is its own affair: seen to fail once in eight runs
def test_the_real_cli_in_a_takeover_and_its_death(scene, place):
    """The interactive CLI shows the session's history and answers; after a kill -9 of the takeover the agent continues
    in the same incarnation, with what was said in its history."""
    agent = again(work("a", before="sleep 987;"), after=(work("a"), report(), "Done."))
    asked_a = "What have you done?"
    scene.players["a"] = scene.players["None"] = scene.players[""] = lambda asked: (
        "I was about to write." if asked.prompt.strip().endswith(asked_a) else agent(asked))
    child = scene.launch(scene.graph(a=""))
    wait_for("the tool runs", scene.sleepers)
    skip_questions_of_a_first_start(place)
    person = take_over(place)
    screen = Screen(person)
    screen.wait_for("I write a.")
    screen.type(asked_a)
    screen.wait_for(asked_a)
    screen.type("\r")
    screen.wait_for("I was about to write.")
    assert not scene.connections()
    cli = scene.cli("a")
    assert cli is not None
    os.kill(person.pid, signal.SIGKILL)
    assert place.finish(child) == 0, place.logs()
    assert not any(one.pid == cli for one in processes())
    assert place.identity("orchestrator-a")["incarnation"] == 1
    assert scene.endings("a") == ["stopped", "person", "reported"]
    past = past_of(scene.first_call("The user has taken this session over"))
    assert asked_a in past
    assert "I was about to write." in past


def skip_questions_of_a_first_start(place) -> None:
    path = place.home / "claude" / ".claude.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    tree = place.identity("orchestrator-a")["worktree"]
    known["hasCompletedOnboarding"] = True
    known["customApiKeyResponses"] = {"approved": [place.env["ANTHROPIC_API_KEY"][-20:]], "rejected": []}
    known.setdefault("projects", {}).setdefault(tree, {})["hasTrustDialogAccepted"] = True
    path.write_text(json.dumps(known))


class Screen:
    """The text that a program draws in its terminal, without colours and positions."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self.ours: int = child.terminal  # type: ignore[attr-defined]
        self.drawn = b""

    def type(self, text: str) -> None:
        os.write(self.ours, text.encode())

    def wait_for(self, text: str) -> None:
        wait_for(f"{text!r} is shown", lambda: "".join(text.split()) in self.look())

    def look(self) -> str:
        """Return all that was drawn, without blanks: the CLI moves the cursor instead."""
        if select.select([self.ours], [], [], 0.1)[0]:
            try:
                self.drawn += os.read(self.ours, 65536)
            except OSError as error:
                raise AssertionError(f"the program has left its terminal: {self.drawn[-2000:]!r}") from error
        return "".join(re.sub(r"\x1b\[[0-9;?<>=]*[a-zA-Z]", "", self.drawn.decode(errors="replace")).split())
