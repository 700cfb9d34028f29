"""A run at a terminal: watched, followed, attached to in every way, typed into, and controlled in `garrison top`."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Callable

import pytest

from screen_support import Screen
from support import DEADLINE, PROGRAM, Node, Place, alive, git, wait_for


def words(shown: str) -> str:
    """Return the text without colours and cursor movements."""
    return re.sub("\x1b\\[[0-9;?]*[A-Za-z]", "", shown)


def test_a_run_in_a_terminal(places: Callable[..., Place]) -> None:
    """Watched in place and on a pipe, followed over incarnations and attempts, attached to."""
    place = places(terminal="tmux")
    evil = r"printf '\033]0;owned\007\033[31mred\n'"
    red = Node("a", before=f"echo try $GARRISON_ATTEMPT life $GARRISON_INCARNATION; {evil}; " + place.hold("a"),
               attributes='acceptance="test -e again-$GARRISON_ATTEMPT -o $GARRISON_ATTEMPT = 2"')
    child = place.launch_until("a", place.graph(red, Node("b", after=("a",))), "r1")
    piped = place.begin("status", "r1", "--watch", "0.5", log="piped")
    logs = place.begin("logs", "a", "-f", log="followed")
    later = place.begin("logs", "b", "-f", log="waited")
    watching = Screen(place, "status", "--watch=0.5", "r1")
    shown = words(watching.until("its agent is working", "waiting for a"))
    assert "run r1: running, 0 of 2 landed" in shown
    _interrupt_watching(place)
    _attach(place)
    watching.resize(40, 5)
    watching.until("more lines")

    place.kill_and_await("orchestrator-a")
    place.release_to_end(child, "a")

    code, last = watching.end()
    assert code == 0
    picture = words(last.rpartition("\x1b[?1049l")[2])
    assert "run r1: done, 2 of 2 landed" in picture
    assert "\x1b]0;" not in last
    assert [one.wait(DEADLINE) for one in (piped, logs, later)] == [0, 0, 0]
    _check_pipes(place)
    _check_ended(place)


def _interrupt_watching(place: Place) -> None:
    """Check that Ctrl-C and TERM restore the terminal and leave the run alone."""
    interrupted = Screen(place, "status", "--watch")
    interrupted.until("its agent is working")
    interrupted.type("\x03")
    code, shown = interrupted.end()
    assert (code, "Traceback" in shown) == (130, False)
    assert "run r1: running" in shown.rpartition("\x1b[?1049l")[2]
    gone = Screen(place, "status", "--watch")
    gone.until("its agent is working")
    os.kill(gone.pid, signal.SIGTERM)
    code, shown = gone.end()
    assert (code, "\x1b[?1049l" in shown) == (143, True)


def _attach(place: Place) -> None:
    """Check that an attached terminal is read-only, and that the key it names ends it, also inside tmux."""
    client = Screen(place, "attach", "a", TMUX="/nowhere,1,0")
    client.until("read-only", "C-b C-b d detaches", "attempt 1", "incarnation 1")
    assert client.leave("\x02d")[0] == 0
    client = Screen(place, "attach", "a")
    client.until("read-only", "C-b d detaches", "run r1")
    client.type("typed by hand\r")
    code, shown = client.leave("\x02d")
    assert code == 0
    assert "typed by hand" not in shown
    assert alive(place.identity("orchestrator-a"))
    code, shown = Screen(place, "attach", "a", "--write").end()
    assert code == 1
    assert "orchestrator-a@r1 is read-only: its command reads no keyboard; a profile with tty = true" in shown
    assert alive(place.identity("orchestrator-a"))
    refused = place.command("attach", "a")
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "terminal" in refused.stderr


def _check_pipes(place: Place) -> None:
    told = (place.root / "piped").read_text()
    assert "\x1b" not in told
    for line in ("a: working, executing: its agent is working", "b: waiting: waiting for a", "attempt 2",
                 "b: landed, merged: landed as", "run r1: done, 2 of 2 landed"):
        assert line in told
    bare = [line[10:] for line in told.splitlines()]
    assert all(one != two for one, two in itertools.pairwise(bare)), "a line an event"
    followed = (place.root / "followed").read_bytes()
    for said in (b"try 1 life 1", b"try 1 life 2", b"--- attempt 2", b"try 2 life", b"\x1b]0;owned\x07"):
        assert said in followed, followed
    assert b"no output yet" in (place.root / "waited").read_bytes()


def _check_ended(place: Place) -> None:
    """Check the views of a finished run: exit code, logs without an unfinished colour, limits."""
    assert place.command("status", "r1", "-w").returncode == 0
    code, shown = Screen(place, "logs", "a", "--tail", "1").end()
    assert (code, "red" in shown, "owned" in shown) == (0, True, False), "colours, but no order to the terminal"
    assert shown.index("\x1b[0m") > shown.index("red")
    tail = place.command("logs", "a", "--attempt", "1", "--tail", "1")
    assert tail.stdout == "\x1b]0;owned\x07\x1b[31mred\n", "as they are, on a pipe"
    assert "--max-respawn" not in place.command("status", "r1").stdout
    assert "--max-respawn" in place.command("status", "--verbose").stdout


LISTENS = """\
trap 'echo >{root}/interrupted' INT
printf 'life %s listens\\n' "$GARRISON_INCARNATION"
until IFS= read -r line; do :; done
printf 'got <%s> at %s\\n' "$line" "$(stty size)"
echo "$line" >a.txt
"""


def test_the_user_types_into_a_program(places) -> None:
    place: Place = places(terminal="tmux")
    program = place.root / "program.sh"
    program.write_text(LISTENS.format(root=place.root))
    place.use_agents(typed={"argv": ["/bin/sh", str(program)], "tty": True})
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


class Pane:
    """A terminal of its own on a tmux server of its own."""

    def __init__(self, place: Place, *arguments: str) -> None:
        self.tmux = ["tmux", "-S", str(place.root / "outer.sock"), "-f", "/dev/null"]
        variables = [f"{name}={value}" for name, value in place.env.items() if name != "TERM"]
        line = shlex.join(["env", "-u", "TMUX", *variables, *PROGRAM, *arguments])
        self("new-session", "-d", "-x", "100", "-y", "30", f"{line}; echo ended $?; exec sleep 600")

    def __call__(self, *words: str) -> str:
        return subprocess.run([*self.tmux, *words], check=True, capture_output=True, text=True).stdout

    def press(self, *keys: str) -> None:
        for key in keys:
            self("send-keys", key)

    def until(self, *words: str) -> str:
        return str(wait_for(f"{words} on the screen\n", lambda: (shown := self("capture-pane", "-p")) and all(
            word in shown for word in words) and shown))


@pytest.mark.slow
def test_attach_logs_and_respawn_from_the_screen(places) -> None:
    place = places(terminal="tmux")
    child = place.launch(place.graph(Node("a", before="echo life $GARRISON_INCARNATION; " + place.hold("a"))), "r1")
    place.wait_until_held("a")
    pane = Pane(place, "top", "--interval", "0.2")
    try:
        pane.until("agents 1 of", "a: its agent is working")
        pane.press("a")
        pane.until("read-only", "C-b d detaches")
        pane.press("C-b", "d")
        pane.until("a: its agent is working")
        pane.press("l")
        pane.until("life 1", "Ctrl-C returns")
        pane.press("C-c")
        pane.until("a: its agent is working")
        pane.press("r")
        pane.until("End the agent of a")
        pane.press("y")
        pane.until("orchestrator-a#1 died", "killed by order", "orchestrator-a#2 respawned")
        place.pid("orchestrator-a", incarnation=2)
        pane.press("q")
        pane.until("ended 0")
    finally:
        pane("kill-server")
    place.release_to_end(child, "a")
    place.check("a")
