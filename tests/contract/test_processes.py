"""One suite over the real processes and those in memory; then the pure rule of Replace, over tables."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubles.processes import MemoryProcesses
from garrison.errors import GarrisonError, Shortage
from garrison.system import process_control, processes
from garrison.system.process_control import Processes, RealProcesses, select_targets
from garrison.system.processes import Child, PidScope, ProcessId, ProcessRow, is_tmux, parse_stat
from support import git, make_repository, until


class World:
    """A kind of processes, and how one of its children is made to end by itself."""

    def __init__(self, made: Processes, folder: Path) -> None:
        self.processes, self._folder = made, folder
        self.lives: list[str] = []

    def start(self, life: str) -> Child:
        self.lives.append(life)
        return self.processes.spawn(["sh", "-c", "sleep 60; exit 7"], cwd=self._folder, log=self._folder / "log",
                                    env={"PATH": os.environ["PATH"], "GARRISON_LIFE": life})

    def end(self, child: Child) -> None:
        if isinstance(self.processes, MemoryProcesses):
            self.processes.exit(child.pid, 7)
        else:
            below = until(lambda: processes.descendants(child.pid, self.lives[-1]))
            processes.send(below[0].pid, below[0].ticks, signal.SIGKILL)


@pytest.fixture(params=[RealProcesses, MemoryProcesses])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    made = World(request.param(), tmp_path)
    yield made
    for life in made.lives:
        made.processes.kill_tree(None, life, grace=0)
    made.processes.reap()


LIFE = f"/home of mine, test {os.getpid()}:r1:runner-a#1"


def test_a_child_bears_its_marker_and_can_be_probed_as_the_host_can(world: World) -> None:
    child = world.start(LIFE)
    found = world.processes.probe(child.pid)
    assert (found.pid, found.ticks, found.zombie) == (child.pid, child.ticks, False)
    assert until(lambda: child.id in world.processes.find_marked(LIFE))  # not before it has executed its program
    assert world.processes.find_marked(LIFE + "0") == []
    assert world.processes.find_marked("") == []
    for absurd in (2**22 + 1, 0, -1):
        assert world.processes.probe(absurd) is None
    assert world.processes.here() == world.processes.here()
    assert all((world.processes.here().host, world.processes.here().boot_id, world.processes.here().pid_ns))


def test_processes_are_grouped_by_their_markers(world: World) -> None:
    first, second, other = world.start(LIFE), world.start(LIFE), world.start(LIFE + "0")
    found = until(lambda: (seen := world.processes.group_by_marker({LIFE, LIFE + "0", LIFE + "1"}))
                  and {first.id, second.id} <= set(seen.get(LIFE, ()))
                  and other.id in seen.get(LIFE + "0", ()) and seen)
    assert set(found) == {LIFE, LIFE + "0"}
    assert world.processes.group_by_marker(()) == {}


def test_a_child_that_ended_is_a_zombie_until_reaped_with_its_code(world: World) -> None:
    child = world.start(LIFE)
    world.end(child)
    until(lambda: (one := world.processes.probe(child.pid)) is not None and one.zombie)
    assert world.processes.find_marked(LIFE) == []
    assert world.processes.reap() == {child.pid: 7}
    assert world.processes.probe(child.pid) is None
    assert world.processes.reap() == {}


def test_a_signal_reaches_that_very_process_only(world: World) -> None:
    child = world.start(LIFE)
    until(lambda: world.processes.find_marked(LIFE))
    assert not world.processes.send(child.pid, child.ticks + 1, signal.SIGKILL)
    assert world.processes.find_marked(LIFE)
    assert world.processes.send(child.pid, child.ticks, signal.SIGKILL)
    assert until(world.processes.reap) == {child.pid: -signal.SIGKILL}
    assert not world.processes.send(child.pid, child.ticks, signal.SIGKILL)


def test_a_sweep_kills_one_incarnation_and_no_other(world: World) -> None:
    mine, other = world.start(LIFE), world.start(LIFE + "0")
    until(lambda: world.processes.find_marked(LIFE) and world.processes.find_marked(LIFE + "0"))
    assert mine.id in world.processes.kill_tree(mine.id, LIFE, grace=5)
    assert world.processes.find_marked(LIFE) == []
    assert other.id in world.processes.find_marked(LIFE + "0")
    assert world.processes.kill_tree(mine.id, LIFE, grace=5) == []


def test_a_sweep_spares_its_caller(world: World) -> None:
    child = world.start(LIFE)
    ours = os.getpid() if isinstance(world.processes,
                                     RealProcesses) else world.processes.ours
    me = world.processes.probe(ours)
    if isinstance(world.processes, RealProcesses):
        found = process_control.select_targets(me.id, "", processes.list_processes(), caller=ours, earlier=())
        assert found is not None
        assert me.id not in process_control.select_targets(me.id, LIFE, processes.list_processes(), caller=ours)
    else:
        assert me.id not in world.processes.kill_tree(me.id, LIFE)
        assert world.processes.probe(child.pid).zombie


def test_a_reboot_in_memory_ends_all_processes() -> None:
    world = MemoryProcesses(PidScope("h", "b0", "pid:[1]"))
    child = world.spawn(["x"], env={"GARRISON_LIFE": LIFE}, cwd="/", log=Path("/log"))
    world.reboot()
    assert world.here() == PidScope("h", "boot-2", "pid:[1]")
    assert world.probe(child.pid) is None
    assert world.find_marked(LIFE) == []


def test_a_missing_program_or_directory_is_one_clear_line(tmp_path: Path) -> None:
    for argv, cwd in ((["no-such-program"], tmp_path), (["true"], tmp_path / "absent")):
        with pytest.raises(GarrisonError, match="cannot start") as caught:
            processes.spawn(argv, env=dict(os.environ), cwd=cwd, log=tmp_path / "log")
        assert "\n" not in str(caught.value)


def test_spawn_gives_exactly_the_environment_an_own_session_and_a_private_log(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.set_inheritable(write_end, True)
    code = "env; echo err >&2; ls -l /proc/self/fd | wc -l; ps -o sid= -p $$; cat"
    child = processes.spawn(["/bin/sh", "-c", code], env={"ONLY": "1", "PATH": os.environ["PATH"]}, cwd=tmp_path,
                            log=tmp_path / "log")
    assert until(lambda: processes.exit_code(child.pid) is not None)
    child.close()
    os.close(read_end)
    os.close(write_end)
    lines = (tmp_path / "log").read_text().split("\n")
    assert {line.split("=")[0] for line in lines if "=" in line} <= {"ONLY", "PATH", "PWD", "SHLVL", "_", "OLDPWD"}
    assert "err" in lines
    assert "5" in [line.strip() for line in lines]  # total line, 0, 1, 2 and the listing itself
    assert str(child.pid) in [line.strip() for line in lines]
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


def test_codes_are_kept_for_spawned_children_that_reap_collected(tmp_path: Path) -> None:
    child = processes.spawn(["/bin/sh", "-c", "exit 3"], env={}, cwd=tmp_path, log=tmp_path / "log")
    child.close()
    until(lambda: processes.probe(child.pid).zombie)
    assert processes.reap()[child.pid] == 3
    assert processes.exit_code(child.pid) == processes.exit_code(child.pid, child.ticks) == 3
    assert processes.exit_code(child.pid, child.ticks + 1) is None, "another process has its pid by now"


def test_a_busy_reaper_takes_no_answer_from_a_thread_that_waits_for_its_child(tmp_path: Path) -> None:
    """Python believes that a child which someone else collected has succeeded: git's "no" became a "yes"."""
    script = (
        "import subprocess, sys, threading\n"
        "from collections import Counter\n"
        "from pathlib import Path\n"
        "from garrison.system import processes\n"
        "from garrison.system.git import Git\n"
        "processes.become_subreaper()\n"
        "answers, git = Counter(), Git(Path(sys.argv[1]))\n"
        "first, second = git.rev('main^'), git.rev('main')\n"
        "def ask():\n"
        "    for _ in range(100): answers.update([subprocess.call(['false']), subprocess.call(['true'])])\n"
        "    for _ in range(20):\n"
        "        answers.update([f'git {git.is_ancestor(*pair)}' for pair in ((first, second), (second, first))])\n"
        "threads = [threading.Thread(target=ask) for _ in range(4)]\n"
        "for thread in threads: thread.start()\n"
        "while any(thread.is_alive() for thread in threads): processes.reap()\n"
        "print(sorted(map(str, answers.items())))\n")
    repo = tmp_path / "repo"
    make_repository(repo)
    git(repo, "commit", "-q", "--allow-empty", "-m", "More")
    answer = subprocess.run([sys.executable, "-c", script, str(repo)], capture_output=True, text=True, check=False)
    assert answer.stdout == "[\"('git False', 80)\", \"('git True', 80)\", '(0, 400)', '(1, 400)']\n", answer.stderr


