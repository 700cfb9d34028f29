"""Jobs with real shells: exit codes, timeouts, leftovers, logs."""

from __future__ import annotations

import os
import select
import signal
import time
from pathlib import Path

import pytest

from garrison.ends import End
from garrison.errors import GarrisonError
from garrison.system import command as commands
from garrison.system import processes
from garrison.system.command import Job, read_tail
from support import DEADLINE, is_gone, until

ENV = {"PATH": os.environ["PATH"]}


def run(job: Job) -> End:
    return until(lambda: job.poll(time.monotonic()))


def said(tmp_path: Path, name: str) -> int:
    return int(until(lambda: (path := tmp_path / name).exists() and path.read_text().strip()))


def begin(tmp_path: Path, command: str | list[str], **options: object) -> Job:
    given: dict[str, object] = {"env": ENV, "cwd": tmp_path, "log": tmp_path / "log", "timeout_s": DEADLINE, **options}
    return Job.start(command, **given)


@pytest.mark.parametrize(("command", "code"), [
    ("true", 0), ("exit 3", 3), ("no-such-command", 127), ("kill -9 $$", -9), (["sh", "-c", "exit 4"], 4)])
def test_the_exit_code_comes_back_and_stays(tmp_path: Path, command: str | list[str], code: int) -> None:
    job = begin(tmp_path, command)
    assert job.wake_at is not None
    assert select.select([job.pidfd], [], [], DEADLINE)[0], "it wakes a loop"
    result = run(job)
    assert (result.code, result.timed_out, result.ok) == (code, False, code == 0)
    assert 0 <= result.seconds < DEADLINE
    assert job.poll(time.monotonic()) is result
    assert (job.pidfd, job.wake_at) == (-1, None)


def test_an_exit_code_collected_by_the_loops_reaper_is_not_lost(tmp_path: Path) -> None:
    job = begin(tmp_path, "exit 6")
    until(lambda: job.pid in processes.reap())
    assert run(job).code == 6


def test_output_goes_to_the_log_and_the_environment_is_its_own(tmp_path: Path) -> None:
    os.environ["GARRISON_TEST_SECRET"] = "s"
    try:
        assert run(begin(tmp_path, "env; echo err >&2", env={**ENV, "W": "1"})).ok
    finally:
        del os.environ["GARRISON_TEST_SECRET"]
    text = read_tail(tmp_path / "log", 100)
    assert "W=1" in text
    assert "err" in text
    assert "SECRET" not in text
    jobs = [begin(tmp_path, f"exit {number}", log=tmp_path / f"log{number}") for number in range(16)]
    assert [run(job).code for job in reversed(jobs)] == list(reversed(range(16))), "each has its own"


def test_a_timeout_ends_the_whole_session(tmp_path: Path) -> None:
    before = time.monotonic()
    job = begin(tmp_path, "sh -c 'echo $$ > kid; sleep 60; :' & sleep 60", timeout_s=0.6)
    assert job.wake_at is not None and before + 0.6 <= job.wake_at <= time.monotonic() + 0.6
    kid = said(tmp_path, "kid")
    result = run(job)
    assert (result.timed_out, result.ok) == (True, False)
    assert result.code == -signal.SIGTERM
    assert is_gone(kid)


def test_one_that_ignores_term_is_killed_after_the_grace(tmp_path: Path) -> None:
    job = begin(tmp_path, "trap '' TERM; echo 1 > ready; while :; do sleep 0.01; done", grace=0.2)
    said(tmp_path, "ready")
    job.kill()
    before = time.monotonic()
    assert job.wake_at is not None
    result = run(job)
    assert time.monotonic() - before >= 0.15
    assert (result.code, result.timed_out) == (-signal.SIGKILL, False)


def test_kill_is_orderly_first_and_reaches_stopped_ones(tmp_path: Path) -> None:
    job = begin(tmp_path, "trap 'echo 1 > bye; exit 9' TERM; echo 1 > ready; while :; do sleep 0.01; done")
    said(tmp_path, "ready")
    processes.send(job.pid, job.ticks, signal.SIGSTOP)
    job.kill()
    job.kill()
    assert run(job).code == 9
    assert said(tmp_path, "bye") == 1


@pytest.mark.smoke
def test_leftovers_of_a_finished_command_are_killed_before_its_result(tmp_path: Path) -> None:
    result = run(begin(tmp_path, "sh -c 'echo $$ > kid; sleep 60; :' & while ! test -s kid; do :; done; exit 5"))
    assert (result.code, result.timed_out) == (5, False)
    assert is_gone(said(tmp_path, "kid"))
    (tmp_path / "kid").unlink()
    env = {**ENV, "GARRISON_LIFE": f"{tmp_path}:r:gate-1#1"}  # a marker of its own finds daemons as well
    command = "setsid sh -c 'setsid sh -c \"echo \\$\\$ > kid; sleep 60; :\" &' ; while ! test -s kid; do :; done"
    assert run(begin(tmp_path, command, env=env)).ok
    assert is_gone(said(tmp_path, "kid"))


def test_our_own_marker_does_not_make_us_or_our_other_children_its_leftovers(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    life = f"{tmp_path}:r:runner-a#1"
    monkeypatch.setenv("GARRISON_LIFE", life)
    env = {**ENV, "GARRISON_LIFE": life}
    other = begin(tmp_path, "echo 1 > ready; sleep 60", env=env)
    said(tmp_path, "ready")
    assert run(begin(tmp_path, "sh -c 'echo $$ > kid; sleep 60; :' & while ! test -s kid; do :; done", env=env)).ok
    assert is_gone(said(tmp_path, "kid"))
    assert not is_gone(other.pid)
    other.kill()
    assert run(other).code == -signal.SIGTERM


def test_a_missing_directory_or_program_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(GarrisonError, match="cannot start"):
        begin(tmp_path, "true", cwd=tmp_path / "absent")
    with pytest.raises(GarrisonError, match="cannot start no-such-program"):
        begin(tmp_path, ["no-such-program"])


def test_tail_takes_the_end_as_clean_text_whatever_is_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert read_tail(path) == ""
    path.write_text("".join(f"line {number}\n" for number in range(1000)))
    assert read_tail(path, 2) == "line 998\nline 999"
    assert read_tail(path, 1000, 30) == "line 997\nline 998\nline 999"
    path.write_text("")
    assert read_tail(path) == ""
    path.write_bytes(b"\x1b[31mred\x1b[0m\r\n10%\r20%\n\x00\xff\xfe\x07bell\x1b]0;title\x07!\n\tend")
    assert read_tail(path) == "red\n10%\n20%\n\ufffd\ufffdbell!\n\tend"
    path.write_bytes(os.urandom(50_000))
    assert all(letter.isprintable() or letter in "\t\n" or ord(letter) > 0x9f for letter in read_tail(path))
    path.write_bytes(b"x" * 50_000)
    assert read_tail(path, 5, 100) == "x" * 100


def test_a_program_that_takes_too_long_is_killed_with_what_it_started(tmp_path: Path) -> None:
    done = commands.run(["sh", "-c", f"sleep 60 & echo $! >{tmp_path}/pid; wait"], 0.5)
    assert done == commands.Done(None, why="sh did not end within 0.5 s", timed_out=True)
    assert until(lambda: is_gone(said(tmp_path, "pid")))
    assert commands.run(["no-such-program"], 1.0).why == "no-such-program: No such file or directory"
    done = commands.run(["sh", "-c", "cat; echo one >&2; exit 3"], DEADLINE, text="ü")
    assert done == commands.Done(3, "ü", "one\n") and done.last_error == "one"
