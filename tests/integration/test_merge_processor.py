from __future__ import annotations

import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from merge_support import FORK, World, await_gate, check, drive, finish, git, leave_daemon, until, wait

from garrison.ends import Wait
from garrison.errors import Fenced, LockLost, Refused
from garrison.merge import candidates, commands
from garrison.merge.config import QueueConfig
from garrison.merge.entry import EntryOptions
from garrison.merge.gate import gate_marker
from garrison.merge.processor import MergeProcessor, StepResult
from garrison.merge.queue import MergeQueue, find_unrecorded, list_queues
from garrison.merge.records import QueueHindered, QueuePaused, QueueResumed
from garrison.node.runner import Runner
from garrison.records import journal, log_retention
from garrison.run.merge_client import MergeClient, RunEntries
from garrison.run.merge_processor import QueueWorker
from garrison.system import failpoint, machine, processes
from garrison.system.event_loop import EventLoop
from support import DEADLINE


@pytest.mark.smoke
def test_green_entries_land_in_order_and_their_runners_are_signalled(world):
    first = world.branch("one", {"one.txt": "1\n"})
    world.branch("two", {"two.txt": "2\n"})
    world.enqueue("one")
    world.enqueue("two")
    assert world.results() == ["landed", "landed"]
    assert git(world.repo, "show", "main:one.txt") == "1"
    assert git(world.repo, "status", "--porcelain") == ""
    assert (world.repo / "two.txt").read_text() == "2\n"
    outcomes = [(o.entry.node, o.type) for o in world.queue.state.outcomes]
    assert outcomes == [("one", "VALIDATION_PASSED"), ("one", "MERGE_COMPLETE"),
                        ("two", "VALIDATION_PASSED"), ("two", "MERGE_COMPLETE")]
    assert world.entry("one").landed_at
    assert git(world.repo, "rev-parse", f"{world.entry('one').commit}^2") == first
    assert git(world.repo, "for-each-ref", "refs/garrison") == ""
    check(world)
    before = (world.tip(), world.gates())
    git(world.repo, "branch", "same")
    world.enqueue("same")
    world.land("same")
    assert (world.tip(), world.gates()) == before, "the target has it already"


def test_no_record_of_the_queue_wakes_a_runner_that_waits_for_its_landing(world):
    """Regression: each record woke the runners of all nodes, so the cost of a run grew with their square."""
    for node in ("one", "two"):
        world.branch(node, {f"{node}.txt": "1\n"})
    client = MergeClient(MergeQueue(world.home, world.repo), SimpleNamespace(run_id="r", node="one", attempt=1), "one",
                         "runner-one@r")
    assert client.read_status("validating") is None
    world.enqueue("one")
    assert client.read_status("validating").status == "queued"
    assert client.read_status("executing") is None, "while its agent works it has no entry"
    quiet = SimpleNamespace(watch=lambda _: None)
    folder = world.home / "attempt"
    folder.mkdir()
    runner = SimpleNamespace(_view=None, jobs=quiet, snapshotter=quiet, folder=folder, merge_client=client)
    with EventLoop() as loop:
        Runner.watch(runner, loop)
        world.enqueue("two")
        assert not loop.wait(0.01)
        (folder / "result.json").touch()
        assert loop.wait(DEADLINE), "nothing was watched"
    world.enqueue("one", attempt=2)
    assert client.read_status("validating").status == "superseded"


