"""The store: one way to change a record, fenced by life; nothing torn, nothing lost, nothing repaired by reading."""

from __future__ import annotations

import errno
import json
import os
import pwd
import re
import shutil
import signal
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from garrison.errors import Fenced, LockLost, NewerSchema, NotFound, RecordCorrupt, RecordUnreadable
from garrison.records import atomic, record
from garrison.records.hook import Hook
from garrison.records.identity import Identity
from garrison.records.names import Key
from garrison.records.store import Store
from garrison.values import replace
from support import DEADLINE, exit_codes, fork

KEY = Key("runner", "a", "r1")
AT = "2026-01-31T12:00:00.000000Z"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home")


def test_a_home_of_another_user_is_refused_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after `sudo garrison`, for one."""
    denied = PermissionError(errno.EACCES, "Permission denied")
    assert "belongs to" not in str(atomic.to_record_error(tmp_path / "none/x", denied))
    (tmp_path / "theirs").mkdir()
    mine = tmp_path.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    told = str(atomic.to_record_error(tmp_path / "theirs/none/x", denied))
    assert f"x: permission denied ({tmp_path}/theirs belongs to {pwd.getpwuid(mine).pw_name}); it was left" in told


def test_a_process_never_creates_its_home_again(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """What a layer was about to write when its home was removed must not bring the home back as a ruin."""
    request.addfinalizer(atomic.PROTECTED.clear)
    home = tmp_path / "home"
    home.mkdir()
    atomic.forbid_recreating(home)
    assert atomic.make_directory(home / "signals" / "a").is_dir()
    assert atomic.make_directory(home / "signals" / "a").is_dir()
    assert atomic.make_directory(tmp_path / "else" / "where").is_dir()
    (home / "file").touch()
    with pytest.raises(RecordUnreadable):
        atomic.make_directory(home / "file" / "below")
    shutil.rmtree(home)
    with pytest.raises(LockLost, match="was removed; stopping gracefully"):
        atomic.make_directory(home / "signals" / "a")
    assert not home.exists()


def life(incarnation: int = 1, **more: object) -> Identity:
    return Identity("id", KEY.role, KEY.name, KEY.run, AT, incarnation=incarnation, **more)


def made(store: Store, incarnation: int = 1) -> Identity:
    return store.update(Identity, KEY, lambda _old: life(incarnation))


def there(old: Identity | None) -> Identity:
    assert old is not None
    return old


def count_up(old: Identity | None) -> Identity:
    return replace(there(old), respawns=there(old).respawns + 1)


def test_the_format_on_disk(store: Store) -> None:
    assert store.read(Identity, KEY) is None
    assert store.keys(Identity) == [] and store.list(Identity) == ([], [])
    with pytest.raises(NotFound, match="no identity runner-a@r1 in"):
        store.get(Identity, KEY)
    assert not store.home.exists(), "reading made something"
    written = made(store)
    store.update(Hook, KEY, lambda _old: Hook("h", "runner", "a", "r1", AT, AT))
    assert store.path(Identity, KEY) == store.home / "identities/runner-a@r1.json"
    assert store.path(Hook, KEY) == store.home / "hooks/runner-a@r1.json"
    assert store.life_path(KEY) == store.home / "identities/runner-a@r1.life"
    assert store.read(Identity, KEY) == written == store.get(Identity, KEY)
    for path in store.home.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    assert sorted(path.name for path in (store.home / "identities").iterdir()) == ["runner-a@r1.json",
                                                                                   "runner-a@r1.lock"]


def test_the_umask_does_not_matter(store: Store) -> None:
    old = os.umask(0)
    try:
        test_the_format_on_disk(store)
    finally:
        os.umask(old)


def test_an_unchanged_record_is_not_rewritten(store: Store) -> None:
    made(store)
    before = store.path(Identity, KEY).stat().st_ino
    store.update(Identity, KEY, there)
    assert store.path(Identity, KEY).stat().st_ino == before
    store.update(Identity, KEY, count_up)
    assert store.path(Identity, KEY).stat().st_ino != before


def test_a_change_that_raises_changes_nothing_and_frees_the_lock(store: Store) -> None:
    made(store)
    with pytest.raises(ZeroDivisionError):
        store.update(Identity, KEY, lambda old: replace(there(old), respawns=1 // 0))
    assert store.update(Identity, KEY, count_up).respawns == 1


@pytest.mark.parametrize("mine", [1, 2])
def test_an_incarnation_with_a_successor_is_fenced(store: Store, mine: int) -> None:
    made(store, 3)
    with pytest.raises(Fenced, match=rf"runner-a@r1 has a later incarnation \(3 > {mine}\)"):
        store.update(Identity, KEY, count_up, incarnation=mine)
    with pytest.raises(Fenced), store.locked(Identity, KEY, incarnation=mine):
        raise AssertionError
    assert store.get(Identity, KEY).respawns == 0
    assert store.update(Identity, KEY, count_up, incarnation=3).respawns == 1


def test_a_hook_is_also_fenced_and_an_older_one_is_taken_over(store: Store) -> None:
    store.update(Hook, KEY, lambda _old: Hook("h", "runner", "a", "r1", AT, AT, incarnation=2))
    with pytest.raises(Fenced):
        store.update(Hook, KEY, lambda old: replace(old or Hook("", "", "", "", "", ""), phase="merged"), incarnation=1)
    assert store.get(Hook, KEY).phase == "planning"
    with store.locked(Hook, KEY, incarnation=3) as old:
        assert old is not None and old.incarnation == 2


def test_a_gone_record_or_home_is_fenced_and_not_made_again(store: Store) -> None:
    made(store)
    store.path(Identity, KEY).unlink()
    with pytest.raises(Fenced, match="the record of runner-a@r1 is gone"):
        store.update(Identity, KEY, there, incarnation=1)
    for path in (store.home / "identities").iterdir():
        path.unlink()
    (store.home / "identities").rmdir()
    with pytest.raises(Fenced, match="is gone; stopping without writing"):
        store.update(Identity, KEY, there, incarnation=1)
    assert not (store.home / "identities").exists()


CORRUPT = {
    "empty": b"", "half": record.encode(life())[:100], "zeros": b"\0" * 300, "list": b"[]", "binary": b"\xff" * 9,
    "another's": record.encode(replace(life(), name="b")), "no role": record.encode(replace(life(), role="boss")),
    "no name": record.encode(replace(life(), name="../x")), "no run": record.encode(replace(life(), run_id="R")),
    "a hook": record.encode(Hook("h", "runner", "a", "r1", AT, AT)),
    "time": record.encode(life()).replace(AT.encode(), b"yesterday"), "newer": b'{"schema": 2}'}


@pytest.mark.parametrize("data", CORRUPT.values(), ids=CORRUPT)
def test_a_corrupt_or_newer_record_is_never_absent_and_never_moved(store: Store, data: bytes) -> None:
    kind = NewerSchema if data == CORRUPT["newer"] else RecordCorrupt
    path = store.path(Identity, KEY)
    atomic.make_directory(path.parent)
    path.write_bytes(data)
    attempts: list[Callable[[], object]] = [
        lambda: store.read(Identity, KEY), lambda: store.get(Identity, KEY),
        lambda: store.update(Identity, KEY, lambda _old: life()),
        lambda: store.update(Identity, KEY, there, incarnation=1)]
    for attempt in attempts:
        with pytest.raises(kind, match=re.escape(str(path))):
            attempt()
    records, errors = store.list(Identity)
    assert records == [] and [type(error) for error in errors] == [kind]
    assert path.read_bytes() == data


def test_listing_skips_foreign_names(store: Store) -> None:
    made(store)
    store.update(Identity, Key("guardian", "p"), lambda _old: Identity("id", "guardian", "p", "", AT))
    folder = store.home / "identities"
    for name in (".runner-a@r1.json.7-0.tmp", "runner-a@r1.json~", "README.json", "runner-b.txt", "guardian@r1.json",
                 ".hidden.json", "boss-a@r1.json", "runner-a@r1.life", "🦀.json", "runner-a@R.json"):
        (folder / name).write_text("foreign")
    (folder / "sub").mkdir()
    assert store.keys(Identity) == [Key("guardian", "p"), KEY]
    assert store.keys(Identity, (KEY.run,)) == [KEY] and store.keys(Identity, ("",)) == [Key("guardian", "p")]
    records, errors = store.list(Identity)
    assert [found.key for found in records] == [Key("guardian", "p"), KEY] and errors == []


def test_leftovers_of_a_killed_writer_are_harmless(store: Store) -> None:
    """A pid comes again (always, in a container): the new process meets the names its dead namesake used."""
    made(store)
    path = store.path(Identity, KEY)
    now = int(repr(atomic.SERIAL).strip("count()"))
    left = [path.with_name(f".{path.name}.{os.getpid()}-{number}.tmp") for number in range(now, now + 3)]
    for one in left:
        one.write_text('{"half')
    assert store.update(Identity, KEY, count_up).respawns == 1
    assert store.read(Identity, KEY) == life(respawns=1)
    assert [one.read_text() for one in left] == ['{"half'] * 3
    assert store.keys(Identity) == [KEY]


def test_a_failed_write_leaves_the_old_record_and_no_temporary(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    made(store)

    def full(_descriptor: int, _data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic, "write_all", full)
    with pytest.raises(OSError, match="No space"):
        store.update(Identity, KEY, count_up)
    assert store.read(Identity, KEY) == life()
    assert not list(store.home.rglob("*.tmp"))


# ----------------------------------------------------------------------------------------------------- many processes


@pytest.mark.usefixtures("unsynced")
def test_forty_processes_lose_no_update(store: Store) -> None:
    made(store)

    def work() -> None:
        for _ in range(5):
            store.update(Identity, KEY, count_up)

    assert exit_codes(*(fork(work) for _ in range(40))) == [0] * 40
    assert store.get(Identity, KEY).respawns == 200
    assert not list(store.home.rglob("*.tmp"))


def test_a_reader_never_reads_a_torn_file(tmp_path: Path) -> None:
    """Hundreds of writes of records whose length changes much, with hundreds of concurrent reads."""
    path, seen = tmp_path / "record.json", tmp_path / "seen"
    texts = ["x" * size for size in (1, 5000, 30_000)]

    def work() -> None:
        number = -1
        while (number := number + 1) < 300 or not seen.exists():
            body = replace(life(), metadata={"number": number, "text": texts[number % 3]})
            atomic.write(path, record.encode(body), durable=False)

    atomic.write(path, record.encode(replace(life(), metadata={"number": -1, "text": texts[0]})))
    writer = fork(lambda: (signal.alarm(round(DEADLINE)), work()))
    last, looks = -1, 0
    while os.waitpid(writer, os.WNOHANG) == (0, 0):
        found = record.decode(Identity, path.read_bytes(), path).metadata
        assert found["number"] >= last and found["text"] in texts
        last, looks = found["number"], looks + 1
        if looks == 300:
            seen.touch()
    assert looks >= 300 and record.decode(Identity, path.read_bytes(), path).metadata["number"] >= 299


@pytest.mark.usefixtures("unsynced")
def test_writers_killed_at_any_moment_leave_a_whole_record_and_a_free_lock(store: Store) -> None:
    made(store)

    def work() -> None:
        while True:
            store.update(Identity, KEY, count_up)

    last = 0
    for round_ in range(8):
        pids = [fork(work), fork(work)]
        deadline = time.monotonic() + DEADLINE
        while store.get(Identity, KEY).respawns < last + 2 + round_ and time.monotonic() < deadline:
            pass
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        assert exit_codes(*pids) == [-signal.SIGKILL] * 2
        now = store.update(Identity, KEY, count_up).respawns
        assert now > last
        last = now
    assert store.keys(Identity) == [KEY]


def test_the_lock_is_the_file_that_bears_the_name(tmp_path: Path) -> None:
    """A lock file removed under a waiter (`git clean -fdx`) guards nothing: the waiter takes the new one."""
    path = tmp_path / "x.lock"
    order: list[str] = []
    waiter = threading.Thread(target=lambda: _hold(path, order, "waiter"))
    with atomic.locked(path):
        waiter.start()
        _until_blocked(path, order)
        path.unlink()
        second = atomic.locked(path)
        second.__enter__()
    _until_blocked(path, order)
    order.append("second")
    second.__exit__(None, None, None)
    waiter.join(DEADLINE)
    assert order == ["second", "waiter"]


def _until_blocked(path: Path, order: list[str]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not _blocked(path) and not order:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def _hold(path: Path, order: list[str], who: str) -> None:
    with atomic.locked(path):
        order.append(who)


def _blocked(path: Path) -> bool:
    return f":{path.stat().st_ino} 0 EOF" in "".join(
        line for line in Path("/proc/locks").read_text().splitlines(keepends=True) if "->" in line)


def test_a_field_of_a_later_garrison_survives_a_rewrite(store: Store) -> None:
    made(store)
    path = store.path(Identity, KEY)
    body = json.loads(path.read_text())
    path.write_text(json.dumps(body | {"mood": {"of": "a later version"}}))
    store.update(Identity, KEY, lambda old: replace(there(old), last_heartbeat=AT, respawns=3))
    written = json.loads(path.read_text())
    assert (written["respawns"], written["mood"]) == (3, {"of": "a later version"})
    assert list(written) == [*body, "mood"]
