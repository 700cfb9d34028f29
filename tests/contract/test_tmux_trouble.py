"""A tmux server that was stopped, lost its socket, its runtime directory or its mind; real servers of our own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from libtmux.neo import fetch_objs

from garrison.errors import GarrisonError
from garrison.system import processes, tmux_client
from garrison.system.terminal import TerminalSession
from garrison.system.tmux import TmuxTerminal
from garrison.system.tmux_server import TmuxServer, socket_path, supported_version
from support import DEADLINE, wait_for

pytestmark = pytest.mark.skipif(not supported_version(), reason="there is no tmux >= 3.2 on PATH")


@pytest.fixture
def home(patient_tmux: None, tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    kill_servers(tmp_path)


def kill_servers(home: Path) -> None:
    for one in TmuxServer(home / "run").processes():
        with contextlib.suppress(ProcessLookupError):  # a client may have ended by now
            os.kill(one.pid, signal.SIGKILL)
    wait_for("our servers are gone", lambda: not TmuxServer(home / "run").processes())


def opened(home: Path, name: str = "a@r1", server: TmuxServer | None = None) -> TerminalSession:
    return TmuxTerminal(home, server).open(name, ["/bin/sh", "-c", "sleep 1000"], env={"PATH": os.environ["PATH"]},
                                           cwd=home, log=home / "log")


def impatient(home: Path, seconds: float) -> TmuxServer:
    """Return the server as one sees it who waits that long for a command."""
    server = TmuxServer(home / "run")
    server.command_seconds = seconds
    return server


class DeafOnce(TmuxServer):
    """One whose answer to an open is soon given up, until it has been replaced."""

    open_seconds = 0.3

    def start(self) -> None:
        self.open_seconds = DEADLINE
        super().start()


def server_of(session: TerminalSession) -> int:
    return int(session.server.partition(":")[0])


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def stop(session: TerminalSession) -> None:
    os.kill(server_of(session), signal.SIGSTOP)
    wait_for("it is stopped", lambda: state_of(server_of(session)) == "T")


def stop_for_good(session: TerminalSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the server, and let nothing continue it."""
    monkeypatch.setattr(TmuxServer, "wake", lambda _server: None)
    stop(session)


def test_a_stopped_server_is_continued_and_no_command_is_sent_twice(home: Path) -> None:
    first = opened(home)
    stop(first)
    second = opened(home, "b@r1")
    assert server_of(second) == server_of(first)
    assert [one.name for one in TmuxTerminal(home).sessions()] == ["a@r1", "b@r1"]


