"""The event loop with real processes, files and signals."""

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

from garrison.records import atomic
from garrison.system import event_loop, processes
from garrison.system.event_loop import EventLoop, Wakeup
from garrison.system.processes import ProcessId
from support import DEADLINE

LONG = DEADLINE


@pytest.fixture
def made() -> Iterator[EventLoop]:
    with EventLoop() as one:
        yield one


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def started(tmp_path: Path, command: str) -> processes.Child:
    child = processes.spawn(["/bin/sh", "-c", command], env={"PATH": os.environ["PATH"]}, cwd=tmp_path,
                            log=tmp_path / "log")
    child.close()
    return child


def collect(one: EventLoop, wanted: int) -> list[int]:
    """Collect signals until `wanted` has come."""
    heard: list[int] = []
    deadline = time.monotonic() + LONG
    while wanted not in heard and time.monotonic() < deadline:
        heard += one.wait(1).signals
    return heard


def test_nothing_happens_within_the_time_nor_at_a_descriptor_that_was_closed(made: EventLoop) -> None:
    before = time.monotonic()
    wake = made.wait(0.05)
    assert time.monotonic() - before > 0.04
    assert wake == Wakeup()
    assert not wake
    ours, theirs = os.pipe()
    made.watch_descriptor(ours)
    os.close(ours)
    made.wait(0)
    before = time.monotonic()
    assert made.wait(0.05).descriptors == frozenset()
    assert time.monotonic() - before > 0.04, "it does not wake again and again"
    os.close(theirs)


@pytest.mark.smoke
def test_a_death_wakes_once(made: EventLoop, tmp_path: Path) -> None:
    child = started(tmp_path, "exec sleep 60")
    assert made.watch_process(child.pid, child.ticks)
    assert made.watch_process(child.pid, child.ticks)
    processes.send(child.pid, child.ticks, signal.SIGKILL)
    ended: set[ProcessId] = set()
    while not ended:
        woken = made.wait(LONG)
        assert woken, "a death wakes, not the timer"
        ended |= woken.processes
    assert ended == {child.id}
    assert not made.watch_process(child.pid, child.ticks)
    while made.wait(0):
        pass
    assert not made.wait(0.01).processes
    processes.reap()


def test_the_death_of_one_that_is_not_our_child_wakes(made: EventLoop, tmp_path: Path) -> None:
    script = "import subprocess; print(subprocess.Popen(['sleep', '60'], stdout=-3).pid)"
    pid = int(subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, check=True).stdout)
    found = processes.probe(pid)
    assert found.ppid != os.getpid()
    while made.wait(0):
        pass
    assert made.watch_process(pid, found.ticks)
    processes.send(pid, found.ticks, signal.SIGKILL)
    assert made.wait(LONG).processes == {ProcessId(pid, found.ticks)}


def test_a_gone_process_or_a_recycled_pid_is_reported_at_once_and_once(made: EventLoop,
                                                                                tmp_path: Path) -> None:
    child = started(tmp_path, "exit 0")
    assert signal.SIGCHLD in collect(made, signal.SIGCHLD), "a child's end is a signal as well"
    while child.pid not in processes.reap():
        pass
    while made.wait(0):
        pass
    me = processes.probe(os.getpid())
    for gone in (child.id, ProcessId(me.pid, me.ticks - 1)):
        assert not made.watch_process(gone.pid, gone.ticks)
        assert made.wait(LONG).processes == {gone}
        assert not made.watch_process(gone.pid, gone.ticks)
        assert not made.wait(0)


def test_files_that_appear_or_are_moved_in_wake(made: EventLoop, tmp_path: Path) -> None:
    inbox, other = tmp_path / "inbox", tmp_path / "other"
    inbox.mkdir()
    other.mkdir()
    assert made.watch_directory(inbox)
    assert made.watch_directory(inbox)
    (other / "a").touch()
    assert not made.wait(0.01)
    (other / "a").rename(inbox / "a")
    assert made.wait(LONG).directories == {inbox}
    assert not made.wait(0)
    (inbox / "b").write_text("x")
    assert made.wait(LONG).directories == {inbox}
    for number in range(1000):
        (inbox / str(number)).touch()
    assert made.wait(LONG).directories == {inbox}, "a thousand files are one wake"
    assert not made.wait(0)


def test_a_file_that_is_about_to_be_renamed_wakes_only_with_its_last_name(made: EventLoop, tmp_path: Path) -> None:
    made.watch_directory(tmp_path)
    begun = time.monotonic()
    with atomic.replacing(tmp_path / "record.json") as descriptor:
        os.write(descriptor, b"{}")
        os.close(descriptor)
        assert not made.wait(0.05)
        assert time.monotonic() - begun > 0.04, "it sleeps on"
    assert made.wait(LONG).directories == {tmp_path}
    assert not made.wait(0)


def test_a_directory_wakes_only_for_what_concerns_its_watcher_and_whenever_it_is_removed(
        made: EventLoop, tmp_path: Path) -> None:
    folder, asked = tmp_path / "folder", list[set[str]]()
    folder.mkdir()

    def concerns(names: set[str]) -> bool:
        asked.append(names)
        return "b" in names

    assert made.watch_directory(folder, concerns)
    (folder / "a").touch()
    (folder / "c").touch()
    begun = time.monotonic()
    assert not made.wait(0.05)
    assert time.monotonic() - begun > 0.04, "it sleeps on"
    assert asked == [{"a", "c"}]
    (folder / "b").touch()
    (folder / "a").touch()
    assert made.wait(LONG).directories == {folder}
    shutil.rmtree(folder)
    assert made.wait(LONG).directories == {folder}
    assert len(asked) <= 3
    folder.mkdir()
    assert made.watch_directory(folder)
    (folder / "a").touch()
    assert made.wait(LONG).directories == {folder}, "the new one is watched for everything"


