"""Doctor's look at hosts: what their records say, without asking any of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.doctor.findings import ExaminedState
from garrison.doctor.processes import examine_hosts
from garrison.hosts.keeper import KeeperState, lock_path, write_state
from garrison.processes.runtime import Runtime
from garrison.records import atomic
from garrison.records.hosts import Host, write_host
from garrison.records.life_lock import LifeLock

if TYPE_CHECKING:
    from pathlib import Path


def texts(home: Path) -> list[str]:
    return [finding.text for finding in examine_hosts(ExaminedState(Runtime.real(home), {}))]


def test_a_home_without_hosts_is_not_mentioned(tmp_path: Path) -> None:
    assert texts(tmp_path) == []


def test_what_is_wrong_with_hosts_is_found(tmp_path: Path) -> None:
    write_host(tmp_path, Host("box2", "me@box2", command="/x/bin/garrison", port=7))
    write_host(tmp_path, Host("box3", "me@box3", port=7))
    assert texts(tmp_path) == ["the keeper of the hosts is not running", "the set-up of box3 was not finished"]
    lock = LifeLock.try_acquire(lock_path(tmp_path))
    assert lock is not None
    write_state(tmp_path, KeeperState(server="it starts", troubles={"box2": "no route"}))
    assert texts(tmp_path) == ["the Temporal server does not answer: it starts", "box2 is not connected: no route",
                               "the set-up of box3 was not finished"]
    write_state(tmp_path, KeeperState(tunnels={"box2": "2026-01-31T12:00:00.000000Z"}))
    assert texts(tmp_path) == ["the set-up of box3 was not finished"]
    lock.release()
    atomic.write(tmp_path / "hosts/box3.json", b"{")
    assert "box3.json" in texts(tmp_path)[0]