@pytest.mark.parametrize("error", [ProcessLookupError, FileNotFoundError])
def test_a_thread_that_ends_during_the_listing_hides_no_children_of_the_others(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: type[OSError]) -> None:
    child = processes.spawn(["sleep", "60"], cwd=tmp_path, log=tmp_path / "log", env={"PATH": os.environ["PATH"]})
    real, listed = open, os.listdir

    def open_file(path: str, *more: Any, **options: Any) -> Any:
        if path.endswith("/999999999/children"):
            raise error
        return real(path, *more, **options)

    monkeypatch.setattr("builtins.open", open_file)
    monkeypatch.setattr(os, "listdir", lambda path: [*listed(path), "999999999"])
    try:
        assert child.pid in processes.child_pids(os.getpid())
    finally:
        processes.send(child.pid, child.ticks, signal.SIGKILL)
        until(lambda: processes.exit_code(child.pid) is not None)
        child.close()


def test_our_own_proc_stat_line_is_parsed() -> None:
    me = processes.probe(os.getpid())
    assert me.ppid == os.getppid()
    assert os.getppid() in processes.ancestors(os.getpid())
    assert 1 in processes.ancestors(os.getpid())
    assert processes.is_running(me.pid, me.ticks)
    assert not processes.is_running(me.pid, me.ticks + 1)
    assert processes.open_verified(me.pid, me.ticks + 1) is None