def test_a_follower_of_the_queue_learns_at_once_of_all_but_the_steps_of_its_entries(world):
    opened = world.witness.with_name("opened")
    world.queue.configure(QueueConfig(f"until test -e {opened}; do sleep 0.01; done; test ! -e bad"))
    world.add("one")
    follower = MergeQueue(world.home, world.repo)
    assert follower.has_more_than_steps(), "it has read nothing yet"
    assert [follower.state.entry(entry.id).status for entry in world.queue.entries()] == ["queued"]
    processor = world.processor()
    await_gate(processor)
    assert [entry.status for entry in world.queue.entries()] == ["testing"]
    assert not follower.has_more_than_steps()
    opened.touch()
    drive(processor)
    assert follower.has_more_than_steps(), "it has landed"
    assert [entry.status for entry in follower.entries()] == ["landed"]
    world.add("bad", {"bad": "1\n"})
    assert not follower.has_more_than_steps()
    drive(processor)
    assert follower.has_more_than_steps(), "it is rejected"
    assert follower.entries()[-1].status == "rejected"
    world.branch("new", {"new": "1\n"})
    world.queue.enqueue("r", "new", 1, "new", options=EntryOptions(approval=True))
    assert follower.has_more_than_steps(), "it waits for the user"
    assert follower.entries()[-1].status == "held"
    world.enqueue("new", 2)
    assert follower.has_more_than_steps(), "it is superseded"
    assert [entry.status for entry in follower.entries()[-2:]] == ["superseded", "held"]
    for record in (QueueHindered("a disk"), QueuePaused((), "asked", "", ""), QueueResumed("asked")):
        with world.queue.locked():
            world.queue.append(record)
        assert follower.has_more_than_steps()
        assert follower.state.seq == world.queue.state.seq
    processor.close()


def test_a_guardian_is_told_of_an_entry_only_when_it_changes(world):
    """Regression: an earlier entry of the node cleared its note in every turn, and so it was written in every turn."""
    world.branch("one", {"one.txt": "1\n"})
    world.enqueue("one")
    world.branch("one", {"one.txt": "2\n"})
    world.queue.enqueue("r", "one", 2, "one", options=EntryOptions(approval=True))
    world.queue.enqueue("another", "one", 1, "one")
    told = []
    entries = RunEntries(world.queue, "r")
    for _ in range(3):
        statuses = entries.read(lambda entry: told.append((entry.attempt, entry.status)))
    assert [(node, status.attempt, status.status) for node, status in statuses.items()] == [("one", 2, "held")]
    assert told == [(1, "superseded"), (2, "held")]
    commands.approve(world.queue, world.entry("one").id)
    assert entries.read(lambda entry: told.append((entry.attempt, entry.status)))["one"].status == "queued"
    assert told[2:] == [(2, "queued")]


def test_a_copy_of_a_process_goes_on_from_what_that_has_replayed(world, monkeypatch):
    """Regression: each runner replayed the records of all nodes, so the cost of a run grew with their square."""
    for node in ("one", "two", "three"):
        world.branch(node, {f"{node}.txt": "1\n"})
    world.enqueue("one")
    assert [entry.node for entry in world.queue.entries()] == ["one"]
    world.enqueue("two")
    decode, decoded = journal.decode_line, []
    monkeypatch.setattr(journal, "decode_line", lambda *line: decoded.append(line) or decode(*line))
    receives, sends = FORK.Pipe(duplex=False)

    def copy() -> None:
        for _ in range(2):
            queue = MergeQueue(world.home, world.repo)
            sends.send(([entry.node for entry in queue.entries()], len(decoded)))
            decoded.clear()
        world.enqueue("three")
        sends.send([entry.node for entry in queue.entries()])

    child = FORK.Process(target=copy)
    child.start()
    assert receives.recv() == (["one", "two"], 1), "the second record, which its parent had not read"
    assert receives.recv() == (["one", "two"], 3), "a second handle has a reader of its own"
    assert receives.recv() == ["one", "two", "three"]
    child.join()
    assert world.queue.entries()[-1].node == "three", "the parent's goes on as well"
    assert len(MergeQueue(world.home, world.repo).entries()) == 3


def test_an_endless_gate_log_keeps_its_beginning_and_its_end(tmp_path):
    world = World(tmp_path, gate="echo begins; yes | head -c 9000000; echo ends; test ! -e bad")
    world.add("bad", {"bad": "x\n"})
    world.drain()
    assert "ends" in world.entry("bad").reason
    log = Path(world.entry("bad").log)
    assert log.stat().st_size < log_retention.MAX_BYTES + 100
    assert (log.read_text().split("\n", 1)[0], log.read_text().splitlines()[-1]) == ("begins", "ends")
    for number in range(log_retention.MAX_LOGS + 3):
        (log.parent / f"old-{number}.log").touch()
    world.add("one")
    world.drain()
    assert len(list(log.parent.iterdir())) <= log_retention.MAX_LOGS + 1


