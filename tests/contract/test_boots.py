"""A pid that was recorded before a boot is no one's: every place that keeps one asks which boot it is of."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from garrison.agents.conversation import holder
from garrison.agents.conversation.files import AttemptFiles
from garrison.merge.gate import WRAPPER
from garrison.merge.slots import is_job_alive, read_pid
from garrison.system import processes
from garrison.system.terminal import ProcessTerminal
from garrison.values import replace
from support import wait_for


@pytest.fixture
def other() -> Iterator[processes.ProcessInfo]:
    """Yield a process without the marker of an incarnation."""
    with subprocess.Popen(["sleep", "1000"]) as one:
        found = processes.probe(one.pid)
        assert found is not None
        yield found
        one.kill()


@pytest.fixture
def rebooted(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    monkeypatch.setenv("GARRISON_BOOT_ID", "boot-1")
    yield monkeypatch


def test_which_boot_a_pid_is_of(rebooted: pytest.MonkeyPatch) -> None:
    assert processes.boot_id() == "boot-1"
    assert processes.same_boot("boot-1")
    assert processes.same_boot(""), "a record of before boots were noted"
    assert not processes.same_boot("boot-2")
    rebooted.delenv("GARRISON_BOOT_ID")
    assert processes.boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@pytest.mark.parametrize("given", ["boot-1", ""])
def test_a_gates_wrapper_names_its_boot(tmp_path: Path, rebooted: pytest.MonkeyPatch, given: str) -> None:
    """The wrapper is a shell: with the variable that plays a boot, and without."""
    rebooted.setenv("GARRISON_BOOT_ID", given)
    with subprocess.Popen(["/bin/sh", "-c", WRAPPER, "garrison-gate", str(tmp_path), "60", "", "", "", "sleep", "1000"],
                          start_new_session=True) as gate:
        wait_for("it said who it is", lambda: read_pid(tmp_path))
        found = processes.probe(gate.pid)
        assert read_pid(tmp_path) == (found.pid, found.ticks)
        assert is_job_alive(str(tmp_path))
        rebooted.setenv("GARRISON_BOOT_ID", "boot-2")
        assert read_pid(tmp_path) == (0, 0)
        assert not is_job_alive(str(tmp_path))
        # `timeout` makes a process group of its own, so the wrapper's group is not everything that runs
        wait_for("the command runs",
                 lambda: "sleep" in {process.comm for process in processes.descendants(gate.pid, "")})
        rest = processes.descendants(gate.pid, "")
        os.killpg(gate.pid, signal.SIGKILL)
        for process in rest:
            processes.send(process.pid, process.ticks, signal.SIGKILL)
    assert not is_job_alive("")


def test_a_plain_session_of_another_boot_is_over_and_its_pid_belongs_to_no_process(
        tmp_path: Path, rebooted: pytest.MonkeyPatch, other: processes.ProcessInfo) -> None:
    terminal = ProcessTerminal(tmp_path)
    session = terminal.open("a@r1", ["/bin/true"], env={}, cwd=tmp_path, log=tmp_path / "log")
    reused = replace(session, pid=other.pid, ticks=other.ticks)
    assert terminal.is_alive(reused)
    rebooted.setenv("GARRISON_BOOT_ID", "boot-2")
    assert not terminal.is_alive(reused)
    terminal.close(reused, grace=0)
    assert processes.is_running(other.pid, other.ticks)
    assert terminal.sessions() == []


def test_a_cli_of_another_boot_is_forgotten_and_not_ended(
        tmp_path: Path, rebooted: pytest.MonkeyPatch, other: processes.ProcessInfo) -> None:
    files = AttemptFiles(tmp_path)
    files.process.parent.mkdir(parents=True, exist_ok=True)
    holder.record_process(files, other.pid, 1)
    rebooted.setenv("GARRISON_BOOT_ID", "boot-2")
    holder.end_orphan(files)
    assert processes.is_running(other.pid, other.ticks)
    assert not files.process.exists()
    rebooted.setenv("GARRISON_BOOT_ID", "boot-1")
    holder.record_process(files, other.pid, 1)
    holder.end_orphan(files)
    wait_for("it was ended", lambda: not processes.is_running(other.pid, other.ticks))
