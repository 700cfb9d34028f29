"""Commands of users while a processor works: accepted at any moment, effective at its next step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from merge_support import World, await_gate, check, drive, finish, git

from garrison.errors import Refused
from garrison.merge import commands, recovery
from garrison.merge.config import QueueConfig
from garrison.merge.entry import EntryOptions
from garrison.merge.records import LandingStarted, StatusChanged
from garrison.processes.runtime import Runtime
from garrison.records.events import FactRecorded, encode
from garrison.records.journal import Writer
from garrison.records.run import RunFiles, Task, save
from garrison.views.changes import read_review


@pytest.fixture
def world(tmp_path):
    """Return a world whose gate runs until the file `open` exists, and fails with `bad`."""
    world = World(tmp_path, gate=f"until test -e {tmp_path}/open; do sleep 0.01; done; test ! -e bad")
    world.open = tmp_path / "open"
    for name in ("one", "two"):
        world.branch(name, {f"{name}.txt": "x\n"})
    return world


def running(world):
    processor = world.processor()
    await_gate(processor)
    return processor


@pytest.mark.parametrize("how", ["hold", "cancel", "another strategy", "another gate", "superseded"])
def test_a_command_ends_the_gate_run_of_its_entry_and_the_others_land(world, how):
    one = world.enqueue("one")
    world.enqueue("two")
    processor = running(world)
    if how == "hold":
        assert commands.hold(world.queue, one.id).status == "held"
        assert commands.hold(world.queue, one.id).reason == "held by the user"
    elif how == "cancel":
        commands.cancel(world.queue, one.id, "not wanted")
    elif how == "another strategy":
        again = world.queue.enqueue("r", "one", 1, "one", options=EntryOptions(strategy="squash"))
        assert (again.id, again.status, again.strategy) == (one.id, "queued", "squash")
    elif how == "another gate":
        world.config = QueueConfig(f"test -e one.txt -o -e two.txt && git rev-parse 'HEAD^{{tree}}' >> {world.witness}")
        commands.reconfigure(world.queue, gate=world.config.gate)
    else:
        world.add("one", {"one.txt": "y\n"})
    world.open.touch()
    finish(processor)
    wanted = {"hold": "held", "cancel": "cancelled"}.get(how, "landed")
    assert world.statuses() == {"one": wanted, "two": "landed"}
    if how == "another strategy":
        assert "Merge one" not in git(world.repo, "log", "--format=%s", "main")
    if how == "hold":
        assert commands.release(world.queue, one.id).status == "queued"
        world.drain()
        assert world.statuses()["one"] == "landed"
    if how == "another strategy":
        return  # the checker knows merges only
    check(world)


def test_a_command_amid_a_step_takes_effect_at_the_next(world, monkeypatch):
    one = world.enqueue("one")
    world.open.touch()
    processor = world.processor()
    swap = processor.lander.swap

    def late(landing, *, recorded):
        commands.hold(world.queue, one.id)
        return swap(landing, recorded=recorded)

    monkeypatch.setattr(processor.lander, "swap", late)
    finish(processor)
    assert world.statuses() == {"one": "held"}
    assert world.tip() == world.start
    assert not (world.repo / ".git/index.lock").exists()
    check(world)


def test_a_manual_pause_outlasts_verdicts_target_moves_and_processors(world):
    world.enqueue("one")
    processor = running(world)
    assert commands.pause(world.queue, "release day").describe().startswith("the queue is paused: release day")
    world.open.touch()
    assert "release day" in drive(processor, "paused").text
    git(world.repo, "commit", "-q", "--allow-empty", "-m", "moved")
    drive(processor, "paused")
    processor.close()
    world.queue.resume_own_pause("pre-flight passed")
    world.drain(until="paused")
    assert world.statuses()["one"] in ("testing", "candidate")
    assert commands.resume(world.queue).is_manual
    assert commands.resume(world.queue) is None
    assert world.drained() == {"one": "landed"}
    check(world, foreign=1)


def test_retry_is_another_attempt_at_the_same_commit_even_if_the_branch_is_gone(world):
    world.open.touch()
    oid = world.branch("one", {"bad": "x\n"})
    first = world.enqueue("one")
    assert world.drained() == {"one": "rejected"}
    git(world.repo, "branch", "-qD", "one")
    commands.reconfigure(world.queue, gate=f"git rev-parse 'HEAD^{{tree}}' >> {world.witness}")
    again = commands.retry(world.queue, first.id)
    assert commands.retry(world.queue, first.id) == again, "repeating it changes nothing"
    assert (again.attempt, again.oid, again.recipient, again.status) == (2, oid, "", "queued")
    with pytest.raises(Refused, match="only a failed entry"):
        commands.retry(world.queue, again.id)
    world.drain()
    with pytest.raises(Refused, match="has a later attempt"):
        commands.retry(world.queue, first.id)
    assert [entry.status for entry in world.queue.entries()] == ["rejected", "landed"]
    check(world)


def test_a_dependent_entry_waits_and_names_what_it_waits_for(world):
    world.open.touch()
    bad = world.add("bad", {"bad": "x\n"})
    two = world.queue.enqueue("r", "two", 1, "two", options=EntryOptions(depends_on=("bad",), priority=9))
    one = world.enqueue("one")
    assert f"{two.id} waits for {bad.id} (rejected)" in world.drain(until="blocked").text
    assert world.statuses() == {"bad": "rejected", "two": "queued", "one": "landed"}
    world.branch("bad", {"good": "x\n"})
    world.enqueue("bad", attempt=2)
    assert world.results() == ["rejected", "landed", "landed", "landed"]
    landed = [entry.id for entry in sorted(world.queue.entries(), key=lambda entry: entry.landed_at) if entry.landed_at]
    assert landed[0] == one.id
    assert landed[-1] == two.id


def test_other_options_amend_the_entry_until_it_is_landing(world):
    one = world.enqueue("one")
    seq = world.queue.state.seq
    assert world.queue.enqueue("r", "one", 1, "one", options=EntryOptions(priority=0)).id == one.id
    assert world.queue.state.seq == seq, "nothing was recorded"
    assert world.queue.enqueue("r", "one", 1, "one", options=EntryOptions(priority=5)).priority == 5
    with world.queue.locked():
        world.queue.append(StatusChanged((one.id,), "candidate", base="b", trees=("t",), commits=("c",)))
        world.queue.append(LandingStarted((one.id,), "b", "c", ("c",)))
    for late in (lambda: world.queue.enqueue("r", "one", 1, "one", options=EntryOptions(priority=1)),
                 lambda: commands.hold(world.queue, one.id), lambda: commands.cancel(world.queue, one.id, ""),
                 lambda: commands.reconfigure(world.queue, gate="other")):
        with pytest.raises(Refused, match="landing"):
            late()


def test_the_queues_configuration_decides_what_is_cleaned_out_of_a_slot(world):
    world.branch("main", {".gitignore": "*.o\n"})
    git(world.repo, "reset", "-q", "--hard")
    seen = world.witness.with_name("seen")
    world.queue.configure(QueueConfig(f"ls | grep -vE 'txt$' >> {seen}; ls b.txt >> {seen}; echo -- >> {seen}; "
                                 "touch ignored.o a.log b.txt", setup="touch made made.o"))
    for number, (clean, keep, left) in enumerate((
            ("untracked", (), {"ignored.o", "made"}), ("untracked", ("*.log",), {"ignored.o", "made", "a.log"}),
            ("ignored", ("b.*",), {"made", "b.txt"}), ("none", (), {"ignored.o", "made", "a.log", "b.txt"}))):
        commands.reconfigure(world.queue, clean=clean, keep=keep)
        for name in (f"first-{number}", f"second-{number}"):
            world.add(name)
            world.drain()
        second = set(Path(seen).read_text().split("--\n")[-2].split())
        assert second == {*left, "made.o"}, (clean, "what set-up made stays")


def test_an_entry_waits_for_approval_from_the_first_and_is_approved_or_rejected_once(world):
    world.open.touch()
    world.branch("one", {"one.txt": "x\n"})
    held = EntryOptions(approval=True)
    one = world.queue.enqueue("r", "one", 1, "one", options=held)
    assert (one.status, one.reason, one.awaits_approval) == ("held", "waiting for approval", True)
    world.enqueue("two")
    assert world.drained() == {"one": "held", "two": "landed"}
    assert commands.approve(world.queue, one.id).status == "queued"
    assert world.queue.enqueue("r", "one", 1, "one", options=held).status == "queued", "it needs no second approval"
    assert commands.approve(world.queue, one.id).status == "queued", "repeating it changes nothing"
    with pytest.raises(Refused, match="only an entry that waits for approval"):
        commands.reject(world.queue, one.id, "too late")
    world.drain()
    assert world.statuses()["one"] == "landed"
    world.branch("three", {"three.txt": "x\n"})
    three = world.queue.enqueue("r", "three", 1, "three", options=held)
    rejected = commands.reject(world.queue, three.id, "not like this")
    assert (rejected.status, rejected.reason) == ("rejected", "rejected in review: not like this")
    assert commands.reject(world.queue, three.id, "again") == rejected
    with pytest.raises(Refused, match="attempt 1 of three cannot land any more: it is rejected"):
        commands.approve(world.queue, three.id)
    assert world.queue.enqueue("r", "three", 2, "three", options=held).awaits_approval
    world.branch("four", {"four.txt": "x\n"})
    with pytest.raises(Refused, match="needs no approval"):
        commands.approve(world.queue, world.enqueue("four").id)


def test_work_that_waits_for_approval_lands_only_after_it(world):
    """Neither a release, nor a retry, nor an enqueue by hand replaces the approval of a user."""
    world.open.touch()
    one = world.queue.enqueue("r", "one", 1, "one", options=EntryOptions(approval=True))
    with pytest.raises(Refused, match="waits for approval; `garrison review one --run r` shows it"):
        commands.release(world.queue, one.id)
    by_hand = world.queue.enqueue("r", "one", 2, "one")
    assert (by_hand.awaits_approval, by_hand.reason) == (True, "waiting for approval")
    commands.reject(world.queue, by_hand.id, "not like this")
    again = commands.retry(world.queue, by_hand.id)
    assert (again.attempt, again.awaits_approval) == (3, True)
    commands.cancel(world.queue, again.id, "withdrawn")
    assert world.queue.enqueue_by_hand("one", "one", run="r").awaits_approval
    assert world.drained() == {"one": "held"}
    commands.approve(world.queue, world.queue.entries()[-1].id)
    assert world.drained() == {"one": "landed"}


def test_work_that_needs_approval_needs_it_without_the_queues_journal(world):
    """As its runner recorded; where its task is lost as well, it must not land unseen."""
    files = RunFiles(world.queue.home, "r")
    world.branch("three", {"three.txt": "x\n"})
    for node, effect in (("one", "ask"), ("two", "tell"), ("three", "")):
        files.attempt(node, 1).mkdir(parents=True)
        if effect:
            save(files.attempt(node, 1) / "task.json", Task("r", node, 1))
            fact = FactRecorded("changes", json.dumps({"tip": "", "changes": [["gate", effect, 1, ["run.sh"]]]}), 1)
            Writer(files.process_journal(f"runner-{node}"), "test").append(fact.kind, encode(fact),
                                                                           "2026-01-01T00:00:00.000000Z")
        else:
            (files.attempt(node, 1) / "task.json").write_text("damaged")
        world.queue.enqueue("r", node, 1, node)
    world.queue.path.unlink()
    recovery.rebuild(world.queue)
    assert {entry.node: (entry.status, entry.awaits_approval) for entry in world.queue.entries()} == {
        "one": ("held", True), "two": ("queued", False), "three": ("held", True)}


def test_a_review_shows_what_the_work_itself_changes_before_and_after_it_has_landed(world):
    world.open.touch()
    world.enqueue("two")
    world.drain()
    one = world.enqueue("one")

    def shown() -> list[str]:
        review = read_review(Runtime.real(world.queue.home), world.queue, world.queue.entry(one.id))
        return [line for line in review.diff.splitlines() if line.startswith(("+", "-"))]

    before = shown()
    assert before == ["--- /dev/null", "+++ b/one.txt", "+x"]
    world.drain()
    assert (world.statuses()["one"], shown()) == ("landed", before)
    # a command within an escape sequence is run by a shell, and would be removed as part of the sequence
    world.branch("hides", {"run.sh": "echo a \x1b]0;; rm -r data;\x07\r\n# \x7f\rb\n"})
    review = read_review(Runtime.real(world.queue.home), world.queue, world.enqueue("hides"))
    assert "echo a ‹U+001B›]0;; rm -r data;‹U+0007›" in review.diff
    assert "# ‹U+007F›‹U+000D›b" in review.diff