@pytest.mark.smoke
def test_a_conflict_names_its_files_and_other_entries_land(world):
    world.add("one", {"lines.txt": "changed\n"})
    world.add("two", {"lines.txt": "otherwise\n", "more.txt": "m\n"})
    world.add("three", {"three.txt": "3\n"})
    assert world.results() == ["landed", "conflict", "landed"]
    assert world.entry("two").files == ("lines.txt",)
    failed = [o for o in world.queue.state.outcomes if o.type == "MERGE_FAILED"]
    assert failed[0].payload["files"] == ["lines.txt"]
    assert "lines.txt" in failed[0].payload["error"]
    check(world)


def test_a_red_gate_rejects_only_after_the_target_was_known_to_pass(tmp_path):
    """The same commit stays the same entry, until another attempt of the node tries it again."""
    world = World(tmp_path, gate="echo the very reason; test ! -e bad")
    first = world.add("bad", {"bad": "x\n"})
    assert world.enqueue("bad") == first
    world.add("good", {"good": "x\n"})
    assert world.results() == ["rejected", "landed"]
    assert "failed (exit 1)" in world.entry("bad").reason and "the very reason" in world.entry("bad").reason
    assert [outcome.type for outcome in world.queue.state.outcomes if outcome.entry.node == "bad"] == [
        "VALIDATION_FAILED", "MERGE_FAILED"]
    assert world.gates() == 2  # the bare target, and good
    check(world)
    assert world.enqueue("bad").status == "rejected"
    again = world.enqueue("bad", attempt=2)
    assert (again.status, again.attempt, len(world.queue.entries())) == ("queued", 2, 3)


def test_a_stopped_gate_or_setup_is_ended_in_time_and_repeated(tmp_path, monkeypatch):
    monkeypatch.setenv("GARRISON_BEAT_TIMEOUT", "0.5")
    gate, setup = (f"test -e {tmp_path}/{stage} || {{ touch {tmp_path}/{stage}; kill -STOP $$; }}"
                   for stage in ("gate", "setup"))
    world = World(tmp_path, gate=gate, setup=setup, timeout=DEADLINE)
    world.add("one")
    world.land("one")
    hung = [stored.data["reason"] for stored in journal.read_all(world.queue.path) if stored.kind == "verdict"
            and stored.data["result"] == "lost"]
    assert [words in each for words, each in zip(("the set-up `", "the gate `"), hung, strict=True)] == [True, True]
    assert all("hung and was ended" in each and "are stopped (SIGSTOP)" in each for each in hung)
    check(world)


def test_a_gate_that_was_stopped_until_it_timed_out_is_no_red_gate(tmp_path):
    runs = tmp_path / "runs"
    world = World(tmp_path, gate=f"echo >> {runs}; test $(wc -l < {runs}) -gt 2 || kill -STOP $$", timeout=2.0)
    world.add("one")
    world.land("one")
    stored = journal.read_all(world.queue.path)
    lost = [each.data for each in stored if each.kind == "verdict" and each.data["result"] == "lost"]
    assert all("it was stopped for about" in data["reason"] and data["uncounted"] for data in lost)
    assert len(runs.read_text()) == len(lost) + 1 == 3
    told = [each.data.get("reason", "") for each in stored if each.kind == "hindered"]
    assert "run again (1 of 5)" in told[0]
    assert told[-1] == ""


@pytest.mark.smoke
def test_a_gate_that_fails_on_the_bare_target_pauses_the_queue_and_rejects_no_entry(world):
    world.add("one")
    for gate, pause in (("no-such-command-here", "gate_broken"), ("exit 5", "gate_broken"), ("exit 3", "base_red"),
                        ("echo 'Ran 0 tests in 0.0s'", "gate_broken"), ("sleep 60", "gate_broken")):
        commands.reconfigure(world.queue, gate=gate, timeout=0.3 if "sleep" in gate else 30.0)
        assert pause in world.drain(until="paused").text, gate
        assert world.entry("one").status == "queued"
        assert world.tip() == world.start
        assert world.queue.state.outcomes == []