@pytest.mark.parametrize(("comm", "state", "threads", "dead"), [
    (b"a b", b"S", 1, False), (b") Z (", b"R", 1, False), (b"x) Z 1 1", b"S", 1, False), (b"gone", b"Z", 1, True),
    (b"leader", b"Z", 3, False), (b"dead", b"X", 1, True), (b"stopped", b"T", 1, False), (b"\xff", b"D", 1, False)])
def test_proc_stat_lines_are_parsed(comm: bytes, state: bytes, threads: int, dead: bool) -> None:
    fields = [b"7", b"40", b"41", *[b"0"] * 13, b"%d" % threads, b"0", b"123456", b"9", b"9"]
    found = parse_stat(b"33 (" + comm + b") " + state + b" " + b" ".join(fields) + b"\n")
    assert (found.pid, found.ppid, found.session, found.ticks, found.zombie) == (33, 7, 41, 123456, dead)
    assert found.comm == comm.decode(errors="replace")


# ------------------------------------------------------------------------------------------------ doomed, pure

MINE, OTHER = "h:r:runner-a#1", "h:r:orchestrator-a#1"


def row(pid: int, ppid: int, marker: str | None = None, comm: str = "cmd") -> ProcessRow:
    return ProcessRow(pid, pid * 10, ppid, comm, marker)


def pids(*args: object, **options: object) -> list[int]:
    return [one.pid for one in select_targets(*args, **options)]


TABLE = [
    row(1, 0, comm="init"), row(10, 1, MINE), row(11, 10), row(12, 11), row(13, 10, OTHER), row(14, 13),
    row(20, 1, MINE), row(21, 20), row(30, 1, comm="tmux: server"), row(31, 30, MINE), row(32, 30),
    row(40, 10, comm="tmux: server"), row(41, 40), row(42, 40, OTHER), row(50, 1, MINE + "0"), row(51, 10, MINE + "0"),
    row(60, 1), row(2, 1, "user"),
]
ROOT = ProcessId(10, 100)


