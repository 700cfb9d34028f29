"""Which lines of a closed log and of a growing one stay, and which logs of gates belong to a run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from garrison.cli.logs import LogPrinter, tail_offset
from garrison.merge import history
from garrison.records import log_retention
from garrison.records.journal import Writer
from garrison.supervise.job_watch import JobWatch
from garrison.system import processes

AT = "2026-01-31T12:00:00.000000Z"


def test_a_long_log_keeps_whole_lines_of_its_start_and_end_and_parts_of_an_endless_line(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    lines = [f"line {number}" for number in range(1000)]
    log.write_text("".join(f"{line}\n" for line in lines))
    size = log.stat().st_size
    log_retention.shorten_log(log, 400)
    kept = log.read_text().splitlines()
    at = next(i for i, line in enumerate(kept) if line.startswith("[garrison left out "))
    assert kept[:at] == lines[:at]
    assert kept[at + 1:] == lines[at - len(kept) + 1:]
    assert 5 < at < len(kept) - 15
    left_out = size - sum(len(line) + 1 for line in kept if line != kept[at])
    assert kept[at] == f"[garrison left out {left_out} bytes here]"
    before = log.stat()
    log_retention.shorten_log(log, 10_000)
    assert log.stat() == before
    log = tmp_path / "a.log"
    log.write_bytes(b"x" * 10_000)
    log_retention.shorten_log(log, 400)
    assert log.read_bytes() == b"x" * 100 + b"\n[garrison left out 9600 bytes here]\n" + b"x" * 300


def test_a_log_that_cannot_be_shortened_or_bounded_does_no_harm(tmp_path: Path) -> None:
    log_retention.shorten_log(tmp_path / "none.log")
    (tmp_path / "folder.log").mkdir()
    log_retention.shorten_log(tmp_path / "folder.log")
    log_retention.remove_old_logs(tmp_path / "nowhere")
    log_retention.remove_old_logs(tmp_path, max_logs=0)
    assert (tmp_path / "folder.log").is_dir()
    (tmp_path / "b.log").write_bytes(b"x" * 10_000)
    (tmp_path / "link.log").symlink_to(tmp_path / "b.log")
    for name in ("none.log", "link.log", "."):
        assert not log_retention.bound_log(tmp_path / name, 10)
    assert (tmp_path / "b.log").read_bytes() == b"x" * 10_000


def blocks(path: Path) -> int:
    return path.stat().st_blocks * 512


def test_a_growing_log_frees_its_middle_and_keeps_every_offset_as_for_a_watched_job(tmp_path: Path) -> None:
    log, limit = tmp_path / "a.log", 1 << 20
    lines = "".join(f"{number:015}\n" for number in range(262_144)).encode()  # 4 MiB, and 16 bytes a line
    with log.open("ab", buffering=0) as writer, log.open("rb") as reader:
        writer.write(lines)
        reader.seek(len(lines))
        assert log_retention.bound_log(log, limit)
        assert log.stat().st_size == len(lines)
        assert blocks(log) <= limit
        writer.write(b"next\n")
        assert reader.read() == b"next\n"
    kept = log.read_bytes()
    assert kept.startswith(lines[:limit // 4])
    assert kept[limit // 4:].startswith(b"\n[garrison left out what follows here]\n\0")
    assert kept.endswith(lines[-limit // 4:] + b"next\n")
    assert not log_retention.bound_log(log, limit)
    log_retention.shorten_log(log, 4096)
    assert b"\0" not in log.read_bytes()
    assert log.read_bytes().endswith(lines[-160:] + b"next\n")
    log = tmp_path / "gate.log"
    log.write_bytes(b"x" * (4 << 20))
    own = processes.probe(os.getpid())
    JobWatch(processes.ProcessId(own.pid, own.ticks), "", 60.0, logs=[log], max_log=1 << 20).inspect(1.0)
    assert blocks(log) <= 1 << 20


def test_the_least_recently_written_logs_are_removed(tmp_path: Path) -> None:
    for number in range(6):
        (tmp_path / f"{number}.log").write_text("")
        os.utime(tmp_path / f"{number}.log", (number, number))
    (tmp_path / "other").write_text("")
    log_retention.remove_old_logs(tmp_path, [tmp_path / "1.log"], max_logs=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.log", "3.log", "4.log", "5.log", "other"]


def test_the_logs_of_a_run_are_those_of_its_finished_entries_and_none_of_an_unreadable_queue(tmp_path: Path) -> None:
    """Run r1 has a finished entry and a waiting one, r2 a finished one."""
    folder = tmp_path / "merge-queue/repo-1/main"
    (folder / "logs").mkdir(parents=True)
    journal = Writer(folder / "journal.jsonl", "processor-p@r1#1")
    for name, run, node in (("a-1-x", "r1", "a"), ("b-1-x", "r1", "b"), ("a-1-y", "r2", "a")):
        journal.append("enq", {"entry": name, "run": run, "node": node, "attempt": 1, "oid": "1" * 40, "repo": "/r",
                               "branch": f"garrison/{run}/{node}", "target": "main", "strategy": "merge",
                               "supersedes": [], "recipient": ""}, AT)
    for name in ("a-1-x", "a-1-y"):
        journal.append("cancel", {"entry": name, "reason": "not wanted"}, AT)
    journal.close()
    for name in ("a-1-x.1", "a-1-x.2", "a-1-x.2.setup", "b-1-x.1", "a-1-y.1", "preflight-r1", "preflight-r1.setup",
                 "preflight-r12", "preflight-hand"):
        (folder / "logs" / f"{name}.log").write_text("")
    assert sorted(path.name for path in history.gate_logs_of_run(tmp_path, "r1")) == [
        "a-1-x.1.log", "a-1-x.2.log", "a-1-x.2.setup.log", "preflight-r1.log", "preflight-r1.setup.log"]
    assert [path.name for path in history.gate_logs_of_run(tmp_path, "r3")] == []
    lines = (folder / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "journal.jsonl").write_bytes(b"".join([lines[0], b"rubbish\n", *lines[1:]]))
    assert history.gate_logs_of_run(tmp_path, "r1") == []


def test_the_hole_of_a_sparse_log_is_reported_and_not_printed(tmp_path: Path,
                                                              capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    """Seen: a log of a terabyte, which an agent had created with one call, was printed for hours."""
    log = tmp_path / "output.log"
    with log.open("wb") as file:
        file.write(b"begin\n")
        file.truncate(1 << 40)
        file.seek(0, os.SEEK_END)
        file.write(b"one\ntwo\n")
        file.truncate(1 << 41)
    printer = LogPrinter()
    assert printer.print_from(log, 0) == printer.print_from(log, 1 << 41) == 1 << 41
    shown = capsysbinary.readouterr().out
    assert shown.startswith(b"begin\n[") and b"omitted]\none\ntwo\n[" in shown and len(shown) < 200
    assert tail_offset(log, 3) > (1 << 41) - (100 << 20)
