"""Findings of the doctor: facts in, findings out; nothing of the machine is examined."""

from __future__ import annotations

from pathlib import Path

import pytest

from garrison.cli import clean
from garrison.cli.clean import parse_duration
from garrison.doctor import cleanup, findings
from garrison.doctor.examine import CHECK_NAMES
from garrison.doctor.findings import FileState, Finding, Severity
from garrison.doctor.fixes import REMEDIES, Remedy, end_process, fence_incarnation, quarantine_file, remove_folder
from garrison.doctor.machine import file_system
from garrison.errors import UsageError
from garrison.node.snapshots import next_delay
from garrison.processes.runtime import Runtime
from garrison.records.identity import Identity
from garrison.records.run import Launch
from garrison.run.status import RunStatus
from garrison.system.processes import ProcessRow
from garrison.system.terminal import ProcessTerminal, TerminalSession
from garrison.values import replace

AT = "2026-01-01T00:00:00.000000Z"


def summary(finding: Finding | None) -> tuple[str, str, str] | None:
    """Return check, severity and remedy; the check must be one of the table."""
    if finding is None:
        return None
    assert finding.check in CHECK_NAMES
    return finding.check, finding.severity, finding.remedy


def test_every_fix_has_a_unique_name_and_description() -> None:
    assert len({each.name for each in REMEDIES}) == len({each.description for each in REMEDIES}) == len(REMEDIES) == 19


@pytest.mark.parametrize(("state", "by_hand", "supervised", "expected"), [
    ("alive", False, False, None), ("starting", False, False, None), ("ended", False, False, None),
    ("elsewhere", False, False, ("identities", "note", "")), ("dead", True, False, ("identities", "note", "")),
    ("dead", False, True, ("identities", "note", "")), ("lapsed", False, True, ("identities", "note", "")),
    ("dead", False, False, ("identities", "warning", "fence")),
    ("lapsed", False, False, ("leases", "warning", "fence"))])
def test_identities(state: str, by_hand: bool, supervised: bool, expected: object) -> None:
    identity = Identity("id", "runner", "x", "r", AT)
    assert summary(findings.judge_identity(identity, state, "why", by_hand=by_hand, supervised=supervised)) == expected


@pytest.mark.parametrize(("name", "is_alive", "run_over", "exempt", "is_orphan"), [
    ("runner-a", True, False, False, False), ("runner-a", False, False, False, True),
    ("runner-a", False, False, True, False), ("runner-a", False, True, False, True),
    ("gate-x", False, False, False, False), ("gate-x", False, True, False, True)])
def test_orphans(name: str, is_alive: bool, run_over: bool, exempt: bool, is_orphan: bool) -> None:
    process = ProcessRow(7, 8, 1, "sh", "/h:r:runner-a#2")
    finding = findings.judge_process(process, name, 2, is_alive=is_alive, run_over=run_over, exempt=exempt)
    assert summary(finding) == (("orphans", "warning", "sweep") if is_orphan else None)


@pytest.mark.parametrize(("has_run", "is_alive", "supervised", "is_left"), [
    (True, False, False, True), (True, True, False, False), (True, False, True, False), (False, False, False, False)])
def test_sessions(has_run: bool, is_alive: bool, supervised: bool, is_left: bool) -> None:
    session = TerminalSession("tmux", "", "", "", 1, "x@r")
    finding = findings.judge_session(ProcessTerminal(Path("/h")), session, has_run=has_run, is_alive=is_alive,
                                     supervised=supervised)
    assert summary(finding) == (("sessions", "warning", "close") if is_left else None)


@pytest.mark.parametrize(("state", "held", "movable", "severity", "fix"), [
    (FileState.TORN, False, True, "error", quarantine_file), (FileState.TORN, True, True, "error", None),
    (FileState.TORN, False, False, "error", None), (FileState.NEWER, False, True, "error", None),
    (FileState.UNREADABLE, False, True, "error", None), (FileState.FOREIGN, False, True, "note", None),
    (FileState.HALF_WRITTEN, False, True, "warning", quarantine_file),
    (FileState.HALF_REMOVED, False, True, "warning", remove_folder)])
