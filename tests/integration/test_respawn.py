"""`garrison up`: several at once are harmless, and one run that cannot go on does not keep the others waiting."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from garrison.errors import AlreadyAlive, Fenced, Refused
from garrison.layers import launching
from garrison.records import run as run_records
from garrison.records.run import Launch, RunFiles


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with the unfinished runs r1, whose target branch is gone, and r2."""
    repo = tmp_path / "repo"
    repo.mkdir()
    for words in (["init", "-q", "-b", "main"],
                  ["-c", "user.name=t", "-c", "user.email=t@localhost", "commit", "-q", "--allow-empty", "-m", "one"]):
        subprocess.run(["git", *words], cwd=repo, check=True)
    tip = subprocess.run(["git", "rev-parse", "main"], cwd=repo, check=True, capture_output=True, text=True).stdout
    for run, base in (("r1", "gone"), ("r2", "main")):
        run_records.save(RunFiles(tmp_path / "home", run).launch, Launch(
            run, "p", str(repo), base, "2026-01-31T12:00:00.000000Z", str(tmp_path / "trees"), base_oid=tip.strip()))
    return tmp_path / "home"


def test_a_run_that_cannot_go_on_is_told_and_the_next_one_started(
        home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    started: list[str] = []
    monkeypatch.setattr(launching, "start_detached", lambda _world, launch, _options: started.append(launch.run_id))
    assert launching.respawn(home) == ["r2"] == started
    assert "run r1 is not resumed: " in capsys.readouterr().err


@pytest.mark.parametrize("lost", [AlreadyAlive("it lives"), Fenced("it moved on"), Refused("replace it first")])
def test_who_comes_second_says_nothing(home: Path, monkeypatch: pytest.MonkeyPatch, lost: Exception) -> None:
    def too_late(*_: object) -> int:
        raise lost

    monkeypatch.setattr(launching, "start_detached", too_late)
    assert launching.respawn(home) == []


def test_a_launcher_that_finds_the_dead_one_replaced_already_says_who_has_it(
        home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = launching.World.real(home)
    leased = launching.lease_launcher(world, "r2")
    world.store.update(type(leased), leased.key, lambda _: launching.replace(leased, spawn_deadline=leased.created_at))

    def moved(*_: object) -> None:
        raise Fenced("it moved on")

    monkeypatch.setattr(launching, "replace_life", moved)
    with pytest.raises(AlreadyAlive, match="another launcher of run r2"):
        launching.lease_launcher(world, "r2")
