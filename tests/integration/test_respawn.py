"""`garrison up`: several at once are harmless, and a run that cannot continue does not delay the others."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import Mock

import pytest
from click.testing import CliRunner

from garrison.cli import launch as launch_cmd
from garrison.errors import AlreadyAlive, Fenced, Refused
from garrison.launch import launch as launching
from garrison.launch import resume as resume_all
from garrison.processes.runtime import Runtime
from garrison.records import run as run_records
from garrison.records.run import Launch, RunFiles
from garrison.system import systemd
from support import git


@pytest.fixture
def home(repo: Path, tmp_path: Path) -> Path:
    """Return a home with the unfinished runs r1, whose target branch is gone, and r2."""
    tip = git(repo, "rev-parse", "main")
    for run, base in (("r1", "gone"), ("r2", "main")):
        run_records.save(RunFiles(tmp_path / "home", run).launch, Launch(
            run, "p", str(repo), base, "2026-01-31T12:00:00.000000Z", str(tmp_path / "trees"), base_oid=tip))
    return tmp_path / "home"


def test_a_run_that_cannot_be_resumed_is_reported_and_the_next_one_is_started(
        home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    monkeypatch.setattr(resume_all, "spawn_launcher", lambda _world, launch, _options: started.append(launch.run_id))
    words = resume_all.resume_all(home)
    assert [(word.run, word.state) for word in words] == [("r1", "refused"), ("r2", "started")]
    assert words[0].line.startswith("run r1 is not resumed: ")
    assert "no longer has the branch gone" in words[0].line
    assert started == ["r2"]


def test_the_command_reports_both_runs_and_fails_for_the_refused_one(
        home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resume_all, "spawn_launcher", lambda *_: 7)
    done = CliRunner().invoke(launch_cmd.up, ["--home", str(home)])
    assert (done.exit_code, done.stdout) == (1, "r2\n")
    assert done.stderr.startswith("run r1 is not resumed: ")
    told = CliRunner().invoke(launch_cmd.up, ["--home", str(home), "--json"])
    assert [(word["run"], word["state"]) for word in json.loads(told.stdout)] == [("r1", "refused"), ("r2", "started")]


def test_a_unit_of_this_home_is_started_instead(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    manager = systemd.Manager("/rt", "systemd-run", "systemctl")
    monkeypatch.setattr(systemd, "find_manager", lambda _environ: manager)
    monkeypatch.setattr(systemd, "has_unit", lambda *_: True)
    monkeypatch.setattr(systemd, "start_unit", lambda _manager, run: not begun.append(run))
    assert [word.why for word in resume_all.resume_all(home)][1] == "as garrison@r2.service"
    assert begun == ["r2"]


@pytest.mark.smoke
@pytest.mark.parametrize("lost", [AlreadyAlive("it lives"), Fenced("it moved on"), Refused("replace it first")])
def test_the_second_of_two_launchers_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch, lost: Exception) -> None:
    def too_late(world: launching.World, launch: Launch, _options: list[str]) -> int:
        launching.lease_launcher(world, launch.run_id)
        raise lost

    monkeypatch.setattr(resume_all, "spawn_launcher", too_late)
    assert [word.state for word in resume_all.resume_all(home)] == ["refused", "tended"]


def test_a_full_disk_keeps_the_other_runs_from_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = OSError(28, "No space left on device")
    monkeypatch.setattr(resume_all, "spawn_launcher", Mock(side_effect=full))
    words = resume_all.resume_all(home)
    assert [word.state for word in words] == ["refused", "refused"]
    assert "No space left" in words[1].line


def test_a_launcher_whose_dead_predecessor_was_replaced_names_the_one_that_has_the_run(
        home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = Runtime.real(home)
    leased = launching.lease_launcher(world, "r2")
    world.store.update(type(leased), leased.key, lambda _: launching.replace(leased, spawn_deadline=leased.created_at))

    monkeypatch.setattr(launching, "replace_incarnation", Mock(side_effect=Fenced("it moved on")))
    with pytest.raises(AlreadyAlive, match="another launcher of run r2"):
        launching.lease_launcher(world, "r2")