def test_a_broken_gate_is_the_entrys_fault_if_the_target_passes(tmp_path):
    ends = {"missing": "exit 127", "empty": "exit 5", "slow": "sleep 60"}
    world = World(tmp_path, gate="; ".join(f"if test -e {name}; then {end}; fi" for name, end in ends.items()),
                  timeout=1.5)
    for name in ends:
        world.add(name, {name: "x\n"})
    assert world.results() == ["rejected"] * 3
    check(world)


def test_a_paused_queue_resumes_when_the_target_moves(tmp_path):
    world = World(tmp_path, gate="test -e cure")
    world.add("one")
    world.drain(until="paused")
    (world.repo / "cure").write_text("")
    git(world.repo, "add", "-A")
    git(world.repo, "commit", "-qm", "cure")
    world.land("one")
    check(world, foreign=1)


def test_without_a_gate_entries_wait(world):
    queue = MergeQueue(world.home, world.repo, "other")
    git(world.repo, "branch", "other")
    world.branch("one", {"one.txt": "1\n"})
    queue.enqueue("r", "one", 1, "one")
    processor = world.processor(queue)
    assert drive(processor, "no_gate").text.startswith("no gate is recorded")
    processor.close()
    assert [entry.status for entry in queue.entries()] == ["queued"]
    queue.configure(QueueConfig(no_gate=True))
    processor = world.processor(queue)
    finish(processor)
    assert git(world.repo, "show", "other:one.txt") == "1"


def test_after_a_foreign_move_entries_are_tested_again_on_the_new_tip(tmp_path):
    world = World(tmp_path, gate=f"until test -e {tmp_path}/go; do sleep 0.02; done")
    world.add("one")
    processor = world.processor()
    await_gate(processor)
    git(world.repo, "commit", "-q", "--allow-empty", "-m", "someone else")
    (world.repo / "else.txt").write_text("e\n")
    git(world.repo, "add", "-A")
    git(world.repo, "commit", "-qm", "someone else")
    (tmp_path / "go").touch()
    finish(processor, "one")
    assert world.entry("one").tests == 2
    check(world, foreign=2)


def test_landings_that_a_user_took_back_are_undone_until_they_land_again(world):
    """The target's history decides, not the journal: moved back, moved forth, amended, moved back for good."""
    branches = {name: world.branch(name, {f"{name}.txt": "1\n"}) for name in ("one", "two", "three")}
    for name in ("one", "two"):
        world.enqueue(name)
        world.drain()
    landed = world.tip()

    def found(how: str) -> list[str]:
        git(world.repo, *how.split())
        before = world.queue.path.read_bytes()
        shown = list_queues(world.home, unrecorded=find_unrecorded(world.home))[0].state.entries
        assert world.queue.path.read_bytes() == before, "a look does not write"
        world.queue.notice_undone()
        recorded = world.queue.state.entries
        assert [entry.status for entry in shown.values()] == [entry.status for entry in recorded.values()]
        assert find_unrecorded(world.home) == {world.queue.path: []}
        return [world.entry(name).status for name in ("one", "two")]

    assert found("reset -q --hard HEAD~1") == ["landed", "undone"]
    assert git(world.repo, "rev-parse", "refs/garrison/mq/" + world.entry("two").id + "/head") == branches["two"]
    assert found(f"reset -q --hard {landed}") == ["landed", "landed"]
    assert found("commit -q --amend --no-edit --date=2001-02-03T04:05") == ["landed", "landed"]
    git(world.repo, "reset", "-q", "--hard", "HEAD~2")
    world.enqueue("three")
    world.drain()  # which a processor notices by itself
    assert [world.entry(name).status for name in ("one", "two", "three")] == ["undone", "undone", "landed"]
    world.branch("two", {}, start=branches["two"])
    again = world.queue.enqueue_by_hand("two", "two", run="r", oid=branches["two"])
    assert (again.attempt, again.oid, again.status) == (2, branches["two"], "queued")
    world.drain()
    assert [(entry.attempt, entry.status) for entry in world.queue.state.entries_of("r", "two")] == \
        [(1, "undone"), (2, "landed")]
    assert git(world.repo, "show", "main:two.txt") == "1"
    before = world.tip()
    world.queue.notice_undone()
    world.add("four")
    world.drain()
    git(world.repo, "reset", "-q", "--hard", before)
    world.queue.notice_undone()
    assert world.entry("four").status == "undone", "moved back to just what was seen before the landing"


