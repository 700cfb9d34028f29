"""What the doctor makes of facts: tables, no machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from garrison.cli.clean import parse_duration
from garrison.doctor import cleanup, findings
from garrison.doctor.examine import CHECKS
from garrison.doctor.findings import (
    REMEDIES,
    BearerFact,
    FileFact,
    LifeFact,
    MachineFact,
    RoomFact,
    RunFact,
    SessionFact,
)
from garrison.doctor.fixes import _MENDS
from garrison.doctor.machine import file_system
from garrison.errors import UsageError
from garrison.processes.run_status import RunStatus
from garrison.processes.snapshots import next_delay
from garrison.records.run import Launch


def told(finding: findings.Finding | None) -> tuple[str, str, str] | None:
    return finding and (finding.check, finding.severity, finding.remedy)


def test_every_remedy_can_be_done() -> None:
    assert set(_MENDS) == set(REMEDIES)


@pytest.mark.parametrize(("state", "by_hand", "supervised", "expected"), [
    ("alive", False, False, None), ("starting", False, False, None), ("ended", False, False, None),
    ("elsewhere", False, False, ("lives", "note", "")), ("dead", True, False, ("lives", "note", "")),
    ("dead", False, True, ("lives", "note", "")), ("lapsed", False, True, ("lives", "note", "")),
    ("dead", False, False, ("lives", "warning", "fence")), ("lapsed", False, False, ("leases", "warning", "fence"))])
def test_lives(state: str, by_hand: bool, supervised: bool, expected: object) -> None:
    assert told(findings.judge_life(LifeFact("x@r", "r", "active", state, "why", by_hand, supervised))) == expected


BEARER = BearerFact(7, 8, "sh", "/h:r:runner-a#2", "runner-a", 2, current=True, living=True, run_over=False)


@pytest.mark.parametrize(("changes", "orphan"), [
    ({}, False), ({"living": False}, True), ({"current": False}, True), ({"current": False, "living": False}, True),
    ({"living": False, "spared": True}, False), ({"living": False, "run_over": True}, True),
    ({"life": "gate-x", "current": False, "living": False}, False),
    ({"life": "gate-x", "current": False, "living": False, "run_over": True}, True)])
def test_orphans(changes: dict[str, object], orphan: bool) -> None:
    found = findings.judge_bearer(replace(BEARER, **changes))
    assert told(found) == (("orphans", "warning", "sweep") if orphan else None)


@pytest.mark.parametrize(("known", "living", "keeper", "left"), [
    (True, False, False, True), (True, True, False, False), (True, False, True, False), (False, False, False, False)])
def test_sessions(known: bool, living: bool, keeper: bool, left: bool) -> None:
    found = findings.judge_session(SessionFact("x@r", "tmux", known, living, keeper))
    assert told(found) == (("sessions", "warning", "close") if left else None)


@pytest.mark.parametrize(("kind", "held", "movable", "severity", "remedy"), [
    ("torn", False, True, "error", "quarantine"), ("torn", True, True, "error", ""),
    ("torn", False, False, "error", ""), ("newer", False, True, "error", ""), ("unreadable", False, True, "error", ""),
    ("foreign", False, True, "note", ""), ("half", False, True, "warning", "quarantine")])
def test_only_what_is_torn_and_nobodys_is_moved(kind: str, held: bool, movable: bool, severity: str,
                                                remedy: str) -> None:
    assert told(findings.judge_file(FileFact("/h/x", kind, "why", held, movable))) == ("files", severity, remedy)


def test_disks_and_file_systems() -> None:
    assert findings.judge_room(RoomFact("/", 0, 0), 1) is None, "a file system without a size"
    for free, total, severity in ((10, 10**12, "error"), (10**8, 10**12, "warning"), (10**8, 10**9, None),
                                  (10**9, 10**12, None)):
        found = findings.judge_room(RoomFact("/", free, total), 65536)
        assert (found and found.severity) == severity
    assert findings.judge_file_system("/h", "ext4", "") is None
    for kind, flock, severity in (("nfs4", "", "warning"), ("fuse.sshfs", "", "warning"),
                                  ("ext4", "no locks", "error")):
        found = findings.judge_file_system("/h", kind, flock)
        assert found is not None
        assert found.severity == severity


def test_the_mount_table() -> None:
    table = ("1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 0:5 / /mnt/with\\040space rw shared:1 - nfs4 host:/x rw\n"
             "3 1 0:6 / /mnt/w rw - tmpfs none rw\nnonsense\n")
    for path, kind in (("/home", "ext4"), ("/mnt/with space/x", "nfs4"), ("/mnt/w", "tmpfs"), ("/mnt/with", "ext4")):
        assert file_system(Path(path), table) == kind


GOOD = MachineFact("2.43.0", "3.4", has_tmux=True, inotify=True, user_manager=True, linger=True, pidfd_info=True)


@pytest.mark.parametrize(("changes", "expected"), [
    ({}, []), ({"git": "2.30.1"}, [("git", "error")]), ({"git": ""}, [("git", "error")]),
    ({"tmux": ""}, [("tmux", "note")]), ({"tmux": "", "has_tmux": False}, [("tmux", "note")]),
    ({"inotify": False}, [("inotify", "warning")]), ({"linger": False}, [("user manager", "note")]),
    ({"user_manager": False, "linger": False}, [("user manager", "note")]),
    ({"pidfd_info": False}, [("pidfd", "note")])])
def test_machines(changes: dict[str, object], expected: list[tuple[str, str]]) -> None:
    found = findings.judge_machine(replace(GOOD, **changes))
    assert [(one.check, one.severity) for one in found] == expected
    assert all(one.check in CHECKS for one in found)


def test_a_run_without_a_launcher_is_for_a_person() -> None:
    found = findings.judge_run(RunFact("r", "running", wants_launcher=True))
    assert found is not None
    assert found.wrong
    assert "garrison up" in found.advice
    assert findings.judge_run(RunFact("r", "running", wants_launcher=False)) is None


def test_what_is_fixed_is_not_wrong_and_a_note_never_is() -> None:
    one = findings.Finding("lives", "warning", "x", "fence")
    assert one.wrong
    assert not one.fixed().wrong
    assert one.fixed("it would not").wrong
    assert not findings.Finding("tmux", "note", "x").wrong


LAUNCH = Launch("r", "p", "/repo", "main", "2026-01-01T00:00:00.000000Z", "/trees")


@pytest.mark.parametrize(("standing", "over", "says"), [
    (RunStatus("r", "done", LAUNCH), True, ""), (RunStatus("r", "failed", LAUNCH), True, ""),
    (RunStatus("r", "stopped", LAUNCH), False, "--resume"), (RunStatus("r", "running", LAUNCH), False, "--resume"),
    (RunStatus("r", "failed", LAUNCH, resumable=True), False, "parked nodes and can continue"),
    (RunStatus("r", "unreadable"), False, "doctor"), (RunStatus("r", "done", LAUNCH, ("runner-a@r",)), False, "stop"),
    (RunStatus("r", "failed", LAUNCH, waiting=("a-1",)), False, "merge-queue"),
    (RunStatus("r", "new", replace(LAUNCH, adhoc=True)), True, ""),
    (RunStatus("r", "new", replace(LAUNCH, adhoc=True), was_registered=False), False, "--resume"),
    (RunStatus("r", "new", replace(LAUNCH, adhoc=True), waiting=("a-1",)), False, "merge-queue")])
def test_only_a_run_that_is_over_may_be_removed(standing: RunStatus, over: bool, says: str) -> None:
    assert standing.over is over
    assert (standing.objection == "") is over
    assert says in standing.objection


def test_old_enough_is_by_when_a_run_was_last_heard_of() -> None:
    known = [RunStatus("old", "done", LAUNCH), RunStatus("young", "done", LAUNCH), RunStatus("going", "running",
                                                                                             LAUNCH)]
    ages = {"old": 100.0, "young": 900.0, "going": 0.0}
    assert [one.run for one in cleanup.select_runs(known, 500, 1000.0, ages)] == ["old"]
    assert [one.run for one in cleanup.select_runs(known, 0, 1000.0, ages)] == ["old", "young"]


def testparse_durations_of_time() -> None:
    for text, seconds in (("0", 0), ("90s", 90), ("15m", 900), ("12h", 43200), ("7d", 604800), ("2w", 1209600)):
        assert parse_duration(None, None, text) == seconds  # type: ignore[arg-type]
    for bad in ("", "d", "-1d", "7 d", "1y", "1.5h"):
        with pytest.raises(UsageError):
            parse_duration(None, None, bad)  # type: ignore[arg-type]


def test_failing_snapshots_are_tried_less_and_less_often() -> None:
    assert [next_delay(300, failures) for failures in (0, 1, 2, 5, 50)] == [300, 600, 1200, 9600, 9600]
