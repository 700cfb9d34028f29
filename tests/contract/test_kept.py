"""Records that are kept: handed out again while their file is the same, and never longer."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from garrison.errors import RecordCorrupt
from garrison.records import atomic, record
from garrison.records.hook import Hook
from garrison.records.identity import Identity
from garrison.records.names import Key
from garrison.records.store import Store

KEY = Key("runner", "a", "r1")
AT = "2026-01-31T12:00:00.000000Z"
FIRST = Identity("x", "runner", "a", "r1", AT)
LATER = replace(FIRST, agent_id="y")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    Store(tmp_path).update(Identity, KEY, lambda _: FIRST)
    return tmp_path


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What was decoded so far."""
    told: list[object] = []
    decode = record.decode
    monkeypatch.setattr(record, "decode", lambda kind, data, where: told.append(where) or decode(kind, data, where))
    return told


def held() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_record_is_read_once(home: Path, decoded: list[object]) -> None:
    store = Store(home, keep=4)
    assert [store.read(Identity, KEY) for _ in range(3)] == [FIRST] * 3
    assert len(decoded) == 1
    assert store.read(Hook, KEY) is None


def in_place(path: Path) -> None:
    path.write_bytes(record.encode(LATER))


def of_the_same_times(path: Path) -> None:
    """Only the number of the file tells."""
    seen = path.stat()
    atomic.write(path, record.encode(LATER))
    os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))


@pytest.mark.parametrize("change", [
    pytest.param(lambda path: Store(path.parent.parent).update(Identity, KEY, lambda _: LATER), id="replaced"),
    pytest.param(in_place, id="in place"), pytest.param(of_the_same_times, id="of the same times")])
def test_what_another_wrote_is_read(home: Path, change: Callable[[Path], object]) -> None:
    store = Store(home, keep=4)
    assert store.read(Identity, KEY) == FIRST
    change(store.path(Identity, KEY))
    assert store.read(Identity, KEY) == LATER


def test_a_file_that_is_held_gives_its_number_to_no_other(home: Path) -> None:
    store = Store(home, keep=4)
    store.read(Identity, KEY)
    path = store.path(Identity, KEY)
    number = path.stat().st_ino
    for turn in range(50):
        atomic.write(path, record.encode(replace(FIRST, agent_id=f"{turn:x}")), durable=False)
        assert path.stat().st_ino != number


def test_what_is_gone_or_damaged_is_told(home: Path) -> None:
    store, before = Store(home, keep=4), held()
    store.read(Identity, KEY)
    path = store.path(Identity, KEY)
    path.write_text("{")
    for _ in range(2):
        with pytest.raises(RecordCorrupt):
            store.read(Identity, KEY)
    path.unlink()
    assert store.read(Identity, KEY) is None
    assert held() == before + 1, "what is to be removed waits for a quiet moment"
    store.rest()
    assert held() == before


def test_so_many_are_kept_and_let_go_with_the_store(tmp_path: Path) -> None:
    store, before = Store(tmp_path, keep=2), held()
    for name in ("a", "b", "c", "d"):
        key = Key("runner", name, "r1")
        store.update(Identity, key, lambda _, key=key: replace(FIRST, name=key.name))  # type: ignore[misc]
        assert store.read(Identity, key) == replace(FIRST, name=name)
    store.rest()
    assert held() == before + 2
    for turn in range(100):
        store.update(Identity, key, lambda old, turn=turn: replace(old, agent_id=f"{turn:x}"))  # type: ignore[misc]
        store.read(Identity, key)
    assert held() < before + 50
    del store
    assert held() == before
