"""Whom a sweep need not read, because a census knows them; and nobody else."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from garrison.system import census, kill_tree, process_table, processes
from garrison.system.census import Census, Settled, settle
from garrison.system.process_table import Numbering, leads, listed_to_the_last, numbering, numbers
from garrison.system.processes import ProcessId, Row

OURS, OLD, HIGHEST = 50, 100, 32768
LIFE = "/home:r1:runner-a#1"


@dataclass
class Seen:
    """One process as a census sees it."""

    pid: int
    ppid: int = 1
    marker: str | None = None
    ticks: int = OLD
    session: int = 0
    kernel: bool = False
    dead: bool = False


def settled(*rows: Seen, known: dict[int, Settled] | None = None) -> set[int]:
    everybody = [Seen(1, 0), Seen(OURS), *rows]
    there = {one.pid: one.pid + 7000 for one in everybody}
    found = settle(everybody, known or {}, there, OLD + 1, OURS)  # type: ignore[arg-type]
    return set(found) - {1, OURS}


def test_strangers_and_bearers_settle() -> None:
    assert settled(Seen(10), Seen(11, 10), Seen(12, 1, LIFE), Seen(13, 12, "another")) == {10, 11, 12, 13}


@pytest.mark.parametrize("row", [
    pytest.param(Seen(10, ticks=OLD + 1), id="young"),
    pytest.param(Seen(10, 12), id="below a bearer"),
    pytest.param(Seen(10, OURS), id="below us"),
    pytest.param(Seen(10, 77), id="below nobody knows whom"),
    pytest.param(Seen(10, 20), id="below one of a life that is known"),
    pytest.param(Seen(10, 10), id="below itself"),
])
def test_who_may_be_ours_one_day_does_not(row: Seen) -> None:
    assert row.pid not in settled(row, Seen(12, 1, LIFE), known={20: Settled(7, LIFE, 20)})


def test_who_is_below_one_that_did_not_settle_does_not_either() -> None:
    assert settled(Seen(10, 77), Seen(11, 10), Seen(12, 20), known={20: Settled(7, None, 20)}) == {12}


def taken(monkeypatch: pytest.MonkeyPatch, *rows: Seen, environment: bytes = b"A=1\0") -> Census:
    seen = {one.pid: one for one in (Seen(1, 0), *rows)}
    monkeypatch.setattr(census, "numbers", lambda: {pid: pid + 7000 for pid in seen})
    monkeypatch.setattr(census, "glimpse", seen.get)
    monkeypatch.setattr(census, "environment", lambda pid: environment)
    monkeypatch.setattr(census, "ancestors", lambda pid: {12})
    monkeypatch.setattr(census, "children_of", lambda pid: {40: [16], os.getpid(): [17]}.get(pid, []))
    made = Census()
    made.take(1000.0)
    return made


def test_a_life_s_own_its_sessions_and_who_is_above_us_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    made = taken(monkeypatch, Seen(10), Seen(11, session=40), Seen(12), Seen(13, marker=LIFE),
                 Seen(14, marker="another", session=40), Seen(40), Seen(15, dead=True), Seen(16, marker="another"),
                 Seen(17))
    assert made.others(LIFE, ()) == {pid: pid + 7000 for pid in (1, 10, 11, 14, 16, 40)}
    assert made.others(LIFE, [40]) == {1: 7001, 10: 7010}
    assert 13 in made.others("another", ())
    assert 14 not in made.others("another", ())


def test_who_came_to_us_is_read_and_everybody_where_that_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    made = taken(monkeypatch, Seen(10, marker="another"), Seen(11, marker="another"))
    monkeypatch.setattr(census, "children_of", lambda pid: [11] if pid == os.getpid() else [])
    assert set(made.others(LIFE, ())) == {1, 10}
    monkeypatch.setattr(census, "kernel_tells", lambda: False)
    assert made.others(LIFE, ()) == {}


def test_who_shows_no_environment_may_be_in_the_midst_of_an_exec(monkeypatch: pytest.MonkeyPatch) -> None:
    made = taken(monkeypatch, Seen(10), Seen(11, 0, kernel=True), Seen(13, marker="another"), environment=b"")
    assert set(made.others(LIFE, ())) == {11, 13}


def test_a_census_is_not_taken_all_the_time_and_forgets_who_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    made = taken(monkeypatch, Seen(10), Seen(11))
    monkeypatch.setattr(census, "numbers", lambda: {1: 7001, 10: 8888})
    made.take(1000.0 + census.EVERY - 1)
    assert 11 in made.others(LIFE, ())
    monkeypatch.setattr(census, "glimpse", lambda pid: None)
    made.take(1000.0 + census.EVERY)
    assert set(made.others(LIFE, ())) == {1}, "pid 10 is another's now"


def test_a_pid_that_is_another_s_now_is_listed() -> None:
    mine, there = os.getpid(), numbers()
    assert mine not in set(listed_to_the_last(None, there))
    assert mine in set(listed_to_the_last(None, {**there, mine: there[mine] + 1}))


@pytest.mark.parametrize(("told", "given"), [([7, 8, 8, 8], [1, 2]), ([7, 7], [1]), ([-1, -1, -1, -1, -1, -1], [1, 2])])
def test_proc_is_listed_again_if_anybody_was_forked(monkeypatch: pytest.MonkeyPatch, told: list[int],
                                                    given: list[int]) -> None:
    listings = [[1], [1, 2], [1, 2]]
    monkeypatch.setattr(process_table, "forks", lambda: told.pop(0))
    monkeypatch.setattr(process_table, "_listed", lambda: listings.pop(0))
    assert list(listed_to_the_last()) == given


NOW = Numbering(1000, 50_000, 600)


@pytest.mark.parametrize(("later", "given"), [
    pytest.param(NOW, [], id="nobody came"),
    pytest.param(Numbering(1003, 50_003, 600), [1001, 1002, 1003], id="three came"),
    pytest.param(Numbering(1003, 50_900, 600), [1001, 1002, 1003], id="in other pid namespaces many did"),
    pytest.param(Numbering(999, 50_003, 600), None, id="pids began anew"),
    pytest.param(Numbering(1003, 83_000, 600), None, id="they came round"),
    pytest.param(Numbering(1003, 50_003, 17_000), None, id="so many live that few pids are free"),
])
def test_who_came_since_has_a_pid_given_since(later: Numbering, given: list[int] | None) -> None:
    found = later.since(NOW, HIGHEST)
    assert (None if found is None else list(found)) == given
    assert later.since(NOW, 0) is None, "where pids begin anew is not told"


def test_the_kernel_tells_how_far_it_is_with_pids() -> None:
    before = numbering()
    with subprocess.Popen(["sleep", "0"]) as child:
        after = numbering()
    assert before is not None
    assert after is not None
    assert (after.last, after.forks) != (before.last, before.forks)
    given = after.since(before, process_table.highest_pid())
    assert given is None or child.pid in given
    assert 0 < after.threads < after.forks


def test_a_thread_is_not_taken_for_a_process() -> None:
    stay = threading.Event()
    thread = threading.Thread(target=stay.wait)
    thread.start()
    try:
        assert Path(f"/proc/{thread.native_id}/stat").exists()
        assert not leads(thread.native_id or 0)
        assert leads(os.getpid())
    finally:
        stay.set()
        thread.join()


def test_proc_is_listed_where_those_who_came_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    made = taken(monkeypatch, Seen(10), Seen(11))
    monkeypatch.setattr(census, "listed_to_the_last", lambda seen, others: [10, 11, 12] if others else [])
    monkeypatch.setattr(census, "leads", lambda pid: pid == 1001)
    monkeypatch.setattr(census, "forks", lambda: 1003)
    made._at, made._highest = NOW, HIGHEST
    everybody = {10, 11, 12}
    for later, read in ((Numbering(1003, 50_003, 600), {12, 17, 1001}), (Numbering(999, 50_003, 600), everybody),
                        (Numbering(1001 + census.FEW, 50_999, 600), everybody), (None, everybody)):
        monkeypatch.setattr(census, "numbering", lambda later=later: later)
        assert set(made.to_read(LIFE, (), set())) == read


def test_who_was_forked_while_the_others_were_read_is_read_too(monkeypatch: pytest.MonkeyPatch) -> None:
    made = taken(monkeypatch, Seen(10))
    made._at, made._highest = NOW, HIGHEST
    told = [1001, 1003, 1003]
    monkeypatch.setattr(census, "numbering", lambda: Numbering(1001, 50_001, 600))
    monkeypatch.setattr(census, "forks", lambda: told.pop(0))
    monkeypatch.setattr(census, "leads", lambda pid: pid in (1001, 1003))
    read = made.to_read(LIFE, (), set())
    assert set(read) == {12, 17, 1001}
    assert set(made.to_read(LIFE, (), {1001})) == {12, 17, 1003}
    told = [1003, 5]  # somebody set the kernel back
    monkeypatch.setattr(census, "listed_to_the_last", lambda seen, others: [77])
    assert 77 in set(made.to_read(LIFE, (), set()))


@pytest.fixture
def life(tmp_path: Path) -> Iterator[str]:
    value = f"{tmp_path}:r1:runner-a#1"
    yield value
    for each in (value, value + "0"):
        for one in processes.bearers(each):
            processes.send(one.pid, one.ticks, signal.SIGKILL)
    processes.reap()


def test_a_sweep_with_a_census_ends_who_came_before_it_and_after(tmp_path: Path, life: str,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(census, "SETTLED", -60.0)  # everybody is old enough
    said = tmp_path / "said"
    os.mkfifo(said)
    script = f"echo $$ > {said}; read more < {said}.go; setsid sleep 987 & echo $! > {said}; exec sleep 987"
    os.mkfifo(f"{said}.go")
    child = processes.spawn(["/bin/sh", "-c", script], cwd=tmp_path, log=tmp_path / "log",
                            env={"PATH": os.environ["PATH"], "GARRISON_LIFE": life})
    child.close()
    other = processes.spawn(["sleep", "987"], cwd=tmp_path, log=tmp_path / "log",
                            env={"PATH": os.environ["PATH"], "GARRISON_LIFE": life + "0"})
    other.close()
    try:
        assert int(said.read_text()) == child.pid
        made = Census()
        made.take(time.monotonic())
        others = made.others(life, [child.pid])
        assert other.pid in others
        assert child.pid not in others
        Path(f"{said}.go").write_text("on\n")
        late = int(said.read_text())
        assert {one.pid for one in kill_tree.kill_tree(child.id, life, grace=0.0, census=made)} == {child.pid, late}
        assert processes.living(other.pid, other.ticks)
        assert set(made.others(life + "0", ())) >= {child.pid} - {late}
        assert {one.pid for one in kill_tree.kill_tree(None, life + "0", grace=0.0, census=made)} == {other.pid}
    finally:
        processes.send(other.pid, other.ticks, signal.SIGKILL)


class World:
    """Processes that fork, leave their session, their marker or the world; ours, pid 50, is a subreaper."""

    def __init__(self) -> None:
        self.rows: dict[int, Seen] = {1: Seen(1, 0, session=1), OURS: Seen(OURS, 1, "ours", session=OURS)}
        self.next = 100
        self.lives: dict[str, ProcessId] = {}

    def fork(self, parent: int, marker: str | None) -> None:
        session = self.next if parent in (1, OURS) else self.rows[parent].session
        self.rows[self.next] = Seen(self.next, parent, marker, self.next, session)
        self.next += 1

    def exit(self, pid: int) -> None:
        """Its children go to the nearest subreaper above: a life's own process, us or pid 1."""
        above, reapers = self.rows[pid].ppid, {1, OURS, *(one.pid for one in self.lives.values())}
        while above not in reapers:
            above = self.rows[above].ppid
        for row in self.rows.values():
            row.ppid = above if row.ppid == pid else row.ppid
        del self.rows[pid]

    def do(self, act: str, pid: int, which: int) -> None:
        """One act of process `pid`; `which` is any number."""
        row = self.rows[pid]
        if act == "fork":
            self.fork(pid, None if pid == OURS else row.marker)
        elif act == "bare":
            self.fork(pid, None)
        elif act == "life":
            starters = [1, OURS, *(one.pid for one in self.lives.values() if one.pid in self.rows)]
            self.lives[f"life {self.next}"] = ProcessId(self.next, self.next)
            self.fork(starters[which % len(starters)], f"life {self.next}")
        elif pid in (1, OURS):
            pass
        elif act == "setsid":
            row.session = pid
        elif act == "exec":
            row.marker = None
        elif act == "exit":
            self.exit(pid)

    def census(self, made: Census) -> None:
        """Who is there becomes known."""
        there = {pid: pid + 7000 for pid in self.rows}
        known = {pid: kept for pid, kept in made._settled.items() if pid in there}
        new: list[Any] = [one for one in self.rows.values() if one.pid not in known]
        made._keep(known | settle(new, known, there, self.next, OURS), there)
        made._at, made._highest = self.numbering(), HIGHEST
        made._due = 1e9

    def note(self, made: Census) -> None:
        """A quiet moment between two of them."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(census, "SOME", 1)
            patch.setattr(census, "numbering", self.numbering)
            patch.setattr(census, "forks", lambda: self.next - 1)
            patch.setattr(census, "leads", self.rows.__contains__)
            made.take(0.0)

    def numbering(self) -> Numbering:
        """How far our kernel is."""
        return Numbering(self.next - 1, self.next, len(self.rows))

    def children(self, parent: int) -> list[int]:
        """As the kernel tells them."""
        return [pid for pid, row in self.rows.items() if row.ppid == parent]

    def doomed(self, life: str, root: ProcessId, others: dict[int, int]) -> list[ProcessId]:
        """Whom a sweep ends that leaves `others` out."""
        rows: list[Any] = [Row(one.pid, one.ticks, one.ppid, "c", one.marker, one.session)
                           for one in self.rows.values() if one.pid not in others]
        came = [row.id for row in rows if row.ppid == OURS and row.marker is None]
        return kill_tree.select_targets(root, life, rows, caller=OURS, known=came)


ACTS = st.lists(st.tuples(st.sampled_from(["fork", "fork", "bare", "life", "setsid", "exec", "exit", "census", "note"]),
                          st.integers(0, 30)), max_size=60)


@given(ACTS)
@settings(max_examples=150, deadline=None)
def test_a_sweep_ends_the_same_with_a_census_and_without(acts: list[tuple[str, int]]) -> None:
    """Also who drops its marker by an exec, leaves its session, or is forked with the marker of another life."""
    world, made = World(), Census()
    for act, which in [("life", 1), ("fork", 2), *acts]:
        if act == "census":
            world.census(made)
        elif act == "note" and made._at is not None:
            world.note(made)
        elif act != "note":
            world.do(act, sorted(world.rows)[which % len(world.rows)], which)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(census, "ancestors", lambda pid: {1})
        patch.setattr(census, "kernel_tells", lambda: True)
        patch.setattr(census, "getpid", lambda: OURS)
        patch.setattr(census, "children_of", world.children)
        patch.setattr(census, "numbering", world.numbering)
        patch.setattr(census, "forks", lambda: world.next - 1)
        patch.setattr(census, "leads", world.rows.__contains__)
        patch.setattr(census, "listed_to_the_last", lambda seen, others: others and pytest.fail("it was listed"))
        for life, root in world.lives.items():
            others = made.others(life, [root.pid])
            assert world.doomed(life, root, others) == world.doomed(life, root, {})
            if made._at is not None:
                unread = dict.fromkeys(world.rows.keys() - set(made.to_read(life, [root.pid], set())), 0)
                assert world.doomed(life, root, unread) == world.doomed(life, root, {})