def test_a_swap_that_lost_its_race_is_judged_by_the_ref(world, monkeypatch):
    world.add("one")
    processor = world.processor()
    swap, moved = processor.writer.branch.swap, []

    def late(old, new, entry, **rest):
        if not moved:
            moved.append(git(world.repo, "commit", "-q", "--allow-empty", "-m", "in between"))
        return swap(old, new, entry, **rest)

    monkeypatch.setattr(processor.writer.branch, "swap", late)
    git(world.repo, "checkout", "-q", "--detach")  # so that main is checked out nowhere
    (world.repo / ".git/HEAD").write_text("ref: refs/heads/main\n")
    monkeypatch.setattr("garrison.merge.checkouts.find_checkouts", lambda git, target: ([], None))
    finish(processor)
    assert "foreign" in [entry.kind for entry in journal.read_all(world.queue.path)]
    assert world.entry("one").status == "landed"
    check(world, foreign=1)


def test_a_second_processor_waits_and_a_fenced_one_stops(world):
    first = world.processor()
    second_queue = MergeQueue(world.home, world.repo, token="second")
    second = MergeProcessor(second_queue, trees=world.trees, environment={})
    assert not second.acquire()
    world.queue.processor_lock.unlink()
    with pytest.raises(LockLost):
        first.heartbeat()
    assert second.acquire()
    world.add("one")
    with pytest.raises(Fenced):
        first.step()
    with pytest.raises(Fenced):
        first.writer.append(QueueResumed("decided before the other took over"))
    assert isinstance(second.step(), StepResult)
    first.close()
    second.close()


def test_a_processor_replaced_while_it_starts_a_gate_run_ends_that_run(tmp_path, monkeypatch):
    world = World(tmp_path, gate="sleep 60")
    entry = world.add("one")
    first = world.processor()
    second = MergeProcessor(MergeQueue(world.home, world.repo, token="second"), trees=world.trees, environment={})
    taken = []

    def take_over(name):
        if name == "test_recorded" and not taken:
            world.queue.processor_lock.unlink()
            taken.append(second.acquire())
            second.recover()

    monkeypatch.setattr(failpoint, "here", take_over)
    with pytest.raises(Fenced):
        for _ in range(50):
            first.step()
    assert taken == [True]
    assert not processes.find_marked(gate_marker(world.home, entry.run, entry.id, 1))
    first.close()
    second.close(end_gate=True)


def test_another_gate_is_refused_showing_both_while_the_queue_is_in_use(world):
    world.add("one")
    with pytest.raises(Refused, match=r"test ! -e bad.*make check"):
        world.queue.configure(QueueConfig("make check"))
    world.drain()
    processor = world.processor()
    with pytest.raises(Refused, match="a running processor"):
        world.queue.configure(QueueConfig("make check"))
    processor.close()
    world.queue.configure(QueueConfig("make check"))
    assert world.queue.state.config.gate == "make check"


def test_the_verdict_of_a_gate_that_leaves_processes_wakes_the_processor(tmp_path):
    """Its wrapper stays with them, so that its end tells nothing."""
    world = World(tmp_path, gate=f"(setsid sleep 300 >/dev/null 2>&1 &); until test -e {tmp_path}/go; do sleep 0.01; "
                                 "done")
    world.add("one")
    processor = world.processor()
    await_gate(processor)
    assert {folder.name for folder in processor.gates.folders} == {"gate"}
    (tmp_path / "go").touch()
    began = time.monotonic()
    while isinstance(done := processor.step(), Wait):
        wait(done.fd, DEADLINE)
        assert time.monotonic() - began < DEADLINE / 2, "the verdict did not wake it"
    finish(processor, "one")
    check(world)


