"""How many agents at once: a core each, at least two, and no more than memory is there for."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from garrison.system.machine import AGENT_BYTES, available_memory, cores, default_agents

GIB = 1 << 30


@pytest.mark.parametrize(("number", "memory", "wanted"), [
    (1, None, 2), (2, None, 2), (16, None, 16), (16, 64 * GIB, 16), (16, 4 * GIB, 8), (2, GIB // 2, 1), (8, 0, 1),
    (1, GIB, 2),
])
def test_the_default(number: int, memory: int | None, wanted: int) -> None:
    assert default_agents(number, memory) == wanted


@given(st.integers(1, 512), st.integers(0, 1 << 42), st.integers(0, 1 << 42))
def test_more_memory_is_never_fewer_agents(number: int, one: int, other: int) -> None:
    less, more = sorted((one, other))
    assert 1 <= default_agents(number, less) <= default_agents(number, more) <= default_agents(number, None)
    assert default_agents(number, less) == 1 or default_agents(number, less) * AGENT_BYTES <= less


def machine(root: Path, cgroup: str) -> tuple[Path, Path]:
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
    proc, groups = machine(tmp_path, "0::/a.slice/b.scope\n")
    assert available_memory(proc, groups) == 8000000 << 10
    limit(groups / "a.slice/b.scope", V2, "max", 5, "anon 1\n")
    assert available_memory(proc, groups) == 8000000 << 10
    limit(groups / "a.slice", V2, str(3 * GIB), 2 * GIB, f"anon 1\ninactive_file {GIB}\n")
    assert available_memory(proc, groups) == 2 * GIB
    proc, groups = machine(tmp_path / "v1", "3:cpu,cpuacct:/x\n4:memory:/x/y\n0::/\n")
    limit(groups / "memory/x/y", V1, str((1 << 63) - 4096), 5, "")
    assert available_memory(proc, groups) == 8000000 << 10
    limit(groups / "memory/x", V1, str(GIB), GIB * 2, "total_inactive_file 10\n")
    assert available_memory(proc, groups) == 0
    assert available_memory(tmp_path, tmp_path) is None, "a machine without information"
    assert cores() >= 1
