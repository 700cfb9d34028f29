"""What is spared while nothing is lost: scans of /proc, environments, type checks, counters, time under a held name."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import pytest

from garrison.errors import GarrisonError, RecordCorrupt
from garrison.processes import main
from garrison.processes.runtime import Runtime
from garrison.records import record
from garrison.records.identity import Identity
from garrison.system import exit_info, kill_tree, processes
from garrison.system.processes import ProcessId, Row

LIFE = "/home:r1:runner-a#1"
TICKS = os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(("told", "scans"), [([7, 7], 1), ([7, 8], 2), ([-1, -1], 2)])
def test_one_scan_is_enough_where_nobody_was_forked_meanwhile(monkeypatch: pytest.MonkeyPatch, told: list[int],
                                                              scans: int) -> None:
    asked: list[object] = []
    monkeypatch.setattr(kill_tree, "forks", lambda: told.pop(0))
    monkeypatch.setattr(kill_tree, "find_remaining", lambda *args, **named: asked.append(args) or [])
    assert kill_tree.kill_tree(None, LIFE, grace=0.1) == []
    assert len(asked) == scans


def test_a_fork_is_told_and_nothing_else() -> None:
    before = kill_tree.forks()
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
    assert before != -1
    assert kill_tree.forks() not in (-1, before)


class Asked(Row):
    """A row that says whose environment was read."""

    log: list[int] = []  # noqa: RUF012

    @property
    def marker(self) -> str | None:  # type: ignore[override]
        self.log.append(self.__dict__["pid"])
        return LIFE


def test_only_those_young_enough_are_asked_for_their_marker() -> None:
    root = ProcessId(900, 500 * TICKS)
    Asked.log.clear()

    def row(pid: int, ticks: int) -> Asked:
        made = object.__new__(Asked)
        made.__dict__.update(pid=pid, ticks=ticks, ppid=1, comm="c", session=pid)
        return made

    old, keeper, young = row(10, 379 * TICKS), row(11, 381 * TICKS), row(12, 501 * TICKS)
    assert [one.pid for one in kill_tree.select_targets(root, LIFE, [old, keeper, young])] == [11, 12]
    assert 10 not in Asked.log
    assert [one.pid for one in kill_tree.select_targets(None, LIFE, [old])] == [10]


def test_a_glimpse_shows_what_the_table_shows() -> None:
    mine = os.getpid()
    (seen,) = [one for one in kill_tree.glimpses() if one.pid == mine]
    (row,) = [one for one in processes.table() if one.pid == mine]
    assert (seen.id, seen.ppid, seen.session, seen.marker) == (row.id, row.ppid, row.session, row.marker)
    assert os.fsdecode(seen.comm) == row.comm


@pytest.mark.parametrize("change", [{"pid": "7"}, {"pid": True}, {"incarnation": None}, {"metadata": []},
                                    {"incarnation": 0}, {"status": "lost"}])
def test_a_shape_that_fitted_lets_no_other_pass(change: dict[str, Any]) -> None:
    body = {"agent_id": "a", "role": "runner", "name": "a", "run_id": "r", "created_at": "2026-01-31T12:00:00.000000Z",
            "pid": 7, "incarnation": 1, "metadata": {}, "status": "active", "schema": 1}
    assert record.from_dict(Identity, body, "x") == record.from_dict(Identity, body, "x")
    with pytest.raises(RecordCorrupt):
        record.from_dict(Identity, body | change, "x")
    with pytest.raises(RecordCorrupt):
        record.from_dict(Identity, {name: body[name] for name in body if name != "role"}, "x")


def test_what_a_crew_has_in_common_is_counted_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    vmstat, read = tmp_path / "vmstat", []
    vmstat.write_text("oom_kill 3\n")
    real = exit_info.oom_kills
    monkeypatch.setattr(exit_info, "oom_kills", lambda place: read.append(place) or real(place))
    looked = exit_info.ExitMonitor(tmp_path / "none", vmstat)
    those = [(one.pid, one.ticks) for pid in (os.getpid(), os.getppid()) if (one := processes.probe(pid))]
    looked.watch_all(those)
    assert len(those) == 2 and read.count(vmstat) == 1
    vmstat.write_text("oom_kill 4\n")
    assert all(looked.out_of_memory(*one) for one in those)
    for one in those:
        looked.forget(*one)


def test_what_goes_wrong_before_a_life_is_told_by_it(tmp_path: Path) -> None:
    options = argparse.Namespace(role="guardian", run="r1", name="crew")
    make = main.prepare_process(Runtime.real(tmp_path, {}), options)
    with pytest.raises((GarrisonError, OSError)):
        make(None)  # type: ignore[arg-type]
