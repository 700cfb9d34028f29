"""Ending a life by force, against processes that do not want to end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from garrison.errors import GarrisonError
from garrison.system import process_control, processes
from garrison.system.process_control import kill_tree
from garrison.system.processes import Child, ProcessId
from support import DEADLINE, is_gone, until


@pytest.fixture
def life(tmp_path: Path) -> Iterator[str]:
    value = f"{tmp_path}:r1:runner-a#1"
    yield value
    for each in (value, value + "0", value + "-other"):
        for one in processes.find_marked(each):
            processes.send(one.pid, one.ticks, signal.SIGKILL)
    until(lambda: not processes.find_marked(value))
    processes.reap()


def start(tmp_path: Path, life: str, script: str, *program: str, **more: bool) -> Child:
    child = processes.spawn([*(program or ("/bin/sh",)), "-c", script], cwd=tmp_path, log=tmp_path / "log",
                            env={"PATH": os.environ["PATH"], "GARRISON_LIFE": life}, **more)
    child.close()
    return child


def said(tmp_path: Path, name: str) -> int:
    """Return the pid that a script wrote to a file, once it is there in full."""
    return int(until(lambda: (path := tmp_path / name).exists() and path.read_text().strip()))


@pytest.mark.parametrize("is_stopped", [False, True])
def test_an_orderly_process_gets_to_end_in_order_even_if_it_is_stopped(tmp_path: Path, life: str,
                                                                      is_stopped: bool) -> None:
    child = start(tmp_path, life, "trap 'echo bye > bye; exit 0' TERM; echo $$ > ready; while :; do sleep 0.01; done")
    said(tmp_path, "ready")
    if is_stopped:
        processes.send(child.pid, child.ticks, signal.SIGSTOP)
    assert kill_tree(ProcessId(child.pid, child.ticks - 1), "", grace=0) == [], "a recycled pid is not killed"
    assert child.id in kill_tree(child.id, life, grace=20)
    assert (tmp_path / "bye").read_text() == "bye\n"


def test_one_that_ignores_term_is_killed_after_the_grace(tmp_path: Path, life: str) -> None:
    child = start(tmp_path, life, "trap '' TERM; echo $$ > ready; while :; do sleep 0.01; done")
    said(tmp_path, "ready")
    before = time.monotonic()
    kill_tree(child.id, life, grace=0.2)
    assert time.monotonic() - before >= 0.2
    assert is_gone(child.pid)
    assert until(processes.reap)[child.pid] == -signal.SIGKILL


@pytest.mark.smoke
def test_the_whole_tree_goes_even_what_has_its_own_session_or_lost_its_parent(tmp_path: Path, life: str) -> None:
    child = start(tmp_path, life, """
        setsid sh -c 'echo $$ > a; sleep 60' &
        env -i PATH="$PATH" sh -c 'echo $$ > b; sleep 60; :' &
        sh -c 'setsid sh -c "echo \\$\\$ > c; sleep 60; :" & exit 0'
        sleep 60""")
    found = [said(tmp_path, name) for name in "abc"]
    kill_tree(child.id, life, grace=5)
    assert all(is_gone(pid) for pid in [child.pid, *found])


def test_in_a_closed_tree_no_other_process_is_read(tmp_path: Path, life: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gate in a namespace of processes: what lost its parent is below its wrapper, which is a subreaper."""
    child = start(tmp_path, life, """
        sh -c 'setsid sh -c "trap : TERM; echo \\$\\$ > a; while :; do sleep 0.1; done" & exit 0'
        sh -c 'echo $$ > b; sleep 60; :' &
        sleep 60""", subreaper=True)
    found = [said(tmp_path, name) for name in "ab"]
    monkeypatch.setattr(process_control, "list_processes", None)
    kill_tree(child.id, life, grace=0.2, is_closed=True)
    assert all(is_gone(pid) for pid in [child.pid, *found])


