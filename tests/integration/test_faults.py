"""Every system call of every durable write, spoiled: SIGKILL, ENOSPC, EIO. Nothing is torn or lost, and the next
writer continues.

The calls are learnt from a first traced run of each write, so that a new one is covered by itself.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fault_injection import OPS, Faults, Op
from garrison.records import atomic

WHY_NOT = Faults.works()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
READING = frozenset({"read", "pread64", "lseek", "fstat", "newfstatat", "stat", "lstat", "statx", "getdents64", "ioctl",
                     "fcntl", "access", "faccessat", "faccessat2", "readlink"})
"""Calls that change nothing on disk: a death or a full disk at one is a death or a full disk at the next."""
ERRORS = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO}


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faults]:
    server = Faults(tmp_path_factory.mktemp("faults"))
    yield server
    server.close()


def spoil(faults: Faults, op: Op, call: str, number: int, fault: str) -> None:
    """Spoil the call `number` of its name, then check with fresh readers and writers."""
    how = "signal=SIGKILL" if fault == "kill" else f"error={fault}"
    folder, made, word = faults.run(op, f"{call}:{how}:when={number}")
    assert (call, number) in made, "the call was not made this time"
    before = [1] if op.begins else []
    seen = op.seen(folder)
    assert seen in (before, [*before, 2] if op.keeps else [2]), f"lost or made up: {seen}"
    if fault == "kill":
        assert word is None, "it lived"
    else:
        assert word is not None
        assert "fault" not in word, word
        assert word["acked"] or call == "close", f"the second try failed as well: {word}"
        assert 2 in seen or not word["acked"], "acknowledged, and lost"
        error = word.get("first")
        assert error is None or os.strerror(ERRORS[fault]).lower() in error.lower(), f"not said: {word}"
        assert error is None or "\n" not in error
        assert not list(folder.rglob(".*.tmp")), "a temporary file is left"
    if op.name not in ("take", "refuse"):
        op.act(op.open(folder), 3)
    else:
        op.act(folder, 3)
    assert op.seen(folder)[-1:] == [3], "the next writer does not continue"
    atomic.clear_temporaries(folder, time.time() + 1)
    assert not list(folder.rglob(".*.tmp")), "a temporary file is never cleaned"
    shutil.rmtree(folder)


@pytest.mark.parametrize(("name", "kind"), [
    *((name, "kill") for name in ("write", "identity", "append-sync", "compact", "merge-journal", "post", "refuse")),
    *((name, "ENOSPC") for name in ("journal-open", "compact", "post-new"))])
def test_a_spoiled_call_of_a_durable_write(faults: Faults, name: str, kind: str) -> None:
    """A part of what the next test tries: the calls that change something."""
    matrix(faults, OPS[name], {kind: False})


@pytest.mark.slow
@pytest.mark.parametrize("name", OPS)
def test_every_call_of_a_durable_write_spoiled_in_every_way(faults: Faults, name: str) -> None:
    matrix(faults, OPS[name], {"kill": True, "ENOSPC": True, "EIO": True})


def test_leftovers_of_killed_processes_are_removed_and_nothing_else(tmp_path: Path) -> None:
    """A young one may be in use; other names are not ours."""
    folder = tmp_path / "runs" / "r1"
    folder.mkdir(parents=True)
    names = [".launch.json.12-3.tmp", ".crew.12.tmp", ".young.json.12-4.tmp", "kept.12-3.tmp", ".kept.tmp",
             ".a.12-3.tmpx"]
    for name in names:
        (folder / name).write_text("x")
        if "young" not in name:
            os.utime(folder / name, (1000, 1000))
    (folder / ".link.1-1.tmp").symlink_to(folder / "kept.12-3.tmp")
    (folder / ".dir.1-1.tmp").mkdir()
    removed = atomic.clear_temporaries(tmp_path, 2000)
    assert sorted(removed) == [str(folder / name) for name in (".crew.12.tmp", ".launch.json.12-3.tmp")]
    assert not [name for name in removed if Path(name).exists()]
    assert atomic.clear_temporaries(tmp_path / "absent", 2000) == []


def matrix(faults: Faults, op: Op, kinds: dict[str, bool]) -> None:
    """Spoil each call in each way; `kinds`: way → whether calls that only read are spoiled as well."""
    _, calls, word = faults.run(op)
    assert word == {"acked": True, "error": ""}
    cases, wrong = 0, []
    for kind, everything in kinds.items():
        for call, number in calls:
            if call in READING and not everything:
                continue
            cases += 1
            try:
                spoil(faults, op, call, number, kind)
            except Exception as error:
                wrong.append(f"{kind} at {call} {number}: {type(error).__name__} {str(error).splitlines()[0]}")
    print(f"{op.name}: {cases} cases, {len(wrong)} wrong")
    assert cases, calls
    assert not wrong, "\n".join([f"{len(wrong)} of {cases}:", *wrong])