def test_a_killed_gate_is_run_again(tmp_path):
    world = World(tmp_path, gate=f"test -e {tmp_path}/again || {{ touch {tmp_path}/again; sleep 300; }}")
    world.add("one")
    processor = world.processor()
    until(lambda: (tmp_path / "again").exists() or not processor.step(), "the first gate")
    for row in processes.list_processes():
        if row.marker and row.marker.startswith(str(world.home)):
            processes.send(row.pid, row.ticks, signal.SIGKILL)
    finish(processor)
    assert (world.entry("one").status, world.entry("one").tests) == ("landed", 2)
    check(world)


def test_a_gate_without_a_verdict_is_run_again_and_counts_at_last(tmp_path):
    """Regression: a foreign signal to the gate's shell rejected the entry."""
    ends = {"term": ("kill -TERM $$", 6), "segv": ("sh -c 'kill -SEGV $$'", 3),
            "full": ("{ echo 'write error: No space left on device'; false; }", 3)}
    once = "; ".join(f"if test -e {name} -a ! -e {tmp_path}/{name}; then touch {tmp_path}/{name}; {end} || exit $?; fi"
                     for name, (end, _) in ends.items())
    always = "; ".join(f"if test -e crash-{name}; then {end} || exit $?; fi" for name, (end, _) in ends.items())
    world = World(tmp_path, gate=f"{once}; {always}")
    for name, (_, runs) in ends.items():
        world.add(name, {name: "1\n"})
        world.drain()
        assert (world.entry(name).status, world.entry(name).tests) == ("landed", 2), name
        entry = world.add(f"crash-{name}", {f"crash-{name}": "1\n"})
        world.drain()
        entry = world.queue.entry(entry.id)
        assert (entry.status, entry.tests) == ("rejected", runs + 1), "the last on the target"
        assert ("filled its disk" if name == "full" else "was ended by a signal, or had no room") in entry.reason
    check(world)


def test_on_a_full_disk_no_gate_starts_and_none_counts_as_lost(tmp_path, monkeypatch):
    """Regression: three runs whose verdict could not be written rejected the entry."""
    room = tmp_path / "room"
    world = World(tmp_path, gate=f"test -e {room} || exit 1")
    for name, crowded in (("one", world.trees), ("two", world.home)):
        world.add(name)
        monkeypatch.setattr(machine, "is_full",
                            lambda path, crowded=crowded: path.is_relative_to(crowded) and not room.exists())
        processor = world.processor()
        steps = [processor.step() for _ in range(10)]
        assert (steps[-1].kind, str(crowded) in steps[-1].text) == ("no_room", True)
        room.touch()
        finish(processor)
        assert (world.entry(name).status, world.entry(name).tests) == ("landed", 1)
        room.unlink()
    check(world)


def test_the_running_gate_is_adopted_not_started_again(tmp_path):
    world = World(tmp_path, gate=f"{leave_daemon(tmp_path / 'pids')}; echo run >> {tmp_path}/runs; "
                                 f"until test -e {tmp_path}/go; do sleep 0.02; done")
    world.user.use_mode("none")  # a sandbox's processes end with it
    world.add("one")
    first = world.processor()
    await_gate(first)
    first.close()
    second = world.processor()
    assert second.step().kind == "gate"
    (tmp_path / "go").touch()
    drive(second)
    second.close()
    assert (tmp_path / "runs").read_text() == "run\n"
    assert world.entry("one").status == "landed"
    daemon = processes.probe(int((tmp_path / "pids").read_text()))
    assert daemon is None or daemon.zombie, "it ends with its gate, whichever processor reads the verdict"
    check(world)


def test_a_gate_whose_entry_was_superseded_between_processors_is_ended(tmp_path):
    world = World(tmp_path, gate="test ! -e slow || sleep 300")
    world.add("one", {"slow": "x\n"})
    first = world.processor()
    await_gate(first)
    first.close()
    world.add("one", {"fast": "x\n"})
    world.land("one")
    check(world)