def test_bearers_of_a_dead_process_go_with_their_unmarked_children(tmp_path: Path, life: str) -> None:
    child = start(tmp_path, life, "setsid sh -c 'env -i sleep 61 & echo $! > kid; echo $$ > tool; wait' & sleep 60")
    tool, kid = said(tmp_path, "tool"), said(tmp_path, "kid")
    processes.send(child.pid, child.ticks, signal.SIGKILL)
    until(lambda: child.pid in processes.reap())
    assert not is_gone(tool)
    ended = [one.pid for one in kill_tree(child.id, life, grace=5)]
    assert tool in ended
    assert kid in ended
    assert is_gone(tool)
    assert is_gone(kid)


def test_an_unmarked_child_is_not_lost_when_its_parent_goes_first(tmp_path: Path, life: str) -> None:
    child = start(tmp_path, life, "env -i PATH=\"$PATH\" sh -c \"trap '' TERM; echo \\$\\$ > kid; "
                                  "while :; do sleep 0.05; done\" & sleep 60")
    kid = said(tmp_path, "kid")
    assert processes.life_marker(kid) is None
    kill_tree(child.id, life, grace=0.3)
    assert is_gone(kid)


def test_term_is_sent_once(tmp_path: Path, life: str) -> None:
    code = ("import signal,time\n"
            "signal.signal(signal.SIGTERM, lambda *_: open('heard','a').write('.'))\n"
            "open('ready','w').write('1\\n')\n"
            "while not __import__('os').path.exists('heard'): time.sleep(0.005)\n"
            "time.sleep(0.6)\n")  # longer than two scans are apart
    child = start(tmp_path, life, code, sys.executable)
    said(tmp_path, "ready")
    kill_tree(child.id, life, grace=20)
    assert (tmp_path / "heard").read_text() == "."


def test_other_incarnations_below_it_survive_with_their_children(tmp_path: Path, life: str) -> None:
    other = life + "0"
    child = start(tmp_path, life, f"GARRISON_LIFE='{other}' setsid sh -c 'echo $$ > other; sleep 60; :' & sleep 60")
    pid = said(tmp_path, "other")
    kill_tree(child.id, life, grace=5)
    assert is_gone(child.pid)
    assert not is_gone(pid)
    assert len(processes.find_marked(other)) == 2


def test_a_process_that_keeps_forking_is_killed(tmp_path: Path, life: str) -> None:
    code = ("import os,time,signal\n"
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "end = time.time() + 60\n"
            "while time.time() < end:\n"
            "    if os.fork():\n"
            "        time.sleep(0.05); os._exit(0)\n"
            "    os.setsid(); open('born','a').write('.'); time.sleep(0.02)\n")
    child = start(tmp_path, life, code, sys.executable)
    until(lambda: (path := tmp_path / "born").exists() and path.stat().st_size > 5)
    assert len(kill_tree(child.id, life, grace=0.1)) > 1
    assert processes.find_marked(life) == []


