"""A person types into the program of a command agent: text, Ctrl-C, the size of the window, and after a death again."""

from __future__ import annotations

import shutil

import pytest

from screen_support import Screen
from support import Node, Place, git, wait_for

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
PROGRAM = """\
trap 'echo >{root}/interrupted' INT
printf 'life %s listens\\n' "$GARRISON_INCARNATION"
until IFS= read -r line; do :; done
printf 'got <%s> at %s\\n' "$line" "$(stty size)"
echo "$line" >a.txt
"""


@pytest.fixture
def stage(places) -> Place:
    return places(terminal="tmux")


def test_a_person_types_into_a_program(stage: Place) -> None:
    place = stage
    program = place.root / "program.sh"
    program.write_text(PROGRAM.format(root=place.root))
    place.configure(
        f'[agents.typed]\nargv = ["/bin/sh", "{program}"]\ntty = true\n')
    child = place.launch(place.graph(Node("a", command="", attributes="agent=typed, prompt=\"x\"")), "r1")
    wait_for("the run exists", (place.home / "runs" / "r1" / "launch.json").exists)
    client = Screen(place, "attach", "a", "--write")  # before there is a session
    client.until("you may type", "life 1 listens")
    client.type("\x03")
    wait_for("Ctrl-C reaches the program", (place.root / "interrupted").exists)
    place.kill("orchestrator-a")
    client.end()
    place.pid("orchestrator-a", incarnation=2)
    client = Screen(place, "attach", "a", "--write")
    client.until("life 2 listens", "you may type")  # the line below the window, which has its size then
    client.type("hello\r")
    client.until("got <hello> at 29 100")
    assert place.finish(child) == 0
    assert git(place.repo, "show", "main:a.txt") == "hello"
    shown = place.command("logs", "a").stdout
    assert "life 1 listens" in shown and "got <hello>" in shown
