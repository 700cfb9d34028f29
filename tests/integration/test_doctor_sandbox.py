"""`garrison doctor --sandbox` tries the escapes on this machine."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import Any

import pytest

from garrison.sandbox.escape_attempts import ATTEMPTS
from garrison.sandbox.escapes import ESCAPES, Escape, EscapeResult, judge
from garrison.sandbox.place import Abilities, Mode, Network
from garrison.sandbox.probe import machine
from garrison.system.tmux_server import TmuxServer, supported_version
from support import DEADLINE, PROGRAM, UserWorld, processes, wait_for


def doctor(user: UserWorld, mode: str, settings: str = "") -> tuple[int, Any]:
    user.configure(f'mode = "{mode}"\n{settings}')
    folder = user.runtime / ("x" * 90)  # a socket's name there is longer than the kernel takes
    folder.mkdir(exist_ok=True)
    done = subprocess.run([*PROGRAM, "doctor", "--sandbox", "--json"], env={**user.variables(), "TMPDIR": str(folder)},
                          text=True, capture_output=True, timeout=DEADLINE, check=False)
    return done.returncode, json.loads(done.stdout)


@pytest.mark.skipif(not machine().bubblewrap, reason=machine().refusal or "bubblewrap works")
def test_bubblewrap_refuses_every_escape_but_those_of_an_open_network(user: UserWorld) -> None:
    code, body = doctor(user, "bubblewrap", 'network = "open"\n')
    assert (code, body["mode"], set(body["escapes"])) == (0, "bubblewrap", set(ATTEMPTS))
    assert {key for key, verdict in body["escapes"].items() if verdict != "refused"} == {"abstract_socket", "tcp"}
    assert set(doctor(user, "bubblewrap", 'network = "none"\n')[1]["escapes"].values()) == {"refused"}


@pytest.mark.skipif(not machine().landlock, reason="Landlock is not enabled in this kernel")
def test_landlock_refuses_what_it_promises(user: UserWorld) -> None:
    code, body = doctor(user, "landlock")
    assert (code, "ESCAPED" in body["escapes"].values()) == (0, False)
    assert body["escapes"]["write_sibling"] == "refused"
    assert body["escapes"]["read_sibling"] == body["escapes"]["read_shadow"] == "refused"
    assert body["escapes"]["unix_socket"] == "not held"


@pytest.mark.skipif(not machine().landlock, reason="Landlock is not enabled in this kernel")
@pytest.mark.skipif(supported_version() is None, reason="no tmux")
def test_landlock_with_a_tmux_server_of_the_home_is_reported_as_escaped(user: UserWorld) -> None:
    (user.home / "run").mkdir(mode=0o700, exist_ok=True)
    server = TmuxServer(user.home / "run")
    server.start()
    try:
        code, body = doctor(user, "landlock")
    finally:
        server.end()
    assert (code, body["escapes"]["terminal_server"]) == (1, "ESCAPED")


@pytest.mark.skipif(not machine().landlock, reason="Landlock is not enabled in this kernel")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_doctor_leaves_nothing(user: UserWorld, number: int) -> None:
    user.configure('mode = "landlock"\n')
    with subprocess.Popen([*PROGRAM, "doctor", "--sandbox"], env={**user.variables(), "TMPDIR": str(user.runtime)},
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        mark = f"garrison-doctor-daemon-{child.pid}"
        wait_for("the attempt to leave a process", lambda: [one for one in processes(mark) if "read _" in one.argv
                                                            or "while" in one.argv])
        targets = [one for one in processes("garrison-doctor-outside") if one.ppid == child.pid]
        child.send_signal(number)
    wait_for("the processes have ended", lambda: not list(processes(mark)) and not any(
        one.living for one in targets), 20)
    assert number == signal.SIGKILL or not list(user.runtime.glob("garrison-doctor-*"))


def test_without_a_sandbox_nothing_is_tried_and_the_exit_code_is_1(user: UserWorld) -> None:
    code, body = doctor(user, "none")
    assert (code, body["mode"], body["escapes"]) == (1, "none", {})


def test_a_shared_proc_shows_processes_and_promises_nothing_else() -> None:
    seen = next(escape for escape in ESCAPES if escape.key == "see_process")
    shared = Abilities("bwrap", has_own_proc=False)
    assert judge(seen, True, Mode.BUBBLEWRAP, Network.NONE, shared) is EscapeResult.NOT_PROMISED
    assert judge(seen, True, Mode.BUBBLEWRAP, Network.NONE, Abilities("bwrap")) is EscapeResult.ESCAPED


@pytest.mark.parametrize(("mode", "network", "abi", "verdict"), [
    (Mode.BUBBLEWRAP, Network.NONE, 7, EscapeResult.ESCAPED),
    (Mode.BUBBLEWRAP, Network.OPEN, 7, EscapeResult.NOT_PROMISED),
    (Mode.LANDLOCK, Network.ALLOW, 7, EscapeResult.ESCAPED),
    (Mode.LANDLOCK, Network.ALLOW, 3, EscapeResult.NOT_PROMISED)])
def test_an_escape_that_succeeds_breaks_the_promise_only_where_there_is_one(
        mode: Mode, network: Network, abi: int, verdict: EscapeResult) -> None:
    escape = Escape("tcp", "connect", is_network=True)
    assert judge(escape, True, mode, network, Abilities("bwrap", landlock=abi)) is verdict
    assert judge(escape, False, mode, network, Abilities("bwrap", landlock=abi)) is EscapeResult.REFUSED


def test_every_escape_has_an_attempt() -> None:
    assert [escape.key for escape in ESCAPES] == list(ATTEMPTS)