def test_a_process_that_forks_and_exits_during_each_scan_is_killed(tmp_path: Path, life: str,
                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: on a busy machine each process was gone when it was read, and none was found."""
    code = ("import os,time,signal\n"
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "end = time.time() + 60\n"
            "for hop in range(1000):\n"
            "    open(f'at{hop}', 'w').close()\n"
            "    while not os.path.exists(f'go{hop}'):\n"
            "        if time.time() > end: os._exit(1)\n"
            "        time.sleep(0.002)\n"
            "    if os.fork(): os._exit(0)\n"
            "    os.setsid()\n")
    start(tmp_path, life, code, sys.executable)
    until((tmp_path / "at0").exists)
    real, hops, hopped = processes.list_pids, iter(range(4)), []

    def list_and_hop() -> list[int]:
        listed = real()
        if (hop := next(hops, None)) is not None:
            hopped.append(hop)
            (tmp_path / f"go{hop}").touch()
            until((tmp_path / f"at{hop + 1}").exists)
        return listed

    with monkeypatch.context() as patched:
        patched.setattr(processes, "list_pids", list_and_hop)
        assert kill_tree(None, life, grace=0.1)
    assert hopped == [0, 1, 2, 3]
    assert processes.find_marked(life) == []


def test_our_own_zombies_do_not_delay_it(tmp_path: Path, life: str) -> None:
    child = start(tmp_path, life, "exit 0")
    until(lambda: (one := processes.probe(child.pid)) and one.zombie)
    assert kill_tree(child.id, life, grace=5) == []
    assert processes.open_verified(child.pid, child.ticks) is None
    assert not processes.send(child.pid, child.ticks, signal.SIGTERM)


def test_a_process_that_does_not_die_or_is_another_users_is_named_within_the_limit(
        tmp_path: Path, life: str, monkeypatch: pytest.MonkeyPatch) -> None:
    child = start(tmp_path, life, "echo $$ > ready; exec sleep 60")
    said(tmp_path, "ready")
    with monkeypatch.context() as patched:
        patched.setattr(signal, "pidfd_send_signal", lambda *_: None)  # as in D state: nothing is heard
        with pytest.raises(GarrisonError, match=str(child.pid)):
            kill_tree(child.id, life, grace=0.05, limit=0.1)

    def forbidden(*_: object) -> None:
        raise PermissionError

    with monkeypatch.context() as patched:
        patched.setattr(signal, "pidfd_send_signal", forbidden)
        with pytest.raises(GarrisonError, match="another user"):
            kill_tree(child.id, life, grace=0.05, limit=0.1)
        with pytest.raises(GarrisonError, match="another user"):
            processes.send(child.pid, child.ticks, signal.SIGTERM)
    assert not is_gone(child.pid)
    kill_tree(child.id, life, grace=0)


def test_a_sweep_from_below_spares_the_caller_and_those_above_it(tmp_path: Path, life: str) -> None:
    code = ("import os; from garrison.system import process_control, processes as p\n"
            "top = os.getppid()\n"
            f"process_control.kill_tree(p.probe(top).id, {life!r}, grace=5)\n"
            "print('done', flush=True); open('done', 'w').write('1\\n')\n")
    start(tmp_path, life, f"sleep 60 & echo $! > victim; {sys.executable} -c \"{code}\"; echo 2 > after")
    victim = said(tmp_path, "victim")
    assert said(tmp_path, "after") == 2
    assert said(tmp_path, "done") == 1
    assert is_gone(victim)


@pytest.mark.skipif(shutil.which("tmux") is None, reason="there is no tmux on PATH")
def test_a_tmux_server_that_it_started_is_spared_its_marked_panes_are_not(tmp_path: Path, life: str) -> None:
    socket = tmp_path / "decoy"
    child = start(tmp_path, life, f"tmux -S {socket} -f /dev/null new-session -d -s x 'echo $$ > pane; exec sleep 60' "
                                  f"\\; new-session -d -s y 'env -i sh -c \"echo \\$\\$ > free; exec sleep 60\"'; "
                                  "sleep 60")
    pane, free = said(tmp_path, "pane"), said(tmp_path, "free")
    server = processes.probe(pane).ppid
    try:
        kill_tree(child.id, life, grace=5)
        assert is_gone(child.pid)
        assert is_gone(pane)
        assert not is_gone(server)
        assert not is_gone(free)
    finally:
        subprocess.run(["tmux", "-S", str(socket), "kill-server"], check=False)
    until(lambda: is_gone(server))


def test_a_subreaper_gets_the_orphans(tmp_path: Path) -> None:
    code = ("import os,time; from garrison.system import processes as p\n"
            "p.become_subreaper()\n"
            "from pathlib import Path\n"
            "c = p.spawn(['/bin/sh','-c','(sleep 0.05; exit 5) & echo $! > orphan'], env={'PATH': os.environ['PATH']},"
            " cwd='.', log=Path('log'))\n"
            "codes = {}\n"
            f"end = time.time() + {DEADLINE}\n"
            "while len(codes) < 2 and time.time() < end: codes.update(p.reap()); time.sleep(0.01)\n"
            "print(sorted(codes.values()), int(open('orphan').read()) in codes)\n")
    answer = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert answer.stdout == "[0, 5] True\n"