def test_the_slot_shows_exactly_the_candidate_and_the_environment_no_secrets(tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_SECRET", "s3cret")
    monkeypatch.setenv("VIRTUAL_ENV", "/elsewhere")
    probe = tmp_path / "probe"
    world = World(tmp_path, gate=f"ls -A >> {probe}; touch left-over; echo changed > lines.txt; env > {tmp_path}/env")
    for node in ("one", "two"):
        world.add(node, {f"{node}.txt": "x\n"})
    world.drain()
    assert probe.read_text().split() == [".git", "lines.txt", "one.txt",
                                         ".git", "lines.txt", "one.txt", "two.txt"]
    assert world.entry("two").status == "landed"
    slots = [path.name for path in (world.trees / world.queue.git.key).iterdir() if path.is_dir()]
    assert sorted(slots) == [".slot-1.sandbox", "slot-1"]
    seen = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines() if "=" in line)
    assert seen["GARRISON_LIFE"] == f"{world.home}:r:gate-{world.entry('two').id}#1"
    assert seen["GARRISON_SLOT"] == "1"
    assert seen["GARRISON_TREE"] == str(world.repo), "the path of each tree inside"
    assert not {"SOME_SECRET", "VIRTUAL_ENV"} & set(seen)


def test_setup_runs_once_and_again_when_its_key_changes(tmp_path):
    runs = tmp_path / "setups"
    world = World(tmp_path, gate="test -e made/it", setup=f"mkdir -p made && touch made/it && echo run >> {runs}")
    for node, changes in (("one", {"a": "1"}), ("two", {"b": "1"}), ("three", {"requirements.txt": "x\n"})):
        world.add(node, changes)
        world.land(node)
        assert len(runs.read_text().split()) == (2 if node == "three" else 1), "what landed serves the next one"
    check(world)


def test_stale_compiled_python_never_decides(tmp_path):
    world = World(tmp_path, gate="touch -d @1700000000 m.py; "
                  "python3 -c 'import m; assert m.x == open(\"want\").read().strip()'")
    world.add("one", {"m.py": "x = '1'\n", "want": "1\n", ".gitignore": "__pycache__\n"})
    world.add("two", {"m.py": "x = '2'\n", "want": "2\n"}, "one")
    assert world.results() == ["landed", "landed"]


def test_a_rebuilt_candidate_is_the_same_commit(world):
    entry = world.add("one")
    processor = world.processor()
    processor.step()
    built = world.entry("one").commit
    trailers = processor.builder.trailers_of(entry, (entry.id,), 1, world.start)
    again = candidates.build_candidate(processor.builder.git, entry, world.start, trailers)
    assert again.commit == built
    processor.close()


def test_two_homes_take_turns_at_one_target(world, tmp_path):
    """A processor keeps the target while it has work, and leaves it to another home's as soon as it has none."""
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)

    def worker(queue: MergeQueue) -> QueueWorker:
        runtime = SimpleNamespace(home=queue.home, clock=clock, environment=lambda launch, more: world.environment)
        launch = SimpleNamespace(trees=str(world.trees), held_back=(), gate="true", no_gate=False, base="main")
        supervisor = SimpleNamespace(record=lambda event: None)
        return QueueWorker(SimpleNamespace(runtime=runtime, launch=launch, supervisor=supervisor, send=lambda _: None,
                                           is_at_work=lambda holder: False), queue)

    other = MergeQueue(tmp_path / "home2", world.repo, token="other")
    other.configure(QueueConfig(no_gate=True))
    ours, theirs = worker(world.queue), worker(other)
    world.branch("one", {"one.txt": "1\n"})
    world.branch("two", {"two.txt": "1\n"})
    other.enqueue("r2", "two", 1, "two")
    world.enqueue("one")
    ours.turn()
    for _ in range(5):
        assert not theirs.turn() and not theirs.has_queue
        clock.now += 1.0
    assert other.state.hindrance == ("runs of another home are landing on main; this home's turn comes once they have "
                                     "nothing to test")
    until(lambda: (ours.turn(), world.entry("one").status == "landed" and not ours.has_queue)[1], "the first to land")
    until(lambda: (theirs.turn(), other.entries()[0].status == "landed")[1], "the other home to land")
    assert other.state.hindrance == ""
    clock.now += 3.0
    ours.turn()
    assert not ours.has_queue, "without work it does not ask for it"
    world.add("three")
    until(lambda: (ours.turn(), theirs.turn(), world.entry("three").status == "landed")[2], "the last")
    ours.merge.close()
    theirs.merge.close()
