"""What a person sees at a terminal while a run goes on: one run, watched, followed and attached to in every way."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
from collections.abc import Callable

import pytest

from screen_support import Screen
from support import DEADLINE, Node, Place, alive

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")


def words(shown: str) -> str:
    """What is left without colours and cursor movements."""
    return re.sub("\x1b\\[[0-9;?]*[A-Za-z]", "", shown)


def test_a_run_in_a_terminal(places: Callable[..., Place]) -> None:
    """Watched in place and on a pipe, followed over lives and attempts, attached to; all end as they should."""
    place = places(terminal="tmux")
    evil = r"printf '\033]0;owned\007\033[31mred\n'"
    red = Node("a", before=f"echo try $GARRISON_ATTEMPT life $GARRISON_INCARNATION; {evil}; " + place.hold("a"),
               attributes='acceptance="test -e again-$GARRISON_ATTEMPT -o $GARRISON_ATTEMPT = 2"')
    child = place.launch(place.graph(red, Node("b", after=("a",))), "r1")
    place.wait_until_held("a")
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

    place.kill("orchestrator-a")
    place.pid("orchestrator-a", incarnation=2)
    place.release("a")
    assert place.finish(child) == 0, place.logs()

    code, last = watching.end()
    assert code == 0
    picture = words(last.rpartition("\x1b[?1049l")[2])
    assert "run r1: done, 2 of 2 landed" in picture
    assert "\x1b]0;" not in last
    assert [one.wait(DEADLINE) for one in (piped, logs, later)] == [0, 0, 0]
    _check_pipes(place)
    _check_ended(place)


def _interrupt_watching(place: Place) -> None:
    """Ctrl-C and a hang-up leave no mess, and the run as it is."""
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
    """Read-only: the line says so, typing does nothing, the named key ends it, the agent goes on; inside tmux too."""
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
    """A run that is over: its exit code at once, its logs without an unfinished colour, limits in all shapes."""
    assert place.command("status", "r1", "-w").returncode == 0
    code, shown = Screen(place, "logs", "a", "--tail", "1").end()
    assert (code, "red" in shown, "owned" in shown) == (0, True, False), "colours, but no order to the terminal"
    assert shown.index("\x1b[0m") > shown.index("red")
    tail = place.command("logs", "a", "--attempt", "1", "--tail", "1")
    assert tail.stdout == "\x1b]0;owned\x07\x1b[31mred\n", "as they are, on a pipe"
    assert "--max-respawn" not in place.command("status", "r1").stdout
    assert "--max-respawn" in place.command("status", "--verbose").stdout