def test_only_a_torn_file_without_a_living_owner_is_moved(state: FileState, held: bool, movable: bool, severity: str,
                                                          fix: Remedy[Path] | None) -> None:
    path = Path("/h/x")
    finding = findings.judge_file(path, state, "why", held=held, movable=movable)
    assert summary(finding) == ("files", severity, fix.name if fix else "")
    assert finding.fix == (fix(path) if fix else None)


def test_disks_and_file_systems_whose_type_is_in_the_mount_table() -> None:
    path = Path("/h")
    assert findings.judge_disk(path, 0, 0, 1) is None, "a file system without a size"
    for free, total, severity in ((10, 10**12, "error"), (10**8, 10**12, "warning"), (10**8, 10**9, None),
                                  (10**9, 10**12, None)):
        finding = findings.judge_disk(path, free, total, 65536)
        assert (finding and finding.severity) == severity
    assert "the file system is read-only" in str(findings.judge_writable(path, path, is_read_only=True).text)
    assert findings.judge_file_system(path, "ext4", "") is None
    for kind, flock_error, severity in (("nfs4", "", "warning"), ("fuse.sshfs", "", "warning"),
                                        ("ext4", "no locks", "error")):
        finding = findings.judge_file_system(path, kind, flock_error)
        assert finding.severity == severity
    table = ("1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 0:5 / /mnt/with\\040space rw shared:1 - nfs4 host:/x rw\n"
             "3 1 0:6 / /mnt/w rw - tmpfs none rw\nnonsense\n")
    for path, kind in (("/home", "ext4"), ("/mnt/with space/x", "nfs4"), ("/mnt/w", "tmpfs"), ("/mnt/with", "ext4")):
        assert file_system(Path(path), table) == kind


GOOD = {"git": "2.43.0", "tmux": "3.4", "has_tmux": True, "inotify": True, "user_manager": True, "linger": True,
        "pidfd_info": True}


@pytest.mark.parametrize(("changes", "expected"), [
    ({}, []), ({"git": "2.30.1"}, [("git", "error")]), ({"git": ""}, [("git", "error")]),
    ({"tmux": ""}, [("tmux", "note")]), ({"tmux": "", "has_tmux": False}, [("tmux", "note")]),
    ({"inotify": False}, [("inotify", "warning")]), ({"linger": False}, [("user manager", "note")]),
    ({"user_manager": False, "linger": False}, [("user manager", "note")]),
    ({"pidfd_info": False}, [("pidfd", "note")])])
def test_machines(changes: dict[str, object], expected: list[tuple[str, str]]) -> None:
    result = findings.judge_machine(**{**GOOD, **changes})  # type: ignore[arg-type]
    assert [(finding.check, finding.severity) for finding in result] == expected
    assert all(finding.check in CHECK_NAMES for finding in result)


def test_a_run_without_a_launcher_is_left_to_the_user() -> None:
    status = RunStatus("r", "running")
    finding = findings.judge_run(status, needs_launcher=True)
    assert finding.wrong and finding.fix is None
    assert "garrison up" in finding.advice
    assert findings.judge_run(status, needs_launcher=False) is None


def test_a_fixed_finding_is_not_wrong_a_note_never_is_and_both_are_json() -> None:
    finding = Finding("orphans", Severity.WARNING, "x", end_process("m", 1, 2))
    assert finding.wrong
    assert not finding.fixed().wrong
    assert finding.fixed("it still runs").wrong
    assert not Finding("tmux", Severity.NOTE, "x").wrong
    fix = fence_incarnation(Identity("id", "runner", "x", "r", AT))
    assert Finding("leases", Severity.WARNING, "x", fix).body() == {
        "check": "leases", "severity": "warning", "finding": "x", "remedy": "fence", "would": fix.description,
        "outcome": "", "wrong": True}
    assert Finding("git", Severity.ERROR, "x", advice="install it").body() == {
        "check": "git", "severity": "error", "finding": "x", "remedy": "", "would": "install it", "outcome": "",
        "wrong": True}


