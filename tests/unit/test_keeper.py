"""Keeper of a home: which tunnels it opens, keeps and retries; and the port of its server."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from garrison.errors import NotFound
from garrison.hosts import keeper
from garrison.hosts.keeper import PORTS, HostsKeeper, LocalServer, free_port
from garrison.records import atomic, log_retention
from garrison.records.host_service import read_settings, settings_path
from garrison.records.hosts import Host, HostState, host_path, read_host, write_host
from garrison.system import processes
from garrison.values import replace
from support import wait_for

BOX = Host("box2", "me@box2", home="/h/home", command="/h/env/bin/garrison", port=7)


class FakeTunnel:
    """A tunnel that a test controls."""

    made: list[FakeTunnel] = []  # noqa: RUF012

    def __init__(self, host: Host, target: str, settings: str, log: Path) -> None:
        self.host, self.target, self.settings = host, target, settings
        self.is_open, self.why, self.is_closed = False, "", False
        self.made.append(self)

    def turn(self) -> str | None:
        return self.why or None

    def close(self) -> None:
        self.is_closed = True


def keeper_of(home: Path, monkeypatch: pytest.MonkeyPatch) -> HostsKeeper:
    """Return the keeper of a home with one host, without real tunnels."""
    monkeypatch.setattr(keeper, "Tunnel", FakeTunnel)
    monkeypatch.setattr(FakeTunnel, "made", [])
    monkeypatch.setattr(HostsKeeper, "keep_relay", lambda _: None)
    write_host(home, BOX)
    return HostsKeeper(home)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostsKeeper:
    made = keeper_of(tmp_path, monkeypatch)
    monkeypatch.setattr(HostsKeeper, "keep_server", lambda _: None)
    made.state = replace(made.state, address="127.0.0.1:7233", server="")
    return made


def test_logs_are_bounded(kept: HostsKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    bounded: list[str] = []
    monkeypatch.setattr(log_retention, "bound_log", lambda path: bounded.append(path.name))
    atomic.make_directory(kept.folder / "temporal")
    for log in ("keeper.log", "tunnel-box2.log", "temporal/server.log", "temporal/temporal.db"):
        (kept.folder / log).touch()
    kept.turn()
    kept.turn()
    assert sorted(bounded) == ["keeper.log", "server.log", "tunnel-box2.log"]


def test_each_host_with_a_port_has_a_tunnel_which_stays_when_it_drains_and_follows_its_port(kept: HostsKeeper) -> None:
    write_host(kept.home, Host("here", command="/h/env/bin/garrison"))
    kept.turn()
    (tunnel,) = FakeTunnel.made
    assert (tunnel.host, tunnel.target) == (BOX, "127.0.0.1:7233") and '"name": "box2"' in tunnel.settings
    assert kept.state.tunnels == {}
    tunnel.is_open = True
    kept.turn()
    assert list(kept.state.tunnels) == list(kept.state.seen) == ["box2"]
    kept.turn()
    write_host(kept.home, replace(BOX, state=HostState.DRAINING, slots=5))
    kept.turn()
    assert len(FakeTunnel.made) == 1 and not FakeTunnel.made[0].is_closed
    write_host(kept.home, replace(BOX, port=8))
    kept.turn()
    assert [tunnel.is_closed for tunnel in FakeTunnel.made] == [True, False]


def test_a_failed_tunnel_is_reported_and_retried_later(kept: HostsKeeper) -> None:
    kept.turn()
    FakeTunnel.made[0].why = "no route"
    kept.turn()
    assert kept.state.troubles == {"box2": "no route"} and FakeTunnel.made[0].is_closed
    kept.turn()
    assert len(FakeTunnel.made) == 1
    kept.retry_at["box2"] = 0.0
    kept.turn()
    FakeTunnel.made[1].is_open = True
    kept.turn()
    assert kept.state.troubles == {} and list(kept.state.tunnels) == ["box2"]


def test_it_ends_once_no_host_is_left(kept: HostsKeeper) -> None:
    kept.turn()
    assert kept.idle == 0
    host_path(kept.home, "box2").unlink()
    for _ in range(keeper.IDLE_TURNS):
        kept.turn()
    assert kept.idle == keeper.IDLE_TURNS and FakeTunnel.made[0].is_closed


def test_a_lasting_problem_is_reported_once(kept: HostsKeeper, capsys: pytest.CaptureFixture[str]) -> None:
    atomic.write(kept.home / "config.toml", b"[hosts]\nlease = 0\n")
    for _ in range(3):
        kept.turn()
    assert capsys.readouterr().err.count("lease=0") == 1


def test_a_missing_program_of_the_server_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: LocalServer) -> list[str]:
        raise NotFound("there is no Temporal server here")

    monkeypatch.setattr(LocalServer, "argv", missing)
    made = HostsKeeper(tmp_path)
    made.keep_server()
    assert made.state.server == "there is no Temporal server here"


@pytest.fixture
def serving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostsKeeper]:
    """A keeper whose server, a program that sleeps, is killed at the end."""
    monkeypatch.setattr(LocalServer, "argv", lambda _: ["sleep", "60"])
    kept = keeper_of(tmp_path, monkeypatch)
    yield kept
    processes.send(kept.state.server_pid, kept.state.server_ticks, signal.SIGKILL)
    processes.exit_code(kept.state.server_pid)


def test_a_server_whose_port_another_program_has_moves_and_hosts_follow(serving: HostsKeeper) -> None:
    # Seen: a home on another machine waited for ever, since a connection used the port there.
    with socket.create_server(("127.0.0.1", 0)) as taken:
        old = f"127.0.0.1:{taken.getsockname()[1]}"
        here = Host("here", home=str(serving.home / "there"), command="/h/garrison", address=old)
        settings_path(Path(here.home)).parent.mkdir(parents=True)
        write_host(serving.home, here)
        serving.state = replace(serving.state, address=old)
        serving.turn()
    new = serving.state.address
    assert new != old
    assert int(new.rpartition(":")[2]) in PORTS
    assert read_host(serving.home, "here").address == read_settings(Path(here.home)).address == new
    assert [tunnel.target for tunnel in FakeTunnel.made] == [new]


def test_a_server_that_a_killed_keeper_had_not_recorded_is_adopted(serving: HostsKeeper, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        serving.state = replace(serving.state, address=f"127.0.0.1:{port}")
        database = LocalServer(serving.folder / "temporal", port).database
        server = processes.spawn([sys.executable, "-c", "import time; time.sleep(60)", "start-dev", str(database)],
                                 cwd=tmp_path, env=keeper.make_environment(tmp_path, os.environ), log=tmp_path / "log")
        # Linux names a program's arguments a moment after the descriptors that tell of its start are closed.
        wait_for("it has started", lambda: b"start-dev" in processes.read_argv(server.pid))
        serving.turn()
        assert (serving.state.server_pid, serving.state.server_ticks) == (server.pid, server.ticks)
        serving.turn()
        assert serving.state.server == ""
        server.close()


def test_a_server_keeps_its_port_when_it_is_started_again(serving: HostsKeeper) -> None:
    old = f"127.0.0.1:{free_port()}"
    serving.state = replace(serving.state, address=old)
    serving.turn()
    assert serving.state.address == old
