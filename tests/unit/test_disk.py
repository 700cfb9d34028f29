"""Disk space and capacity: what is removed first over the limit, when a disk is full, how many agents at once."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from garrison.launch.disk import Held, What, choose
from garrison.system import machine
from garrison.system.machine import AGENT_BYTES, available_memory, cores, default_agents

HELD = [Held(What.RECORDS, "r1", Path("r1"), 50, 1), Held(What.SETUP, "p", Path("new"), 30, 9, removable=True),
        Held(What.SETUP, "p", Path("used"), 30, 1), Held(What.SETUP, "p", Path("old"), 30, 2, removable=True),
        Held(What.WORKTREE, "r1", Path("tree"), 30, 3, removable=True)]
"""170 bytes in all, 90 of which may be removed."""


@pytest.mark.parametrize(("limit", "gone"), [
    (170, []), (169, ["old"]), (140, ["old"]), (139, ["old", "tree"]), (110, ["old", "tree"]),
    (80, ["old", "tree", "new"]), (0, ["old", "tree", "new"])])
def test_the_least_recently_used_goes_first_and_nothing_in_use(limit: int, gone: list[str]) -> None:
    assert [each.path.name for each in choose(HELD, limit)] == gone


# ---- when a disk counts as full, and waiting for room


@pytest.mark.parametrize(("found", "full"), [
    ({}, False),
    ({"f_bavail": 15}, True),
    ({"f_favail": 3, "f_ffree": 3}, True),
    ({"f_favail": 0, "f_ffree": 3}, True),
    ({"f_favail": 0}, False),
    ({"f_files": 0, "f_ffree": 0, "f_favail": 0}, False),
    ({"f_blocks": 0, "f_bavail": 0}, False),
])
def test_a_disk_is_full_of_bytes_or_of_files(found: dict[str, int], full: bool,
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen: with free bytes but no free inodes, processes were started, could not write, and their deaths counted."""
    roomy = {"f_blocks": 1000, "f_bavail": 500, "f_frsize": 4096, "f_files": 1000, "f_ffree": 500, "f_favail": 500}
    monkeypatch.setattr(os, "statvfs", lambda _path: SimpleNamespace(**(roomy | found)))
    assert machine.is_full(Path("/anywhere")) is full


def test_only_a_write_without_space_is_retried_until_the_deadline() -> None:
    tries: list[int] = []
    waits: list[float] = []

    def step() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return "done"

    assert machine.retry_until_space(step, waits.append, lambda: False) == "done"
    assert len(tries) == 3 and waits == [machine.SPACE_PAUSE] * 2
    tries.clear()
    with pytest.raises(OSError, match="No space left"):
        machine.retry_until_space(step, waits.append, lambda: True)
    assert len(tries) == 1

    def denied() -> None:
        raise OSError(errno.EACCES, "Permission denied")

    with pytest.raises(PermissionError):
        machine.retry_until_space(denied, pytest.fail, lambda: False)


# ---- how many agents at once: a core each, at least two, and no more than memory allows


GIB = 1 << 30


@pytest.mark.parametrize(("number", "memory", "wanted"), [
    (1, None, 2), (2, None, 2), (16, None, 16), (16, 64 * GIB, 16), (16, 4 * GIB, 8), (2, GIB // 2, 1), (8, 0, 1),
    (1, GIB, 2),
])
def test_the_default_number_of_agents(number: int, memory: int | None, wanted: int) -> None:
    assert default_agents(number, memory) == wanted


@given(st.integers(1, 512), st.integers(0, 1 << 42), st.integers(0, 1 << 42))
def test_more_memory_is_never_fewer_agents(number: int, one: int, other: int) -> None:
    less, more = sorted((one, other))
    assert 1 <= default_agents(number, less) <= default_agents(number, more) <= default_agents(number, None)
    assert default_agents(number, less) == 1 or default_agents(number, less) * AGENT_BYTES <= less


def machine_with(root: Path, cgroup: str) -> tuple[Path, Path]:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text("MemTotal: 16000000 kB\nMemAvailable: 8000000 kB\n")
    (root / "proc/self/cgroup").write_text(cgroup)
    return root / "proc", root / "cgroup"


def limit(folder: Path, names: tuple[str, str], allowed: str, used: int, stat: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{allowed}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(stat)


V2 = ("memory.max", "memory.current")
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes")


def test_the_nearest_limit_counts_in_both_versions_of_cgroups(tmp_path: Path) -> None:
    proc, groups = machine_with(tmp_path, "0::/a.slice/b.scope\n")
    assert available_memory(proc, groups) == 8000000 << 10
    limit(groups / "a.slice/b.scope", V2, "max", 5, "anon 1\n")
    assert available_memory(proc, groups) == 8000000 << 10
    limit(groups / "a.slice", V2, str(3 * GIB), 2 * GIB, f"anon 1\ninactive_file {GIB}\n")
    assert available_memory(proc, groups) == 2 * GIB
    proc, groups = machine_with(tmp_path / "v1", "3:cpu,cpuacct:/x\n4:memory:/x/y\n0::/\n")
    limit(groups / "memory/x/y", V1, str((1 << 63) - 4096), 5, "")
    assert available_memory(proc, groups) == 8000000 << 10
    limit(groups / "memory/x", V1, str(GIB), GIB * 2, "total_inactive_file 10\n")
    assert available_memory(proc, groups) == 0
    assert available_memory(tmp_path, tmp_path) is None, "a machine without information"
    assert cores() >= 1