LAUNCH = Launch("r", "p", "/repo", "main", AT, "/trees")


@pytest.mark.parametrize(("status", "over", "objection"), [
    (RunStatus("r", "done", LAUNCH), True, ""), (RunStatus("r", "failed", LAUNCH), True, ""),
    (RunStatus("r", "stopped", LAUNCH), False, "garrison resume"),
    (RunStatus("r", "running", LAUNCH), False, "garrison resume"),
    (RunStatus("r", "failed", LAUNCH, resumable=True), False,
     "parked nodes or without having landed, and can continue"),
    (RunStatus("r", "corrupt"), False, "doctor"), (RunStatus("r", "done", LAUNCH, ("runner-a@r",)), False, "stop"),
    (RunStatus("r", "failed", LAUNCH, waiting=("a-1",)), False, "merge-queue"),
    (RunStatus("r", "new", replace(LAUNCH, adhoc=True)), True, ""),
    (RunStatus("r", "new", replace(LAUNCH, adhoc=True), was_registered=False), False, "garrison up"),
    (RunStatus("r", "interrupted", replace(LAUNCH, adhoc=True)), False, "garrison up"),
    (RunStatus("r", "new", replace(LAUNCH, adhoc=True), waiting=("a-1",)), False, "merge-queue")])
def test_only_a_run_that_is_over_may_be_removed(status: RunStatus, over: bool, objection: str) -> None:
    assert status.over is over
    assert (status.objection == "") is over
    assert objection in status.objection


def test_a_run_is_old_by_the_time_of_its_end() -> None:
    statuses = [RunStatus("old", "done", LAUNCH), RunStatus("young", "done", LAUNCH),
                RunStatus("unfinished", "running", LAUNCH)]
    ended_at = {"old": 100.0, "young": 900.0, "unfinished": 0.0}
    assert [status.run for status in cleanup.select_runs(statuses, 500, 1000.0, ended_at)] == ["old"]
    assert [status.run for status in cleanup.select_runs(statuses, 0, 1000.0, ended_at)] == ["old", "young"]


def test_durations_are_parsed() -> None:
    for text, seconds in (("0", 0), ("90s", 90), ("15m", 900), ("1.5h", 5400), ("7d", 604800), ("2w", 1209600)):
        assert parse_duration(None, None, text) == seconds  # type: ignore[arg-type]
    for bad in ("", "d", "-1d", "7 d", "1y"):
        with pytest.raises(UsageError):
            parse_duration(None, None, bad)  # type: ignore[arg-type]


def test_failing_snapshots_are_retried_less_and_less_often() -> None:
    assert [next_delay(300, failures) for failures in (0, 1, 2, 5, 50)] == [300, 600, 1200, 9600, 9600]


ENDED = "2026-01-01T00:00:00.000000Z"
RUNS = [
    RunStatus("over", "failed", ended_at=ENDED),
    RunStatus("unlanded", "failed", resumable=True, ended_at=ENDED),
    RunStatus("living", "failed", living=("launch@living",), resumable=True, ended_at=ENDED),
    RunStatus("stopped", "stopped", ended_at=ENDED),
]


def test_clean_leaves_a_failed_run_that_can_continue_and_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                                  capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(clean, "run_statuses", lambda runtime: {run.run: run for run in RUNS})
    runtime = Runtime.real(tmp_path, {})
    assert [run.run for run in clean.select_runs(runtime, None, 0.0, force=False)] == ["over"]
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert "run unlanded stays" in said[0] and "--run unlanded --force" in said[0]
