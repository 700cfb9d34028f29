"""`garrison top` in a real tmux pane on a real run: attach and back, log and back, respawn really respawns."""

from __future__ import annotations

import shlex
import shutil
import subprocess

import pytest

from support import PROGRAM, Node, Place, wait_for

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")


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
    place.release("a")
    assert place.finish(child) == 0, place.logs()
    place.check("a")
