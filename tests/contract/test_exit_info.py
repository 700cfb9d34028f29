"""How processes ended, told by the kernel that runs these tests; what it cannot be asked for is played with files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from garrison.ends import End
from garrison.system import exit_info, processes
from garrison.system.exit_info import (
    ExitMonitor,
    describe_death,
    describe_end,
    describe_hangup,
    oom_counter,
    oom_kills,
    quote_command,
)
from support import wait_for

MEMORY = "killed, probably out of memory (the kernel's count of such kills grew)"


@pytest.fixture
def grandchild() -> Iterator[tuple[int, int]]:
    """Yield pid and start ticks of a process that is not our child and exits with 3 on SIGTERM."""
    script = ("import signal,sys,time; signal.signal(15, lambda *_: sys.exit(3)); print('up', flush=True); "
              "time.sleep(99)")
    shell = 'printf "%s\\n" "$$"; "$0" -c "$1" & echo $!; wait; wait'
    parent = subprocess.Popen(["/bin/sh", "-c", shell, sys.executable, script], stdout=subprocess.PIPE, text=True)
    parent.stdout.readline()
    lines = {parent.stdout.readline().strip(), parent.stdout.readline().strip()}
    (pid,) = [int(line) for line in lines if line.isdigit()]
    assert "up" in lines
    found = processes.probe(pid)
    yield found.id.pid, found.id.ticks
    processes.send(*(found.id.pid, found.id.ticks), signal.SIGKILL)
    parent.wait()
    parent.stdout.close()


def told_here() -> bool:
    """Return whether this kernel reports the status of other processes' children (Linux 6.15)."""
    release = os.uname().release.split(".")
    return (int(release[0]), int(release[1].partition("-")[0])) >= (6, 15)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 3)])
def test_the_status_of_a_foreign_child(grandchild: tuple[int, int], number: int, code: int) -> None:
    looked = ExitMonitor()
    looked.watch(*grandchild)
    assert looked.exit_code(*grandchild) is None, "it lives"
    processes.send(*grandchild, number)
    wait_for("it is gone", lambda: processes.probe(grandchild[0]) is None)
    assert looked.exit_code(*grandchild) == (code if told_here() else None)
    looked.forget(*grandchild)
    assert looked.exit_code(*grandchild) is None


def test_a_kernel_without_exit_information(grandchild: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(25, "Inappropriate ioctl for device")

    monkeypatch.setattr(exit_info.fcntl, "ioctl", refuse)
    looked = ExitMonitor()
    looked.watch(*grandchild)
    processes.send(*grandchild, signal.SIGKILL)
    wait_for("it is gone", lambda: processes.probe(grandchild[0]) is None)
    assert looked.exit_code(*grandchild) is None


def test_the_status_of_our_own_child_is_known_on_any_kernel(tmp_path: Path) -> None:
    child = processes.spawn(["/bin/sh", "-c", "exit 4"], env={}, cwd=tmp_path, log=tmp_path / "log")
    assert wait_for("it ended", lambda: ExitMonitor().exit_code(child.pid, child.ticks)) == 4
    child.close()


def count_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_no_descriptor_is_kept_after_a_graceful_end(tmp_path: Path) -> None:
    looked, before = ExitMonitor(max_watched=3), count_descriptors()
    for _ in range(12):
        child = processes.spawn(["/bin/sleep", "60"], env={}, cwd=tmp_path, log=tmp_path / "log")
        looked.watch(child.pid, child.ticks)
        looked.watch(child.pid, child.ticks)
        os.kill(child.pid, signal.SIGKILL)
        wait_for("it ended", lambda one=child: processes.exit_code(one.pid) is not None)
        child.close()
    assert count_descriptors() <= before + 4


# ------------------------------------------------------------------------------------------------------- out of memory


@pytest.mark.parametrize(("line", "place", "text"), [
    ("0::/user.slice/one.scope", "user.slice/one.scope/memory.events", "low 0\noom 9\noom_kill {}\n"),
    ("4:memory:/one", "memory/one/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"),
])
def test_the_count_of_the_nearest_cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, place: str,
                                         text: str) -> None:
    """Played with files: both versions of cgroups are never at hand on one machine."""
    counter = tmp_path / place
    counter.parent.mkdir(parents=True)
    counter.write_text(text.format(2))
    vmstat = tmp_path / "vmstat"
    vmstat.write_text("nr_free_pages 1\noom_kill 40\n")
    group = f"9:cpu:/\n{line}\n"
    monkeypatch.setattr(exit_info, "cgroup_of", lambda pid: group)
    assert oom_counter(group, tmp_path, vmstat) == counter
    looked = ExitMonitor(tmp_path, vmstat)
    me = processes.probe(os.getpid())
    looked.watch(me.pid, me.ticks)
    assert not looked.out_of_memory(me.pid, me.ticks)
    vmstat.write_text("oom_kill 41\n")
    assert not looked.out_of_memory(me.pid, me.ticks), "that of another cgroup"
    counter.write_text(text.format(3))
    assert looked.out_of_memory(me.pid, me.ticks)
    looked.forget(me.pid, me.ticks)
    assert not looked.out_of_memory(me.pid, me.ticks)
    counter.unlink()
    assert oom_counter(group, tmp_path, vmstat) == vmstat