def test_a_directory_that_was_replaced_is_watched_again(made: EventLoop, tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    made.watch_directory(inbox)
    shutil.rmtree(inbox)
    assert made.wait(LONG).directories == {inbox}
    assert not made.watch_directory(inbox)
    inbox.mkdir()
    assert made.watch_directory(inbox)
    (inbox / "a").touch()
    assert made.wait(LONG).directories == {inbox}
    inbox.rename(tmp_path / "old")
    assert made.wait(LONG).directories == {inbox}
    inbox.mkdir()
    assert made.watch_directory(inbox)
    (inbox / "b").touch()
    assert made.wait(LONG).directories == {inbox}
    (tmp_path / "old" / "c").touch()
    assert not made.wait(0.01)


def test_a_file_that_is_written_or_replaced_wakes_once_each_time_it_is_asked_for(made: EventLoop,
                                                                                 tmp_path: Path) -> None:
    path = tmp_path / "record"
    assert not made.watch_file(path), "it is not there yet"
    path.write_text("a")
    assert made.watch_file(path)
    path.write_text("b")
    path.write_text("c")
    assert made.wait(LONG).directories == {path}
    path.write_text("d")
    assert not made.wait(0.01), "it was not asked for again"
    assert made.watch_file(path)
    (tmp_path / "new").write_text("e")
    (tmp_path / "new").rename(path)
    assert made.wait(LONG).directories == {path}
    assert made.watch_file(path), "the new one"
    path.write_text("f")
    assert made.wait(LONG).directories == {path}


def test_signals_come_in_order_and_repeated(made: EventLoop) -> None:
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.raise_signal(number)
    assert made.wait(LONG).signals == (signal.SIGTERM, signal.SIGUSR1, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    assert not made.wait(0)


def test_a_signal_wakes_a_sleeping_loop(tmp_path: Path) -> None:
    code = ("import os, signal, time\nfrom garrison.system.event_loop import EventLoop\n"
            "with EventLoop() as one:\n    print('ready', flush=True)\n    before = time.monotonic()\n"
            f"    print(one.wait({LONG}).signals, time.monotonic() - before < {LONG})\n")
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == "(15,) True\n"
    assert process.returncode == 0


def test_everything_at_once_is_drained_in_one_wait(made: EventLoop, tmp_path: Path) -> None:
    child = started(tmp_path, "exit 0")
    made.watch_directory(tmp_path)
    made.watch_process(child.pid, child.ticks)
    (tmp_path / "file").touch()
    signal.raise_signal(signal.SIGUSR1)
    while child.pid not in processes.reap():
        pass
    wake = made.wait(LONG)
    assert wake.processes == {child.id}
    assert wake.directories == {tmp_path}
    assert {signal.SIGUSR1, signal.SIGCHLD} <= set(wake.signals)


def test_descriptors_are_not_inherited_and_close_gives_everything_back(tmp_path: Path) -> None:
    def seen_by_a_child() -> list[str]:
        return subprocess.run(["/bin/ls", "/proc/self/fd"], stdout=subprocess.PIPE, close_fds=False, text=True,
                              check=True).stdout.split()

    child = started(tmp_path, "exec sleep 60")
    before, handler, files = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGCHLD), open_files()
    seen = seen_by_a_child()
    one = EventLoop()
    one.watch_process(child.pid, child.ticks)
    one.watch_directory(tmp_path)
    assert seen_by_a_child() == seen
    one.close()
    one.close()
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGCHLD)) == (before, handler)
    assert signal.set_wakeup_fd(-1) == -1
    assert open_files() == files
    processes.send(child.pid, child.ticks, signal.SIGKILL)
    while child.pid not in processes.reap():
        pass


def test_without_inotify_and_epoll_the_timer_is_enough(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def used_up(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(event_loop, "INotify", used_up)
    monkeypatch.setattr("select.epoll", used_up)  # a user has a number of its watches
    child = started(tmp_path, "exit 0")
    with EventLoop() as one:
        assert not one.watches_files
        assert not one.watch_directory(tmp_path)
        assert not one.watch_file(tmp_path / "log")
        (tmp_path / "file").touch()
        one.watch_process(child.pid, child.ticks)
        ended: set[ProcessId] = set()
        while not ended:
            ended |= one.wait(LONG).processes
        assert {each.pid for each in ended} == {child.pid}
    processes.reap()


def test_an_overflow_touches_every_directory(made: EventLoop, tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    second.mkdir()
    made.watch_directory(first)
    made.watch_directory(second)
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if limit > 65536:
        pytest.skip(f"the event queue holds {limit}")
    one, two = first / "x", first / "y"
    one.touch()
    for _ in range(limit // 2 + 10):  # alternating, because equal neighbours are merged
        one.rename(two)
        two.rename(one)
    assert made.wait(LONG).directories == {first, second}


def test_running_out_of_descriptors_is_an_error_not_a_false_death(made: EventLoop,
                                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    me = processes.probe(os.getpid())

    def used_up(_: int) -> int:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pidfd_open", used_up)
        with pytest.raises(OSError, match="Too many"):
            made.watch_process(me.pid, me.ticks)
    assert made.watch_process(me.pid, me.ticks)