def test_the_process_its_unmarked_descendants_and_all_bearers_go() -> None:
    assert pids(ROOT, MINE, TABLE, caller=60) == [10, 20, 31, 11, 21, 12]


def test_bearers_go_when_the_process_itself_is_gone_or_another_has_its_pid() -> None:
    without = [one for one in TABLE if one.pid != 10]
    assert pids(ROOT, MINE, without, caller=60) == [20, 31, 21]
    assert pids(ProcessId(10, 99), "", TABLE, caller=60) == []
    assert pids(None, "", [*TABLE, row(61, 1, "")], caller=60) == []


def test_the_caller_and_those_above_it_are_spared_but_not_their_other_children() -> None:
    assert pids(ROOT, MINE, TABLE, caller=12) == [20, 31, 21]
    assert pids(ROOT, MINE, TABLE, caller=10) == [20, 31, 11, 21, 12]
    assert pids(ROOT, MINE, [*TABLE, row(61, 60, MINE), row(62, 61)], caller=62) == [10, 20, 31, 11, 21, 12]


def test_known_processes_stay_doomed_with_their_descendants() -> None:
    orphans = [row(1, 0), row(11, 1), row(70, 11), row(71, 11, OTHER)]
    assert pids(ROOT, MINE, orphans, caller=60, earlier=[ProcessId(11, 110)]) == [11, 70]
    assert pids(ROOT, MINE, orphans, caller=60, earlier=[ProcessId(11, 111)]) == []


def test_the_sessions_of_known_processes_contain_what_was_forked_before_they_ended() -> None:
    rows = [row(1, 0), ProcessRow(70, 700, 1, "sleep", None, 11), ProcessRow(71, 710, 70, "cmd", None, 71),
            ProcessRow(72, 720, 1, "cmd", OTHER, 11), ProcessRow(73, 730, 1, "cmd", None, 12)]
    assert pids(ROOT, MINE, rows, caller=60, earlier=[ProcessId(11, 110)]) == [70, 71]
    assert pids(ProcessId(11, 110), MINE, rows, caller=60) == []
    recycled = [*rows, ProcessRow(11, 999, 1, "cmd", None, 11)]
    assert pids(ROOT, MINE, recycled, caller=60, earlier=[ProcessId(11, 110)]) == []


@given(st.data())
def test_a_kill_spares_other_incarnations_the_caller_and_tmux(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 25))
    rows = [row(pid, data.draw(st.integers(0, count)), data.draw(st.sampled_from([None, MINE, OTHER])),
                data.draw(st.sampled_from(["sh", "tmux: server", "tmux: client", "tmuxinator"])))
            for pid in range(1, count + 1)]
    caller = data.draw(st.integers(1, count))
    root = ProcessId((chosen := data.draw(st.integers(1, count))), chosen * 10)
    ended = select_targets(root, MINE, rows, caller=caller)
    by_pid = {one.pid: one for one in rows}
    assert len(set(ended)) == len(ended)
    for one in ended:
        assert one.pid not in (1, caller)
        assert not is_tmux(by_pid[one.pid].comm)
        assert one == root or by_pid[one.pid].marker != OTHER
    spared = {one.pid for one in rows} - {one.pid for one in ended}
    above, at = set(), caller
    while at in by_pid and at not in above:
        above.add(at)
        at = by_pid[at].ppid
    assert all(by_pid[pid].marker != MINE or is_tmux(by_pid[pid].comm) or pid in above | {1} for pid in spared)


def test_a_start_without_descriptors_is_a_shortage_and_leaves_none_open(tmp_path: Path) -> None:
    highest = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 2, before[1]))
    held: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.dup(0))
        os.close(held.pop())  # the log can be opened, and nothing else
        with pytest.raises(Shortage, match="no room to start true: Too many open files"):
            processes.spawn(["true"], env={}, cwd=tmp_path, log=tmp_path / "log")
        held.append(os.dup(0))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for descriptor in held:
            os.close(descriptor)
