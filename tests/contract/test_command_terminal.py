"""The terminal of a command agent's own in every sandbox: it is its own, controls only it, and dies with its owner."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import sys
import termios
import time
from pathlib import Path

import pytest

from acp_support import Stage, wait_until
from garrison.agents.base import WorkResult
from garrison.agents.command import CommandAgent
from garrison.agents.command_profile import CommandProfile
from garrison.sandbox.place import Mode, Network, Place, Rights, Role
from garrison.system import landlock, pseudo_terminal
from sandbox_support import missing

INJECT = """
import fcntl, glob, os, sys, termios
for path in sys.argv[2:] + (glob.glob("/proc/[0-9]*/fd/[012]") if sys.argv[1] == "all" else []):
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
        if os.isatty(descriptor) and (os.fstat(descriptor).st_rdev, os.fstat(descriptor).st_dev) != (
                os.fstat(0).st_rdev, os.fstat(0).st_dev):
            fcntl.ioctl(descriptor, termios.TIOCSTI, b"!")
    except OSError as error:
        print(path, error.strerror)
"""
"""Types `!` into the named terminals, with `all` also into every terminal that it finds but its own."""
MODES = (Mode.NONE, Mode.LANDLOCK, Mode.BUBBLEWRAP)


def play(folder: Path, mode: Mode, *argv: str) -> tuple[WorkResult, str]:
    if mode is Mode.BUBBLEWRAP and (why := missing()):
        pytest.skip(why)
    if mode is Mode.LANDLOCK and landlock.abi() < 1:
        pytest.skip("no Landlock")
    stage = Stage(folder)
    place = None if mode is Mode.NONE else Place(
        Role.AGENT, Rights(mode=mode, network=Network.OPEN), stage.tree, folder / "private")
    work = stage.start(CommandAgent(CommandProfile("typed", argv, tty=True)), place=place)
    try:
        return stage.finish(work), (stage.attempt / "output.log").read_text()
    finally:
        stage.close()


@pytest.mark.parametrize("mode", MODES)
def test_it_is_the_controlling_terminal_of_a_session_of_its_own(mode: Mode, tmp_path: Path) -> None:
    show = "test -t 0 && test -t 2 && tty && echo spoken >/dev/tty; stty size; ls /proc/self/fd | wc -l"
    outcome, shown = play(tmp_path, mode, "/bin/sh", "-c", show)
    assert outcome.status == "success", shown
    terminal, *rest = shown.replace("\r\n", "\n").splitlines()
    assert terminal.startswith("/dev/pts/")
    assert rest == ["spoken", "24 80", "4"], "nothing of garrison's is open but the terminal"


@pytest.mark.parametrize("mode", MODES)
def test_typing_into_other_terminals_is_an_escape_that_the_sandbox_refuses(mode: Mode, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("the kernel refuses it to all but root")
    master, slave = pty.openpty()
    attributes = termios.tcgetattr(slave)
    attributes[3] &= ~(termios.ICANON | termios.ECHO)
    termios.tcsetattr(slave, termios.TCSANOW, attributes)
    try:
        # Not without a sandbox: it would type into the terminals of the tests that run at the same time.
        others = "none" if mode is Mode.NONE else "all"
        _, shown = play(tmp_path, mode, sys.executable, "-c", INJECT, others, os.ttyname(slave))
        typed = os.read(slave, 100) if select.select([slave], [], [], 0)[0] else b""
    finally:
        os.close(master)
        os.close(slave)
    if mode is Mode.NONE:
        assert b"!" in typed, f"the escape works where nothing holds it: {shown}"
    else:
        assert typed == b"", shown


def test_the_program_dies_with_the_owner_of_its_terminal(tmp_path: Path) -> None:
    """The kernel hangs the terminal up: nothing else of garrison's is needed."""
    owner = os.fork()
    if owner == 0:
        try:
            stage = Stage(tmp_path)
            stage.start(CommandAgent(CommandProfile("typed", (
                "/bin/sh", "-c", f"trap 'echo hung up >{tmp_path}/end; exit' HUP; echo $$ >{tmp_path}/begun; "
                "while :; do sleep 0.1; done"), tty=True)))
            time.sleep(600)
        finally:
            os._exit(1)
    try:
        wait_until(lambda: (tmp_path / "begun").exists() and (tmp_path / "begun").read_text() != "", 30, lambda: "")
    finally:
        os.kill(owner, 9)
        os.waitpid(owner, 0)
    wait_until((tmp_path / "end").exists, 30, lambda: "it still runs")


def test_a_program_that_does_not_read_blocks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is typed is kept up to a limit; what the screen does not take is left out there, not in the log."""
    keyboard, screen = pty.openpty()
    fcntl.fcntl(keyboard, fcntl.F_SETFL, os.O_NONBLOCK)
    monkeypatch.setattr(pseudo_terminal, "open_own_terminal",
                        lambda: os.open(os.ttyname(screen), os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK))
    before = termios.tcgetattr(screen)
    stage = Stage(tmp_path)
    busy = f"until test -e {tmp_path}/go; do sleep 0.05; done; seq 200000"
    work = stage.start(CommandAgent(CommandProfile("typed", ("/bin/sh", "-c", busy), tty=True)), lends_terminal=True)
    assert work.has_keyboard
    for _ in range(300):
        try:
            os.write(keyboard, b"x" * 1000)
        except BlockingIOError:
            time.sleep(0.001)
    (tmp_path / "go").touch()
    outcome = stage.finish(work)
    assert outcome.status == "success"
    assert (stage.attempt / "output.log").read_bytes().endswith(b"\r\n199999\r\n200000\r\n")
    assert termios.tcgetattr(screen) == before, "the terminal is given back as it was"
    stage.close()
    os.close(keyboard)
    os.close(screen)


def test_the_terminal_of_a_process_that_has_other_work_stays_its_own(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`garrison pipeline run` is a user's command: Ctrl-C is for it, and several agents may work at one time."""
    monkeypatch.setattr(pseudo_terminal, "open_own_terminal", lambda: pytest.fail("it was opened"))
    outcome, _ = play(tmp_path, Mode.NONE, "/bin/sh", "-c", "test -t 0")
    assert outcome.status == "success"