def test_a_machine_that_counts_nothing(tmp_path: Path) -> None:
    assert oom_counter(exit_info.cgroup_of(os.getpid()), tmp_path, tmp_path / "vmstat") is None
    assert exit_info.cgroup_of(0) == ""
    assert oom_kills(None) is None
    (tmp_path / "odd").write_text("oom_kill many\n")
    assert oom_kills(tmp_path / "odd") is None
    assert not ExitMonitor(tmp_path, tmp_path / "vmstat").out_of_memory(1, 1)


def test_a_real_out_of_memory_kill_is_detected(tmp_path: Path) -> None:
    """In a cgroup of our own with a limit of 48 MiB, where one can be made (root)."""
    with own_cgroup(48 << 20) as cgroup:
        script = "import sys; print('up', flush=True); sys.stdin.readline(); print(len(bytearray(300 << 20)))"
        child = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        child.stdout.readline()
        (cgroup / "cgroup.procs").write_text(str(child.pid))
        found = processes.probe(child.pid)
        looked = ExitMonitor()
        looked.watch(found.pid, found.ticks)
        assert not looked.out_of_memory(found.pid, found.ticks)
        child.communicate(b"\n")
        assert child.returncode == -signal.SIGKILL
        assert looked.out_of_memory(found.pid, found.ticks)
        assert "probably out of memory" in describe_end(End(child.returncode), memory=True)


class own_cgroup:
    """A cgroup with a memory limit, as a context; skips where none can be made."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def __enter__(self) -> Path:
        lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
        for _, controllers, path in lines:
            version1 = "memory" in controllers.split(",")
            base = Path("/sys/fs/cgroup") / ("memory" if version1 else "") / path.strip("/")
            limit = "memory.limit_in_bytes" if version1 else "memory.max"
            if not version1 and (controllers or not (base / "cgroup.controllers").exists()):
                continue
            self.path = base / f"garrison-test-{os.getpid()}"
            try:
                self.path.mkdir()
            except OSError:
                continue
            try:
                (self.path / limit).write_text(str(self.limit))
            except OSError:
                self.path.rmdir()
            else:
                return self.path
        pytest.skip("no cgroup with a memory limit can be made here")

    def __exit__(self, *_: object) -> None:
        wait_for("the cgroup is empty", lambda: not (self.path / "cgroup.procs").read_text())
        self.path.rmdir()


# ------------------------------------------------------------------------------------------------------------ in words


@pytest.mark.parametrize(("known", "said"), [
    ({}, "process 7 is gone"),
    ({"code": -9}, "process 7 is gone: killed by SIGKILL"),
    ({"code": 3}, "process 7 is gone: exit code 3"),
    ({"code": 0}, "process 7 is gone: exit code 0"),
    ({"code": -40}, "process 7 is gone: killed by signal 40"),
    ({"code": -9, "memory": True}, f"process 7 is gone: {MEMORY}"),
    ({"code": 137, "memory": True}, f"process 7 is gone: {MEMORY}"),
    ({"memory": True}, f"process 7 is gone: {MEMORY}"),
    ({"code": 3, "memory": True}, "process 7 is gone: exit code 3"),
    ({"code": -1, "server_died": True}, "the tmux server died; process 7 is gone"),
])
def test_the_cause_is_described(known: dict[str, object], said: str) -> None:
    assert describe_death("process 7 is gone", **known) == said


def test_a_hangup_is_described_by_what_closed_the_terminal() -> None:
    assert describe_hangup(server_died=True, has_session=True) == "the tmux server died"
    assert describe_hangup(server_died=False, has_session=True) == "its tmux session was closed"
    assert describe_hangup(server_died=False, has_session=False) == "it was ended by SIGHUP"


@pytest.mark.parametrize(("command", "quoted"), [
    ("make test", "`make test`"), ("  make\n", "`make`"), ("set -e\nmake", "`set -e…`"),
    ("x" * 81, f"`{'x' * 80}…`"), ("x" * 80, f"`{'x' * 80}`")])
def test_a_command_is_named_by_its_first_line(command: str, quoted: str) -> None:
    assert quote_command(command) == quoted


@pytest.mark.parametrize(("code", "output", "seconds", "reason"), [
    (1, "2 failed\n", None, "acceptance `make test` failed (exit 1): 2 failed"),
    (1, "make 4.3\nE: no network\n====\n", None,
     "acceptance `make test` failed (exit 1): E: no network\nmake 4.3\nE: no network\n===="),
    (127, "", None, "acceptance `make test` failed (exit 127): it printed nothing"),
    (-9, " ", None, "acceptance `make test` was killed by SIGKILL: it printed nothing"),
    (-15, "slow", 61.2, "acceptance `make test` timed out after 61 s: slow")])
def test_a_failure_names_command_exit_and_output(code: int, output: str, seconds: float | None, reason: str) -> None:
    end = End(code, seconds is not None, seconds or 0.0)
    assert exit_info.describe_failure("acceptance `make test`", end, output) == reason


def test_a_recorded_server_is_distinguished_from_a_reused_pid() -> None:
    assert not exit_info.is_tmux_server_gone("")
    assert exit_info.is_tmux_server_gone(f"{os.getpid()}:1"), "that is not tmux"
    assert exit_info.is_tmux_server_gone("0:1")
