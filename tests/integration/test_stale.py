"""The quick eye of find-stale against the whole way, on real files and processes: who is listed is the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from garrison.errors import RecordError
from garrison.records.identity import STATUSES
from garrison.records.life_lock import LifeLock
from garrison.records.names import Key
from garrison.records.store import Store
from garrison.supervise.observer import Observer, find_stale
from garrison.system.clock import SystemClock, iso
from garrison.system.process_control import RealProcesses

TIMEOUT = 300.0
OLD = iso(SystemClock().time() - 1000)
FUTURE = iso(SystemClock().time() + 100_000)  # further than the longest run of all tests


@pytest.fixture
def gone() -> Iterator[tuple[int, int]]:
    """Yield a zombie's pid and ticks."""
    child = subprocess.Popen([sys.executable, "-c", "pass"], stdout=subprocess.PIPE)
    ticks = RealProcesses().probe(child.pid)
    assert ticks is not None and child.stdout is not None
    child.stdout.read()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    yield child.pid, ticks.ticks
    child.stdout.close()
    child.wait()


Change = Callable[[dict[str, Any]], None]


def sets(**values: Any) -> Change:
    return lambda body: body.update(values)


def drops(*names: str) -> Change:
    def drop(body: dict[str, Any]) -> None:
        for name in names:
            del body[name]

    return drop


CHANGES: dict[str, Change] = {
    "well": sets(), "silent": sets(last_heartbeat=OLD), "ahead": sets(last_heartbeat=FUTURE),
    "never": sets(last_heartbeat=""), "other-ticks": sets(start_ticks=1), "no-ticks": sets(start_ticks=None),
    "no-pid": sets(pid=None), "no-pid-old": sets(pid=None, last_heartbeat=OLD), "pid-0": sets(pid=0),
    "pid-below-0": sets(pid=-1), "booted": sets(boot_id="another"), "elsewhere": sets(host="another"),
    "other-space": sets(pid_ns="pid:[1]"), "lapsed": sets(status="starting", spawn_deadline=OLD),
    "leased": sets(status="starting", spawn_deadline=FUTURE),
    **{f"status-{status}": sets(status=status, last_heartbeat=OLD) for status in STATUSES},
    "status-unknown": sets(status="lost"), "status-missing": drops("status"), "name-missing": drops("name"),
    "life-0": sets(incarnation=0), "life-a-text": sets(incarnation="1"), "life-true": sets(incarnation=True),
    "schema-newer": sets(schema=2), "schema-text": sets(schema="1"), "metadata-a-list": sets(metadata=[]),
    "heartbeat-no-time": sets(last_heartbeat="2026"), "created-no-time": sets(created_at="yesterday"),
    "deadline-no-time": sets(spawn_deadline="soon"), "another-field": sets(news=1), "about-another": sets(name="b"),
    "another-run": sets(run_id="r9"), "few-fields": drops("tmux", "exit", "session_id", "schema"),
    "pid-a-float": sets(pid=1.5), "no-place": drops("host", "boot_id", "pid_ns"), "large": sets(session_id="x" * 20000),
}


EXPECTED = {
    **dict.fromkeys(["beat_long_ago", "no_pid_old", "silent", "status_active"], "heartbeat"),
    **dict.fromkeys(["booted", "elsewhere", "no_place", "no_ticks", "other_space", "other_ticks", "pid_0",
                     "pid_below_0", "zombie"], "process_gone"),
    "lapsed": "start_deadline",
}
UNREADABLE = {f"runner-{name}@r1" for name in (
    "about_another", "another_run", "created_no_time", "deadline_no_time", "deep", "empty", "folder",
    "heartbeat_no_time", "latin", "life_0", "life_a_text", "life_true", "list", "metadata_a_list", "name_missing",
    "pid_a_float", "schema_newer", "schema_text", "status_unknown", "torn")}


def test_every_kind_of_record_is_stale_for_its_reason_well_or_unreadable(tmp_path: Path, gone: tuple[int, int]) -> None:
    store = Store(tmp_path)
    observer = Observer(store, RealProcesses(), SystemClock())
    me, now = observer.origin(os.getpid()), observer.clock.utc()
    folder = tmp_path / "identities"
    folder.mkdir()
    body = {"schema": 1, "agent_id": "0" * 16, "role": "runner", "created_at": now, "session_id": "", "tmux": None,
            "pid": me.pid, "start_ticks": me.start_ticks, "pid_ns": me.pid_ns, "boot_id": me.boot_id, "host": me.host,
            "status": "active", "last_heartbeat": now, "spawn_deadline": None, "exit": None, "incarnation": 1,
            "metadata": {}}

    def put(name: str, change: Change = lambda _: None) -> None:
        one = {**body, "name": name, "run_id": "r1"}
        change(one)
        (folder / f"runner-{name}@r1.json").write_text(json.dumps(one))

    for name, change in CHANGES.items():
        put(name.replace("-", "_"), change)
    put("zombie", sets(pid=gone[0], start_ticks=gone[1]))
    for name, beaten, wall in (("beats", observer.clock.monotonic(), observer.clock.time()),
                               ("beat_long_ago", 1.0, observer.clock.time() - 1000),
                               ("beat_to_come", 4e9, 4e9)):
        put(name, sets(last_heartbeat=OLD))
        lock = LifeLock.try_acquire(store.life_path(Key("runner", name, "r1")))
        lock.beat(int(beaten * 1e9), int(wall * 1e9))
        lock.release()
    (folder / "launch@r1.json").write_text(json.dumps({**body, "role": "launch", "name": "launch", "run_id": "r1"}))
    (folder / "runner-hand.json").write_text(json.dumps({**body, "name": "hand", "run_id": ""}))
    for name, data in (("runner-torn@r1", b'{"schema": 1, "na'), ("runner-list@r1", b"[]"), ("runner-empty@r1", b""),
                       ("runner-deep@r1", b"[" * 9000), ("runner-latin@r1", b'{"name": "\xe9"}'),
                       ("foreign name", b"{}"),
                       (".hidden", b"{}"), ("launch-launch@r1", b"{}")):
        (folder / f"{name}.json").write_bytes(data)
    (folder / "runner-folder@r1.json").mkdir()
    (folder / "runner-broken@r1.json").symlink_to("nowhere")

    found, errors = find_stale(observer, TIMEOUT)
    reasons = {one.name: reason for one, reason in found}
    assert reasons == EXPECTED
    assert [one.key for one, _ in found] == sorted(one.key for one, _ in found)
    assert {str(error).partition("identities/")[2].partition(".json")[0] for error in errors} == UNREADABLE


def test_a_home_without_identities_or_with_a_file_in_their_place(tmp_path: Path) -> None:
    observer = Observer(Store(tmp_path), RealProcesses(), SystemClock())
    assert find_stale(observer, TIMEOUT) == ([], [])
    (tmp_path / "identities").write_text("")
    found, errors = find_stale(observer, TIMEOUT)
    assert found == [] and len(errors) == 1 and isinstance(errors[0], RecordError)
