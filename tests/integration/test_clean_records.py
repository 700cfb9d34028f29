"""`garrison clean` for what belongs to no run: old records of other commands, saved work of runs cleaned before."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from garrison.doctor import cleanup
from garrison.doctor.cleanup import CleanupOptions
from garrison.errors import Refused
from garrison.merge import commands
from garrison.merge.config import QueueConfig
from garrison.merge.queue import MergeQueue
from garrison.merge.slots import acquire_slot
from garrison.processes.runtime import Runtime
from garrison.records.life_lock import LifeLock
from garrison.records.run import Launch
from garrison.run.status import RunStatus
from garrison.system.git import Git
from support import Place, checkout_in, git, make_repository

DAY = 86400.0


def touched(path: Path, days: float) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}")
    os.utime(path, (time.time() - days * DAY, time.time() - days * DAY))
    return path


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for name in ("pipelines/old/journal.jsonl", "plans/old/plan.json", "sessions/old/session.json",
                 "conversations/old.jsonl", "workflows/old.json", "workflows/logs/old.log",
                 "workflows/runs/old/journal.jsonl", "quarantine/old_x", "merge-queue/k/main/journal-10.jsonl",
                 "merge-queue/k/main/journal-20.jsonl",
                 "merge-queue/k/main/journal.jsonl", "merge-queue/k/main/damaged-1.jsonl"):
        touched(tmp_path / "home" / name, 40)
    for name in ("pipelines/new/manifest.json", "plans/new/plan.json", "pipelines/half/manifest.json",
                 "conversations/new.jsonl", "workflows/runs/new/journal.jsonl", "runs/r1/journal.jsonl", "config.toml"):
        touched(tmp_path / "home" / name, 1)
    touched(tmp_path / "home/pipelines/half/journal.jsonl", 40)
    return tmp_path / "home"


def test_only_records_unused_for_a_while_are_old(home: Path) -> None:
    found = cleanup.find_old_records(home, 30 * DAY, time.time())
    assert {str(path.relative_to(home)) for path in found} == {
        "pipelines/old", "plans/old", "sessions/old", "conversations/old.jsonl", "workflows/old.json",
        "workflows/logs/old.log", "workflows/runs/old", "quarantine/old_x", "merge-queue/k/main/journal-10.jsonl",
        "merge-queue/k/main/damaged-1.jsonl"}
    for path in found:
        cleanup.remove_old_record(path)
    assert cleanup.find_old_records(home, 30 * DAY, time.time()) == []
    assert (home / "pipelines/half/journal.jsonl").exists()
    assert (home / "workflows/runs/new").is_dir()


def test_a_record_locked_by_a_process_stays(home: Path) -> None:
    lock = LifeLock.try_acquire(home / "pipelines/old/owner.lock")
    os.utime(home / "pipelines/old/owner.lock", (0, 0))
    try:
        assert home / "pipelines/old" not in cleanup.find_old_records(home, 30 * DAY, time.time())
        with pytest.raises(Refused, match="is used by a process"):
            cleanup.remove_old_record(home / "pipelines/old")
    finally:
        lock.release()
    assert home / "pipelines/old" in cleanup.find_old_records(home, 30 * DAY, time.time())


def test_saved_work_of_forgotten_runs_is_removed_once_it_has_landed(repo: Path) -> None:
    landed = git(repo, "rev-parse", "main")
    unlanded = git(repo, "commit-tree", f"{landed}^{{tree}}", "-p", landed, "-m", "x")
    (repo / "other").write_text("x")
    git(repo, "add", "-A")
    other = git(repo, "commit-tree", git(repo, "write-tree"), "-p", landed, "-m", "other")
    git(repo, "reset", "-q", "--hard")
    for name, commit in (("rescue/gone/n/1", landed), ("rescue/gone/n/2", other), ("rescue/known/n/1", landed),
                         ("archive/gone/n", landed), ("rescue/gone/n/3", unlanded)):
        git(repo, "update-ref", f"refs/garrison/{name}", commit)

    def found(options: CleanupOptions, older_than: float = 0.0) -> list[str]:
        refs = cleanup.find_forgotten_refs(Git(repo), {"known"}, landed, options, older_than, time.time())
        return [ref.removeprefix("refs/garrison/") for ref in refs]

    assert found(CleanupOptions()) == []
    assert found(CleanupOptions(rescues=True)) == ["rescue/gone/n/1", "rescue/gone/n/3"]
    assert found(CleanupOptions(archives=True)) == ["archive/gone/n"]
    assert found(CleanupOptions(rescues=True, include_unlanded=True)) == [
        "rescue/gone/n/1", "rescue/gone/n/2", "rescue/gone/n/3"]
    assert found(CleanupOptions(rescues=True), older_than=DAY) == []


def test_a_cleaned_run_leaves_no_pin_of_its_queue_and_its_only_work_is_saved(repo: Path, tmp_path: Path) -> None:
    """Regression: every rejected or conflicting entry left a ref for ever."""
    home = tmp_path / "home"
    for node in ("kept", "lost", "waits"):
        git(repo, "checkout", "-qb", node, "main")
        (repo / node).write_text(node)
        git(repo, "add", "-A")
        git(repo, "commit", "-qm", node)
    git(repo, "checkout", "-q", "main")
    queue = MergeQueue(home, repo, token="test")
    queue.configure(QueueConfig("true", None, False, 60.0))
    entries = {node: queue.enqueue("over", node, 1, node).id for node in ("kept", "lost", "waits")}
    other = queue.enqueue("other", "kept", 1, "kept").id
    lost = git(repo, "rev-parse", "lost")
    git(repo, "branch", "-D", "lost")
    for entry in (entries["kept"], entries["lost"], other):
        commands.cancel(queue, entry, "a test")
    plan = cleanup.CleanupPlan(RunStatus("over", "failed"))
    cleanup.drop_pins(Runtime.real(home), Git(repo), plan)
    refs = git(repo, "for-each-ref", "--format=%(refname)", "refs/garrison").splitlines()
    assert refs == sorted([f"refs/garrison/mq/{entries['waits']}/head", f"refs/garrison/mq/{other}/head",
                           "refs/garrison/rescue/over/lost/1-queued"])
    assert git(repo, "rev-parse", "refs/garrison/rescue/over/lost/1-queued") == lost
    assert plan.rescued == ["refs/garrison/rescue/over/lost/1-queued"]


@pytest.mark.parametrize(("options", "left"), [
    (CleanupOptions(), ["archive/r/landed", "archive/r/open", "archive/r/open-2"]),
    (CleanupOptions(archives=True), ["archive/r/open-2"]),
    (CleanupOptions(archives=True, include_unlanded=True), [])])
def test_branches_that_a_clean_up_archives_follow_its_options_too(repo: Path, tmp_path: Path, options: CleanupOptions,
                                                                  left: list[str]) -> None:
    """An idle slot that a killed launcher left is removed. `open` has an archive of other work, which has landed."""
    home = tmp_path / "home"
    git(repo, "branch", "garrison/r/landed")
    git(repo, "update-ref", "refs/garrison/archive/r/open", "main")
    unlanded = git(repo, "commit-tree", "4b825dc642cb6eb9a060e54bf8d69288fbee4904", "-p", "main", "-m", "x")
    git(repo, "branch", "garrison/r/open", unlanded)
    launch = Launch("r", "crew", str(repo), "main", "", str(tmp_path / "trees"))
    slot = acquire_slot(Git(repo), tmp_path / "trees" / Git(repo).key)
    slot.prepare(git(repo, "rev-parse", "main"))
    slot.release()
    plan = cleanup.plan_cleanup(Runtime.real(home), RunStatus("r", "failed", launch), options)
    cleanup.clean_repository(Runtime.real(home), Git(repo), plan)
    refs = git(repo, "for-each-ref", "--format=%(refname)", "refs/garrison", "refs/heads/garrison").splitlines()
    assert [ref.removeprefix("refs/garrison/") for ref in refs] == left
    assert not (tmp_path / "trees").exists() or not list((tmp_path / "trees").rglob("slot-*"))


def test_the_command_lists_removes_and_refuses(home: Path, tmp_path: Path) -> None:
    repo = checkout_in(tmp_path)
    make_repository(repo)
    git(repo, "update-ref", "refs/garrison/rescue/gone/n/1", "main")
    place = Place(tmp_path)
    shutil.rmtree(place.home)
    home = home.rename(place.home)
    for words, error in ((("--records",), "--records requires --older-than AGE"),
                         (("--repo", place.repo), "--repo requires --archives or --rescues"),
                         (("--records", "--all-done", "--older-than", "30d"), "pass either --run RUN or --all-done")):
        done = place.command("clean", *words)
        assert done.returncode == 2
        assert error in done.stderr
    done = place.command("clean", "--records", "--older-than", "30d", "--dry-run")
    assert (done.returncode, "pipelines/old" in done.stderr, (home / "pipelines/old").exists()) == (0, True, True)
    done = place.command("clean", "--records", "--older-than", "30d")
    assert done.returncode == 1
    assert "pass --yes to remove 10 of them" in done.stderr
    done = place.command("clean", "--repo", place.repo, "--rescues", "--yes")
    assert done.stdout == "removed refs/garrison/rescue/gone/n/1\n"
    assert git(place.repo, "for-each-ref", "refs/garrison") == ""
