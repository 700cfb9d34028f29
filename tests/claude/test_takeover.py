"""`garrison takeover`: a person in a session's place, with a CLI that notes how it was called (the real one is what the
stretches run), in a terminal of its own."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from pathlib import Path

import claude_agent_sdk
import pytest

from claude_scripts import again, report, work
from support import PROGRAM, processes, wait_for

REAL = Path(claude_agent_sdk.__file__).parent / "_bundled" / "claude"
FAKE = """#!/bin/sh
case " $* " in *" --output-format "*) exec {real} "$@";; esac
printf '%s\\n' "$@" > {root}/argv
pwd > {root}/cwd
env > {root}/environment
echo $$ > {root}/pid
until test -e {root}/leave; do sleep 0.05; done
"""


@pytest.fixture
def taking(scene):
    """A node in mid-tool, whose CLI is the fake one, and the launcher."""
    place = scene.place
    fake = place.root / "cli"
    fake.write_text(FAKE.format(real=REAL, root=place.root))
    fake.chmod(0o755)
    scene.configure(f'cli = "{fake}"')
    scene.players["a"] = again(work("a", before="sleep 987;"), after=(work("a"), report(), "Done."))
    child = scene.launch(scene.graph(a=""))
    wait_for("the tool runs", lambda: sleeping(place))
    return child


def sleeping(place) -> bool:
    return any("sleep 987" in one.argv and str(place.home) in one.environ.get("GARRISON_HOME", "")
               for one in processes())


def take_over(place, *more: str) -> subprocess.Popen[bytes]:
    """`garrison takeover a` in a pty."""
    _ours, theirs = pty.openpty()
    child = subprocess.Popen([*PROGRAM, "takeover", "a", *more], env={**place.env, "GARRISON_LIFE": "not mine"},
                             cwd=place.root, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    place.started.append(child)
    return child


def stretches(place) -> list[int]:
    return [one.pid for one in place.mine() if "garrison.agents.claude.stretch" in one.argv]


def test_a_person_takes_over_and_leaves_and_the_agent_goes_on(scene, taking):
    """While the person is there nothing else runs, and status says so; afterwards the agent is told."""
    place = scene.place
    refused = place.command("takeover", "a")
    assert refused.returncode == 1
    assert "needs a terminal" in refused.stderr
    person = take_over(place)
    wait_for("the CLI runs", (place.root / "pid").exists)
    assert not stretches(place)
    assert not sleeping(place)
    session = place.hook("orchestrator-a")["claude_session_id"]
    assert (place.root / "argv").read_text().splitlines()[:2] == ["--resume", session]
    tree = place.identity("orchestrator-a")["worktree"]
    assert (place.root / "cwd").read_text().strip() == tree
    environment = dict(line.split("=", 1) for line in (place.root / "environment").read_text().splitlines()
                       if "=" in line)
    assert environment["CLAUDE_CONFIG_DIR"] == str(place.home / "claude")
    assert environment["GARRISON_TREE"] == tree
    assert environment["ANTHROPIC_BASE_URL"] == scene.server.url
    assert "GARRISON_LIFE" not in environment, "what bears an agent's mark is ended with the agent"
    wait_for("status says who has it", lambda: "held by a person" in place.command("status", "r1").stdout)
    assert take_over(place).wait(30) == 1, "one person at a time"
    place.kill("orchestrator-a")
    place.pid("orchestrator-a", life=2)
    (place.root / "leave").touch()
    assert person.wait(30) == 0
    assert place.finish(taking) == 0, place.told()
    resumed = next(one for one in scene.calls("a") if "A person has taken this session over" in one.asked.prompt)
    assert "I write a." in json.dumps(resumed.body["messages"][:-1]), "it is the same session"
    assert scene.endings("a") == ["stopped", "person", "reported"]
    assert place.command("takeover", "a").returncode == 1
    place.check_left()


def test_a_takeover_that_dies_holds_nobody_up(scene, taking):
    """kill -9 of the takeover: its CLI goes with it, and the agent goes on by itself in the same life."""
    place = scene.place
    person = take_over(place)
    wait_for("the CLI runs", (place.root / "pid").exists)
    cli = int((place.root / "pid").read_text())
    os.kill(person.pid, signal.SIGKILL)
    assert place.finish(taking) == 0, place.told()
    assert not any(one.pid == cli for one in processes())
    assert place.identity("orchestrator-a")["incarnation"] == 1
    assert scene.endings("a") == ["stopped", "person", "reported"]