def test_no_command_waits_without_limit_and_an_open_replaces_an_unresponsive_server(home: Path,
                                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    """Deaf: stopped, and nothing continues it (a server in an endless loop cannot be had)."""
    first = opened(home)
    stop_for_good(first, monkeypatch)
    with pytest.raises(GarrisonError, match="does not answer"):
        TmuxTerminal(home, impatient(home, 0.3)).sessions()
    assert processes.probe(server_of(first)), "only a caller that needs a session replaces it"
    second = opened(home, "b@r1", DeafOnce(home / "run"))
    assert server_of(second) != server_of(first)
    assert [one.name for one in TmuxTerminal(home).sessions()] == ["b@r1"]
    assert not processes.is_running(first.pid, first.ticks) or state_of(first.pid) == "Z"


def tmux_children() -> set[str]:
    """Return the pids of this thread's children that are a tmux."""
    children = Path(f"/proc/{os.getpid()}/task/{threading.get_native_id()}/children").read_text().split()
    return {pid for pid in children if Path(f"/proc/{pid}/comm").read_text().startswith("tmux")}


def test_a_command_without_an_answer_leaves_no_process_and_no_pipe(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = opened(home)
    assert TmuxTerminal(home).is_alive(first)
    stop_for_good(first, monkeypatch)
    terminal = TmuxTerminal(home, impatient(home, 0.2))
    before = set(os.listdir("/proc/self/fd"))  # noqa: PTH208
    children = tmux_children()
    for _ in range(3):
        with pytest.raises(GarrisonError, match="does not answer"):
            terminal.is_alive(first)
    assert set(os.listdir("/proc/self/fd")) <= before, "other threads may close theirs"  # noqa: PTH208
    assert tmux_children() <= children, "servers may be children, where an earlier test adopts orphans"


def test_libtmuxs_own_listings_are_bounded(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = opened(home)
    client = tmux_client.TmuxClient(TmuxServer(home / "run"))
    assert [one.session_id for one in client.sessions] == [first.session_id]
    stop_for_good(first, monkeypatch)
    monkeypatch.setattr(TmuxServer, "command_seconds", 0.3)
    with pytest.raises(subprocess.TimeoutExpired):
        fetch_objs(client, "list-sessions")
    os.kill(server_of(first), signal.SIGCONT)
    monkeypatch.setattr(TmuxServer, "command_seconds", DEADLINE)
    assert [one.session_id for one in client.sessions] == [first.session_id]


def test_a_server_that_dies_during_a_command_counts_as_none_and_an_open_starts_one(
        home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = opened(home)
    stop_for_good(first, monkeypatch)
    answers: list[list[TerminalSession]] = []
    asking = threading.Thread(target=lambda: answers.append(TmuxTerminal(home).sessions()))
    asking.start()
    # connections that wait at the server's socket: a stopped server accepts none
    wait_for("a client is connected", lambda: any(
        line.endswith(first.socket) and line.split()[5] == "02"
        for line in Path("/proc/net/unix").read_text().splitlines()))
    os.kill(server_of(first), signal.SIGKILL)
    asking.join(DEADLINE)
    assert answers == [[]]
    assert server_of(opened(home)) != server_of(first)


def test_a_session_is_alive_while_another_process_restores_the_socket(home: Path,
                                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    first = opened(home)
    restore = TmuxServer.restore_socket

    def second_to_restore(server: TmuxServer) -> bool:
        assert restore(TmuxServer(home / "run")), "the other process"
        return restore(server)

    monkeypatch.setattr(TmuxServer, "restore_socket", second_to_restore)
    Path(first.socket).unlink()
    assert TmuxTerminal(home).is_alive(first)


def test_a_server_restores_its_removed_socket(home: Path) -> None:
    first = opened(home)
    Path(first.socket).unlink()
    second = opened(home, "b@r1")
    assert server_of(second) == server_of(first)
    Path(first.socket).unlink()
    terminal = TmuxTerminal(home)
    assert terminal.is_alive(first)
    for session in terminal.sessions():
        terminal.close(session, grace=0)
    Path(first.socket).unlink()
    terminal.shutdown()
    wait_for("it does not outlive its last session", lambda: not TmuxServer(home / "run").processes())


def test_an_emptied_runtime_directory_does_not_lose_the_server(patient_tmux: None, tmp_path: Path,
                                                               monkeypatch: pytest.MonkeyPatch) -> None:
    """As a logout does it: the server's directory goes with it, and cron then knows no runtime directory at all."""
    home = tmp_path / ("long" * 30)
    runtime = Path(os.environ.get("TMPDIR", "/tmp")) / f"g{os.getpid()}"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    home.mkdir()
    try:
        first = opened(home)
        assert Path(first.socket).is_relative_to(runtime)
        shutil.rmtree(runtime)
        monkeypatch.delenv("XDG_RUNTIME_DIR")
        assert TmuxTerminal(home).is_alive(first)
        assert server_of(opened(home, "b@r1")) == server_of(first)
        assert socket_path(home / "run") == Path(first.socket)
    finally:
        kill_servers(home)
        shutil.rmtree(runtime, ignore_errors=True)


def test_a_stale_socket_does_no_harm(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a boot leaves: the socket's file, and no one behind it."""
    first = opened(home)
    os.kill(server_of(first), signal.SIGKILL)
    wait_for("it is gone", lambda: not TmuxServer(home / "run").processes())
    assert Path(first.socket).exists()
    for name in ("command_seconds", "open_seconds"):
        monkeypatch.setattr(TmuxServer, name, 20 * DEADLINE)  # waiting for an answer would not end in time
    assert not TmuxTerminal(home).is_alive(first)
    assert server_of(opened(home)) != server_of(first)
